"""Whether the kernel ended a process for want of memory: by its own count, for it tells nobody which one it was.

The count of this process's control group is read, in which its agents' processes are too; where that tells none, the
system's. A process that was killed, not by us, while the count rose is taken for one of those that were counted.
Somebody else's kill in the same moments cannot be told from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["OomDetector"]

GROUPS: Final = Path("/sys/fs/cgroup")
SYSTEM: Final = Path("/proc/vmstat")
COUNT: Final = "oom_kill "


class OomDetector:
    """What the kernel has ended for want of memory since `look` was called last, and nobody claimed. `path` is the file
    that counts; None looks for it."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or next((each for each in _candidates() if _count(each) is not None), SYSTEM)
        self._seen = _count(self.path) or 0

    def look(self) -> None:
        """What was ended until now, and not claimed, was something else: a command of an agent, or nothing of ours."""
        self._seen = _count(self.path) or 0

    def claim(self) -> str:
        """Return what shows that a process that was killed just now is one of those, "" when nothing does."""
        if (_count(self.path) or 0) <= self._seen:
            return ""
        self._seen += 1
        return f"out of memory: the kernel killed it, or something beside it ({self.path} counts one more)"


def _candidates() -> Iterator[Path]:
    try:
        groups = Path("/proc/self/cgroup").read_text()
    except OSError:  # not Linux
        return
    for line in groups.splitlines():
        _, kinds, group = line.split(":", 2)
        folder = group.lstrip("/")
        if not kinds:
            yield from (GROUPS / folder / "memory.events", GROUPS / "unified" / folder / "memory.events")
        elif "memory" in kinds.split(","):
            # Within a container the group's path is the one outside of it.
            yield from (GROUPS / "memory" / folder / "memory.oom_control", GROUPS / "memory" / "memory.oom_control")


def _count(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.removeprefix(COUNT)) for line in lines if line.startswith(COUNT)), None)
