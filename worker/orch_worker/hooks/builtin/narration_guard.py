"""Reminds an agent that works on and on without a word to say what it is doing: somebody may be watching."""

from __future__ import annotations

from typing import Any, Final

from orch_protocol.core.messages import ToolUse
from orch_protocol.hooks.events import ProviderResponse
from orch_protocol.hooks.options import HookOptions

from ..hook import Hook, make_hook

__all__ = ["make"]

NAME: Final = "narration_guard"
SILENT: Final = "silent steps"
TELL: Final = (
    "You have made {steps} rounds of tool calls without a word. Say in a sentence what you are doing and what you have "
    "found so far, and go on."
)


def make(options: HookOptions) -> tuple[Hook, ...]:
    """Return the hook, as `options` have it."""
    steps = options.narration_guard.steps

    def listen(event: ProviderResponse, ctx: Any) -> None:
        silent = not event.text.strip() and any(isinstance(block, ToolUse) for block in event.message.content)
        count = ctx.turn_state.get(SILENT, 0) + 1 if silent else 0
        if count == steps:
            ctx.steer(TELL.format(steps=steps))
            count = 0
        ctx.turn_state[SILENT] = count

    return (make_hook(listen, "after_provider_response", name=NAME, priority=30, kind="observe"),)
