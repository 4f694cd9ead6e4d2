"""A process that searches for a regular expression. The process can be killed if the search takes too long."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO, Final, cast

from ...system.isolated_read import LIMIT_CODE, NEEDED, resource_limit_arguments
from ..api.base import ToolError

__all__ = ["SearchProcess"]

SEARCH_SECONDS: Final = 10.0
"""Timeout in seconds for one request. The CPU limit of the process is four times this value."""
MEMORY_BYTES: Final = 1 << 30
SEARCH_CODE: Final = f"""{LIMIT_CODE}
import json, re
search = re.compile(*json.loads(sys.stdin.readline())).search
for asked in sys.stdin:
    found = [(place, *match.span()) for place, line in json.loads(asked) if (match := search(line))]
    print(json.dumps(found), flush=True)
"""


class SearchProcess:
    """Searches for `regex` in a separate process. Raises ToolError if the process cannot be started."""

    def __init__(self, regex: re.Pattern[str]) -> None:
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    "-c",
                    SEARCH_CODE,
                    *resource_limit_arguments(int(4 * SEARCH_SECONDS), MEMORY_BYTES),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in NEEDED if name in os.environ},
            )
        except OSError as error:
            raise ToolError(f"cannot start the search process: {error.strerror}.") from error
        self._stdin, self._stdout = cast("IO[bytes]", self._process.stdin), cast("IO[bytes]", self._process.stdout)
        self._header = json.dumps([regex.pattern, regex.flags & ~re.UNICODE])

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._stdout.close()
        try:
            self._stdin.close()
        except OSError:
            pass  # Unsent data is discarded.

    def search(self, lines: Sequence[tuple[int, str]], deadline: float) -> dict[int, tuple[int, int]] | None:
        """Return the matches in the numbered lines `lines`. Keys are numbers.

        `deadline` is a time of time.monotonic. Return None if the search does not end in time. After that, the process
        cannot be used again.
        """
        deadline = min(deadline, time.monotonic() + SEARCH_SECONDS)
        try:
            self._stdin.write(f"{self._header}\n{json.dumps(lines)}\n".lstrip().encode())
            self._stdin.flush()
            self._header = ""
            answer = self._read_answer(deadline)
        except OSError:
            answer = b""
        return {index: (start, stop) for index, start, stop in json.loads(answer)} if answer.endswith(b"\n") else None

    def _read_answer(self, deadline: float) -> bytes:
        answer = bytearray()
        poller = select.poll()
        poller.register(self._stdout, select.POLLIN)
        while not answer.endswith(b"\n") and poller.poll(max(deadline - time.monotonic(), 0) * 1000):
            chunk = os.read(self._stdout.fileno(), 1 << 16)
            if not chunk:
                break
            answer += chunk
        return bytes(answer)
