"""The workspace tool: pin_object."""

from __future__ import annotations

from orch_protocol.core.errors import OrchError

from ..tools.api.base import ToolContext, ToolError, tool

__all__ = ["pin_object"]


def _has_workspace(context: ToolContext) -> bool:
    return context.workspace is not None


@tool(available=_has_workspace)
async def pin_object(context: ToolContext, name: str, pinned: bool = True) -> str:
    """Keep an object in the workspace. A pinned object is listed first in each request and is never dropped.

    Args:
        name: Its name, as in "file:src/pump.py" or "value:frame".
        pinned: False to unpin the object.
    """
    assert context.workspace is not None  # Otherwise the tool is not available.
    try:
        found = context.workspace.pin(name, pinned=pinned)
    except OrchError as error:
        raise ToolError(str(error)) from error
    return f"{found.name} is {'pinned' if pinned else 'no longer pinned'}."
