"""What agents want approved while the command waits: asked at the terminal, denied, or let through and said."""

from __future__ import annotations

import sys

from ...daemon.failure import Failure
from ...render import terminal as render

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...daemon.client import Connection, OnEvent

__all__ = ["Approver", "approve_argument", "channel_of", "mode_of"]

PLAN_CHOICES = "Approve this plan? [y] yes, anything else: no > "
CHOICES = "Allow it? [y] once, [s] for this session, [p] for this project, anything else: no > "
SCOPES = {"y": "once", "s": "session", "p": "project"}


def approve_argument(parser: Any) -> None:
    """Let the command say how what needs approval is answered."""
    parser.add_argument(
        "--approve",
        choices=["ask", "deny", "auto"],
        help="what needs approval: ask at the terminal, deny it, or let it through and say so on stderr "
        "(ask at a terminal, else deny)",
    )


def channel_of(chosen: str | None) -> str:
    """Return under which rules an agent works that the command starts, `--approve` being `chosen`.

    Where somebody is there to be asked, or how to answer was said, those of the command line. A script that names tools
    has said yes to them, as a program has.
    """
    return "cli" if chosen is not None or _is_terminal() else "api"


def mode_of(chosen: str | None) -> str:
    """Return how to answer. Raises Failure when there is no terminal to ask at."""
    terminal = _is_terminal()
    if chosen == "ask" and not terminal:
        raise Failure("ConfigError", "--approve ask needs a terminal: --approve deny or auto goes without", 2)
    return chosen or ("ask" if terminal else "deny")


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


class Approver:
    """Answers the questions among the events of a turn, over a connection of its own."""

    def __init__(self, connection: Connection, mode: str) -> None:
        self._connection = connection
        self._mode = mode

    def before(self, others: OnEvent | None) -> OnEvent:
        """Return what answers questions and hands all other events to `others`."""

        def take(event: dict[str, Any]) -> None:
            if event["kind"] == "question":
                self.answer(event)
            elif others is not None:
                others(event)

        return take

    def answer(self, event: dict[str, Any]) -> None:
        """Answer a question. Raises Failure."""
        lines = [render.safe(line) for line in event["lines"]]
        scope = "once" if self._mode == "auto" else _asked(lines, event["tool"])
        answered = self._connection.call(
            "answer", {"id": event["id"], "allow": scope is not None, "scope": scope or "once"}
        )
        if not answered["taken"]:
            _say(f"that did not count: {render.line(answered['note'])}")
        elif self._mode == "auto":
            _say("let through: " + "; ".join(lines))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _asked(lines: list[str], tool: str) -> str | None:
    """Show a question and return the scope of a yes, None for a no."""
    is_plan = tool == "exit_plan_mode"
    choices, scopes = (PLAN_CHOICES, {"y": "once"}) if is_plan else (CHOICES, SCOPES)
    sys.stderr.write("\r\x1b[K" + "\n".join(f"  {line}" for line in lines) + f"\n{choices}")
    sys.stderr.flush()
    return scopes.get(sys.stdin.readline().strip().lower())


def _say(text: str) -> None:
    print(f"orch: {text}", file=sys.stderr, flush=True)
