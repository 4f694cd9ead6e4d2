"""Shows a turn while it runs. The agent's text goes to stdout, all other output to stderr."""

from __future__ import annotations

import sys

from . import terminal
from .terminal import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Output(Protocol):
        """An object that shows the output of a turn."""

        def text(self, text: str) -> None:
            """Show a piece of the agent's text."""

        def note(self, text: str, style: str = "") -> None:
            """Show a line about an event. The line contains no control characters."""


__all__ = ["TurnPrinter", "json_line"]

COMPLETED = "end_turn"
MAX_LINE = 200
TASKS = ("task_create", "task_update")
"""Tools whose result is a list that is shown completely."""


def json_line(event: dict[str, Any]) -> None:
    """Print an event as JSON and flush."""
    print(to_json(event), flush=True)


class PlainOutput:
    """Shows a turn on stdout and stderr."""

    def text(self, text: str) -> None:
        """Show a piece of the agent's text."""
        sys.stdout.write(terminal.safe_for_stdout(text))
        sys.stdout.flush()

    def note(self, text: str, style: str = "") -> None:  # noqa: ARG002
        """Show a line about an event."""
        print(text, file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Do nothing, because no output is buffered."""


class TurnPrinter:
    """Shows a turn to a person. If parts of the text are lost, shows the complete text of the response.

    The first event that is passed to this object should have the number `last` + 1.
    """

    def __init__(self, output: Output | None = None, *, last: int = 0) -> None:
        self._output: Output = output or PlainOutput()
        self._response = ""
        """The part of the current response that was already shown."""
        self._last = last
        self._steps = 0
        """All responses up to this number were shown."""
        self._open = False
        """True if the last output did not end with a newline."""

    def event(self, event: dict[str, Any]) -> None:
        """Show an event. If events before this event were lost, report them first."""
        if (lost := event["n"] - self._last - 1) > 0:
            self._note(f"lost events: {lost}")
        self._last = event["n"]
        self.show(event)

    def show(self, event: dict[str, Any]) -> None:
        """Show an event without checking its number."""
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
                self._note(f"   {terminal.truncate_line(each, MAX_LINE)}", "task")
        elif kind == "tool_result":
            failed = bool(event.get("is_error"))
            self._note(
                f"<- {name} {'error: ' if failed else ''}{terminal.truncate_line(text)}", "error" if failed else "call"
            )
        elif kind == "steered":
            self._note(f"steered: {terminal.truncate_line(text, MAX_LINE)}")
        elif kind == "continued":
            self._note(f"continued: {terminal.truncate_line(text, MAX_LINE)}")
        elif kind == "budget":
            self._note(terminal.truncate_line(text, MAX_LINE))
        elif kind == "hook":
            self._note(f"hook {name}: {terminal.truncate_line(text, MAX_LINE)}")
        elif kind in ("assess", "reflect"):
            self._note(f"{kind} by {name}: {terminal.truncate_line(text, MAX_LINE)}")
        elif kind == "compacted":
            self._note(terminal.truncate_line(text, MAX_LINE))
        elif kind == "retry":
            void = "; the text so far is discarded" if self._response else ""
            self._note(f"the request is repeated{void}: {terminal.truncate_line(text, MAX_LINE)}")
            self._response = ""

    def reply(self, reply: dict[str, Any]) -> None:
        """Show the rest of a finished turn."""
        if self._steps != reply["steps"]:
            self._complete(reply["text"])
        self.end()
        if reply["stop_reason"] != COMPLETED:
            self._note(f"the turn ended early: {reply['stop_reason']}")

    def end(self) -> None:
        """End the current line."""
        if self._open:
            self._write("\n")

    def _complete(self, text: str) -> None:
        """Show the missing part of the response `text`."""
        if not text.startswith(self._response):
            self._note("parts of the text were lost; complete text:")
            self._response = ""
        self._write(text[len(self._response) :])
        self.end()
        self._response = ""

    def _write(self, text: str) -> None:
        if text:
            self._open = not text.endswith("\n")
            self._output.text(text)

    def _note(self, text: str, style: str = "note") -> None:
        self.end()
        self._output.note(text, style)
