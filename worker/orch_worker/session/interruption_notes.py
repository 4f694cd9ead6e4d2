"""What a model is told of calls that were not let run, and of turns that somebody or something cut short.

Each of them ends with what to do now: without that a model tries the same again, or in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from orch_protocol.policy.policy import Verdict

from ..conversation.prompt_markers import CUT_SHORT, INTERRUPTED
from .session import SessionState

__all__ = [
    "DIRECTIVE",
    "after_cut",
    "after_interruption",
    "denied_result",
    "dry_run_result",
    "interrupted_result",
    "mark_of",
    "not_approved",
    "not_yet",
    "withheld_result",
]

DIRECTIVE: Final = "Stop and ask what to do instead: do not call it again, and do not look for another way to do it."
AND_NOW: Final = (
    "Do not go on with it, and do not look for another way to do it: do what you are asked now, and where that leaves "
    "it open, stop and ask."
)


def denied_result(tool: str, reason: str) -> str:
    """Return the result of a call of `tool` that may not run."""
    return f"[Denied: {tool} was not run: {reason}. {DIRECTIVE}]"


def dry_run_result(tool: str, verdict: Verdict) -> str:
    """Return the result of a call of `tool` that was only judged."""
    would = {"allow": "have run", "ask": "have needed approval", "deny": "have been denied"}[verdict.approval]
    return f"[Dry run: nothing was done. {tool} would {would}{': ' if verdict.reason else ''}{verdict.reason}.]"


def withheld_result(tool: str, reason: str) -> str:
    """Return what stands for the result of a call of `tool` that may not be shown."""
    return f"[Withheld: what {tool} brought is for a model on this machine: {reason}. {DIRECTIVE}]"


def not_yet(tool: str, reason: str) -> str:
    """Return the result of a call of `tool` that an agent in plan mode may not run."""
    return (
        f"[Denied: {tool} was not run: {reason}. Do not look for another way to do it: put it into the plan, and go on "
        "with looking.]"
    )


def not_approved(reason: str) -> str:
    """Return the result of handing in a plan that nobody approved."""
    return (
        f"[The plan was not approved: {reason}. Plan mode goes on. Stop and ask what is to be changed in the plan: do "
        "not hand it in again before you were told, and do not look for another way to do it.]"
    )


def interrupted_result(tool: str, *, began: bool) -> str:
    """Return the result of a call of `tool` that was under way, or not even begun, when the user ended the turn."""
    what = "did not finish, and may have had effects" if began else "was not run"
    return f"[Interrupted: {tool} {what}: the user ended the turn. {DIRECTIVE}]"


def after_interruption(prompt: str, unfinished: Sequence[str]) -> str:
    """Return `prompt`, the first one after a turn that the user ended, with that said before it.

    `unfinished` names the tools whose calls it kept from running or from finishing.
    """
    calls = f" Not run, or not to the end: {', '.join(unfinished)}." if unfinished else ""
    return f"{INTERRUPTED}.{calls} {AND_NOW}]\n\n{prompt}"


def after_cut(prompt: str, unfinished: Sequence[str], died: str = "") -> str:
    """Return `prompt`, the first one after a turn that broke off by itself, with that said before it."""
    calls = f" Without a result, though perhaps done: {', '.join(unfinished)}." if unfinished else ""
    how = f": its process ended ({died})" if died else ""
    return f"{CUT_SHORT}{how}; what it recorded is above.{calls}]\n\n{prompt}"


def mark_of(session: SessionState, *, ended: bool, died: str = "") -> Callable[[str], str]:
    """Return what puts before the next prompt how the turn before it ended, where that was no end of its own.

    `ended` says that the user ended it together with the agent's process, `died` how that process ended by itself.
    """
    last = session.last_said
    if session.interrupted is not None:
        if ended:
            return partial(after_interruption, unfinished=session.unanswered)
        return partial(after_cut, unfinished=session.unanswered, died=died)
    if last is not None and last.stop_reason == "cancelled":
        return partial(after_interruption, unfinished=last.unfinished)
    return str
