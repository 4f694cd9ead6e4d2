"""The time of a round trip.

The bench compares a ping with plain ZeroMQ, and a scripted turn with a Ray actor that writes the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import harness
import venvs
from harness import Args, Row

PINGS = 200
TURNS = 50
PROMPT = "p" * 1024

PING = ("ping round trip, 1 KB, async API (us; peer: sync pyzmq DEALER/ROUTER + msgspec)", "<= 2", "<= 1.5")
TURN = ("scripted query, three appends, durability=process (us; peer: Ray actor, same appends)", "<= 0.4", "<= 0.15")
POWER = ("the same, durability=power (us; peer: Ray actor, same bytes, two fdatasyncs)", "<= 1", "<= 0.8")


async def timed(times: int, once: Callable[[], Awaitable[Any]]) -> float:
    """Return the median time of `times` calls in microseconds."""
    taken = []
    for _ in range(times):
        begin = perf_counter()
        await once()
        taken.append(perf_counter() - begin)
    return 1e6 * median(taken)


def last_turn(home: Path) -> list[str]:
    """Return the lines of the last turn in the session file of the only agent under `home`."""
    (file,) = (path for path in home.rglob("*.jsonl") if '"type":"session"' in path.read_text().partition("\n")[0])
    lines = file.read_text().splitlines(keepends=True)[-3:]
    if '"turn_end"' not in lines[-1]:
        raise RuntimeError(f"{file} does not end with a turn of three lines")
    return lines


async def pings(args: Args, folder: Path) -> Row:
    """Send pings of 1 KB to one agent, and to one plain DEALER."""
    import zmq_echo

    from orch import AsyncOrchestrator, ScriptedBackend

    hub, payload = zmq_echo.Hub(folder), PROMPT.encode()
    echo = zmq_echo.Worker(hub, "zmq_echo.py")
    async with AsyncOrchestrator(home=folder / "home") as orchestrator:
        agent = await orchestrator.spawn("nothing", backend=ScriptedBackend([]))
        took = await harness.interleave(
            args.rounds,
            ours=lambda: timed(PINGS, lambda: agent.ping(payload)),
            peer=lambda: 1e6 * hub.round_trip(echo.identity, payload, PINGS),
        )
    echo.stop()
    hub.close()
    return harness.compared(PING[0], took["ours"], took["peer"], must=PING[1], aim=PING[2])


async def turns(args: Args, folder: Path, durability: str, ray: harness.Peer | None, reason: str) -> Row:
    """Query one agent, and one Ray actor that writes the bytes of the agent's turn."""
    from orch import AsyncOrchestrator, Config, ScriptedBackend

    figure, must, aim = TURN if durability == "process" else POWER
    home = folder / durability
    async with AsyncOrchestrator(config=Config(durability=durability), home=home) as orchestrator:
        agent = await orchestrator.spawn("nothing", backend=ScriptedBackend([{"loop": ["ok"]}]))
        # The first turn also contains the task. The second turn is like all later turns.
        for _ in range(2):
            await agent.query(PROMPT)
        sides: dict[str, harness.Side] = {"ours": lambda: timed(TURNS, lambda: agent.query(PROMPT))}
        if ray is not None:
            question = {
                "lines": last_turn(home),
                "path": str(folder / f"{durability}.ray"),
                "prompt": PROMPT,
                "times": TURNS,
                "power": durability == "power",
            }
            sides["peer"] = lambda: 1e6 * ray.ask(**question)["seconds"]
        took = await harness.interleave(args.rounds, **sides)
    if ray is None:
        return harness.skipped(figure, reason, must=must, aim=aim, ours=took["ours"])
    return harness.compared(figure, took["ours"], took["peer"], must=must, aim=aim)


async def measure(args: Args) -> list[Row]:
    """Measure the pings, then the turns. If Ray is installed, measure the turns with Ray too."""
    sys.path.append(str(harness.PEERS))
    ray, reason = None, ""
    with harness.scratch() as folder:
        rows = [await pings(args, folder)]
        try:
            python = venvs.peer(venvs.RAY, create=not args.quick) / "python"
        except venvs.MissingPeerError as error:
            reason = str(error)
        else:
            ray = harness.Peer(python, "ray_peer.py", env={"RAY_USAGE_STATS_ENABLED": "0"})
        try:
            rows += [await turns(args, folder, durability, ray, reason) for durability in ("process", "power")]
        finally:
            if ray is not None:
                ray.close()
    return rows


if __name__ == "__main__":
    harness.main(measure)
