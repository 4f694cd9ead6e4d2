"""A turn shown as it happens: its text on stdout, everything else on stderr."""

from __future__ import annotations

import sys

from . import terminal
from .terminal import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Output(Protocol):
        """Where a turn is shown."""

        def text(self, text: str) -> None:
            """Show a piece of what the agent says."""

        def note(self, text: str, style: str = "") -> None:
            """Show a line about what it does; nothing in it is what a terminal would obey."""


__all__ = ["TurnPrinter", "json_line"]

NATURAL = "end_turn"
COMPACTED = 200
TASKS = ("task_create", "task_update")
"""Tools whose result is a list to be seen whole."""


def json_line(event: dict[str, Any]) -> None:
    """Print an event as data, at once."""
    print(to_json(event), flush=True)


class PlainOutput:
    """Shows a turn on stdout and stderr."""

    def text(self, text: str) -> None:
        """Show a piece of what the agent says."""
        sys.stdout.write(terminal.safe_for_stdout(text))
        sys.stdout.flush()

    def note(self, text: str, style: str = "") -> None:  # noqa: ARG002
        """Show a line about what it does."""
        print(text, file=sys.stderr, flush=True)

    def over(self) -> None:
        """Nothing is held back."""


class TurnPrinter:
    """Shows a turn to a person. Text that was lost on its way is made up for by what comes whole.

    `last` is the number of the last event before those that it is told of.
    """

    def __init__(self, output: Output | None = None, *, last: int = 0) -> None:
        self._output: Output = output or PlainOutput()
        self._response = ""
        """What was shown of the response under way."""
        self._last = last
        self._steps = 0
        """Up to this response everything was shown."""
        self._open = False
        """The cursor stands behind text."""

    def event(self, event: dict[str, Any]) -> None:
        """Show what happened."""
        if (lost := event["n"] - self._last - 1) > 0:
            self._note(f"events that were lost on the way: {lost}")
        self._last = event["n"]
        self.show(event)

    def show(self, event: dict[str, Any]) -> None:
        """Show it, whatever its number is."""
        kind, text, name = event["kind"], event.get("text", ""), terminal.safe(event.get("name", ""))
        if kind == "text":
            self._write(text)
            self._response += text
        elif kind == "message":
            self._complete(text)
            self._steps = event.get("step", 0)
        elif kind == "tool_call":
            self._note(f"-> {name} {terminal.truncate_line(text)}", "call")
        elif kind == "tool_result" and name in TASKS and not event.get("is_error"):
            self._note(f"<- {name}")
            for each in text.splitlines():
                self._note(f"   {terminal.truncate_line(each)}", "task")
        elif kind == "tool_result":
            failed = bool(event.get("is_error"))
            self._note(
                f"<- {name} {'error: ' if failed else ''}{terminal.truncate_line(text)}", "error" if failed else "call"
            )
        elif kind == "steered":
            self._note(f"steered: {terminal.truncate_line(text)}")
        elif kind == "continued":
            self._note(f"continued: {terminal.truncate_line(text)}")
        elif kind == "budget":
            self._note(terminal.truncate_line(text, 200))
        elif kind == "hook":
            self._note(f"hook {name}: {terminal.truncate_line(text)}")
        elif kind in ("assess", "reflect"):
            self._note(f"{kind} by {name}: {terminal.truncate_line(text, 200)}")
        elif kind == "compacted":
            self._note(terminal.truncate_line(text, COMPACTED))
        elif kind == "retry":
            void = "; its text so far is void" if self._response else ""
            self._note(f"the request is made again{void}: {terminal.truncate_line(text)}")
            self._response = ""

    def reply(self, reply: dict[str, Any]) -> None:
        """Show what is left to show of a turn that is over."""
        if self._steps != reply["steps"]:
            self._complete(reply["text"])
        self.end()
        if reply["stop_reason"] != NATURAL:
            self._note(f"the turn ended early: {reply['stop_reason']}")

    def end(self) -> None:
        """Finish the line."""
        if self._open:
            self._write("\n")

    def _complete(self, whole: str) -> None:
        """Show what is missing of the response that is `whole`."""
        if not whole.startswith(self._response):
            self._note("text was lost on the way; here is the whole:")
            self._response = ""
        self._write(whole[len(self._response) :])
        self.end()
        self._response = ""

    def _write(self, text: str) -> None:
        if text:
            self._open = not text.endswith("\n")
            self._output.text(text)

    def _note(self, text: str, style: str = "note") -> None:
        self.end()
        self._output.note(text, style)
