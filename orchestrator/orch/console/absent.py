"""Agents that were at work when the talk went on with another one: what they want is asked, and their end is told."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..cli.failure import Failure
from .link import Link

if TYPE_CHECKING:
    from .chat import Chat

__all__ = ["Absent"]


class Absent:
    """Watches them for a chat, each until its turn is over, or until one talks with it again."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._links: dict[str, Link] = {}

    def __contains__(self, id: object) -> bool:
        """Say whether that one is watched."""
        return id in self._links

    def left(self, agent: dict[str, Any]) -> None:
        """The talk goes on with another one than `agent`, which is at work."""
        self._links[agent["id"]] = link = self._chat.link.sibling()
        asked = {"ref": agent["id"], "approve": self._chat.questions.wanted}
        link.watch(asked, partial(self._event, agent), partial(self._lost, agent))

    def met(self, id: str) -> None:
        """The talk is with that one again."""
        if (link := self._links.pop(id, None)) is not None:
            link.close()

    def close(self) -> None:
        """Watch nobody any more."""
        for id in list(self._links):
            self.met(id)

    def _event(self, agent: dict[str, Any], event: dict[str, Any]) -> None:
        chat, kind = self._chat, event["kind"]
        if kind == "question":
            chat.questions.add(event | {"absent": agent["id"]})
        elif kind == "question_over":
            chat.questions.over(event["id"])
        elif kind == "ended":
            self.met(agent["id"])
            chat.questions.drop(agent["id"])
            error = event["error"]
            what = f"has failed: {error['type']}: {error['message']}" if error is not None else "has answered"
            chat.sheet.note(f"{agent['name']} {what}; /switch {agent['seq']} goes there")
        chat.changed()

    def _lost(self, agent: dict[str, Any], _: Failure) -> None:
        self.met(agent["id"])  # that the daemon is gone is said where one talks
