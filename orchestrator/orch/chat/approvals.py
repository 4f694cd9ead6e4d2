"""What needs approval, one question after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

from orch_worker.system.threads import in_thread

from .text.diffs import diff_lines

if TYPE_CHECKING:
    from .app import Chat

__all__ = [
    "APPROVE",
    "LEAVE",
    "REPLIES_PLAN",
    "AskUser",
    "ConsentInput",
    "Questions",
    "parse_consent",
    "parse_leave_answer",
]

AskUser = Callable[[dict[str, Any]], str | None]
"""Asks the user a question, and returns the scope of a yes, None for a no."""


# --- What a person answers to a question of the console ---

APPROVE: Final = "allow it? y: once, s: always in this session, p: always in this project, n [reason]: no"
REPLIES_PLAN: Final = "approve this plan? y: yes, n [reason]: no"
LEAVE: Final = "k: keep them, e: end them, s: stay"

YES: Final = {"y": "once", "yes": "once", "s": "session", "p": "project"}
ENDS: Final[dict[str, Literal["keep", "end", "stay"]]] = {
    "": "keep",
    "k": "keep",
    "keep": "keep",
    "e": "end",
    "end": "end",
    "s": "stay",
    "stay": "stay",
}


class ConsentInput(Struct, frozen=True):
    """The answer to what needs approval."""

    allow: bool
    scope: str = "once"
    reason: str = ""


def parse_consent(text: str, *, plan: bool = False) -> ConsentInput | None:
    """Return the answer that `text` is, None when it is none: it may have been on its way before the question came."""
    word, _, rest = text.strip().partition(" ")
    word = word.lower().rstrip(":,")
    if word in ("n", "no"):
        return ConsentInput(False, reason=rest.strip())
    if rest.strip() or word not in YES or (plan and YES[word] != "once"):
        return None
    return ConsentInput(True, YES[word])


def parse_leave_answer(text: str) -> Literal["keep", "end", "stay"] | None:
    """Return what is to become of those that live on, None when `text` does not say."""
    return ENDS.get(text.strip().lower())


OWN_LINES: Final = 2
"""The first lines of a question, which say whose it is and what that one is for."""
QUESTIONS_PLAN: Final = "exit_plan_mode"


class Questions:
    """Asks the person what agents of a chat want, when `mode` is `ask`; `auto` lets all through, `deny` wants none.

    With `ask_user` questions are asked by that function, in a thread, one at a time, and not in the chat.
    """

    def __init__(self, chat: Chat, mode: str, ask_user: AskUser | None = None) -> None:
        self._chat = chat
        self._mode = mode
        self._ask_user = ask_user
        self._turn = asyncio.Lock()
        self._open: list[dict[str, Any]] = []

    @property
    def wanted(self) -> bool:
        """Whether somebody is there to be asked."""
        return self._mode != "deny"

    @property
    def id(self) -> str:
        """The id of the question that is to be answered, "" for none."""
        return str(self._open[0]["id"]) if self._open else ""

    @property
    def asks(self) -> str:
        """What may be answered at the moment, "" when nothing is asked."""
        if not self._open:
            return ""
        return REPLIES_PLAN if self._open[0]["tool"] == QUESTIONS_PLAN else APPROVE

    def add(self, event: dict[str, Any]) -> None:
        """Ask this, when what was asked before is answered."""
        if any(each["id"] == event["id"] for each in self._open):
            return
        if self._mode == "auto":
            self._chat.sheet.note("let through: " + "; ".join(event["lines"]), "ask")
            self._chat.later(self._chat.link.call("answer", id=event["id"], allow=True))
            return
        if self._ask_user is not None:
            self._chat.later(self._ask_elsewhere(event, self._ask_user))
            return
        self._open.append(event)
        if len(self._open) == 1:
            self._pose()

    async def _ask_elsewhere(self, event: dict[str, Any], ask_user: AskUser) -> None:
        """Let `ask_user` ask, and send the answer: no if it raises. Raises Failure."""
        async with self._turn:
            scope, error = await in_thread(lambda: ask_user(event))
        said = {"id": event["id"], "allow": scope is not None, "scope": scope or "once", "unasked": bool(error)}
        taken = await self._chat.link.call("answer", **said)
        if not taken["taken"]:
            self._chat.sheet.note(f"that did not count: {taken['note']}", "ask")

    def over(self, id: str) -> None:
        """A question waits no more; that of one that was answered here is not there any more."""
        if self._open and self._open[0]["id"] == id:
            self._chat.sheet.note("that was answered elsewhere, or is not waited for any more", "ask")
        self._keep([each for each in self._open if each["id"] != id])

    def drop(self, agent_id: str) -> None:
        """The turn of that agent is over, and with it what it asked, or what was asked on its behalf."""
        self._keep([each for each in self._open if agent_id not in (each["agent_id"], each.get("absent"))])

    def clear(self, absent: Container[str] = ()) -> None:
        """Ask nothing any more but what those want who were left at work."""
        self._keep([each for each in self._open if each.get("absent") in absent])

    async def answer(self, typed: str) -> None:
        """Answer what is asked, if `typed` is an answer. Raises Failure."""
        chat, event = self._chat, self._open[0]
        said = parse_consent(typed, plan=event["tool"] == QUESTIONS_PLAN)
        if said is None:
            chat.sheet.note("that is no answer, and nothing was allowed or said", "error")
            chat.draft = typed
            return
        self._open.pop(0)
        following = self._open[:1]
        told = f"allowed ({said.scope})" if said.allow else f"no{f': {said.reason}' if said.reason else ''}"
        chat.sheet.note(told, "ask")  # before anything that comes of it
        taken = await chat.link.call("answer", id=event["id"], allow=said.allow, scope=said.scope, reason=said.reason)
        if not taken["taken"]:
            chat.sheet.note(f"that did not count: {taken['note']}", "ask")
        if self._open[:1] == following:  # one that has come since, or has moved up, is shown already
            self._pose()

    def _keep(self, left: list[dict[str, Any]]) -> None:
        before, self._open = self._open, left
        if left and left[0] is not before[0]:
            self._pose()

    def _pose(self) -> None:
        """Show the question that is to be answered, if there is one."""
        if not self._open:
            return
        event = self._open[0]
        lines = event["lines"][OWN_LINES:] if event["agent_id"] == self._chat.id else event["lines"]
        self._chat.sheet.note("\n".join(lines), "ask")
        self._chat.sheet.pieces(diff_lines(event["tool"], event["input"], event["subject"]))
