"""Lets a conversation become shorter before it has to: by a summary of what was said first, or by archives.

That is asked for. Those do it who do it anyway when a conversation outgrows its window: between requests, on record.
Where nothing can go, nothing is asked for again before there is more.
"""

from __future__ import annotations

from typing import Any, Final

from orch_protocol.hooks.events import StepStart
from orch_protocol.hooks.options import HookOptions, Summarization
from orch_protocol.hooks.patches import Patch

from ..hook import Hook, make_hook

__all__ = ["make"]

NAME: Final = "summarization"
ASKED: Final = "asked"
LEFT: Final = "left"
"""What is kept: whether it was just asked for, and how many tokens that left."""
MORE: Final = 4
"""By one part of so many of what was left a conversation is to have grown."""


def make(options: HookOptions) -> tuple[Hook, ...]:
    """Return the hook, as `options` have it."""
    given = options.summarization

    def shorten(event: StepStart, ctx: Any) -> Patch | None:
        if ctx.state.pop(ASKED, False):
            ctx.state[LEFT] = event.tokens
        left = ctx.state.get(LEFT, 0)
        if not is_due(given, event) or event.tokens < left + left // MORE:
            return None
        ctx.state[ASKED] = True
        return event.patch(shorten=given.mode or ("archive" if ctx.config.archival is not None else "compact"))

    return (make_hook(shorten, "step_start", name=NAME, kind="transform"),)


def is_due(given: Summarization, event: StepStart) -> bool:
    """Return whether the conversation of `event` has passed one of the bounds that are `given`."""
    return (
        (given.pct is not None and 0 < event.limit * given.pct <= event.tokens * 100)
        or (given.tokens is not None and event.tokens >= given.tokens)
        or (given.messages is not None and event.messages >= given.messages)
    )
