"""Modules and Python calls of a scripted query and of a spawn, in the root, zygote and worker. Needs no clock.

`--python VENV/bin/python` counts the same calls in the version of orch that this interpreter imports, and prints the
ratio.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import harness
from harness import Args, Row

SECONDS = 120
ACTIONS = {"query": "scripted query, the second of two", "spawn": "spawn to first answered ping, the second of two"}
FIGURES = {
    "calls": "Python calls in orch's modules",
    "modules": "modules of orch called",
    "all_calls": "Python calls in all modules",
}
MUST, AIM = "<= 1.05", "<= 1"
ANY = ">= 0"
"""The bound of a figure without a limit.
The figure for all calls includes the calls of asyncio, whose number depends on how often a loop wakes up.
"""

Counts = dict[str, dict[str, Any]]


def count(python: Path, folder: Path) -> Counts:
    """Return the figures of each action in the version of orch that `python` imports. `folder` must not exist."""
    folder.mkdir()
    shutil.copy(harness.PEERS / "log_calls.py", folder / "sitecustomize.py")
    (folder / "phase").write_bytes(b"\0")
    (folder / "log").touch()
    done = subprocess.run(
        [str(python), "-P", str(harness.PEERS / "count_calls.py"), str(folder)],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=SECONDS,
    )
    found: Counts = json.loads(done.stdout)
    return found


def rows(ours: list[Counts], peer: list[Counts]) -> list[Row]:
    """Return a row for each figure of each action. If `peer` is empty, the row has no comparison."""
    made = []
    for action, title in ACTIONS.items():
        for figure, what in FIGURES.items():
            name = f"{title}: {what}"
            values = [each[action][figure] for each in ours]
            if peer:
                others = [each[action][figure] for each in peer]
                made.append(
                    harness.compared(
                        f"{name} (peer: --python)", values, others, must=ANY if figure == "all_calls" else MUST, aim=AIM
                    )
                )
            else:
                made.append(harness.counted(name, harness.median(values), must=ANY))
    return made


async def measure(args: Args) -> list[Row]:
    """Count in this interpreter. If a peer's interpreter is given, count in both in alternating order."""
    pythons = {"ours": Path(sys.executable)} | ({"peer": args.python} if args.python else {})
    found: dict[str, list[Counts]] = {"ours": [], "peer": []}
    with harness.scratch() as folder:
        for number in range(args.rounds):
            for side in reversed(pythons) if number % 2 else pythons:
                found[side].append(count(pythons[side], folder / f"{side}{number}"))
    return rows(found["ours"], found["peer"])


if __name__ == "__main__":
    harness.main(measure, rounds=5)
