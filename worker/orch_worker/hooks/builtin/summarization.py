"""Requests compaction or archiving before the conversation reaches the limit of the model.

The hook only sets a flag in the step. The agent's own compaction or archiving does the work. After a request, the hook
waits until the conversation has grown by a quarter.
"""

from __future__ import annotations

from typing import Any, Final

from orch_protocol.hooks.events import StepStart
from orch_protocol.hooks.options import HookOptions, Summarization
from orch_protocol.hooks.patches import Patch

from ..hook import Hook, make_hook

__all__ = ["make"]

NAME: Final = "summarization"
REQUESTED: Final = "asked"
TOKENS_AFTER: Final = "left"
"""Keys of the hook's state: whether the hook made a request in the last step, and the size of the conversation after
the request, in tokens.
"""
GROWTH_DIVISOR: Final = 4
"""The hook repeats its request after the conversation has grown by one fourth."""


def make(options: HookOptions) -> tuple[Hook, ...]:
    """Return the hook, configured by `options`."""
    settings = options.summarization

    def shorten(event: StepStart, ctx: Any) -> Patch | None:
        if ctx.state.pop(REQUESTED, False):
            ctx.state[TOKENS_AFTER] = event.tokens
        tokens_after = ctx.state.get(TOKENS_AFTER, 0)
        if not is_due(settings, event) or event.tokens < tokens_after + tokens_after // GROWTH_DIVISOR:
            return None
        ctx.state[REQUESTED] = True
        return event.patch(shorten=settings.mode or ("archive" if ctx.config.archival is not None else "compact"))

    return (make_hook(shorten, "step_start", name=NAME, kind="transform", priority=8),)


def is_due(settings: Summarization, event: StepStart) -> bool:
    """Return whether the conversation of `event` exceeds one of the limits in `settings`."""
    return (
        (settings.pct is not None and 0 < event.limit * settings.pct <= event.tokens * 100)
        or (settings.tokens is not None and event.tokens >= settings.tokens)
        or (settings.messages is not None and event.messages >= settings.messages)
    )
