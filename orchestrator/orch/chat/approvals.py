"""Approval questions in a chat. The chat asks one question at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

from orch_worker.system.threads import in_thread

from ..render.approvals import approval_choices, scopes_of
from .text.diffs import diff_lines

if TYPE_CHECKING:
    from .app import Chat

__all__ = [
    "LEAVE",
    "AskUser",
    "ConsentInput",
    "Questions",
    "parse_consent",
    "parse_leave_answer",
]

AskUser = Callable[[dict[str, Any]], str | None]
"""Asks the user a question. Returns the scope of the approval, or None if the user denies the call."""


# --- Parsing of answers ---

DENIAL: Final = "[n] no, or n REASON"
LEAVE: Final = "k: keep them, e: end them, s: stay"
LEAVE_ANSWERS: Final[dict[str, Literal["keep", "end", "stay"]]] = {
    "": "keep",
    "k": "keep",
    "keep": "keep",
    "e": "end",
    "end": "end",
    "s": "stay",
    "stay": "stay",
}


class ConsentInput(Struct, frozen=True):
    """The answer to an approval question."""

    allow: bool
    scope: str = "once"
    reason: str = ""


def parse_consent(text: str, tool: str) -> ConsentInput | None:
    """Return the answer in `text` to the approval question about a call of `tool`.

    Return None for other text, which may have been typed before the question appeared.
    """
    word, _, reason = text.strip().partition(" ")
    word = word.lower().rstrip(":,")
    if word in ("n", "no"):
        return ConsentInput(False, reason=reason.strip())
    scope = scopes_of(tool).get("y" if word == "yes" else word)
    return None if scope is None or reason.strip() else ConsentInput(True, scope)


def parse_leave_answer(text: str) -> Literal["keep", "end", "stay"] | None:
    """Parse the answer to the question about live subagents. Return None for an invalid answer."""
    return LEAVE_ANSWERS.get(text.strip().lower())


AGENT_LINES: Final = 2
"""The number of lines at the beginning of a question that describe the asking agent."""


class Questions:
    """Asks the user the approval questions of a chat's agents.

    With `mode` "auto" all questions are approved; with "deny" all are denied. If the function `ask_user` is given, it
    asks each question in a thread outside the chat, one at a time.
    """

    def __init__(self, chat: Chat, mode: str, ask_user: AskUser | None = None) -> None:
        self._chat = chat
        self._mode = mode
        self._ask_user = ask_user
        self._lock = asyncio.Lock()
        self._open: list[dict[str, Any]] = []

    @property
    def wanted(self) -> bool:
        """Whether the chat accepts questions. It accepts none if the mode is `deny`."""
        return self._mode != "deny"

    @property
    def id(self) -> str:
        """The id of the current question, or "" if there is no question."""
        return str(self._open[0]["id"]) if self._open else ""

    @property
    def input_hint(self) -> str:
        """The possible answers to the current question, or "" if there is no question."""
        return approval_choices(self._open[0]["tool"], DENIAL) if self._open else ""

    def add(self, event: dict[str, Any]) -> None:
        """Add a question. The user is asked after the earlier questions are answered."""
        if any(each["id"] == event["id"] for each in self._open):
            return
        if self._mode == "auto":
            self._chat.output.note("allowed: " + "; ".join(event["lines"]), "ask")
            self._chat.run_in_background(self._chat.connection.call("answer", id=event["id"], allow=True))
            return
        if self._ask_user is not None:
            self._chat.run_in_background(self._ask_with_function(event, self._ask_user))
            return
        self._open.append(event)
        if len(self._open) == 1:
            self._show_question()

    async def _ask_with_function(self, event: dict[str, Any], ask_user: AskUser) -> None:
        """Call `ask_user` and send its answer.

        If `ask_user` raises an exception, the call is denied. Raises CommandError.
        """
        async with self._lock:
            scope, error = await in_thread(lambda: ask_user(event))
        answer = {"id": event["id"], "allow": scope is not None, "scope": scope or "once", "unasked": bool(error)}
        response = await self._chat.connection.call("answer", **answer)
        if not response["taken"]:
            self._chat.output.note(f"the answer had no effect: {response['note']}", "ask")

    def expire(self, id: str) -> None:
        """Remove a question that was answered elsewhere or has expired."""
        if self._open and self._open[0]["id"] == id:
            self._chat.output.note("that question was answered elsewhere or has expired", "ask")
        self._set_open([each for each in self._open if each["id"] != id])

    def remove_agent(self, agent_id: str) -> None:
        """Remove the questions of an agent whose turn has ended, and the questions that this agent forwarded."""
        self._set_open([each for each in self._open if agent_id not in (each["agent_id"], each.get("absent"))])

    def clear(self, absent: Container[str] = ()) -> None:
        """Remove all questions except those of the busy agents in `absent`."""
        self._set_open([each for each in self._open if each.get("absent") in absent])

    def is_answer(self, typed: str) -> bool:
        """Return whether there is a current question and `typed` is a valid answer to this question."""
        return bool(self._open) and parse_consent(typed, self._open[0]["tool"]) is not None

    async def answer(self, typed: str) -> None:
        """Answer the current question with the valid answer `typed`. Raises CommandError."""
        chat, event = self._chat, self._open[0]
        consent = parse_consent(typed, event["tool"])
        if consent is None:
            raise ValueError(f"not an answer to the question: {typed!r}")
        self._open.pop(0)
        next_question = self._open[:1]
        decision = (
            f"allowed ({consent.scope})" if consent.allow else f"no{f': {consent.reason}' if consent.reason else ''}"
        )
        chat.output.note(decision, "ask")  # shown before the effects of the answer
        response = await chat.connection.call(
            "answer", id=event["id"], allow=consent.allow, scope=consent.scope, reason=consent.reason
        )
        if not response["taken"]:
            chat.output.note(f"the answer had no effect: {response['note']}", "ask")
        if self._open[:1] == next_question:  # a new current question has already been shown
            self._show_question()

    def _set_open(self, remaining: list[dict[str, Any]]) -> None:
        previous, self._open = self._open, remaining
        if remaining and remaining[0] is not previous[0]:
            self._show_question()

    def _show_question(self) -> None:
        if not self._open:
            return
        event = self._open[0]
        lines = event["lines"][AGENT_LINES:] if event["agent_id"] == self._chat.id else event["lines"]
        self._chat.output.note("\n".join(lines), "ask")
        self._chat.output.pieces(diff_lines(event["tool"], event["input"], event["subject"]))
