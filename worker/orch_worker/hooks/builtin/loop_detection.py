"""Detects loops: a call that is repeated with the same result, or a file that is changed many times in a turn.

A call that returned the same result several times in a turn is blocked. The agent receives the reason. Counting
restarts when a new call may have changed something.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from orch_protocol.hooks.events import ToolCall, ToolReturn
from orch_protocol.hooks.options import HookOptions
from orch_protocol.hooks.patches import Block
from orch_protocol.policy.builtin_tools import facts_of
from orch_protocol.policy.policy import DANGEROUS

from ..hook import Hook, make_hook

__all__ = ["make"]

NAME: Final = "loop_detection"
REPEATED: Final = (
    "the same call was made {count} times in this turn, always with the same result; nothing has changed since, so the "
    "result would be the same again. Do something else, or state why you cannot continue"
)
EDITED: Final = (
    "You have changed {file} {count} times in this turn. Read it as it is now, and say what it still lacks, before you "
    "change it again."
)


def make(options: HookOptions) -> tuple[Hook, ...]:
    """Return the hook, configured by `options`."""
    repeats, edits = options.loop_detection.repeats, options.loop_detection.edits

    def check_call(event: ToolCall | ToolReturn, ctx: Any) -> Block | None:
        state = ctx.turn_state
        results: dict[str, tuple[str, int]] = state.setdefault("seen", {})
        if facts_of(event.name).polls:
            return None
        key = _key(event.name, event.input)
        if isinstance(event, ToolCall):
            count = results.get(key, ("", 0))[1]
            return Block(REPEATED.format(count=count)) if count >= repeats else None
        if not event.ran:
            return None
        for file in event.files_changed:
            edit_counts = state.setdefault("edits", {})
            edit_counts[file] = edit_counts.get(file, 0) + 1
            if edit_counts[file] == edits:
                ctx.steer(EDITED.format(file=file, count=edits))
        known_calls: set[str] = state.setdefault("ever", set())
        if key not in known_calls and (event.files_changed or event.name in DANGEROUS):
            results.clear()
        known_calls.add(key)
        digest = hashlib.sha256(event.text.encode(errors="replace")).hexdigest()
        last_digest, count = results.get(key, ("", 0))
        results[key] = (digest, count + 1 if digest == last_digest else 1)
        return None

    # The hook only prevents waste, so a call proceeds if the hook fails.
    return (make_hook(check_call, "tool_call", "tool_result", name=NAME, priority=12, does=["block"], on_error="open"),)


def _key(name: str, input: dict[str, Any]) -> str:
    return f"{name} {msgspec.json.encode(input, order='deterministic').decode()}"
