"""Reminds an agent that is about to stop to build and test its changes.

The hook evaluates the tool calls of the turn: the files that the calls changed, the commands that ran afterwards, and
the success of these commands. The agent's own statements do not count.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from typing import Any, Final

from msgspec import Struct

from orch_protocol.core.messages import ToolUse
from orch_protocol.hooks.events import ProviderResponse, ToolReturn
from orch_protocol.hooks.options import HookOptions
from orch_protocol.policy.builtin_tools import CODE_TOOLS

from ..hook import Hook, make_hook

__all__ = ["make"]

NAME: Final = "completion_checklist"
JOB_ENDED: Final = re.compile(r"^\[\S+ ended with (?P<how>exit status -?\d+|signal \S+)[;,]", re.MULTILINE)
MAX_FILES_SHOWN: Final = 5
UNCHECKED: Final = (
    "Before you stop: you changed {files}, and have run nothing since. Build it or run its tests, repair "
    "what fails, and "
    "say what you ran and what came of it. If it cannot be checked here, say that it is unchecked, and why."
)
FAILING: Final = (
    "Before you stop: you changed {files}, and what you ran last ({call}) failed. Fix it and run it again, or state "
    "clearly that it fails, and why."
)


class _TurnWork(Struct):
    """The changes of a turn that were not checked yet.

    `files` were changed since the last successful check. `failed` is the tool of a later check that failed, or "".
    """

    files: dict[str, None] = {}
    failed: str = ""
    reminded: int = 0


def make(options: HookOptions) -> tuple[Hook, ...]:
    """Return the hook, configured by `options`."""
    reminders, ignore = options.completion_checklist.reminders, options.completion_checklist.ignore

    def on_event(event: ToolReturn | ProviderResponse, ctx: Any) -> None:
        work: _TurnWork = ctx.turn_state.setdefault(NAME, _TurnWork())
        if isinstance(event, ToolReturn):
            work.files |= dict.fromkeys(file for file in event.files_changed if not _matches(file, ignore))
            passed = _passed(event)
            if passed:
                work.files, work.failed = {}, ""
            elif passed is not None and work.files:
                work.failed = event.name
            return
        continues = any(isinstance(block, ToolUse) for block in event.message.content)
        if continues or not work.files or work.reminded >= reminders:
            return
        work.reminded += 1
        template = FAILING if work.failed else UNCHECKED
        ctx.follow_up(template.format(files=_format_files(tuple(work.files)), call=work.failed))

    return (make_hook(on_event, "tool_result", "after_provider_response", name=NAME, priority=20, kind="observe"),)


def _passed(event: ToolReturn) -> bool | None:
    """Return whether the call was a successful check, or None if the call checked nothing."""
    if not event.ran:
        return None
    if event.name == "bg_status":
        ended = JOB_ENDED.search(event.text)
        return None if ended is None else ended["how"] == "exit status 0"
    if event.name not in CODE_TOOLS or event.input.get("background"):
        return None
    return not event.is_error


def _matches(file: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(file, pattern) for pattern in patterns)


def _format_files(files: tuple[str, ...]) -> str:
    omitted = len(files) - MAX_FILES_SHOWN
    return ", ".join(files[:MAX_FILES_SHOWN]) + (f" and {omitted} more" if omitted > 0 else "")
