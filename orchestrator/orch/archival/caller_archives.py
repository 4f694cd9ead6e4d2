"""Puts what leaves a caller's conversation into its folder, and what a model says of it too, be it late."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orch_protocol.agent.config import SummaryConfig
from orch_protocol.core.errors import StoreError
from orch_protocol.core.messages import Message
from orch_protocol.services.archiving import SummaryRequest
from orch_worker.conversation.receipt import with_summary

from .adapters import encode_message, to_json_data
from .conversation_items import ConversationItem, ItemReader
from .plan.economics import Prices
from .plan.plan import due_upgrades
from .store.catalog import ArchiveRecord, StoredMessage
from .store.store import ArchiveStore
from .summary import SummaryRequester

__all__ = ["ArchiveFiler"]


class ArchiveFiler:
    """Files for one archive. `stored` is told of each record as soon as it is durable."""

    def __init__(
        self,
        pieces: ItemReader,
        archive: ArchiveStore,
        settings: SummaryConfig,
        summarise: Callable[[SummaryRequest], str] | None,
        stored: Callable[[ArchiveRecord], None],
    ) -> None:
        self._pieces = pieces
        self._archive = archive
        self._asker = None if summarise is None else SummaryRequester(summarise, settings, archive.notes)
        self._told = stored

    def store(
        self, record: ArchiveRecord, part: Sequence[ConversationItem], said: Sequence[Message], summarise: bool
    ) -> ArchiveRecord:
        """Return `record` as it is on the disk, with `part`, which may leave the conversation from now on."""
        raws = [piece.raw if isinstance(piece.raw, Message) else to_json_data(piece.raw) for piece in part]
        known = self._archive.add(record, [StoredMessage(*encode_message(self._pieces.format, raw)) for raw in raws])
        self._told(known)
        if summarise and self._asker and not known.summarised and (text := self._asker.ask(known.id, said)):
            return self._archive.summarise(known.id, with_summary(known.receipt, text))
        return known

    def late(self) -> None:
        """Take in, durably, the summaries that came after their time. Never raises; what cannot be written is noted."""
        for id, text in self._asker.late() if self._asker else ():
            try:
                self._archive.summarise(id, with_summary(self._archive.records[id].receipt, text))
            except StoreError as error:
                self._archive.notes.append(f"the late summary of archive {id} is lost: {error}")

    def upgraded(
        self, pieces: list[ConversationItem], before: Sequence[ConversationItem], fresh: int, prices: Prices
    ) -> list[ConversationItem]:
        """Return `pieces` with late summaries in place of receipts, where that breaks little of what is cached.

        `before` is the conversation as it was in the last request, but for what stands from `fresh` on.
        """
        found = {place: new for place, piece in enumerate(pieces) if (new := self._pieces.upgraded(piece))}
        if not found:
            return pieces
        same = (now.raw is was.raw for now, was in zip(pieces, before, strict=False))
        broken = next((place for place, kept in enumerate(same) if not kept), min(len(pieces), len(before)))
        places = due_upgrades(sorted(found), [piece.tokens for piece in pieces], min(broken, fresh), prices)
        return [found[place] if place in places else piece for place, piece in enumerate(pieces)]
