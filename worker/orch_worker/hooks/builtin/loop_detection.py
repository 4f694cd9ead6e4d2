"""Notices that an agent goes in circles: the same call with the same result, the same file changed over and over.

A call that gave the same result several times in a turn is blocked, and told so: it would give it once more. Whatever
may have changed something in between, and was not there before, lets everything be tried again.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from orch_protocol.hooks.events import ToolCall, ToolReturn
from orch_protocol.hooks.options import HookOptions
from orch_protocol.hooks.patches import Block
from orch_protocol.policy.policy import DANGEROUS

from ..hook import Hook, make_hook

__all__ = ["make"]

NAME: Final = "loop_detection"
WAITING: Final = frozenset({"bg_status", "collect_subagent", "list_subagents", "wait_subagents"})
"""Tools whose purpose it is to be called until the result is another one."""
AGAIN: Final = (
    "the very same call was made {count} times in this turn, and its result was the same each time; it would be the "
    "same once more, for nothing has changed. Do something else, or say what keeps you from going on"
)
EDITED: Final = (
    "You have changed {file} {count} times in this turn. Read it as it is now, and say what it still lacks, before you "
    "change it again."
)


def make(options: HookOptions) -> tuple[Hook, ...]:
    """Return the hook, as `options` have it."""
    repeats, edits = options.loop_detection.repeats, options.loop_detection.edits

    def look(event: ToolCall | ToolReturn, ctx: Any) -> Block | None:
        state = ctx.turn_state
        seen: dict[str, tuple[str, int]] = state.setdefault("seen", {})
        if event.name in WAITING:
            return None
        key = _key(event.name, event.input)
        if isinstance(event, ToolCall):
            count = seen.get(key, ("", 0))[1]
            return Block(AGAIN.format(count=count)) if count >= repeats else None
        if not event.ran:
            return None
        for file in event.files_changed:
            changed = state.setdefault("edits", {})
            changed[file] = changed.get(file, 0) + 1
            if changed[file] == edits:
                ctx.steer(EDITED.format(file=file, count=edits))
        ever: set[str] = state.setdefault("ever", set())
        if key not in ever and (event.files_changed or event.name in DANGEROUS):
            seen.clear()
        ever.add(key)
        digest = hashlib.sha256(event.text.encode(errors="replace")).hexdigest()
        before, count = seen.get(key, ("", 0))
        seen[key] = (digest, count + 1 if digest == before else 1)
        return None

    # It guards against waste alone: when it fails, things go on.
    return (make_hook(look, "tool_call", "tool_result", name=NAME, priority=12, does=["block"], on_error="open"),)


def _key(name: str, input: dict[str, Any]) -> str:
    return f"{name} {msgspec.json.encode(input, order='deterministic').decode()}"
