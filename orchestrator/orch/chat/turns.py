"""Events of turns as they are told to a person."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any, Final

from orch_worker.conversation.framing import split_first_prompt
from orch_worker.conversation.prompt_markers import as_said

from ..render import terminal
from ..render.progress import progress_line
from ..render.transcript import TurnPrinter
from .pastes import format_prompt
from .text.live_text import LiveText

__all__ = ["TurnLog"]

PROMPT: Final = 2000
RESPONDED: Final = ("message", "retry")
"""Kinds of events after which what is said is another response."""
TOLD: Final = 20
"""Messages of a conversation that are told to somebody who comes back."""


class TurnLog:
    """Writes what happens on a sheet. `own` are the ids of requests that were made here, of which the prompt is there
    already; `depth` is the agent's: of those below it the calls are told."""

    def __init__(self, sheet: LiveText, own: Container[str], depth: int = 1) -> None:
        self._sheet = sheet
        self._own = own
        self._depth = depth
        self._turn: TurnPrinter | None = None

    def began(self, event: dict[str, Any]) -> None:
        """A turn begins, or is met."""
        self._turn = TurnPrinter(self._sheet)
        self._sheet.over()
        if event["request_id"] in self._own:
            return
        by_user = not event["from_inbox"] and not event["asker"]
        prompt = event["prompt"][:PROMPT]
        self._sheet.note(format_prompt(prompt) if event["met"] and by_user else f"{_whose(event)}: {prompt}", "you")
        if event["met"]:
            self._sheet.note("(it is at work on that)")

    def lost(self) -> None:
        """Nothing more is heard of the turn."""
        self._turn = None
        self._sheet.over()

    def so_far(self, event: dict[str, Any]) -> None:
        """What has happened in the turn that was met."""
        if event["lost"]:
            self._sheet.note(f"({terminal.pluralize(event['lost'], 'event')} of this turn before these)")
        self._turn = TurnPrinter(self._sheet, last=event["n"])
        for each in event["events"]:
            self._turn.show(each)
            self._end_of(each)

    def happened(self, event: dict[str, Any]) -> None:
        """Something happened in the turn."""
        if self._turn is None:  # its beginning was lost on the way
            self._turn = TurnPrinter(self._sheet, last=event["n"] - 1)
        self._turn.event(event)
        self._end_of(event)

    def called(self, event: dict[str, Any]) -> None:
        """Something became of a call, of which those of the agent itself are told otherwise."""
        if event["depth"] > self._depth:
            self._sheet.note(progress_line(event | {"depth": event["depth"] - self._depth + 1}))

    def ended(self, event: dict[str, Any]) -> None:
        """The turn is over."""
        turn, self._turn = self._turn or TurnPrinter(self._sheet), None
        if (reply := event["reply"]) is not None:
            turn.reply(reply)
            if reply.get("warning"):
                self._sheet.note(reply["warning"])
        else:
            turn.end()
            self._sheet.over()
            self._sheet.note(f"{event['error']['type']}: {event['error']['message']}", "error")
        self._sheet.over()

    def conversation(self, messages: Iterable[dict[str, Any]], before: int) -> None:
        """Tell the end of what was said before, and how many messages there are before that."""
        if before:
            self._sheet.note(f"({terminal.pluralize(before, 'message')} before these)")
        for message in messages:
            for block in message["content"]:
                self._block(block, "you" if message["role"] == "user" else "")

    def _end_of(self, event: dict[str, Any]) -> None:
        if event["kind"] in RESPONDED:
            self._sheet.over()

    def _block(self, block: dict[str, Any], style: str) -> None:
        if block["type"] == "text":
            if style:
                if said := as_said(split_first_prompt(block["text"])[1]):  # what it was told of its project is nobody's
                    self._sheet.note(format_prompt(said), style)
            else:
                self._sheet.text(block["text"])
                self._sheet.over()
            return
        calls = terminal.message({"content": [block]})
        if block["type"] in ("tool_use", "tool_result"):
            self._sheet.note(terminal.truncate_line(calls, 100), "error" if block.get("is_error") else "call")


def _whose(event: dict[str, Any]) -> str:
    if event["from_inbox"]:
        return "those below it tell"
    return f"agent {event['asker']} asks" if event["asker"] else "asked elsewhere"
