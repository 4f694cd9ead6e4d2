"""Events of turns as output of a chat."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any, Final

from orch_protocol.core.images import part_text
from orch_worker.conversation.framing import split_first_prompt, without_markers

from ..render import terminal
from ..render.progress import progress_line
from ..render.transcript import TASKS, TurnPrinter
from .calls import call_text, event_subject, finished_call
from .pastes import format_prompt
from .text.live_text import LiveText

__all__ = ["TurnLog"]

MAX_PROMPT: Final = 2000
RESPONDED: Final = ("message", "retry")
"""Kinds of events that end a response of the model."""
HISTORY_MESSAGES: Final = 20
"""Number of messages shown when a conversation is resumed."""


UNFINISHED: Final = "no result"


class _Turn(TurnPrinter):
    """Shows a turn. A tool call is shown as one line when it ends. `open_calls` are the calls that still run.

    The results of calls arrive in the order of the calls.
    """

    def __init__(self, output: LiveText, *, last: int = 0) -> None:
        super().__init__(output, last=last)
        self.open_calls: list[str] = []

    def show(self, event: dict[str, Any]) -> None:
        """Show an event without checking its number."""
        kind, name, is_error = event["kind"], event.get("name", ""), bool(event.get("is_error"))
        if kind == "tool_call":
            self.end()
            self.open_calls.append(call_text(name, event_subject(event["text"])))
            return
        if kind == "tool_result":
            call = self.open_calls.pop(0) if self.open_calls else call_text(name, {})
            if name not in TASKS or is_error:
                line = finished_call(call, event["text"], is_error=is_error)
                self._note(line, "error" if is_error else "call")
                return
        super().show(event)

    def show_unfinished(self) -> None:
        """Show the calls that have no result."""
        for call in self.open_calls:
            self._note(f"{call} -> {UNFINISHED}", "error")
        self.open_calls.clear()


class TurnLog:
    """Writes the events of turns to `output`.

    `own_requests` contains the ids of requests from this chat; their prompts are already shown. `depth` is the agent's
    depth. Tool calls of agents with a greater depth are shown as progress lines.
    """

    def __init__(self, output: LiveText, own_requests: Container[str], depth: int = 1) -> None:
        self._output = output
        self._own_requests = own_requests
        self._depth = depth
        self._turn: _Turn | None = None

    @property
    def open_calls(self) -> list[str]:
        """The tool calls of the turn that still run."""
        return [] if self._turn is None else self._turn.open_calls

    def show_start(self, event: dict[str, Any]) -> None:
        """Show the start of a turn, or a turn in progress."""
        self._turn = _Turn(self._output)
        self._output.finish()
        if event["request_id"] in self._own_requests:
            return
        by_user = not event["from_inbox"] and not event["asker"]
        prompt = event["prompt"][:MAX_PROMPT]
        self._output.note(format_prompt(prompt) if event["met"] and by_user else f"{_sender(event)}: {prompt}", "you")
        if event["met"]:
            self._output.note("(the agent is working on this)")

    def show_disconnect(self) -> None:
        """End the turn after the connection was lost."""
        if self._turn is not None:
            self._turn.show_unfinished()
        self._turn = None
        self._output.finish()

    def show_earlier_events(self, event: dict[str, Any]) -> None:
        """Show the earlier events of a turn that is in progress."""
        if event["lost"]:
            self._output.note(f"({terminal.pluralize(event['lost'], 'event')} of this turn were not shown)")
        self._turn = _Turn(self._output, last=event["n"])
        for each in event["events"]:
            self._turn.show(each)
            self._end_of(each)

    def show_event(self, event: dict[str, Any]) -> None:
        """Show an event of the turn."""
        if self._turn is None:  # the first events of the turn were lost
            self._turn = _Turn(self._output, last=event["n"] - 1)
        self._turn.event(event)
        self._end_of(event)

    def show_call(self, event: dict[str, Any]) -> None:
        """Show a descendant's tool call when it ends. Calls of the agent itself arrive as other events."""
        if event["depth"] > self._depth and event["outcome"] != "start":
            self._output.note(progress_line(event | {"depth": event["depth"] - self._depth + 1}, whole=True))

    def show_end(self, event: dict[str, Any]) -> None:
        """Show the end of the turn."""
        turn, self._turn = self._turn or _Turn(self._output), None
        turn.show_unfinished()
        if (reply := event["reply"]) is not None:
            turn.reply(reply)
            if reply.get("warning"):
                self._output.note(reply["warning"])
        else:
            turn.end()
            self._output.finish()
            self._output.note(f"{event['error']['type']}: {event['error']['message']}", "error")
        self._output.finish()

    def show_history(self, messages: Iterable[dict[str, Any]], before: int) -> None:
        """Show the last messages of the conversation and the number of earlier messages."""
        if before:
            self._output.note(f"({terminal.pluralize(before, 'message')} not shown)")
        calls: dict[str, str] = {}
        for message in messages:
            for block in message["content"]:
                self._block(block, "you" if message["role"] == "user" else "", calls)
        for call in calls.values():
            self._output.note(f"{call} -> {UNFINISHED}", "error")

    def _end_of(self, event: dict[str, Any]) -> None:
        if event["kind"] in RESPONDED:
            self._output.finish()

    def _block(self, block: dict[str, Any], style: str, calls: dict[str, str]) -> None:
        if block["type"] == "text":
            if style:
                if prompt := without_markers(
                    split_first_prompt(block["text"])[1]
                ):  # information about the project is not shown
                    self._output.note(format_prompt(prompt), style)
            else:
                self._output.text(block["text"])
                self._output.finish()
            return
        if block["type"] == "tool_use":
            calls[block["id"]] = call_text(block["name"], block["input"])
        elif block["type"] == "tool_result":
            call, is_error = calls.pop(block["tool_use_id"], "(call not shown)"), bool(block.get("is_error"))
            result = "\n".join(map(part_text, block["content"]))
            self._output.note(finished_call(call, result, is_error=is_error), "error" if is_error else "call")


def _sender(event: dict[str, Any]) -> str:
    if event["from_inbox"]:
        return "reports of its subagents"
    return f"agent {event['asker']} asks" if event["asker"] else "asked elsewhere"
