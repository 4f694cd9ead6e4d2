"""Finds out which sandbox levels this machine supports.

The test applies each level and tries to break out of the sandbox.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct

from orch_protocol.policy.sandbox import LEVELS, WORDS, Level

__all__ = ["AvailableLevels", "available_levels", "describe", "run_trials"]

TRIAL_SECONDS: Final = 10.0
OUTSIDE_PATH: Final = "/var"
"""A path that must not be visible in the sandbox. The test creates no files."""
TRIAL_SCRIPT: Final = """
test ! -e "$1" || { echo "a file elsewhere can be seen" >&2; exit 1; }
test -w "$2" || { echo "its own folder cannot be written" >&2; exit 1; }
test "$(grep -c : /proc/net/dev)" -le 1 || { echo "the network can be seen" >&2; exit 1; }
test ! -e "/proc/$3/status" -o "$3" -le 3 || { echo "other processes can be seen" >&2; exit 1; }
"""

Trial = Callable[[], list[str]]
"""A function that tries a level and returns the gaps of this level. The function raises OSError if the level fails."""


class AvailableLevels(Struct, frozen=True):
    """The reasons why levels are missing, and the known gaps of available levels."""

    missing: dict[Level, str] = {}
    gaps: dict[Level, tuple[str, ...]] = {}

    @property
    def highest(self) -> Level:
        """The highest available level."""
        return [level for level in LEVELS if level not in self.missing][-1]

    def nearest(self, wanted: Level) -> Level:
        """Return the lowest available level that is at least `wanted`. Otherwise return the highest available level."""
        available = [level for level in LEVELS if level not in self.missing]
        return next((level for level in available if level >= wanted), available[-1])


def run_trials(trials: Mapping[Level, Trial]) -> AvailableLevels:
    """Return the results of `trials`."""
    missing: dict[Level, str] = {}
    gaps: dict[Level, tuple[str, ...]] = {}
    for level, trial in trials.items():
        try:
            found = trial()
        except OSError as error:
            missing[level] = error.strerror or str(error)
        else:
            if found:
                gaps[level] = tuple(found)
    return AvailableLevels(missing, gaps)


@cache
def available_levels() -> AvailableLevels:
    """Return the levels that this machine supports. The test takes some milliseconds and runs once per process."""
    if sys.platform != "linux":
        why = f"sandbox levels above L0 need Linux; this system is {sys.platform}"
        return AvailableLevels(dict.fromkeys(LEVELS[1:], why))
    return run_trials({"L1": _try_capabilities, "L2": _try_landlock, "L3": _try_namespaces})


def describe(levels: AvailableLevels) -> str:
    """Return one line about `levels`: the highest level, its gaps, and the reasons why higher levels are missing."""
    level = levels.highest
    parts = [f"up to {level} ({WORDS[level]})"]
    if gaps := levels.gaps.get(level):
        parts.append(f"which leaves open: {', '.join(gaps)}")
    parts += [f"no {missing_level}: {why}" for missing_level, why in sorted(levels.missing.items())]
    return "; ".join(parts)


def _try_capabilities() -> list[str]:
    from . import landlock

    def drop_capabilities() -> list[str]:
        landlock.drop_capabilities()
        if not landlock.has_no_capabilities():
            raise OSError("the test process still has rights after it dropped them")
        return []

    return _run_in_thread(drop_capabilities)


def _try_landlock() -> list[str]:
    import tempfile

    from . import landlock, seccomp

    if why := seccomp.unavailable_reason():
        raise OSError(why)
    version = _landlock_version()
    inside = os.path.dirname(os.__file__)
    elsewhere = os.path.join(tempfile.gettempdir(), f"orch-trial-{os.getpid()}")

    def make_folder() -> None:
        os.mkdir(elsewhere)
        os.rmdir(elsewhere)

    def apply_restrictions() -> list[str]:
        landlock.drop_capabilities()
        landlock.restrict((inside,), (), network=False)
        seccomp.apply_filter(seccomp.build_filter(sockets=True, network=False))
        _expect_denied(lambda: open("/proc/version", "rb").close(), "a file elsewhere can be read")
        _expect_denied(make_folder, "a folder elsewhere can be made")
        _expect_denied(lambda: socket.socket().close(), "a socket can be made")
        os.listdir(inside)
        return landlock.landlock_gaps(version)

    return _run_in_thread(apply_restrictions)


def _landlock_version() -> int:
    from . import landlock

    try:
        return landlock.landlock_abi()
    except OSError as error:
        raise OSError(f"the kernel has no Landlock, or Landlock is disabled ({error.strerror})") from error


def _try_namespaces() -> list[str]:
    import subprocess
    import tempfile

    from . import bubblewrap, seccomp
    from .bubblewrap import sandbox_paths

    if why := bubblewrap.unavailable_reason() or seccomp.unavailable_reason():
        raise OSError(why)
    inside = Path(tempfile.gettempdir())
    filter_fd = seccomp.memory_file(seccomp.build_filter(sockets=False, network=False))
    try:
        script = ("/bin/sh", "-c", TRIAL_SCRIPT, "sh", OUTSIDE_PATH, str(inside), str(os.getpid()))
        completed = subprocess.run(
            bubblewrap.bubblewrap_command(sandbox_paths(inside, inside), str(inside), filter_fd, script),
            pass_fds=(filter_fd,),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TRIAL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"it took more than {TRIAL_SECONDS:g} s") from None
    finally:
        os.close(filter_fd)
    if completed.returncode:
        lines = completed.stderr.decode(errors="replace").strip().splitlines()
        raise OSError(lines[-1] if lines else f"bwrap ended with {completed.returncode}")
    return []


def _expect_denied(function: Callable[[], object], error_text: str) -> None:
    try:
        function()
    except PermissionError:
        return
    raise OSError(error_text)


def _run_in_thread(function: Callable[[], list[str]]) -> list[str]:
    """Run `function` in a new thread, so that its restrictions end with the thread. Return the result of `function`."""
    result: list[str] = []
    failed: list[OSError] = []

    def run() -> None:
        try:
            result.extend(function())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="trial")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return result
