"""Processes of ours that are still there, by the mark each carries in its environment from its first instruction.

Nothing is left when a root ends, unless its shim is killed in the same moment: then what tools have detached is
nobody's. Whoever opens the run next ends it.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["end_leftovers", "marked"]

PASSES = 10
"""How often to look again: one that is just forking may have a child that was not there before."""


def marked(proc: str = "/proc") -> Iterator[tuple[int, dict[str, str]]]:
    """Yield pid and environment of each process we may look into that carries ORCH_RUN, but for this one."""
    try:
        names = os.listdir(proc)
    except OSError:
        return  # a system without such a list
    for name in names:
        if name.isdigit() and int(name) != os.getpid() and (found := _environment(int(name), proc)):
            yield int(name), found


def end_leftovers(run: str, proc: str = "/proc") -> int:
    """Kill every process that carries ORCH_RUN=`run` and return how many. The caller owns that run, and runs nothing.

    A process is looked at again once it is held by its pidfd: its number may be another's by then.
    """
    ended: set[int] = set()
    for _ in range(PASSES):
        found = [pid for pid, env in marked(proc) if env["ORCH_RUN"] == run]
        if not found:
            break
        for pid in found:
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                continue  # gone meanwhile
            try:
                if _environment(pid, proc).get("ORCH_RUN") == run:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    ended.add(pid)
            except OSError:
                pass  # gone, or it became another user
            finally:
                os.close(pidfd)
    return len(ended)


def _environment(pid: int, proc: str) -> dict[str, str]:
    """Return the environment of a process of ours, nothing for one that is gone, somebody else's or not marked."""
    try:
        with open(f"{proc}/{pid}/environ", "rb") as file:
            raw = file.read()
    except OSError:
        return {}
    if b"ORCH_RUN=" not in raw:
        return {}
    pairs = (pair.partition("=") for pair in os.fsdecode(raw).split("\0"))
    found = {key: value for key, _, value in pairs if key}
    return found if "ORCH_RUN" in found else {}
