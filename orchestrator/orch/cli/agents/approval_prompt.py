"""Approvals on the command line. This module decides how calls that need approval are answered, and asks the user."""

from __future__ import annotations

import os
import sys

from ...client.failure import CommandError
from ...render import terminal as render
from ...render.approvals import WAYS, approval_choices, denied_note, scopes_of
from . import controlling_terminal
from .controlling_terminal import NoTerminalError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from ...client.connection import Connection, OnEvent
    from .controlling_terminal import TerminalAccess

__all__ = [
    "VARIABLE",
    "Approval",
    "Approver",
    "approval_of",
    "approve_argument",
    "check_detached",
    "choose_approval",
    "report_denied",
    "scope_of",
]

VARIABLE = "ORCH_APPROVE"
MODES = ("ask", "deny", "auto")
DENIAL = "anything else: no"
OBSTACLES = {
    "none": "there is no terminal to ask on",
    "background": "this command is not in the foreground of its terminal",
    "json": "--json does not ask, unless --approve ask is given",
}


class Approval:
    """How a command answers calls that need approval. `mode` is ask, deny or auto.

    `obstacle` is the reason why the user cannot be asked. It is "" if the user can be asked or chose the answer.
    """

    def __init__(self, mode: str, obstacle: str = "") -> None:
        self.mode = mode
        self.obstacle = obstacle

    @property
    def chose_deny(self) -> bool:
        """True if the user chose to deny calls. In this case a denied call is not a failure."""
        return self.mode == "deny" and not self.obstacle


def approve_argument(parser: Any) -> None:
    """Add `--approve` to the command."""
    parser.add_argument(
        "--approve",
        choices=list(MODES),
        help="calls that need approval: ask on the terminal, deny, or allow and report each on stderr "
        "(default: ORCH_APPROVE, else ask; denied where there is no terminal, and with --json)",
    )


def choose_approval(flag: str | None, variable: str | None, *, json: bool, reach: TerminalAccess) -> Approval:
    """Return how calls that need approval are answered.

    `flag` is the value of `--approve`, `variable` is the value of `ORCH_APPROVE`, and `json` is `--json`. `reach` is
    the access to a terminal. Raises CommandError for an unknown value, and for `--approve ask` without a terminal.
    """
    chosen = flag or variable or None
    if chosen is not None and chosen not in MODES:
        raise CommandError("ConfigError", f"{VARIABLE}={chosen!r} is not valid: use ask, deny or auto", 2)
    if chosen in ("deny", "auto"):
        return Approval(chosen)
    if flag == "ask" and reach == "none":
        raise CommandError("ConfigError", "--approve ask needs a terminal: use --approve deny or --approve auto", 2)
    if json and flag != "ask":
        return Approval("deny", OBSTACLES["json" if reach == "foreground" else reach])
    if reach == "none":
        return Approval("deny", OBSTACLES[reach])
    return Approval("ask", OBSTACLES[reach] if reach == "background" else "")


def approval_of(arguments: Namespace) -> Approval:
    """Return how this command answers calls that need approval. Raises CommandError."""
    json = bool(getattr(arguments, "json", False))
    return choose_approval(arguments.approve, os.environ.get(VARIABLE), json=json, reach=controlling_terminal.reach())


def check_detached(arguments: Namespace) -> None:
    """Raise CommandError for an `--approve` of a query that no command waits for, and for an invalid ORCH_APPROVE."""
    if arguments.approve is not None:
        raise CommandError(
            "UsageError",
            f"--no-wait and --approve {arguments.approve} cannot be combined, because no command is left to answer; "
            "leave one out, or allow single tools in [policy.permissions]",
            2,
        )
    choose_approval(None, os.environ.get(VARIABLE), json=False, reach="none")


def report_denied(denied: int, *, json: bool, obstacle: str = "", ways: str = WAYS) -> int:
    """Print on stderr how many calls were denied because no user could be asked, and the `ways` to allow them.

    With `json`, print the text as an object. Return 1 if there are such calls, else 0.
    """
    if denied:
        text = denied_note(denied, obstacle, ways)
        print(render.to_json({"notice": text}) if json else f"orch: {text}", file=sys.stderr)
    return 1 if denied else 0


class Approver:
    """Answers the questions among the events of a turn. The answers use a separate connection."""

    def __init__(self, connection: Connection, mode: str) -> None:
        self._connection = connection
        self._mode = mode

    def wrap(self, on_other_event: OnEvent | None) -> OnEvent:
        """Return a callback that answers questions and passes all other events to `on_other_event`."""

        def handle_event(event: dict[str, Any]) -> None:
            if event["kind"] == "question":
                self.answer(event)
            elif on_other_event is not None:
                on_other_event(event)

        return handle_event

    def answer(self, event: dict[str, Any]) -> None:
        """Answer a question. Raises CommandError."""
        answer: dict[str, Any] = {"id": event["id"], "allow": False}
        try:
            scope = "once" if self._mode == "auto" else scope_of(event)
        except NoTerminalError:
            answer["unasked"] = True
        else:
            answer |= {"allow": scope is not None, "scope": scope or "once"}
        response = self._connection.call("answer", answer)
        if not response["taken"]:
            _print_line(f"the answer had no effect: {render.truncate_line(response['note'])}")
        elif self._mode == "auto":
            _print_line("allowed: " + "; ".join(_lines(event)))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def scope_of(event: dict[str, Any]) -> str | None:
    """Ask the user on the controlling terminal. Return the scope of the approval, or None if the user denied the call.

    Raises NoTerminalError.
    """
    tool = event["tool"]
    choices = approval_choices(tool, DENIAL)
    question = "\r\x1b[K" + "\n".join(f"  {line}" for line in _lines(event)) + f"\n{choices} > "
    return scopes_of(tool).get(controlling_terminal.ask(question, event["seconds"]).strip().lower())


def _lines(event: dict[str, Any]) -> list[str]:
    return [render.safe(line) for line in event["lines"]]


def _print_line(text: str) -> None:
    print(f"orch: {text}", file=sys.stderr, flush=True)
