"""Keeps long results of tools out of the conversation: the model sees how they begin and end, and how to read the rest.

The whole is kept under a handle, as results beyond what is ever shown are anyway; this draws the line earlier. An agent
that cannot read handles sees what it saw before.
"""

from __future__ import annotations

from typing import Any, Final

from orch_protocol.hooks.events import ToolReturn
from orch_protocol.hooks.options import HookOptions
from orch_protocol.hooks.patches import Patch

from ..hook import Hook, make_hook

__all__ = ["make"]

NAME: Final = "output_sandbox"


def make(options: HookOptions) -> tuple[Hook, ...]:
    """Return the hook, as `options` have it."""
    given = options.output_sandbox

    def bound(event: ToolReturn, ctx: Any) -> Patch | None:  # noqa: ARG001
        if not event.ran or len(event.text) <= given.chars:
            return None
        if given.tools is not None and event.name not in given.tools:
            return None
        return event.patch(most=given.chars)

    # After those that change what a result says: what is kept is what they leave of it.
    return (make_hook(bound, "tool_result", name=NAME, kind="transform", priority=90, does=["most"]),)
