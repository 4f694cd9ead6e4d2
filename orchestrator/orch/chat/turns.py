"""Events of turns as output of a chat."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any, Final

from orch_worker.conversation.framing import split_first_prompt, without_markers

from ..render import terminal
from ..render.progress import progress_line
from ..render.transcript import TurnPrinter
from .pastes import format_prompt
from .text.live_text import LiveText

__all__ = ["TurnLog"]

MAX_PROMPT: Final = 2000
RESPONDED: Final = ("message", "retry")
"""Kinds of events that end a response of the model."""
HISTORY_MESSAGES: Final = 20
"""Number of messages shown when a conversation is resumed."""


class TurnLog:
    """Writes the events of turns to `output`.

    `own_requests` contains the ids of requests from this chat; their prompts are already shown. `depth` is the agent's
    depth. Tool calls of agents with a greater depth are shown as progress lines.
    """

    def __init__(self, output: LiveText, own_requests: Container[str], depth: int = 1) -> None:
        self._output = output
        self._own_requests = own_requests
        self._depth = depth
        self._turn: TurnPrinter | None = None

    def show_start(self, event: dict[str, Any]) -> None:
        """Show the start of a turn, or a turn in progress."""
        self._turn = TurnPrinter(self._output)
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
        self._turn = None
        self._output.finish()

    def show_earlier_events(self, event: dict[str, Any]) -> None:
        """Show the earlier events of a turn that is in progress."""
        if event["lost"]:
            self._output.note(f"({terminal.pluralize(event['lost'], 'event')} of this turn were not shown)")
        self._turn = TurnPrinter(self._output, last=event["n"])
        for each in event["events"]:
            self._turn.show(each)
            self._end_of(each)

    def show_event(self, event: dict[str, Any]) -> None:
        """Show an event of the turn."""
        if self._turn is None:  # the first events of the turn were lost
            self._turn = TurnPrinter(self._output, last=event["n"] - 1)
        self._turn.event(event)
        self._end_of(event)

    def show_call(self, event: dict[str, Any]) -> None:
        """Show the progress of a descendant's tool call. Calls of the agent itself arrive as other events."""
        if event["depth"] > self._depth:
            self._output.note(progress_line(event | {"depth": event["depth"] - self._depth + 1}))

    def show_end(self, event: dict[str, Any]) -> None:
        """Show the end of the turn."""
        turn, self._turn = self._turn or TurnPrinter(self._output), None
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
        for message in messages:
            for block in message["content"]:
                self._block(block, "you" if message["role"] == "user" else "")

    def _end_of(self, event: dict[str, Any]) -> None:
        if event["kind"] in RESPONDED:
            self._output.finish()

    def _block(self, block: dict[str, Any], style: str) -> None:
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
        calls = terminal.message({"content": [block]})
        if block["type"] in ("tool_use", "tool_result"):
            self._output.note(terminal.truncate_line(calls, 100), "error" if block.get("is_error") else "call")


def _sender(event: dict[str, Any]) -> str:
    if event["from_inbox"]:
        return "reports of its subagents"
    return f"agent {event['asker']} asks" if event["asker"] else "asked elsewhere"
