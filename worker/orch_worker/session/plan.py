"""What an agent is up to: whether it plans still, and its tasks. What changes there is an entry of its transcript."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from orch_protocol.agent.plan import MARKS, Task, TaskStatus

from .transcript import Transcript

__all__ = ["HEADING", "TaskList", "new_tasks", "task_block", "task_lines", "update_task"]


class TaskList:
    """The agenda of the agent whose `transcript` that is. `planning` says that it is to plan, as its root knows it;
    `plan` is the id of that plan mode."""

    def __init__(self, transcript: Transcript, *, planning: bool, plan: str = "") -> None:
        self._transcript = transcript
        self._planning = planning
        self._plan = plan
        self._turn = ""

    @property
    def planning(self) -> bool:
        """Whether nothing may be written or run, because no plan was approved yet."""
        return self._planning and self._plan not in self._transcript.session.plans_approved

    @property
    def plans(self) -> bool:
        """Whether it is an agent that plans, or did: its tools stay the same, so that what is cached of it holds."""
        return self._planning or bool(self._transcript.session.plans_approved)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Its tasks, as they stand on the path that the conversation took."""
        return self._transcript.session.tasks

    def turn_began(self, turn: str) -> None:
        """What changes from now on does so in the query `turn`."""
        self._turn = turn

    def set_tasks(self, changed: tuple[Task, ...]) -> None:
        """Let its tasks be those. Raises StoreError, and they are what they were, when that cannot be recorded."""
        self._transcript.tasks(changed, self._turn)

    def approve_plan(self) -> None:
        """End this plan mode, for good. Raises StoreError, and it goes on, when that cannot be recorded."""
        self._transcript.plan_approved(self._plan)


# --- The rules of a list of tasks ---

HEADING: Final = "# Tasks"

_WHAT: Final = "Keep this list true: task_update says what you begin, and what is done."
_OPEN: Final = ("pending", "in_progress")


def new_tasks(texts: Iterable[str]) -> tuple[Task, ...]:
    """Return new tasks, each on one line, none of them begun."""
    return tuple(Task(" ".join(text.split())) for text in texts)


def update_task(tasks: Sequence[Task], index: int, status: TaskStatus) -> tuple[Task, ...]:
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


def task_lines(tasks: Iterable[Task]) -> str:
    """Return the tasks, one a line."""
    return "\n".join(f"{MARKS[task.status]} {number}. {task.text}" for number, task in enumerate(tasks, 1))


def task_block(tasks: Sequence[Task]) -> str:
    """Return what a request is to end with, "" when there is nothing left to do."""
    return f"{HEADING}\n\n{_WHAT}\n\n{task_lines(tasks)}" if any(task.status in _OPEN for task in tasks) else ""
