"""What this machine can keep tools' processes from: found out by doing it and trying to get out."""

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

SECONDS: Final = 10.0
OUTSIDE: Final = "/var"
"""Where no confined process has anything to look for. Nothing is made for a trial, so none leaves anything behind."""
SCRIPT: Final = """
test ! -e "$1" || { echo "a file elsewhere can be seen" >&2; exit 1; }
test -w "$2" || { echo "its own folder cannot be written" >&2; exit 1; }
test "$(grep -c : /proc/net/dev)" -le 1 || { echo "the network can be seen" >&2; exit 1; }
test ! -e "/proc/$3/status" -o "$3" -le 3 || { echo "other processes can be seen" >&2; exit 1; }
"""

Trial = Callable[[], list[str]]
"""Tries a level and returns what it cannot keep a process from here, in words. Raises OSError when it does not hold."""


class AvailableLevels(Struct, frozen=True):
    """The levels there are, why not the others, and what those that are there leave open. In words."""

    missing: dict[Level, str] = {}
    gaps: dict[Level, tuple[str, ...]] = {}

    @property
    def highest(self) -> Level:
        """The highest level there is."""
        return [level for level in LEVELS if level not in self.missing][-1]

    def nearest(self, wanted: Level) -> Level:
        """Return the lowest level that is there and is not less than `wanted`, or else the highest below it."""
        there = [level for level in LEVELS if level not in self.missing]
        return next((level for level in there if level >= wanted), there[-1])


def run_trials(trials: Mapping[Level, Trial]) -> AvailableLevels:
    """Return what comes of the `trials`."""
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
    """Return what this machine offers to processes such as this one. Tried once a process, in some milliseconds."""
    if sys.platform != "linux":
        why = f"{sys.platform} has nothing of it that orch can use; Linux has"
        return AvailableLevels(dict.fromkeys(LEVELS[1:], why))
    return run_trials({"L1": _try_rights, "L2": _try_landlock, "L3": _try_namespaces})


def describe(offer: AvailableLevels) -> str:
    """Return `offer` in a line: the highest level, what it leaves open, and why not more."""
    level = offer.highest
    parts = [f"up to {level} ({WORDS[level]})"]
    if open_ := offer.gaps.get(level):
        parts.append(f"which leaves open: {', '.join(open_)}")
    parts += [f"no {above}: {why}" for above, why in sorted(offer.missing.items())]
    return "; ".join(parts)


def _try_rights() -> list[str]:
    from . import landlock

    def give_up() -> list[str]:
        landlock.give_up()
        if not landlock.given_up():
            raise OSError("it still has rights after it gave them up")
        return []

    return _apart(give_up)


def _try_landlock() -> list[str]:
    import tempfile

    from . import landlock, seccomp

    if why := seccomp.unavailable_reason():
        raise OSError(why)
    version = _version()
    inside = os.path.dirname(os.__file__)
    elsewhere = os.path.join(tempfile.gettempdir(), f"orch-trial-{os.getpid()}")

    def make() -> None:
        os.mkdir(elsewhere)
        os.rmdir(elsewhere)

    def get_out() -> list[str]:
        landlock.give_up()
        landlock.restrict((inside,), (), network=False)
        seccomp.apply_filter(seccomp.build_filter(sockets=True, network=False))
        _fails(lambda: open("/proc/version", "rb").close(), "a file elsewhere can be read")
        _fails(make, "a folder elsewhere can be made")
        _fails(lambda: socket.socket().close(), "a socket can be made")
        os.listdir(inside)
        return landlock.landlock_gaps(version)

    return _apart(get_out)


def _version() -> int:
    from . import landlock

    try:
        return landlock.landlock_abi()
    except OSError as error:
        raise OSError(f"the kernel has no Landlock, or it is switched off ({error.strerror})") from error


def _try_namespaces() -> list[str]:
    import subprocess
    import tempfile

    from . import bubblewrap, seccomp
    from .bubblewrap import sandbox_paths

    if why := bubblewrap.unavailable_reason() or seccomp.unavailable_reason():
        raise OSError(why)
    inside = Path(tempfile.gettempdir())
    filter = seccomp.memory_file(seccomp.build_filter(sockets=False, network=False))
    try:
        script = ("/bin/sh", "-c", SCRIPT, "sh", OUTSIDE, str(inside), str(os.getpid()))
        done = subprocess.run(
            bubblewrap.bubblewrap_command(sandbox_paths(inside, inside), str(inside), filter, script),
            pass_fds=(filter,),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"it took more than {SECONDS:g} s") from None
    finally:
        os.close(filter)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise OSError(said[-1] if said else f"bwrap ended with {done.returncode}")
    return []


def _fails(act: Callable[[], object], otherwise: str) -> None:
    try:
        act()
    except PermissionError:
        return
    raise OSError(otherwise)


def _apart(act: Callable[[], list[str]]) -> list[str]:
    """Return what `act` returns in a thread that ends with it, and takes along what it did to itself."""
    result: list[str] = []
    failed: list[OSError] = []

    def live() -> None:
        try:
            result.extend(act())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=live, name="trial")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return result
