"""Session files.

The bench measures the CPU time of an append, its growth with the session, the opening of a long session, and the memory
for resuming a long session.
"""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import harness
from harness import Args, Row

ENTRIES, FEW = 100_000, 1_000
BYTES, LESS = 1 << 30, 64 << 20
STEPS = 10
RESULT = 100_000
BATCH = 500


def add(transcript: Any, count: int) -> float:
    """Append `count` messages of 200 characters. Return the seconds for one message."""
    from orch_protocol.core.messages import assistant, user

    asked, said = user("x" * 200), assistant("y" * 200)
    begin = perf_counter()
    for number in range(count):
        transcript.message(said if number % 2 else asked, "q1")
    return (perf_counter() - begin) / count


def opened(folder: Path) -> Any:
    """Return the transcript in `folder` after opening it."""
    from orch_worker.session.transcript import Transcript

    return Transcript.open(folder, agent="agent", cwd="/")


async def append(args: Args, folder: Path) -> list[Row]:
    """Measure the CPU time of an append, which encodes the entry, writes its line and applies the entry to
    the session.
    """
    import msgspec

    from orch_protocol.core.messages import Message, Reply, Text, ToolResult, user

    transcript = opened(folder / "append")
    bare = os.open(folder / "bare.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    encode = msgspec.json.Encoder().encode
    result = Message("user", (ToolResult("call", (Text("z" * 4000),)),))
    entries: list[tuple[str, str, Any]] = [
        ("a message of 200 characters", "<= 8", lambda: transcript.message(user("x" * 200), "q1")),
        ("a tool result of 4,000 characters", "<= 5", lambda: transcript.message(result, "q1")),
        ("the end of a turn", "<= 10", lambda: transcript.turn_end("q1", Reply("agent", "q1", "y" * 200))),
    ]
    rows = []
    for name, must, record in entries:
        record()
        entry = transcript.session.entries[-1]

        def ours(record: Any = record) -> float:
            return cpu_microseconds(record)

        def peer(entry: Any = entry) -> float:
            return cpu_microseconds(lambda: os.write(bare, encode(entry) + b"\n"))

        times = await harness.interleave(args.rounds, ours=ours, peer=peer)
        figure = f"append {name} (us of CPU; peer: encode it and write the line)"
        rows.append(harness.compared(figure, times["ours"], times["peer"], must=must, aim="<= 4"))
    os.close(bare)
    transcript.close()
    return rows


def cpu_microseconds(call: Any) -> float:
    """Return the CPU time of one `call` in microseconds. The result is the minimum of ten batches."""
    batches = []
    for _ in range(10):
        begin = thread_time()
        for _ in range(100):
            call()
        batches.append((thread_time() - begin) * 1e4)
    return min(batches)


async def length(args: Args, folder: Path) -> list[Row]:
    """Measure a session of 100,000 entries against a new session, and against reading its bytes.

    The writer has closed the session. The opening compares each byte up to the leaf, but does not read any text.
    """
    count = FEW if args.quick else ENTRIES
    long = opened(folder / "long")
    add(long, count)
    begun = 0

    def at_the_end() -> float:
        return add(long, BATCH)

    def at_the_beginning() -> float:
        nonlocal begun
        begun += 1
        short = opened(folder / f"short-{begun}")
        try:
            return add(short, BATCH)
        finally:
            short.close()

    appends = await harness.interleave(args.rounds, end=at_the_end, beginning=at_the_beginning)
    shutil.copytree(folder / "long", folder / "killed")  # the files as they are if the writer is killed now
    long.close()
    path, notes = folder / "long" / "session.jsonl", folder / "killed" / "session.jsonl.known"
    note = notes.read_bytes() if notes.exists() else None

    def opening(name: str = "long") -> float:
        gc.collect()
        begin = perf_counter()
        transcript = opened(folder / name)
        took = perf_counter() - begin
        transcript.close()
        return took

    def checked() -> float:
        """Open the session without the note about verified bytes, so that every line is checked."""
        path.with_name(f"{path.name}.known").unlink(missing_ok=True)
        return opening()

    def killed() -> float:
        if note is not None:
            notes.write_bytes(note)
        return opening("killed")

    def reading() -> float:
        begin = perf_counter()
        path.read_bytes()
        return perf_counter() - begin

    opens = await harness.interleave(
        min(args.rounds, 5), opening=opening, killed=killed, checked=checked, reading=reading
    )
    prefix = f"open a session of {count:,} entries, every line checked (s; peer: by the verified prefix)"
    return [
        harness.compared(
            f"append to a session of {count:,} entries (s; peer: to an empty session)",
            appends["end"],
            appends["beginning"],
            must="<= 1.1",
            aim="<= 1.05",
        ),
        harness.compared(
            f"open a session of {count:,} entries (s; peer: read its bytes)",
            opens["opening"],
            opens["reading"],
            must="<= 4",
            aim="<= 2",
        ),
        harness.compared(
            f"open a session of {count:,} entries whose writer was killed (s; peer: read its bytes)",
            opens["killed"],
            opens["reading"],
            must="<= 4",
            aim="<= 2",
        ),
        harness.skipped(prefix, "too short for a note", must=">= 1.05", aim=">= 1.5")
        if args.quick
        else harness.compared(prefix, opens["checked"], opens["opening"], must=">= 1.05", aim=">= 1.5"),
    ]


def fill(folder: Path, agent: str, size: int) -> None:
    """Fill the agent's session with `size` bytes of turns with large results. Each turn is archived at its end."""
    from orch_protocol.core.archives import Collapse
    from orch_protocol.core.ids import new_id
    from orch_protocol.core.messages import Message, Reply, Text, ToolResult, ToolUse, assistant, user
    from orch_worker.conversation.stubs import stub_text
    from orch_worker.session.archived_entries import read_spans, sha256_of
    from orch_worker.session.log.append_log import without_fsync
    from orch_worker.session.transcript import Transcript

    line = "0123456789abcdef" * 4 + "\n"
    result = (line * (RESULT // len(line) + 1))[:RESULT]
    with without_fsync():
        transcript = Transcript.open(folder, agent=agent, cwd="/")
        while transcript.log.end < size:
            turn, start = new_id(), transcript.log.end
            first = transcript.message(user(f"look at {turn}"), turn).id
            for step in range(STEPS):
                id = f"{turn}.{step}"
                call = ToolUse(id, "read_file", {"path": f"{id}.txt"})
                transcript.message(Message("assistant", (call,)), turn)
                transcript.message(Message("user", (ToolResult(id, (Text(result),)),)), turn)
            last = transcript.message(assistant(f"looked at {turn}"), turn).id
            spans = ((start, transcript.log.end - start),)
            transcript.turn_end(turn, Reply(agent, turn, f"looked at {turn}"))
            holder, hash = new_id(), sha256_of(read_spans(transcript.path, spans))
            stub = assistant(stub_text("turn", holder, "Read: ten files.", f"looked at {turn}"))
            said = (user(f"look at {turn}"), stub)
            transcript.archive([Collapse(holder, "turn", turn, first, last, said, spans, hash)])
        transcript.close()


def peak_memory(pid: int) -> float:
    """Return the largest memory in MiB that the process `pid` has used so far."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024


async def resume(args: Args, folder: Path) -> Row:
    """Measure the process of an agent that resumes a session of 1 GiB."""
    from orch import AsyncOrchestrator, Config

    size = LESS if args.quick else BYTES
    options: dict[str, Any] = {"config": Config(), "home": folder / "home", "run": "sessions"}
    async with AsyncOrchestrator("extractive:", **options) as orchestrator:
        agent = await orchestrator.spawn("look", context="none")
        await agent.query("begin")
        where, id = Path((await agent.state()).folder), agent.id
    fill(where, id, size)
    async with AsyncOrchestrator("extractive:", **options) as orchestrator:
        agent = await orchestrator.get(id)
        await agent.query("go on", timeout=600)
        assert agent.pid is not None
        limit = peak_memory(agent.pid)
    return harness.counted(
        f"peak memory of an agent that resumes a session of {size >> 20} MiB (MiB)", limit, must="<= 150"
    )


async def measure(args: Args) -> list[Row]:
    """Run all measurements on files that this bench creates."""
    with harness.scratch() as folder:
        return [*await append(args, folder), *await length(args, folder), await resume(args, folder)]


if __name__ == "__main__":
    harness.main(measure)
