"""Tools for plan mode and for the task list of an agent."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from orch_protocol.agent.plan import TaskStatus

from ...session.plan import TaskList, new_tasks, task_lines, update_task
from ..api.base import ToolContext, ToolError, tool

__all__ = ["exit_plan_mode", "task_create", "task_update"]


MAX_PLAN = 20_000


def _can_plan(context: ToolContext) -> bool:
    return context.task_list is not None and context.task_list.plans


@tool(available=_can_plan)
async def exit_plan_mode(context: ToolContext, plan: Annotated[str, Meta(max_length=MAX_PLAN, pattern=r"\S")]) -> str:
    """Submit your plan for approval. After approval plan mode ends and you carry out the plan.

    Args:
        plan: The whole plan, concrete, in Markdown. The person who approves it sees nothing else.
    """
    # The plan is approved, because this tool runs only after this call was approved.
    if context.task_list is None or not context.task_list.planning:
        raise ToolError("You are not in plan mode: there is no plan to submit. Continue with your task.")
    context.task_list.approve_plan()
    return f"The plan was approved, and plan mode is over. Carry it out as it stands ({len(plan)} characters above)."


# --- The task list, which the agent maintains and people can watch ---

Text = Annotated[str, Meta(max_length=500, pattern=r"\S")]


def _has_task_list(context: ToolContext) -> bool:
    return context.task_list is not None


@tool(available=_has_task_list, exclusive=True)
async def task_create(
    context: ToolContext, tasks: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=50)]
) -> str:
    """Create a task list for work with several steps. It replaces the current list and needs approval.

    Args:
        tasks: The tasks in order, each as one sentence.
    """
    task_list = _task_list(context)
    task_list.set_tasks(new_tasks(tasks))
    return task_lines(task_list.tasks)


@tool(available=_has_task_list, exclusive=True)
async def task_update(context: ToolContext, index: int, status: TaskStatus) -> str:
    """Set the status of a task. Only one task can be in progress: the previous one becomes pending again.

    Args:
        index: The task's number.
        status: The new status.
    """
    task_list = _task_list(context)
    if not task_list.tasks:
        raise ToolError("The task list is empty: create tasks with task_create.")
    try:
        task_list.set_tasks(update_task(task_list.tasks, index, status))
    except IndexError:
        raise ToolError(f"No task {index}: task numbers are 1 to {len(task_list.tasks)}.") from None
    return task_lines(task_list.tasks)


def _task_list(context: ToolContext) -> TaskList:
    assert context.task_list is not None  # Otherwise the tools are not available.
    return context.task_list
