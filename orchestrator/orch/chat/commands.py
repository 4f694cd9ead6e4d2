"""Slash commands of a chat. This module lists commands, executes commands, and applies their effects."""

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

__all__ = ["END", "KEYS", "Commands", "InputOrder", "unescape"]


KEYS: Final = """
keys:
  Enter        send; while the agent works, deliver the text before its next step
  Alt-Enter    send; while the agent works, deliver the text at the end of its turn
  Ctrl-J       new line (also: a backslash at the end of a line)
  Ctrl-C       clear the line, or end the turn; again within 2 s: end the turn at once, or leave
  Ctrl-D       leave
  Tab          complete commands, agents after an @, paths
  Up, Ctrl-R   earlier input"""
ESCAPED: Final = ("//", "\\/", "\\!")
END: Final = "/end"
MAX_WIDGETS: Final = 4
COPIES: Final = ("fork",)
"""Commands that switch to a copy of the conversation. The screen already shows this conversation."""


def unescape(typed: str) -> str:
    """Return the prompt for `typed`. If a leading slash is escaped, the escape is removed."""
    return read(typed).text if typed.lstrip().startswith(ESCAPED) else typed


class Commands:
    """Executes slash commands for a chat."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._rows: list[dict[str, Any]] = []
        self._widgets: list[dict[str, Any]] = []
        self._digest = ""
        self.keys: dict[str, str] = {}
        """The command line for each key binding of an extension."""
        self.widgets: dict[str, list[str]] = {"status": [], "panel": []}
        """The texts of extension widgets, by their place on the screen."""
        self._running: set[threading.Event] = set()
        self._lines: list[str] | None = None

    async def load(self, id: str) -> None:
        """Load the commands, key bindings and widgets of the agent `id`. Raises CommandError."""
        catalog = await self._chat.connection.call("commands", ref=id)
        if catalog["digest"] == self._digest:
            return
        self._digest, self._rows, self._widgets = catalog["digest"], catalog["commands"], catalog["widgets"]
        self.keys = {each["key"]: each["command"] for each in catalog["keys"]}

    async def refresh(self) -> None:
        """Reload commands and widgets. A widget that fails shows nothing. Raises CommandError."""
        await self.load(self._chat.id)
        texts: dict[str, list[str]] = {"status": [], "panel": []}
        for each in self._widgets[:MAX_WIDGETS]:
            if text := await self._widget_text(each["command"]):
                texts[each["place"]].append(f"{each['title'] or each['name']}: {text}")
        self.widgets = texts
        self._chat.changed()

    async def _widget_text(self, line: str) -> str:
        try:
            result = await self._chat.connection.call("execute", ref=self._chat.id, text=line, shows=True)
        except CommandError:
            return ""
        return "" if result["is_error"] else terminal.truncate_line(result["text"])

    @property
    def known(self) -> Mapping[str, str]:
        """Summaries of commands by name and alias."""
        return {name: row["summary"] for row in self._rows for name in (row["name"], *row["aliases"])}

    def arguments(self, name: str) -> Sequence[dict[str, Any]]:
        """Return the arguments of the command `name`."""
        return next((row["arguments"] for row in self._rows if name in (row["name"], *row["aliases"])), ())

    @property
    def running(self) -> bool:
        """Whether a command is running."""
        return bool(self._running)

    @property
    def pasting(self) -> bool:
        """Whether input lines are being collected."""
        return self._lines is not None

    @property
    def input_hint(self) -> str:
        """The instruction for the current input, or "" if there is no instruction."""
        return "" if self._lines is None else f"{END} on a separate line sends the text"

    def may_switch(self, typed: str) -> bool:
        """Return whether the command `typed` may switch to another agent."""
        name = read(typed).name if self._lines is None else ""
        return any(row.get("moves") for row in self._rows if name in (row["name"], *row["aliases"]))

    def drop(self) -> None:
        """Discard the collected lines."""
        self._lines = None

    def stop(self) -> None:
        """Stop waiting for running commands."""
        for each in self._running:
            each.set()

    def accepts(self, typed: str) -> bool:
        """Return whether `typed` is a command or a line to collect."""
        return self._lines is not None or read(typed).kind == "command"

    async def run(self, typed: str) -> None:
        """Execute a command. Raises CommandError."""
        if self._lines is not None:
            await self._collect_line(typed)
            return
        chat, cancelled = self._chat, threading.Event()
        text, _ = chat.pastes.unfold(typed)
        name = read(text).name
        if name not in ("quit", "q", "exit"):
            chat.echo(format_prompt(typed))
        self._running.add(cancelled)
        try:
            result = await chat.connection.call("execute", ref=chat.id, text=text, dropped=cancelled)
        finally:
            self._running.discard(cancelled)
        self._show(result)
        if result["command"] == "help" and not read(text).text:
            chat.output.note(KEYS, "")
        if (effect := result["effect"]) is not None:
            await self._apply_effect(result["command"], effect)
        chat.run_in_background(chat.refresh_rows())

    def _show(self, result: dict[str, Any]) -> None:
        if result["command"] != "quit":
            self._chat.failed = result["is_error"]
        text = result["text"].removesuffix("\n")
        if result["command"] == "diff":
            self._chat.output.pieces([(diff_line_style(line), line)] for line in text.splitlines())
        elif text:
            self._chat.output.note(text, "error" if result["is_error"] else "")

    async def _apply_effect(self, name: str, effect: dict[str, Any]) -> None:
        chat, kind, text = self._chat, effect["kind"], effect["text"]
        if kind == "quit":
            await chat.leave()
        elif kind == "switch":
            await chat.switch_to(effect["agent"], show_history=name not in COPIES)
            if text:
                await chat.send_prompt(text)
        elif kind == "ask":
            await chat.send_prompt(text)
        elif kind == "edit":
            chat.draft = text
        elif kind == "copy":
            chat.copied = text
        elif kind == "paste":
            self._lines = [text] if text else []

    async def _collect_line(self, typed: str) -> None:
        lines = self._lines or []
        if typed.strip() != END:
            self._lines = [*lines, typed]
            return
        self._lines = None
        if text := "\n".join(lines):
            await self._chat.send_prompt(text)


# --- The order of input lines and their agent ---


class InputOrder:
    """Processes input lines one after another, in the order in which they were typed."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._missed = 0
        self.is_switching = False
        """Whether a switch to another agent is in progress."""

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[bool]:
        """Wait until earlier lines are processed. Yield whether the line may be sent to the current agent.

        The value is False if an earlier line should have switched to another agent and the switch failed.
        """
        missed = self._missed
        async with self._lock:
            yield missed == self._missed

    @asynccontextmanager
    async def move(self) -> AsyncIterator[Callable[[], None]]:
        """Mark the current line as a switch to another agent.

        If the switch fails, the caller calls the yielded function.
        """
        missed: list[int] = []
        self.is_switching = True
        try:
            yield lambda: missed.append(1)
        except BaseException:
            missed.append(1)
            raise
        finally:
            self.is_switching = False
            self._missed += len(missed)
