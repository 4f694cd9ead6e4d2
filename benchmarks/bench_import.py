"""Imports of sessions of other programs: CPU time per MB, memory, and a search over all of them.

The peer decodes the lines of the same files with `json.loads`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from time import process_time

import harness
from harness import Args, Row
from synthetic import Worker

from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse

SESSIONS, FEW = 200, 10
SESSION_BYTES = 1_000_000
MEASURE = """
import resource, sys
from time import process_time
begin = process_time()
from orch.cli import run
code = run(sys.argv[1:])
usage = resource.getrusage(resource.RUSAGE_SELF)
print(f"\\n{code} {process_time() - begin} {usage.ru_maxrss / 1024}", file=sys.stderr)
"""


def measure(args: Args) -> list[Row]:
    """Import a folder of generated sessions, import it again, and search in the archives."""
    with harness.scratch() as folder:
        past = folder / "past"
        past.mkdir()
        worker = Worker(5)
        for number in range(FEW if args.quick else SESSIONS):
            write_session(past / f"{number:04d}.jsonl", worker)
        size = sum(file.stat().st_size for file in past.iterdir()) / 1e6
        ours, peer, again, searched, memory = [], [], [], [], []
        for number in range(args.rounds):
            home = folder / f"home-{number}"
            seconds, peak = orch(home, "import", str(past))
            ours.append(1e3 * seconds / size)
            memory.append(peak)
            peer.append(1e3 * decode(past) / size)
            again.append(1e3 * orch(home, "import", str(past))[0])
            searched.append(1e3 * orch(home, "archive", "search", worker.text(2))[0])
        disk = sum(file.stat().st_size for file in home.rglob("*") if file.is_file()) / 1e6
    files = f"{round(size)} MB"
    return [
        harness.compared(
            "import: CPU per MB (ms; peer: json.loads of the lines)", ours, peer, must="<= 50", aim="<= 20"
        ),
        harness.counted("import: peak memory (MB)", max(memory), must="<= 150", aim="<= 100"),
        harness.counted(f"import: CPU when nothing is new, {files} (ms)", min(again), must="<= 1500", aim="<= 700"),
        harness.counted(f"search in imported sessions, {files} (CPU ms)", min(searched), must="<= 3000", aim="<= 1500"),
        harness.counted("import: disk space of the copies / size of the files", disk / size, must="<= 1"),
    ]


def orch(home: Path, *words: str) -> tuple[float, float]:
    """Run a command in a new process. Return its CPU seconds and its peak memory in MB."""
    env = {**os.environ, "ORCH_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", MEASURE, *words], env=env, capture_output=True, text=True, check=True)
    code, seconds, peak = done.stderr.split()[-3:]
    if code != "0":
        raise RuntimeError(done.stderr)
    return float(seconds), float(peak)


def decode(past: Path) -> float:
    """Decode all lines. Return the CPU seconds."""
    begin = process_time()
    for file in past.iterdir():
        with file.open("rb") as lines:
            for line in lines:
                json.loads(line)
    return process_time() - begin


def write_session(file: Path, worker: Worker) -> None:
    """Write a transcript of about 1 MB, with about 2.4 kB for each message as in recordings."""
    size, number, turn = 0, 0, 0
    with file.open("w") as opened:
        while size < SESSION_BYTES:
            turn += 1
            for message in worker.turn(turn, 8, 800):
                row: dict[str, object] = {
                    "type": message.role,
                    "uuid": f"{file.stem}-{number}",
                    "parentUuid": f"{file.stem}-{number - 1}" if number else None,
                    "sessionId": file.stem,
                    "timestamp": f"2026-03-{1 + turn % 28:02d}T10:00:00.000Z",
                    "version": "2.1.38",
                    "gitBranch": "main",
                    "userType": "external",
                    "isSidechain": False,
                    "message": raw(message, f"{file.stem}-{number}"),
                }
                if results := [block for block in message.content if isinstance(block, ToolResult)]:
                    # The program stores each result a second time, for its display.
                    row["toolUseResult"] = {"stdout": results[0].content[0].text, "stderr": "", "interrupted": False}
                size += opened.write(f"{json.dumps(row)}\n")
                number += 1


def raw(message: Message, id: str) -> dict[str, object]:
    """Return a message as a transcript contains it."""
    content: list[dict[str, object]] = []
    for block in message.content:
        if isinstance(block, ToolUse):
            content.append({"type": "tool_use", "id": block.id, "name": block.name, "input": block.input})
        elif isinstance(block, ToolResult):
            text = "\n".join(part.text for part in block.content)
            content.append({"type": "tool_result", "tool_use_id": block.tool_use_id, "content": text})
        elif isinstance(block, Text):
            content.append({"type": "text", "text": block.text})
    return {"role": message.role, "content": content} | ({"id": id} if message.role == "assistant" else {})


if __name__ == "__main__":
    harness.main(measure, rounds=3, quick_rounds=1)
