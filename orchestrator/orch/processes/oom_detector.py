"""Detects that the kernel killed a process for lack of memory.

The kernel counts such kills, but does not report which process it killed. This module reads the counter of this
process's control group, which includes the processes of agents. If there is no control group, this module reads the
counter of the system. If a process was killed and orch did not kill it, and the counter has risen, this module assumes
that the kernel killed the process for lack of memory. If another program kills a process at the same time, this module
cannot see the difference.
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
    """Counts the kills for lack of memory that were neither claimed (`claim`) nor ignored (`ignore_earlier`).

    `path` is the file with the counter. If `path` is None, the detector searches for the file.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or next((each for each in _candidates() if _count(each) is not None), SYSTEM)
        self._seen = _count(self.path) or 0

    def ignore_earlier(self) -> None:
        """Ignore all kills that were not claimed so far.

        The killed processes belong to a command of an agent, or have nothing to do with orch.
        """
        self._seen = _count(self.path) or 0

    def claim(self) -> str:
        """Return the evidence that the kernel has just killed a process for lack of memory, "" without evidence."""
        if (_count(self.path) or 0) <= self._seen:
            return ""
        self._seen += 1
        return f"out of memory: the kernel killed this process or another one (the counter {self.path} has risen)"


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
            # In a container, this file contains the path of the group outside the container.
            yield from (GROUPS / "memory" / folder / "memory.oom_control", GROUPS / "memory" / "memory.oom_control")


def _count(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.removeprefix(COUNT)) for line in lines if line.startswith(COUNT)), None)
