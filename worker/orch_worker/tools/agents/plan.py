"""The way out of plan mode: a plan, and somebody who approves it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from orch_protocol.agent.plan import TaskStatus

from ...session.plan import TaskList, new_tasks, task_lines, update_task
from ..api.base import ToolContext, ToolError, tool

__all__ = ["exit_plan_mode", "task_create", "task_update"]


MOST_PLAN = 20_000


def _plans(context: ToolContext) -> bool:
    return context.agenda is not None and context.agenda.plans


@tool(category="plan", available=_plans)
async def exit_plan_mode(context: ToolContext, plan: Annotated[str, Meta(max_length=MOST_PLAN, pattern=r"\S")]) -> str:
    """Hand in your plan for approval. Once it is approved plan mode is over, and you carry it out.

    Args:
        plan: All of it, concrete, in Markdown: whoever approves it sees nothing else.
    """
    # Approved it is by now: this tool runs only when somebody said yes to this very plan.
    if context.agenda is None or not context.agenda.planning:
        raise ToolError("You are not in plan mode: there is nothing to hand in. Go on with your task.")
    context.agenda.approve_plan()
    return f"The plan was approved, and plan mode is over. Carry it out as it stands ({len(plan)} characters above)."


# --- The list of what the agent means to do, which it keeps itself, and which people follow ---

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
    agenda.set_tasks(new_tasks(tasks))
    return task_lines(agenda.tasks)


@tool(category="tasks", available=_has_agenda, exclusive=True)
async def task_update(context: ToolContext, index: int, status: TaskStatus) -> str:
    """Say how a task of the list stands. One at a time is in progress: another that was is pending again.

    Args:
        index: The task's number.
        status: What it is now.
    """
    agenda = _agenda(context)
    if not agenda.tasks:
        raise ToolError("The task list is empty: create tasks with task_create.")
    try:
        agenda.set_tasks(update_task(agenda.tasks, index, status))
    except IndexError:
        raise ToolError(f"No task {index}: task numbers are 1 to {len(agenda.tasks)}.") from None
    return task_lines(agenda.tasks)


def _agenda(context: ToolContext) -> TaskList:
    assert context.agenda is not None  # else the tools are not available
    return context.agenda
