"""Lines that begin with a slash: those of the console itself, and those that the session knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .chat import Chat

__all__ = ["KEYS", "Commands"]

OWN: Final = {"help": "what can be typed here", "quit": "leave"}
KEYS: Final = """\
  Enter        say it; while the agent works it hears it before its next step
  Alt-Enter    while the agent works: it hears it when it would stop
  Ctrl-J       a line end (a backslash at the end of a line does the same)
  Ctrl-C       clear the line, or end the turn; again within 2 s: end it at once, or leave
  Ctrl-D       leave
  Tab          complete commands, agents behind an @, paths
  Up, Ctrl-R   what was typed before"""


class Commands:
    """Runs commands for a chat."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    @property
    def known(self) -> Mapping[str, str]:
        """Each command's name, with what it does."""
        return OWN

    def takes(self, typed: str) -> bool:
        """Say whether `typed` is a command."""
        return typed.startswith("/") and typed[1:].strip() in OWN

    async def run(self, typed: str) -> None:
        """Run a command. Raises Failure."""
        name = typed[1:].strip()
        if name == "quit":
            await self._chat.leave()
            return
        commands = "\n".join(f"  /{each:12}{about}" for each, about in self.known.items())
        self._chat.sheet.note(f"{KEYS}\n{commands}")
