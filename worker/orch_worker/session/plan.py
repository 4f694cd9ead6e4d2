"""Plan mode and the task list of an agent. Changes are recorded as entries of its transcript."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from orch_protocol.agent.plan import STATUS_SYMBOLS, Task, TaskStatus

from .transcript import Transcript

__all__ = ["HEADING", "TaskList", "new_tasks", "task_block", "task_lines", "update_task"]


class TaskList:
    """Plan mode and tasks in the `transcript` of an agent.

    `planning` is True if the root started the agent in plan mode. `plan` is the id of that plan mode.
    """

    def __init__(self, transcript: Transcript, *, planning: bool, plan: str = "") -> None:
        self._transcript = transcript
        self._planning = planning
        self._plan = plan

    @property
    def planning(self) -> bool:
        """Whether plan mode is on, so that the agent must not write or run anything."""
        return self._planning and self._plan not in self._transcript.session.plans_approved

    @property
    def plans(self) -> bool:
        """Whether the agent is or was in plan mode.

        An agent that was in plan mode keeps its list of tools, so that the cached prompt stays valid.
        """
        return self._planning or bool(self._transcript.session.plans_approved)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks on the current branch."""
        return self._transcript.session.tasks

    def set_tasks(self, changed: tuple[Task, ...]) -> None:
        """Record the new task list. If writing fails, raise StoreError; the task list is then unchanged."""
        self._transcript.tasks(changed)

    def approve_plan(self) -> None:
        """Record that the plan was approved, which ends plan mode.

        If writing fails, raise StoreError; plan mode then continues.
        """
        self._transcript.plan_approved(self._plan)


# --- Task lists ---

HEADING: Final = "# Tasks"

_WHAT: Final = "Keep this list up to date: call task_update when you begin or finish a task."
_OPEN: Final = ("pending", "in_progress")


def new_tasks(texts: Iterable[str]) -> tuple[Task, ...]:
    """Return pending tasks, each on one line."""
    return tuple(Task(" ".join(text.split())) for text in texts)


def update_task(tasks: Sequence[Task], index: int, status: TaskStatus) -> tuple[Task, ...]:
    """Return `tasks` with a new status for task number `index` (from 1). Any other task in progress becomes pending.

    Raise IndexError for an unknown task.
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
    """Return the tasks, one per line."""
    return "\n".join(f"{STATUS_SYMBOLS[task.status]} {number}. {task.text}" for number, task in enumerate(tasks, 1))


def task_block(tasks: Sequence[Task]) -> str:
    """Return the task block for a request, or "" if no task is open."""
    return f"{HEADING}\n\n{_WHAT}\n\n{task_lines(tasks)}" if any(task.status in _OPEN for task in tasks) else ""
