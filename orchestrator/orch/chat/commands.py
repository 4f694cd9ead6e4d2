"""Commands of the session as they are typed in a chat: which there are, and what is done about what comes of one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from ..client.failure import CommandError
from ..commands.parse import read
from ..render import terminal
from .pastes import format_prompt
from .text.diffs import diff_line_style

if TYPE_CHECKING:
    from .app import Chat

__all__ = ["END", "KEYS", "ChatCommand", "Commands", "said_as"]


KEYS: Final = """\
  Enter        say it; while the agent works it hears it before its next step
  Alt-Enter    while the agent works: it hears it when it would stop
  Ctrl-J       a line end (a backslash at the end of a line does the same)
  Ctrl-C       clear the line, or end the turn; again within 2 s: end it at once, or leave
  Ctrl-D       leave
  Tab          complete commands, agents behind an @, paths
  Up, Ctrl-R   what was typed before
"""
ESCAPED: Final = ("//", "\\/", "\\!")
END: Final = "/end"
MOST_WIDGETS: Final = 4
COPIES: Final = ("fork",)
"""Commands that go on in a copy of the conversation, which is on the screen already."""


def said_as(typed: str) -> str:
    """Return the prompt that `typed` is: as it stands, but for what lets one begin with a slash."""
    return read(typed).text if typed.lstrip().startswith(ESCAPED) else typed


class Commands:
    """Executes commands for a chat."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._rows: list[dict[str, Any]] = []
        self._widgets: list[dict[str, Any]] = []
        self._digest = ""
        self.keys: dict[str, str] = {}
        """The line that each key runs, of those that extensions bring."""
        self.widgets: dict[str, list[str]] = {"status": [], "panel": []}
        """What they show all the time, by the place for it."""
        self._running: set[threading.Event] = set()
        self._lines: list[str] | None = None

    async def load(self, id: str) -> None:
        """Ask which commands, keys and widgets the agent `id` has. Raises Failure."""
        there = await self._chat.link.call("commands", ref=id)
        if there["digest"] == self._digest:
            return
        self._digest, self._rows, self._widgets = there["digest"], there["commands"], there["widgets"]
        self.keys = {each["key"]: each["command"] for each in there["keys"]}

    async def refresh(self) -> None:
        """Ask what there is, and what widgets show now; one that fails shows nothing. Raises Failure."""
        await self.load(self._chat.id)
        found: dict[str, list[str]] = {"status": [], "panel": []}
        for each in self._widgets[:MOST_WIDGETS]:
            if text := await self._told(each["command"]):
                found[each["place"]].append(f"{each['title'] or each['name']}: {text}")
        self.widgets = found
        self._chat.changed()

    async def _told(self, line: str) -> str:
        try:
            done = await self._chat.link.call("execute", ref=self._chat.id, text=line, shows=True)
        except CommandError:
            return ""
        return "" if done["is_error"] else terminal.truncate_line(done["text"])

    @property
    def known(self) -> Mapping[str, str]:
        """Each command's name, and each other name of it, with what it does."""
        return {name: row["summary"] for row in self._rows for name in (row["name"], *row["aliases"])}

    def arguments(self, name: str) -> Sequence[dict[str, Any]]:
        """Return what the command `name` takes."""
        return next((row["arguments"] for row in self._rows if name in (row["name"], *row["aliases"])), ())

    @property
    def running(self) -> bool:
        """Whether the end of a command is waited for."""
        return bool(self._running)

    @property
    def pasting(self) -> bool:
        """Whether lines are taken as they come."""
        return self._lines is not None

    @property
    def asks(self) -> str:
        """What is wanted at the moment, "" for nothing."""
        return "" if self._lines is None else f"{END} on a line of its own says all of it"

    def moving(self, typed: str) -> bool:
        """Say whether what is typed behind the command `typed` may be for another agent."""
        name = read(typed).name if self._lines is None else ""
        return any(row.get("moves") for row in self._rows if name in (row["name"], *row["aliases"]))

    def drop(self) -> None:
        """Forget the lines that were taken."""
        self._lines = None

    def stop(self) -> None:
        """Wait for no command any more."""
        for each in self._running:
            each.set()

    def takes(self, typed: str) -> bool:
        """Say whether `typed` is a command, or a line of what one takes."""
        return self._lines is not None or read(typed).kind == "command"

    async def run(self, typed: str) -> None:
        """Execute a command. Raises Failure."""
        if self._lines is not None:
            await self._pasted(typed)
            return
        chat, dropped = self._chat, threading.Event()
        text, _ = chat.pastes.unfold(typed)
        name = read(text).name
        if name == "help" and not read(text).text:
            chat.sheet.note(KEYS)
        elif name not in ("quit", "q", "exit"):
            chat.echo(format_prompt(typed))
        self._running.add(dropped)
        try:
            done = await chat.link.call("execute", ref=chat.id, text=text, dropped=dropped)
        finally:
            self._running.discard(dropped)
        self._show(done)
        if (effect := done["effect"]) is not None:
            await self._effect(done["command"], effect)
        chat.later(chat.look())

    def _show(self, done: dict[str, Any]) -> None:
        if done["command"] != "quit":
            self._chat.failed = done["is_error"]
        text = done["text"].removesuffix("\n")
        if done["command"] == "diff":
            self._chat.sheet.pieces([(diff_line_style(line), line)] for line in text.splitlines())
        elif text:
            self._chat.sheet.note(text, "error" if done["is_error"] else "")

    async def _effect(self, name: str, effect: dict[str, Any]) -> None:
        chat, kind, text = self._chat, effect["kind"], effect["text"]
        if kind == "quit":
            await chat.leave()
        elif kind == "switch":
            await chat.meet(effect["agent"], told=name not in COPIES)
            if text:
                await chat.say(text)
        elif kind == "ask":
            await chat.say(text)
        elif kind == "edit":
            chat.draft = text
        elif kind == "copy":
            chat.copied = text
        elif kind == "paste":
            self._lines = [text] if text else []

    async def _pasted(self, typed: str) -> None:
        lines = self._lines or []
        if typed.strip() != END:
            self._lines = [*lines, typed]
            return
        self._lines = None
        if text := "\n".join(lines):
            await self._chat.say(text)


# --- In which order what was typed is said, and to whom ---


class ChatCommand:
    """One line after the other, as they were typed."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._missed = 0
        self.moving = False
        """Whether it is open just now with whom one is going to talk."""

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[bool]:
        """Wait until all that was typed before is said; tell whether the line is for whom one talks to then.

        It is not when one was to talk to somebody else meanwhile, and does not.
        """
        missed = self._missed
        async with self._lock:
            yield missed == self._missed

    @asynccontextmanager
    async def move(self) -> AsyncIterator[Callable[[], None]]:
        """Let the line that has its turn lead to another agent; call what this yields when it has not."""
        missed: list[int] = []
        self.moving = True
        try:
            yield lambda: missed.append(1)
        except BaseException:
            missed.append(1)
            raise
        finally:
            self.moving = False
            self._missed += len(missed)
