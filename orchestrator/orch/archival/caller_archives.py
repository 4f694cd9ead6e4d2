"""Stores archived messages from a caller's conversation in the archive folder. Adds summaries to the archives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orch_protocol.agent.config import SummaryConfig
from orch_protocol.core.errors import StoreError
from orch_protocol.core.messages import Message
from orch_protocol.services.archives.archiving import SummaryRequest
from orch_worker.backends.prices import Prices

from .adapters import encode_message, to_json_data
from .conversation_items import ConversationItem, ItemReader
from .fold import summarized_text
from .plan.plan import due_upgrades, first_uncached_message
from .store.catalog import ArchiveRecord, StoredMessage
from .store.store import ArchiveStore
from .summary import SummaryRequester

__all__ = ["ArchiveFiler"]


class ArchiveFiler:
    """Writes to one archive folder. `on_stored` is called with each record as soon as the archive can be read."""

    def __init__(
        self,
        reader: ItemReader,
        archive: ArchiveStore,
        settings: SummaryConfig,
        summarize: Callable[[SummaryRequest], str] | None,
        on_stored: Callable[[ArchiveRecord], None],
    ) -> None:
        self._reader = reader
        self._archive = archive
        self._summary_requester = None if summarize is None else SummaryRequester(summarize, settings, archive.notes)
        self._on_stored = on_stored

    def store(
        self, record: ArchiveRecord, items: Sequence[ConversationItem], messages: Sequence[Message], summarize: bool
    ) -> ArchiveRecord:
        """Store the messages `items` as the archive `record`, and return the complete record.

        After `ArchiveStore.sync`, the caller may remove `items` from the conversation. If `summarize` is True, request
        a summary of `messages`.
        """
        raws = [item.data if isinstance(item.data, Message) else to_json_data(item.data) for item in items]
        stored = self._archive.add(record, [StoredMessage(*encode_message(self._reader.format, raw)) for raw in raws])
        self._on_stored(stored)
        if (
            summarize
            and self._summary_requester
            and not stored.summarized
            and (text := self._summary_requester.request(stored.id, messages))
        ):
            return self._archive.summarize(stored.id, summarized_text(stored, text))
        return stored

    def store_late_summaries(self) -> None:
        """Store summaries that arrived after their time limit. Does not raise; errors are added to the notes."""
        for id, text in self._summary_requester.late_summaries() if self._summary_requester else ():
            if self._archive.records[id].deleted:
                continue
            try:
                self._archive.summarize(id, summarized_text(self._archive.records[id], text))
            except StoreError as error:
                self._archive.notes.append(f"the late summary of archive {id} could not be stored: {error}")

    def with_late_summaries(
        self, items: list[ConversationItem], before: Sequence[ConversationItem], prices: Prices
    ) -> list[ConversationItem]:
        """Return `items` with late summaries in place of receipts where this invalidates little of the prompt cache.

        `before` is the conversation before the fold.
        """
        if not self._archive.has_summaries:
            return items
        first_uncached = first_uncached_message([item.message for item in before])
        upgrades = {
            index: upgrade for index, item in enumerate(items) if (upgrade := self._reader.with_late_summaries(item))
        }
        if not upgrades:
            return items
        unchanged = (new_item.raw is old_item.raw for new_item, old_item in zip(items, before, strict=False))
        first_changed = next(
            (index for index, is_same in enumerate(unchanged) if not is_same), min(len(items), len(before))
        )
        due = due_upgrades(
            sorted(upgrades), [item.tokens for item in items], min(first_changed, first_uncached), prices
        )
        return [upgrades[index] if index in due else item for index, item in enumerate(items)]
