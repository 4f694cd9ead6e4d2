"""Asking an archive of a caller's loop: a subagent is shown what it holds, answers, and is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orch_protocol.messages import Message
from orch_worker.prompt import WITNESS
from orch_worker.recalled import with_hits
from orch_worker.witness import rendered

from .search import Search
from .shelf import Record, SearchableShelf
from .unfolding import unfold

if TYPE_CHECKING:
    from ..sync import Orchestrator

__all__ = ["Witnesses"]

PASSAGES = 8


class Witnesses:
    """Answers from one archive. Without a root to spawn in, one is started by the first question, for all of them."""

    def __init__(self, archive: SearchableShelf, search: Search, root: Orchestrator | None) -> None:
        self._archive = archive
        self._search = search
        self._given = root
        self._root = root

    def query(self, record: Record, question: str) -> str:
        """Return what a model says to `question` that sees what the archive holds. Raises AgentError, BackendError."""
        agent = self._opened().spawn(
            WITNESS[record.kind].format(task=record.task), preset="holder", history=rendered(self._shown(record), 0)
        )
        try:
            return agent.query(self._with_passages(record, question)).text
        finally:
            agent.kill()

    def close(self) -> None:
        """End the root that was started here, if one was."""
        if self._root is not None and self._given is None:
            self._root.close()
        self._root = self._given

    def _opened(self) -> Orchestrator:
        if self._root is None:
            from ..sync import Orchestrator  # processes are for those who ask

            self._root = Orchestrator()
        return self._root

    def _shown(self, record: Record) -> list[Message]:
        stored = self._contents(record)
        if record.kind == "era":
            return stored  # more than anybody reads at once: its members' records are among its messages
        return unfold(self._archive, stored, _same, self._contents)

    def _contents(self, record: Record) -> list[Message]:
        return [stored.message for stored in self._archive.messages(record.id)]

    def _with_passages(self, record: Record, question: str) -> str:
        if record.kind != "era":
            return question
        below = {member.id for member in self._archive.below(record)}
        return with_hits(question, self._search.passages(question, below, PASSAGES))


def _same(message: Message) -> Message:
    return message
