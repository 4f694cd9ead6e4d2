"""The cost of archiving in running agents: a commit, the start of a holder, a thousand archives, and ten thousand
turns.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import harness
from bench_kill import descendants
from bench_memory import private_mib
from harness import Args, Row
from synthetic import Worker

COMMITS = 20
STEPS, STEP_WORDS = 19, 260
"""Together with the prompt and the answer, these are 40 entries of 30 KB in total."""
HELD_STEPS, HELD_WORDS = 42, 3800
"""The number of files, and the words in each file, that the agent reads whole to fill an archive of 1 MB."""
ARCHIVES, PART, ASK_EVERY = 1000, 100, 50
WARM = 4
TURNS, TURN_STEPS, TURN_WORDS = 10_000, 5, 1_000
FACTS = 1000


class Timing:
    """The times at which the root was asked for a plan, had the plan, and learned that the archives were recorded."""

    def __init__(self) -> None:
        from orch.services import HANDLERS
        from orch_protocol.services.archives.archiving import COMMIT_ARCHIVES, PLAN_ARCHIVING

        self.requested = self.planned = self.recorded = 0.0
        plan, commit = HANDLERS[PLAN_ARCHIVING.name], HANDLERS[COMMIT_ARCHIVES.name]

        async def timed_plan(*arguments: Any) -> Any:
            self.requested = perf_counter()
            try:
                return await plan(*arguments)
            finally:
                self.planned = perf_counter()

        async def timed_commit(*arguments: Any) -> Any:
            self.recorded = perf_counter()
            return await commit(*arguments)

        HANDLERS[PLAN_ARCHIVING.name], HANDLERS[COMMIT_ARCHIVES.name] = timed_plan, timed_commit


@asynccontextmanager
async def opened(folder: Path, **archival: Any) -> AsyncIterator[Any]:
    """Yield a root in `folder`. Unless `archival` sets other values, its agents archive each turn before they reply."""
    from orch import ArchivalConfig, AsyncOrchestrator, Config
    from orch_protocol.agent.config import LimitsConfig

    given = {"enabled": True, "async_": False, "profile": "economy", "gate": False, "warm_holders": WARM, **archival}
    config = Config(archival=ArchivalConfig(**given), limits=LimitsConfig(max_turns=HELD_STEPS + 5))
    async with AsyncOrchestrator(config=config, home=folder / "home") as root:
        yield root


class Reading:
    """An agent that reads `steps` files of `words` words in each turn. The files are written again before each turn."""

    def __init__(self, folder: Path, seed: int, steps: int, words: int) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._steps = steps
        self._words = words
        self._worker = Worker(seed)
        self._turns = 0
        self.agent: Any = None

    async def begin(self, root: Any) -> Any:
        """Start the agent and return it."""
        from orch import ScriptedBackend

        reads = [{"tool": "read_file", "input": {"path": f"{step}.txt"}} for step in range(self._steps)]
        script = ScriptedBackend([{"loop": [*reads, "All of them were read, and all is well."]}])
        self.agent = await root.spawn("Read", tools=["read_file"], backend=script, cwd=self._folder)
        return self.agent

    async def turn(self, *planted: str) -> Any:
        """Run a turn in which the agent reads files that contain `planted`. Return the reply."""
        for step in range(self._steps):
            lines = [self._worker.text(12) for _ in range(self._words // 12)]
            for line in planted[step :: self._steps]:
                lines.insert(self._worker.random.randrange(len(lines) + 1), line)
            (self._folder / f"{step}.txt").write_text("\n".join(lines) + "\n")
        self._turns += 1
        return await self.agent.query(f"Work on item {self._turns}: {self._worker.text(12)}")

    def read(self) -> bytes:
        """Return the text that the agent read in its last turn."""
        return b"".join((self._folder / f"{step}.txt").read_bytes() for step in range(self._steps))


async def commits(folder: Path, rounds: int) -> list[Row]:
    """Return the time until a turn is archived, the archive is on disk, and the root knows the archive."""
    timing, reading = Timing(), Reading(folder / "files", 1, STEPS, STEP_WORDS)
    plain = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    decided: list[float] = []

    async with opened(folder) as root:
        await reading.begin(root)

        async def ours() -> float:
            took, whole = [], []
            for _ in range(COMMITS):
                assert (await reading.turn()).archived_to
                took.append(timing.recorded - timing.planned)
                whole.append(timing.recorded - timing.requested)
            decided.append(1e3 * median(whole))
            return 1e3 * median(took)

        def peer() -> float:
            took = []
            for _ in range(COMMITS):
                data = reading.read()
                begin = perf_counter()
                os.write(plain, data)
                os.fdatasync(plain)
                took.append(perf_counter() - begin)
            return 1e3 * median(took)

        sides = await harness.interleave(rounds, ours=ours, peer=peer)
    os.close(plain)
    return [
        harness.compared(
            "commit of 40 entries, 30 KB, until the root has recorded it (ms; peer: append and fdatasync of it)",
            sides["ours"],
            sides["peer"],
            must="<= 3",
            aim="<= 1.5",
        ),
        harness.compared(
            "the same, with the plan, the receipt and the checksum (ms; peer: append and fdatasync of it)",
            decided[1:],
            sides["peer"],
            must="<= 12",
            aim="<= 6",
        ),
    ]


async def revivals(folder: Path, rounds: int) -> Row:
    """Return the time until a holder of 1 MB answers its first question. The peer is the smallest Python process."""
    reading = Reading(folder / "files", 2, HELD_STEPS, HELD_WORDS)
    async with opened(folder, profile="seed") as root:
        await reading.begin(root)
        held = [(await reading.turn(fact(number))).archived_to for number in range(rounds + 1)]
        waiting = iter(enumerate(held))

        async def ours() -> float:
            number, holder = next(waiting)
            agent = await root.get(holder)
            begin = perf_counter()
            reply = await agent.query(f"What is fact_{number}?")
            took = 1e3 * (perf_counter() - begin)
            if fact(number) not in reply.text:
                raise RuntimeError(f"asked for {fact(number)!r}, a holder answered: {reply.text[:500]}")
            return took

        sides = await harness.interleave(rounds, ours=ours, peer=lambda: 1e3 * harness.timed_pass())
    return harness.compared(
        "first answer of a cold holder of 1 MB (ms; peer: python -I -S -c pass)",
        sides["ours"],
        sides["peer"],
        must="<= 4",
        aim="<= 2",
    )


class Watch:
    """The number of processes below this process, the highest number so far, and the private memory of some
    processes.
    """

    def __init__(self) -> None:
        self.most = 0
        self.weights: list[tuple[float, float]] = []

    def count(self) -> None:
        """Count the processes now."""
        self.most = max(self.most, len(descendants(os.getpid())))

    def weigh(self, pid: int) -> None:
        """Record the private memory in MiB of this process and of the process `pid`."""
        self.weights.append((private_mib(os.getpid()), private_mib(pid)))


async def many(folder: Path, count: int) -> list[Row]:
    """Return the processes, time and memory that `count` archives of one running session need.

    The early archives belong to a second session. Both sessions run in alternating turns, so that a slow phase of the
    machine affects both.
    """
    part = min(PART, count // 4)
    timing, watch = Timing(), Watch()
    took: tuple[list[float], list[float]] = ([], [])
    os.environ["ORCH_DEBUG_DUMPABLE"] = "1"  # without this variable, the kernel does not show the memory of a worker
    async with opened(folder) as root:
        long, fresh = (Reading(folder / f"files{number}", 3, TURN_STEPS, 100) for number in range(2))
        agent = await long.begin(root)

        async def turn(reading: Reading) -> float:
            reply = await reading.turn()
            watch.count()
            if reply.archived_to and number % ASK_EVERY == 0:
                await (await root.get(reply.archived_to)).query("What was read?")
                watch.count()
            return timing.recorded - timing.requested

        for number in range(count - part):
            await turn(long)
            if number == part:
                watch.weigh(agent.pid)
        watch.weigh(agent.pid)
        await fresh.begin(root)
        for number in range(part):
            order = ((long, took[0]), (fresh, took[1]))
            for reading, times in order[:: -1 if number % 2 else 1]:
                times.append(1e3 * await turn(reading))
        made = len(await root.archives.list(agent.id))
    grown = [after / before for before, after in zip(*watch.weights, strict=True)]
    return [
        harness.counted(
            f"processes of one session with {made} archives, with {WARM} warm holders, without those of a second agent",
            watch.most - 1,
            must=f"<= {3 + WARM}",
        ),
        harness.compared(
            f"time of an archive, the last {part} of {count} (ms; peer: the first {part})",
            [median(took[0])],
            [median(took[1])],
            must="<= 1.5",
            aim="<= 1.1",
        ),
        *(
            harness.counted(
                f"private memory of the {who} after {count - part} archives, over {part}", ratio, must="<= 1.5"
            )
            for who, ratio in zip(("root", "agent"), grown, strict=True)
        ),
    ]


async def endless(folder: Path, count: int) -> list[Row]:
    """Return the largest request over `count` turns of 9k tokens in 5 calls, and the share of planted facts that are
    found.
    """
    reading = Reading(folder / "files", 4, TURN_STEPS, TURN_WORDS)
    async with opened(folder, async_=True, gate=None) as root:
        agent = await reading.begin(root)
        row = await agent.state()
        before = row.context_tokens
        for number in range(count):
            await reading.turn(fact(number))
        rows = await root.archives.list()
        await root.archives.search("the index is made at the first search", limit=1)
        asked = Worker(5).random.sample(range(count - 10), min(FACTS, count - 10))
        found = sum([await known(root, fact(number)) for number in asked])
        largest = max(requests(Path(row.folder) / "session.jsonl")) - before
    return [
        harness.counted(
            f"largest request of {count} turns of 9k tokens, running agent, economy (tokens; {len(rows)} archives)",
            largest,
            must="<= 24000",
            aim="<= 12000",
        ),
        harness.counted(
            f"share of {len(asked)} facts of that agent found by one search and read back",
            found / len(asked),
            must=">= 1",
        ),
    ]


def fact(number: int) -> str:
    """Return a line that differs from all other lines."""
    return f"fact_{number} is {7 * number}"


async def known(root: Any, fact: str) -> bool:
    """Return whether the first hit for `fact` contains `fact` and leads to a message that contains `fact`."""
    hits = await root.archives.search(fact, limit=1)
    if not hits or not hits[0].exact:
        return False
    return fact in str(await root.archives.read(hits[0].id, first=hits[0].entry, last=hits[0].entry))


def requests(path: Path) -> Iterator[int]:
    """Yield the reported size of each request in the session file at `path`."""
    with open(path, "rb") as file:
        for line in file:
            entry = json.loads(line)
            if entry["type"] == "message" and entry.get("usage"):
                yield entry["usage"]["input_tokens"]


async def measure(args: Args) -> list[Row]:
    """Run each measurement in its own run."""
    share = 50 if args.quick else 1
    with harness.scratch() as folder:
        return [
            *await commits(folder / "commits", args.rounds),
            await revivals(folder / "revivals", args.rounds),
            *await many(folder / "many", max(ARCHIVES // share, 40)),
            *await endless(folder / "endless", TURNS // share),
        ]


if __name__ == "__main__":
    harness.main(measure, affinity="all")
