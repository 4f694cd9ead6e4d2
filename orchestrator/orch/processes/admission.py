"""Admission of new workers: how many of them work at once until their agents wait for their models.

The start of a worker and its first request take much processor time, because the worker writes to pages that it shares
with the zygote. If a hundred workers do this at once, all of them send their first request at the end. With admission,
the first agents get their responses while the others start.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from msgspec import Struct

__all__ = ["HOLD_SECONDS", "Admission", "Step", "admitted_at_once"]

WORKERS_PER_CORE: Final = 4
"""More than one, because workers also wait for the root and for disks, and because other programs run too."""
HOLD_SECONDS: Final = 1.0
"""Maximum time for which a step of a worker delays others. A worker that needs longer waits for a disk or hangs."""


class Step(Struct, frozen=True):
    """One of the two steps of the process `incarnation` of the agent `id`.

    - `start`: from the launch until the process is ready.
    - `query`: from the first query until the process sends anything about it, which it does as soon as it waits.
    """

    id: str
    incarnation: int
    kind: Literal["start", "query"]


Begin: TypeAlias = Callable[[], object]


def admitted_at_once() -> int:
    """Return the number of steps that the processors of this machine can take at once."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return WORKERS_PER_CORE * cores


class Admission:
    """Admits at most `limit` steps at once: first queries before starts, otherwise in the order of the requests."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._active: set[Step] = set()
        self._waiting: dict[str, dict[Step, Begin]] = {"query": {}, "start": {}}

    def request(self, step: Step, begin: Begin) -> None:
        """Call `begin` as soon as `step` may begin, which may be now.

        The first query of a process whose start is still active takes over the place of the start.
        """
        start = Step(step.id, step.incarnation, "start")
        if step.kind == "query" and start in self._active:
            self._active.remove(start)
            self._active.add(step)
            begin()
        else:
            self._waiting[step.kind][step] = begin
            self._admit()

    def end(self, step: Step) -> None:
        """Let the next step begin, because `step` ended. Steps that have not begun are ignored.

        A process can send frames while its first query waits, for example about a compaction.
        """
        if step in self._active:
            self._active.remove(step)
            self._admit()

    def withdraw(self, step: Step) -> None:
        """End `step`, or forget it if it waits, because its process has ended."""
        self._waiting[step.kind].pop(step, None)
        self.end(step)

    def begin_now(self, step: Step) -> None:
        """Let `step` begin even if the limit is reached. Steps that do not wait are ignored."""
        if (begin := self._waiting[step.kind].pop(step, None)) is not None:
            self._active.add(step)
            begin()

    def _admit(self) -> None:
        for waiting in self._waiting.values():
            while waiting and len(self._active) < self._limit:
                step = next(iter(waiting))
                begin = waiting.pop(step)
                self._active.add(step)
                begin()
