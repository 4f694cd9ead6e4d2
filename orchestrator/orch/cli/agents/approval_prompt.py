"""Approvals on the command line: how calls that need approval are answered, and the questions to the user."""

from __future__ import annotations

import os
import sys

from ...client.failure import CommandError
from ...render import terminal as render
from ...render.approvals import WAYS
from . import controlling_terminal
from .controlling_terminal import NoTerminalError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping
    from typing import Any

    from ...client.connection import Connection, OnEvent
    from .controlling_terminal import TerminalAccess

__all__ = [
    "VARIABLE",
    "Approval",
    "Approver",
    "approval_of",
    "approve_argument",
    "choose_approval",
    "print_notice",
    "scope_of",
]

VARIABLE = "ORCH_APPROVE"
MODES = ("ask", "deny", "auto")
PLAN_CHOICES = "Approve this plan? [y] yes, anything else: no > "
CHOICES = "Allow it? [y] once, [s] for this session, [p] for this project, anything else: no > "
SCOPES = {"y": "once", "s": "session", "p": "project"}
REASONS = {
    "none": "there is no terminal to ask on",
    "background": "this command is not in the foreground of its terminal",
    "json": "with --json nobody is asked unless --approve ask is given",
}


class Approval:
    """How a command answers calls that need approval: `mode` is ask, deny or auto.

    `notice` says why nobody can be asked; it is empty when somebody can, or when the user chose the answer.
    """

    def __init__(self, mode: str, notice: str = "") -> None:
        self.mode = mode
        self.notice = notice

    @property
    def chose_deny(self) -> bool:
        """Whether the user asked for calls to be denied, so that a denied call is no failure."""
        return self.mode == "deny" and not self.notice


def approve_argument(parser: Any) -> None:
    """Add `--approve` to the command."""
    parser.add_argument(
        "--approve",
        choices=list(MODES),
        help="calls that need approval: ask on the terminal, deny them, or allow them and report each on stderr "
        "(default: ORCH_APPROVE, else ask; denied where there is no terminal, and with --json)",
    )


def choose_approval(flag: str | None, variable: str | None, *, json: bool, reach: TerminalAccess) -> Approval:
    """Return how to answer, from `--approve`, `ORCH_APPROVE`, `--json` and whether a terminal can be reached.

    Raises Failure for an unknown value, and for `--approve ask` without a terminal.
    """
    chosen = flag or variable or None
    if chosen is not None and chosen not in MODES:
        raise CommandError("ConfigError", f"{VARIABLE}={chosen!r} is not valid: use ask, deny or auto", 2)
    if chosen in ("deny", "auto"):
        return Approval(chosen)
    if flag == "ask" and reach == "none":
        raise CommandError("ConfigError", "--approve ask needs a terminal: use --approve deny or --approve auto", 2)
    if json and flag != "ask":
        return Approval("deny", _notice("json" if reach == "foreground" else reach))
    if reach == "none":
        return Approval("deny", _notice(reach))
    return Approval("ask", _notice(reach) if reach == "background" else "")


def _notice(reason: str) -> str:
    return f"{REASONS[reason]}: calls that need approval will be denied. {WAYS}"


def approval_of(arguments: Namespace, env: Mapping[str, str] = os.environ) -> Approval:
    """Return how this command answers. Raises Failure."""
    json = bool(getattr(arguments, "json", False))
    return choose_approval(arguments.approve, env.get(VARIABLE), json=json, reach=controlling_terminal.reach())


def print_notice(approval: Approval, *, json: bool) -> None:
    """Print on stderr that nobody can be asked, if so; with `json` as an object."""
    if approval.notice:
        print(render.to_json({"notice": approval.notice}) if json else f"orch: {approval.notice}", file=sys.stderr)


class Approver:
    """Answers the questions among the events of a turn, over its own connection."""

    def __init__(self, connection: Connection, mode: str) -> None:
        self._connection = connection
        self._mode = mode

    def before(self, others: OnEvent | None) -> OnEvent:
        """Return a callback that answers questions and passes all other events to `others`."""

        def take(event: dict[str, Any]) -> None:
            if event["kind"] == "question":
                self.answer(event)
            elif others is not None:
                others(event)

        return take

    def answer(self, event: dict[str, Any]) -> None:
        """Answer a question. Raises Failure."""
        said: dict[str, Any] = {"id": event["id"], "allow": False}
        try:
            scope = "once" if self._mode == "auto" else scope_of(event)
        except NoTerminalError:
            said["unasked"] = True
        else:
            said |= {"allow": scope is not None, "scope": scope or "once"}
        answered = self._connection.call("answer", said)
        if not answered["taken"]:
            _say(f"that did not count: {render.truncate_line(answered['note'])}")
        elif self._mode == "auto":
            _say("let through: " + "; ".join(_lines(event)))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def scope_of(event: dict[str, Any]) -> str | None:
    """Ask the user on the controlling terminal; return the scope of a yes, None for a no. Raises NoTerminalError."""
    is_plan = event["tool"] == "exit_plan_mode"
    choices, scopes = (PLAN_CHOICES, {"y": "once"}) if is_plan else (CHOICES, SCOPES)
    question = "\r\x1b[K" + "\n".join(f"  {line}" for line in _lines(event)) + f"\n{choices}"
    return scopes.get(controlling_terminal.ask(question, event["seconds"]).strip().lower())


def _lines(event: dict[str, Any]) -> list[str]:
    return [render.safe(line) for line in event["lines"]]


def _say(text: str) -> None:
    print(f"orch: {text}", file=sys.stderr, flush=True)
