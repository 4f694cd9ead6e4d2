"""The archives of a root's agents: what is to leave which conversation, and how all of it is found again.

An agent's process asks (see `orch_worker.archiving`); what follows is worked out in threads, from its session file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from orch_protocol.archive import Source
from orch_protocol.config import ArchivalConfig
from orch_protocol.errors import AgentNotFoundError, StoreError
from orch_protocol.messages import Message
from orch_protocol.services import Archive, ArchivePlan, Hit, Summarise, SummaryOrder, SummaryRequest
from orch_protocol.spec import AgentSpec
from orch_worker.backends.families import ratios_of
from orch_worker.estimate import Estimator
from orch_worker.stubs import stub_text

from .adapters import format_named
from .folding import Folding
from .gate import Prices
from .ledger import Draft, Ledger
from .pieces import Pieces
from .profiles import rules_of
from .search import Search
from .shelf import Record
from .summary import Style, questions, questions_beside

__all__ = ["Archives", "merged"]

T = TypeVar("T")


class Do(Protocol):
    """Runs a function in a thread."""

    def __call__(self, work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Return a future of what `work` returns."""


class Shelves:
    """The ledger of one agent and the index over it. One thread at a time works with them."""

    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger(folder)
        self.search = Search(self.ledger)
        self.lock = asyncio.Lock()
        self.asking: dict[str, Generator[SummaryRequest, str, str | None]] = {}

    def catch_up(self) -> list[Record]:
        """Take in what the agent has recorded since, and return the archives that are new."""
        new = self.ledger.catch_up()
        for record in new:
            self.search.added(record)
        return new


