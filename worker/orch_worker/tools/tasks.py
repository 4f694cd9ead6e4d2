"""The list of what the agent means to do, which it keeps itself, and which people follow."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from orch_protocol.tasks import TaskStatus

from ..agenda import Agenda
from ..tasks import listed, made, updated
from .base import ToolContext, ToolError, tool

__all__ = ["task_create", "task_update"]

Text = Annotated[str, Meta(max_length=500, pattern=r"\S")]


def _has_agenda(context: ToolContext) -> bool:
    return context.agenda is not None


@tool(category="tasks", available=_has_agenda, exclusive=True)
async def task_create(
    context: ToolContext, tasks: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=50)]
) -> str:
    """Make a list of tasks for work of several steps, in place of the one there is. Somebody has to approve it.

    Args:
        tasks: What is to be done, one after the other, each in a sentence.
    """
    agenda = _agenda(context)
    agenda.set_tasks(made(tasks))
    return listed(agenda.tasks)


@tool(category="tasks", available=_has_agenda, exclusive=True)
async def task_update(context: ToolContext, index: int, status: TaskStatus) -> str:
    """Say how a task of the list stands. One at a time is in progress: another that was is pending again.

    Args:
        index: The task's number.
        status: What it is now.
    """
    agenda = _agenda(context)
    if not agenda.tasks:
        raise ToolError("There are no tasks: task_create makes some.")
    try:
        agenda.set_tasks(updated(agenda.tasks, index, status))
    except IndexError:
        raise ToolError(f"There is no task {index}: they are 1 to {len(agenda.tasks)}.") from None
    return listed(agenda.tasks)


def _agenda(context: ToolContext) -> Agenda:
    assert context.agenda is not None  # else the tools are not available
    return context.agenda
