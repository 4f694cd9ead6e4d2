"""A Ray actor that appends the lines that an agent of orch writes in a turn. It runs in the environment of the peers.

The program answers each line `{"lines": [...], "path": "...", "prompt": "...", "times": N, "power": false}` with
`{"seconds": S}`, the median time of a call. A call contains the prompt, appends each line with one write, and returns
the reply. With `power`, the call waits for the disk after the first line and after the last line.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from statistics import median
from time import perf_counter
from typing import Any

import ray


@ray.remote
class Agent:
    """Holds the open file, as a worker of orch does."""

    def open(self, path: str, lines: list[str], power: bool) -> None:
        """Begin a transcript."""
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.lines = [line.encode() for line in lines]
        self.power = power

    def turn(self, prompt: str) -> str:
        """Append a turn's lines and return its reply."""
        for number, line in enumerate(self.lines):
            os.write(self.file, line)
            if self.power and number in (0, len(self.lines) - 1):
                os.fdatasync(self.file)
        return prompt[:2]


def turns(agents: dict[str, Any], question: dict[str, Any]) -> dict[str, float]:
    """Return the median seconds of `times` turns of the actor that writes to `path`."""
    path = question["path"]
    if path not in agents:
        agents[path] = Agent.remote()
        ray.get(agents[path].open.remote(path, question["lines"], question["power"]))
    taken = []
    for _ in range(question["times"]):
        begin = perf_counter()
        ray.get(agents[path].turn.remote(question["prompt"]))
        taken.append(perf_counter() - begin)
    return {"seconds": median(taken)}


def main() -> None:
    """Answer lines until stdin ends, then end all processes of Ray."""
    # The paths of Ray's sockets must be short, so they cannot be in the checkout.
    folder = tempfile.mkdtemp(prefix="ray")
    # Ray writes to descriptor 1 at any time, but only answers may reach the reader.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _temp_dir=folder)
        agents: dict[str, Any] = {}
        for line in sys.stdin:
            answers.write(json.dumps(turns(agents, json.loads(line))) + "\n")
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