class Archives:
    """What the agents of one root have archived, under `config`. `do` runs a function in a thread."""

    def __init__(self, config: ArchivalConfig, do: Do) -> None:
        self.config = config
        self.rules = rules_of(config)
        self._do = do
        self._shelves: dict[str, Shelves] = {}

    def close(self) -> None:
        """Close the indexes; what they lack is made up for when they are opened again."""
        for shelves in self._shelves.values():
            shelves.search.close()

    async def plan(self, spec: AgentSpec, ask: Archive, prices: Prices) -> ArchivePlan:
        """Return what of the agent's conversation is to be put on record as archived now. Raises StoreError."""
        shelves = self._of(spec)
        async with shelves.lock:
            return await self._do(self._planned, shelves, spec, ask, prices)

    async def known(self, spec: AgentSpec) -> list[Record]:
        """Return every archive that the agent has on record, in order. Raises StoreError."""
        shelves = self._of(spec)
        async with shelves.lock:
            await self._do(shelves.catch_up)
            return list(shelves.ledger.records.values())

    async def summarise(self, spec: AgentSpec, step: Summarise, *, json: bool = True) -> SummaryRequest | str | None:
        """Return what a model is to be asked next about an archive; or the text of its stub; or None: there is none.

        Without `json` the model is asked for a paragraph whatever is configured: it cannot be trusted with JSON.
        """
        shelves = self._of(spec)
        async with shelves.lock:
            style = self.config.summary.style if json else "paragraph"
            return await self._do(self._asked, shelves, step, style)

    async def search(self, spec: AgentSpec, query: str, limit: int) -> list[Hit]:
        """Return up to `limit` places for `query` in the archives of the agent, the best first. Raises StoreError."""
        shelves = self._of(spec)
        async with shelves.lock:
            return await self._do(_searched, shelves, query, limit)

    async def passages(self, spec: AgentSpec, question: str, era: str, limit: int) -> list[Hit]:
        """Return up to `limit` passages below `era`, an archive of the agent, that may answer `question`."""
        shelves = self._of(spec)
        async with shelves.lock:
            return await self._do(_passages, shelves, question, era, limit)

    async def read(self, spec: AgentSpec, id: str, first: int, last: int | None) -> list[Message]:
        """Return the messages `first` to `last` (from 1) of an archive of the agent.

        Raises AgentNotFoundError, AmbiguousRefError, DamagedError, StoreError.
        """
        shelves = self._of(spec)
        async with shelves.lock:
            return await self._do(_read, shelves, id, first, last)

    async def record(self, spec: AgentSpec, id: str) -> Record:
        """Return what is known of the archive `id` of the agent. Raises AgentNotFoundError, AmbiguousRefError."""
        shelves = self._of(spec)
        async with shelves.lock:
            await self._do(shelves.catch_up)
            return shelves.ledger.find(id)

    async def source(self, spec: AgentSpec, holder: str) -> Source:
        """Return where `holder`, an archive of the agent, has its messages. Raises AgentNotFoundError."""
        shelves = self._of(spec)
        async with shelves.lock:
            await self._do(shelves.catch_up)
            record = shelves.ledger.find(holder)
            if record.kind == "era":
                shown = await self._do(shelves.ledger.shown, record)
                return Source(spec.folder, spec.id, record.kind, record.task, shown=shown)
        return Source(spec.folder, spec.id, record.kind, record.task, record.spans, record.sha256)

    def _of(self, spec: AgentSpec) -> Shelves:
        if (known := self._shelves.get(spec.id)) is None:
            known = self._shelves[spec.id] = Shelves(Path(spec.folder))
        return known

    # In threads.

    def _planned(self, shelves: Shelves, spec: AgentSpec, ask: Archive, prices: Prices) -> ArchivePlan:
        shelves.catch_up()
        own = format_named("orch")
        estimator = Estimator() if self.config.profile == "seed" else Estimator(ratios_of(spec.backend), ask.factor)
        draft = Draft(shelves.ledger, lambda shelf: Pieces(own, shelf, estimator))
        shown, items = draft.shown, draft.items
        # A turn that has begun since is not the one that ended: what it has done so far stays.
        ended = ask.stop_reason if items and items[-1].last == ask.last else None
        Folding(draft.pieces, self.rules, draft.store, draft.changed).fold_all(
            shown,
            self.config.trigger,
            prices,
            ended,
            beside=max(0, ask.context_tokens - sum(piece.tokens for piece in shown)),
            summaries=ask.summaries,
            depth=spec.depth,
        )
        orders = (self._order(draft.shelf.records[holder], ask, prices) for holder in draft.summarise)
        return ArchivePlan(tuple(draft.collapses), tuple(orders))

    def _order(self, record: Record, ask: Archive, prices: Prices) -> SummaryOrder:
        """Return where asking about an archive costs least: beside the conversation that is cached, or apart."""
        apart = record.tokens * prices.fresh
        mine = ask.beside and self.config.summary.model is None and record.kind == "turn"
        return SummaryOrder(record.id, beside=mine and ask.context_tokens * prices.read < apart)

    def _asked(self, shelves: Shelves, step: Summarise, style: Style) -> SummaryRequest | str | None:
        shelves.catch_up()
        record = shelves.ledger.records.get(step.holder)
        if record is None:
            raise AgentNotFoundError(f"no archive {step.holder!r} in {shelves.ledger.path}")
        try:
            if step.answer is None:
                if step.beside:
                    asking = questions_beside(record.task, style)
                else:
                    said = [stored.message for stored in shelves.ledger.messages(record.id)]
                    asking = questions(said, style, self.config.summary.model)
                shelves.asking[record.id] = asking
                return next(asking)
            asking = shelves.asking[record.id]
            return asking.send(step.answer)
        except StopIteration as over:
            del shelves.asking[record.id]
            return stub_text(record.kind, record.id, over.value, record.answer) if over.value else None
        except KeyError:
            raise StoreError(f"nothing was asked about the archive {step.holder}") from None


def _searched(shelves: Shelves, query: str, limit: int) -> list[Hit]:
    shelves.catch_up()
    return shelves.search.search(query, limit) if shelves.ledger.records else []


def _passages(shelves: Shelves, question: str, era: str, limit: int) -> list[Hit]:
    shelves.catch_up()
    below = {record.id for record in shelves.ledger.below(shelves.ledger.find(era))}
    return shelves.search.passages(question, below, limit)


def _read(shelves: Shelves, id: str, first: int, last: int | None) -> list[Message]:
    shelves.catch_up()
    record = shelves.ledger.find(id)
    return shelves.ledger.read(record.id, first, last)


def merged(hits: Sequence[Sequence[Hit]], limit: int) -> list[Hit]:
    """Return the best `limit` of what several agents' archives found: exact hits first, the agents taking turns."""
    rows = [hit for place in range(limit) for found in hits if place < len(found) for hit in [found[place]]]
    return sorted(rows, key=lambda hit: not hit.exact)[:limit]
