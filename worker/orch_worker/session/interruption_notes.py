"""Texts that inform the model about calls that were not run and turns that were interrupted.

Each text ends with an instruction for the next step. Without this instruction, a model would repeat the call or try to
get around the refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from orch_protocol.policy.policy import Verdict

from ..conversation.framing import CUT_SHORT, INTERRUPTED
from .session import SessionState

__all__ = [
    "DIRECTIVE",
    "after_cut",
    "after_interruption",
    "denied_result",
    "dry_run_result",
    "interrupted_result",
    "interruption_note_adder",
    "plan_mode_result",
    "plan_rejected_result",
    "withheld_result",
]

DIRECTIVE: Final = "Stop and ask what to do instead: do not call it again, and do not look for another way to do it."
AND_NOW: Final = (
    "Do not go on with it, and do not look for another way to do it: do what you are asked now, and where that leaves "
    "it open, stop and ask."
)


def denied_result(tool: str, reason: str) -> str:
    """Return the result of a denied call of `tool`."""
    return f"[Denied: {tool} was not run: {reason}. {DIRECTIVE}]"


def dry_run_result(tool: str, verdict: Verdict) -> str:
    """Return the result of a call of `tool` in a dry run."""
    would = {"allow": "have run", "ask": "have needed approval", "deny": "have been denied"}[verdict.approval]
    return f"[Dry run: nothing was done. {tool} would {would}{': ' if verdict.reason else ''}{verdict.reason}.]"


def withheld_result(tool: str, reason: str) -> str:
    """Return the replacement for a result of `tool` that must not be shown."""
    return f"[Withheld: only a local model may read the result of {tool}: {reason}. {DIRECTIVE}]"


def plan_mode_result(tool: str, reason: str) -> str:
    """Return the result of a call of `tool` that is denied in plan mode."""
    return (
        f"[Denied: {tool} was not run: {reason}. Do not look for another way to do it: add it to the plan, and "
        "continue to read.]"
    )


def plan_rejected_result(reason: str) -> str:
    """Return the result of submitting a plan that was not approved."""
    return (
        f"[The plan was not approved: {reason}. Plan mode continues. Stop and ask what to change in the plan. Do "
        "not submit the plan again before you get an answer, and do not look for another way to do it.]"
    )


def interrupted_result(tool: str, *, began: bool) -> str:
    """Return the result of a call of `tool` that had not finished when the user ended the turn.

    `began` is True if the call had started.
    """
    what = "did not finish, and may have had effects" if began else "was not run"
    return f"[Interrupted: {tool} {what}: the user ended the turn. {DIRECTIVE}]"


def after_interruption(prompt: str, unfinished: Sequence[str]) -> str:
    """Return `prompt` with a note that the user ended the previous turn.

    `unfinished` names the tools whose calls did not start or did not finish.
    """
    calls = f" Not run, or not to the end: {', '.join(unfinished)}." if unfinished else ""
    return f"{INTERRUPTED}.{calls} {AND_NOW}]\n\n{prompt}"


def after_cut(prompt: str, unfinished: Sequence[str], died: str = "") -> str:
    """Return `prompt` with a note that the previous turn was cut short."""
    calls = f" Without a result, though perhaps done: {', '.join(unfinished)}." if unfinished else ""
    how = f": its process ended ({died})" if died else ""
    return f"{CUT_SHORT}{how}; what it recorded is above.{calls}]\n\n{prompt}"


def interruption_note_adder(session: SessionState, *, ended: bool, died: str = "") -> Callable[[str], str]:
    """Return a function that adds a note to the next prompt if the previous turn did not end normally.

    `ended` is True if the user ended the turn together with the agent's process. `died` describes how the process died.
    """
    last = session.last_reply
    if session.interrupted is not None:
        if ended:
            return partial(after_interruption, unfinished=session.unanswered)
        return partial(after_cut, unfinished=session.unanswered, died=died)
    if last is not None and last.stop_reason == "cancelled":
        return partial(after_interruption, unfinished=last.unfinished)
    return str
