"""Reminds an agent to report its progress after several steps without text."""

from __future__ import annotations

from typing import Any, Final

from orch_protocol.core.messages import ToolUse
from orch_protocol.hooks.events import ProviderResponse
from orch_protocol.hooks.options import HookOptions

from ..hook import Hook, make_hook

__all__ = ["make"]

NAME: Final = "narration_guard"
SILENT_STEPS: Final = "silent steps"
REMINDER: Final = (
    "You have made {steps} rounds of tool calls without a word. Say in a sentence what you are doing and what you have "
    "found so far, and go on."
)


def make(options: HookOptions) -> tuple[Hook, ...]:
    """Return the hook, configured by `options`."""
    steps = options.narration_guard.steps

    def count_silent_steps(event: ProviderResponse, ctx: Any) -> None:
        silent = not event.text.strip() and any(isinstance(block, ToolUse) for block in event.message.content)
        count = ctx.turn_state.get(SILENT_STEPS, 0) + 1 if silent else 0
        if count == steps:
            ctx.steer(REMINDER.format(steps=steps))
            count = 0
        ctx.turn_state[SILENT_STEPS] = count

    return (make_hook(count_silent_steps, "after_provider_response", name=NAME, priority=30, kind="observe"),)
