"""A model for workers that writes each request and each answer to a file, and can hold requests."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from orch import BackendInfo, BackendRequest, CustomBackend
from orch_protocol.core.messages import text_of

LOG, HOLD = "requests.log", "hold"
FREE = 6
"""While the file `hold` exists, requests after this number of requests are not answered."""


class Counting(CustomBackend):
    """Answers the prompt `Review number N` with JSON."""

    def respond(self, request: BackendRequest) -> Iterator[str]:
        """Yield one answer."""
        prompt = text_of(request.messages[-1])
        item = prompt.split("Review number ")[1].split()[0]
        folder = Path(__file__).parent
        sent = _write(folder / LOG, f"sent {item}\n")
        while sent > FREE and (folder / HOLD).exists():
            if request.cancelled.wait(0.02):
                return
        _write(folder / LOG, f"answered {item}\n")
        yield json.dumps({"verdict": f"reviewed {item}"})

    def info(self) -> BackendInfo:
        """Return the name of the model."""
        return BackendInfo("counting", "m", context_limit=100_000)


def _write(path: Path, line: str) -> int:
    """Append `line` to the file. Return how many requests the file contains."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)
    return path.read_text().count("sent ")
