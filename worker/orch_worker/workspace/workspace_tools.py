"""What an agent does with what it has at hand: pin_object."""

from __future__ import annotations

from orch_protocol.core.errors import OrchError

from ..tools.api.base import ToolContext, ToolError, tool

__all__ = ["pin_object"]


def _has_one(context: ToolContext) -> bool:
    return context.workbench is not None


@tool(category="workspace", available=_has_one)
async def pin_object(context: ToolContext, name: str, pinned: bool = True) -> str:
    """Keep an object at hand: one that is pinned is told of first at the end of each request, and never forgotten.

    Args:
        name: Its name, as in "file:src/pump.py" or "value:frame".
        pinned: False to let it be like others again.
    """
    assert context.workbench is not None  # else the tool is not available
    try:
        found = context.workbench.pin(name, pinned=pinned)
    except OrchError as error:
        raise ToolError(str(error)) from error
    return f"{found.name} is {'pinned' if pinned else 'not pinned any more'}."
