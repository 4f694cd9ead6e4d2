"""Shortens long tool results in the conversation. The model sees the beginning, the end, and how to read the rest.

The full result is stored under a handle, as for results above the general limit. This hook sets a lower limit. Results
are not shortened for an agent that cannot read handles.
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
    """Return the hook, configured by `options`."""
    settings = options.output_sandbox

    def limit_result(event: ToolReturn, ctx: Any) -> Patch | None:  # noqa: ARG001
        if not event.ran or len(event.text) <= settings.chars:
            return None
        if settings.tools is not None and event.name not in settings.tools:
            return None
        return event.patch(max_chars=settings.chars)

    return (make_hook(limit_result, "tool_result", name=NAME, kind="transform", priority=15, does=["max_chars"]),)
