"""Reading bytes of others in a process that may die of it, before they are read here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Final

__all__ = ["BOUND", "NEEDED", "FatalBytesError", "check_reads_safely", "resource_limit_arguments"]

SECONDS: Final = 60
ROOM: Final = 1 << 30
TIMES: Final = 16
"""How much memory the process may take: so much, and so many times the size of what it reads."""

NEEDED: Final = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""The variables without which a Python may not start."""
BOUND: Final = """
import resource, sys
for what, most in zip((resource.RLIMIT_CORE, resource.RLIMIT_CPU, resource.RLIMIT_DATA), map(int, sys.argv[-3:])):
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))
"""
"""What such a process begins with: its last arguments are its `resource_limit_arguments`."""
READ: Final = f"""{BOUND}
import importlib, io, json
sys.path[:] = json.loads(sys.argv[1])
data = sys.stdin.buffer.read()
try:
    str(getattr(importlib.import_module(sys.argv[2]), sys.argv[3])(io.BytesIO(data)))
except BaseException:
    pass  # which is raised where it is read next, too
print("alive")
"""


class FatalBytesError(ValueError):
    """Bytes of which a process dies that reads them."""


def resource_limit_arguments(seconds: int, room: int) -> tuple[str, str, str]:
    """Return the arguments for a process that may take so many seconds of CPU and bytes of memory."""
    return "0", str(seconds), str(room)


def check_reads_safely(library: str, reader: str, data: bytes) -> None:
    """Raise Deadly when reading `data` with `reader` of `library` ends the process that does so, or takes it too much
    memory or time, or when no process can be had for it. What it raises is not told.

    Libraries that are no Python end their process where bytes tell them of more than there can be: whoever made the
    bytes would have ended ours.
    """
    limits = resource_limit_arguments(SECONDS, ROOM + TIMES * len(data))
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", READ, json.dumps([*map(str, sys.path)]), library, reader, *limits],
            input=data,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"POLARS_MAX_THREADS": "1"} | {name: os.environ[name] for name in NEEDED if name in os.environ},
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise FatalBytesError(f"reading it does not end within {SECONDS} s") from None
    except OSError as error:
        raise FatalBytesError(f"no process could be started that reads it first: {error.strerror}") from error
    if done.stdout.strip() != b"alive":  # the exit code is not to be had where a program ignores its children
        raise FatalBytesError("a process that read it died of that")
