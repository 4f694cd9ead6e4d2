"""Reads untrusted bytes in a separate process first, because the bytes may crash a native library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Final

__all__ = ["LIMIT_CODE", "NEEDED", "FatalBytesError", "check_reads_safely", "resource_limit_arguments"]

SECONDS: Final = 60
BASE_MEMORY_BYTES: Final = 1 << 30
MEMORY_FACTOR: Final = 16
"""Factor of the memory limit: the process may use BASE_MEMORY_BYTES plus this factor times the size of the data."""

NEEDED: Final = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Environment variables that Python may need to start."""
LIMIT_CODE: Final = """
import resource, sys
for what, most in zip((resource.RLIMIT_CORE, resource.RLIMIT_CPU, resource.RLIMIT_DATA), map(int, sys.argv[-3:])):
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))
"""
"""The first lines of the code of the process. The last arguments of the process are the `resource_limit_arguments`."""
READ: Final = f"""{LIMIT_CODE}
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
    """The bytes crash the process that reads them, or make the process exceed its limits."""


def resource_limit_arguments(seconds: int, memory_bytes: int) -> tuple[str, str, str]:
    """Return the arguments for a process that is limited to `seconds` of CPU time and `memory_bytes` of memory."""
    return "0", str(seconds), str(memory_bytes)


def check_reads_safely(library: str, reader: str, data: bytes) -> None:
    """Read `data` with `reader` of `library` in a separate process, to check that this is safe.

    Raise FatalBytesError if the process crashes, exceeds its limits or cannot be started. Exceptions of the reader are
    ignored. Native libraries may abort the process when they read invalid sizes. Without this check, the author of the
    bytes could end this process.
    """
    limits = resource_limit_arguments(SECONDS, BASE_MEMORY_BYTES + MEMORY_FACTOR * len(data))
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
        raise FatalBytesError(f"reading the data does not end within {SECONDS} s") from None
    except OSError as error:
        raise FatalBytesError(f"cannot start the process that reads the data first: {error.strerror}") from error
    if done.stdout.strip() != b"alive":  # The exit code is not available if the program ignores SIGCHLD.
        raise FatalBytesError("reading the data crashed a test process")
