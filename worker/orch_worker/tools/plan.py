"""The way out of plan mode: a plan, and somebody who approves it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .base import ToolContext, ToolError, tool

__all__ = ["exit_plan_mode"]

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
