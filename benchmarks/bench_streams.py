"""Streamed answers of many agents at once, compared with one plain process per answer that uses the SDK alone.

The CPU time is that of all processes of orch (root and workers) or of all plain processes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import harness
from bench_memory import private_mib
from harness import Args, Row

CHUNKS = 150
PER_SECOND = 30
AGENTS_AT_ONCE = 12
SIZES = {"10 KB": 10_000, "3 MB": 3_000_000}
UNWATCHED, WATCHED = ("<= 0.55", "<= 0.45"), ("<= 0.65", "<= 0.55")
MEMORY = ("<= 0.25", "<= 0.2")
FIRST = ("<= 3", "<= 1.5")


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of all threads of a process. The kernel counts them in nanoseconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def model(chunks: int, per_second: float, *certificate: str) -> Iterator[str]:
    """Run the model, and yield its address."""
    server = harness.Peer(sys.executable, "streaming_model.py", str(chunks), str(per_second), *certificate)
    try:
        yield server.ask()["url"]
    finally:
        server.close()


@contextmanager
def readers(count: int, url: str, env: dict[str, str]) -> Iterator[list[harness.Peer]]:
    """Run `count` plain processes, which have imported the SDK and used their connection once."""
    peers = [harness.Peer(sys.executable, "stream_reader.py", url, env=env) for _ in range(count)]
    try:
        yield peers
    finally:
        for peer in peers:
            peer.close()


async def together(peers: list[harness.Peer], **question: Any) -> list[dict[str, float]]:
    """Return the answers of the peers, which read at the same time."""
    return await asyncio.gather(*(asyncio.to_thread(peer.ask, **question) for peer in peers))


async def agents_of(orchestrator: Any, count: int) -> list[Any]:
    """Spawn `count` agents without tools."""
    agents: list[Any] = []
    while len(agents) < count:
        batch = min(AGENTS_AT_ONCE, count - len(agents))
        agents += await asyncio.gather(*(orchestrator.spawn("nothing", tools=[], context="none") for _ in range(batch)))
    return agents


async def chunks(args: Args, folder: Path, url: str, count: int, env: dict[str, str], how: str) -> list[Row]:
    """Measure the CPU time of a chunk, and the memory of an agent that streams."""
    from orch import AsyncOrchestrator, Config, SubagentsConfig

    given = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": url, "PATH": os.environ["PATH"], **env}
    weights: list[float] = []
    plain_weights: list[float] = []
    config = Config(subagents=SubagentsConfig(max_concurrent=count))
    home = folder / f"home{count}{how}"
    async with AsyncOrchestrator("anthropic:claude-sonnet-5-5", config=config, home=home, env=given) as root:
        agents = await agents_of(root, count)
        pids = [os.getpid(), *[agent.pid for agent in agents]]

        def ours(on_event: Callable[[Any], None] | None) -> Callable[[], Awaitable[float]]:
            async def measure() -> float:
                before = sum(map(cpu_of, pids))
                replies = asyncio.gather(*(agent.query("go", on_event=on_event) for agent in agents))
                await asyncio.sleep(CHUNKS / PER_SECOND / 2)
                weights.append(private_mib(agents[0].pid))
                await replies
                return 1e6 * (sum(map(cpu_of, pids)) - before) / (count * CHUNKS)

            return measure

        with readers(count, url, env) as peers:
            await together(peers)

            async def plain() -> float:
                plain_weights.append(private_mib(peers[0].pid))
                return 1e6 * sum(answer["cpu"] for answer in await together(peers)) / (count * CHUNKS)

            took = await harness.interleave(
                args.rounds, plain=plain, unwatched=ours(None), watched=ours(lambda _: None)
            )
    peer = f"(us of CPU; peer: {count} processes with the SDK)"
    rows = [
        harness.compared(
            f"a streamed chunk, {count} agents, {how}, unwatched {peer}",
            took["unwatched"],
            took["plain"],
            must=UNWATCHED[0],
            aim=UNWATCHED[1],
        ),
        harness.compared(
            f"a streamed chunk, {count} agents, {how}, watched {peer}",
            took["watched"],
            took["plain"],
            must=WATCHED[0],
            aim=WATCHED[1],
        ),
    ]
    if how == "http":
        rows.append(
            harness.compared(
                f"private memory of an agent that streams, {count} agents (MiB; peer: process with the SDK)",
                [sorted(weights)[len(weights) // 2]],
                [sorted(plain_weights)[len(plain_weights) // 2]],
                must=MEMORY[0],
                aim=MEMORY[1],
            )
        )
    return rows


async def first_text(args: Args, folder: Path) -> list[Row]:
    """Measure the time until the first text of a request of each size."""
    from orch import AsyncOrchestrator

    rows = []
    with model(5, 1000) as url, readers(1, url, {}) as [plain]:
        env = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": url, "PATH": os.environ["PATH"]}
        async with AsyncOrchestrator("anthropic:claude-sonnet-5-5", home=folder / "first", env=env) as root:
            for name, size in SIZES.items():

                async def ours(size: int = size) -> float:
                    [agent] = await agents_of(root, 1)
                    await agent.query("hi")
                    seen: list[float] = []
                    begin = perf_counter()

                    def on_event(event: Any) -> None:
                        if event.kind == "text" and not seen:
                            seen.append(perf_counter() - begin)

                    await agent.query("x" * size, on_event=on_event)
                    await agent.kill()
                    return 1000 * seen[0]

                took = await harness.interleave(
                    args.rounds, ours=ours, plain=lambda size=size: 1000 * plain.ask(size=size)["first"]
                )
                rows.append(
                    harness.compared(
                        f"first text of a request of {name} (ms; peer: the SDK's bare call, streamed)",
                        took["ours"],
                        took["plain"],
                        must=FIRST[0],
                        aim=FIRST[1],
                    )
                )
    return rows


def certificate(folder: Path) -> list[str]:
    """Return the files of a new certificate for 127.0.0.1 and its key. Return [] without the program openssl."""
    if shutil.which("openssl") is None:
        return []
    files = [str(folder / "certificate.pem"), str(folder / "key.pem")]
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


async def measure(args: Args) -> list[Row]:
    """Measure chunks with few and many agents, with and without TLS, and the first text."""
    os.environ["ORCH_DEBUG_DUMPABLE"] = "1"  # The kernel shows the memory of a worker only if this variable is set.
    rows: list[Row] = []
    with harness.scratch() as folder:
        files = certificate(folder)
        for count in (12,) if args.quick else (12, 48):
            with model(CHUNKS, PER_SECOND) as url:
                rows += await chunks(args, folder, url, count, {}, "http")
            if files:
                os.environ["SSL_CERT_FILE"] = files[0]
                with model(CHUNKS, PER_SECOND, *files) as url:
                    rows += await chunks(args, folder, url, count, {"SSL_CERT_FILE": files[0]}, "TLS")
                del os.environ["SSL_CERT_FILE"]
        rows += await first_text(args, folder)
    return rows


if __name__ == "__main__":
    harness.main(measure, affinity="all", rounds=3, quick_rounds=1)
