"""Asks an agent that is about to stop whether it has built, tested and mended what it changed.

What counts is what happened in the turn, not what the agent says of it: which files tools changed, what was run since
then, and how that ended.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from typing import Any, Final

from msgspec import Struct

from orch_protocol.core.messages import ToolUse
from orch_protocol.hooks.events import ProviderResponse, ToolReturn
from orch_protocol.hooks.options import HookOptions

from ..hook import Hook, make_hook

__all__ = ["make"]

NAME: Final = "completion_checklist"
CHECKS: Final = frozenset({"bash", "run_python", "run_python_script"})
"""Tools that can find out whether a change works."""
JOB_ENDED: Final = re.compile(r"^\[\S+ ended with (?P<how>exit status -?\d+|signal \S+)[;,]", re.MULTILINE)
SHOWN: Final = 5
UNCHECKED: Final = (
    "Before you stop: you changed {files}, and have run nothing since. Build it or run its tests, mend what fails, and "
    "say what you ran and what came of it. If it cannot be checked here, say that it is unchecked, and why."
)
FAILING: Final = (
    "Before you stop: you changed {files}, and what you ran last ({call}) failed. Mend it and run it again, or say "
    "plainly that it fails, and why."
)


class _TurnWork(Struct):
    """What has been done in a turn: the files changed since something succeeded, and what failed since then."""

    files: dict[str, None] = {}
    failed: str = ""
    reminded: int = 0


def make(options: HookOptions) -> tuple[Hook, ...]:
    """Return the hook, as `options` have it."""
    reminders, ignore = options.completion_checklist.reminders, options.completion_checklist.ignore

    def look(event: ToolReturn | ProviderResponse, ctx: Any) -> None:
        work: _TurnWork = ctx.turn_state.setdefault(NAME, _TurnWork())
        if isinstance(event, ToolReturn):
            work.files |= dict.fromkeys(file for file in event.files_changed if not _matches(file, ignore))
            passed = _passed(event)
            if passed:
                work.files, work.failed = {}, ""
            elif passed is not None and work.files:
                work.failed = event.name
            return
        going_on = any(isinstance(block, ToolUse) for block in event.message.content)
        if going_on or not work.files or work.reminded >= reminders:
            return
        work.reminded += 1
        words = FAILING if work.failed else UNCHECKED
        ctx.follow_up(words.format(files=_listed(tuple(work.files)), call=work.failed))

    return (make_hook(look, "tool_result", "after_provider_response", name=NAME, priority=20, kind="observe"),)


def _passed(event: ToolReturn) -> bool | None:
    """Return whether the call found that things work; None when it says nothing of that."""
    if not event.ran:
        return None
    if event.name == "bg_status":
        ended = JOB_ENDED.search(event.text)
        return None if ended is None else ended["how"] == "exit status 0"
    if event.name not in CHECKS or event.input.get("background"):
        return None
    return not event.is_error


def _matches(file: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(file, pattern) for pattern in patterns)


def _listed(files: tuple[str, ...]) -> str:
    more = len(files) - SHOWN
    return ", ".join(files[:SHOWN]) + (f" and {more} more" if more > 0 else "")
