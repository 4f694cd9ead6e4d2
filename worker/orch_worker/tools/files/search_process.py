"""A process that looks for a regular expression, and is ended when it does not come back."""

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

from ...system.isolated_read import BOUND, NEEDED, resource_limit_arguments
from ..api.base import ToolError

__all__ = ["SearchProcess"]

SECONDS: Final = 10.0
"""What one piece of text may take; and all of them together four times that of CPU."""
ROOM: Final = 1 << 30
SEEK: Final = f"""{BOUND}
import json, re
search = re.compile(*json.loads(sys.stdin.readline())).search
for asked in sys.stdin:
    found = [(place, *match.span()) for place, line in json.loads(asked) if (match := search(line))]
    print(json.dumps(found), flush=True)
"""


class SearchProcess:
    """Searches for `regex` in a process of its own. Raises ToolError when none can be had."""

    def __init__(self, regex: re.Pattern[str]) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", SEEK, *resource_limit_arguments(int(4 * SECONDS), ROOM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in NEEDED if name in os.environ},
            )
        except OSError as error:
            raise ToolError(f"no process could be started to search in: {error.strerror}.") from error
        self._to, self._from = cast("IO[bytes]", self._process.stdin), cast("IO[bytes]", self._process.stdout)
        self._first = json.dumps([regex.pattern, regex.flags & ~re.UNICODE])

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._from.close()
        try:
            self._to.close()
        except OSError:
            pass  # what it was not told any more

    def search(self, lines: Sequence[tuple[int, str]], until: float) -> dict[int, tuple[int, int]] | None:
        """Return where the numbered `lines` match, by number; None when that takes longer than it may, or than `until`
        as time.monotonic has it. It cannot be asked again then."""
        until = min(until, time.monotonic() + SECONDS)
        try:
            self._to.write(f"{self._first}\n{json.dumps(lines)}\n".lstrip().encode())
            self._to.flush()
            self._first = ""
            answer = self._answer(until)
        except OSError:
            answer = b""
        return {place: (start, stop) for place, start, stop in json.loads(answer)} if answer.endswith(b"\n") else None

    def _answer(self, until: float) -> bytes:
        answer = bytearray()
        ready = select.poll()
        ready.register(self._from, select.POLLIN)
        while not answer.endswith(b"\n") and ready.poll(max(until - time.monotonic(), 0) * 1000):
            part = os.read(self._from.fileno(), 1 << 16)
            if not part:
                break
            answer += part
        return bytes(answer)
