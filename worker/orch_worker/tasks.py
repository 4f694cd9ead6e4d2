"""The rules of a list of tasks: at most one is in progress. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from orch_protocol.tasks import MARKS, Task, TaskStatus

__all__ = ["HEADING", "block", "listed", "made", "updated"]

HEADING: Final = "# Tasks"

_WHAT: Final = "Keep this list true: task_update says what you begin, and what is done."
_OPEN: Final = ("pending", "in_progress")


def made(texts: Iterable[str]) -> tuple[Task, ...]:
    """Return new tasks, each on one line, none of them begun."""
    return tuple(Task(" ".join(text.split())) for text in texts)


def updated(tasks: Sequence[Task], index: int, status: TaskStatus) -> tuple[Task, ...]:
    """Return `tasks` with that status for the one at `index`, from 1. One that was in progress gives way to it.

    Raises IndexError for a task that is not there.
    """
    if not 1 <= index <= len(tasks):
        raise IndexError(index)
    begins = status == "in_progress"
    return tuple(
        replace(task, status=status)
        if number == index
        else replace(task, status="pending")
        if begins and task.status == "in_progress"
        else task
        for number, task in enumerate(tasks, 1)
    )


def listed(tasks: Iterable[Task]) -> str:
    """Return the tasks, one a line."""
    return "\n".join(f"{MARKS[task.status]} {number}. {task.text}" for number, task in enumerate(tasks, 1))


def block(tasks: Sequence[Task]) -> str:
    """Return what a request is to end with, "" when there is nothing left to do."""
    return f"{HEADING}\n\n{_WHAT}\n\n{listed(tasks)}" if any(task.status in _OPEN for task in tasks) else ""
