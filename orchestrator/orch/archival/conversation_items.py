"""A conversation as a list of items.

An item is a message with its orch form, its size, and the archives that it represents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from orch_protocol.agent.config import Profile
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Block, Message, StopReason, Text
from orch_worker.conversation.stubs import holder_of, is_brief, stub_text
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.conversation.turns import responses

from .adapters import Format, convert_message, decode_message, encode_message, to_json_data
from .plan.plan import ConversationView
from .store.catalog import ArchiveCatalog, ArchiveRecord
from .store.unfold import unfold

__all__ = ["ConversationItem", "ItemReader", "profile_estimator"]


class ConversationItem(Struct, frozen=True):
    """A message of a conversation, with its size in tokens and the archives that it represents.

    `own_tokens` is the size without the records of archives in the message. `holders` contains the ids of these
    archives.
    """

    raw: Any
    message: Message
    tokens: int
    own_tokens: int
    holders: tuple[str, ...]

    @property
    def is_record(self) -> bool:
        """Whether the message is only the record of a turn or an era."""
        return bool(self.holders) and self.message.role == "assistant"


def profile_estimator(profile: Profile, estimator: TokenEstimator) -> TokenEstimator:
    """Return the token estimator for `profile`.

    The result is `estimator`, except for the profile `seed`. The thresholds of `seed` assume four characters per token.
    """
    return TokenEstimator() if profile == "seed" else estimator


class ItemReader:
    """Converts messages of one format to items. The records of archives come from one archive catalog."""

    def __init__(self, format: Format, archive: ArchiveCatalog, estimator: TokenEstimator) -> None:
        self.format = format
        self.archive = archive
        self.estimator = estimator
        self._cached_items: dict[int, ConversationItem] = {}

    def make_item(self, raw: Any, index: int = 0) -> ConversationItem:
        """Return the item for the message `raw` at index `index`. Raises ConfigError if `raw` is not valid."""
        cached = self._cached_items.get(id(raw))
        if cached is not None and cached.raw is raw:
            return cached
        try:
            message = self.format.read(raw)
        except ConfigError as error:
            raise ConfigError(f"message {index}: {error}") from error
        holders = self.archive.holders(message)
        tokens = own = self.estimator.message(message)
        if holders and message.role == "user":
            own = self.estimator.message(Message("user", message.content[: -len(holders)]))
        return ConversationItem(raw, message, tokens, own, holders)

    def cache(self, items: Sequence[ConversationItem]) -> None:
        """Cache the items whose messages are immutable."""
        self._cached_items = {id(item.raw): item for item in items if item.raw is item.message}

    def write_message(self, message: Message) -> ConversationItem:
        """Convert `message` to the format of this reader, and return the item of the result."""
        return self.make_item(self.format.write(message))

    def without_records(self, item: ConversationItem) -> ConversationItem:
        """Return the prompt `item` without the records of archived phases."""
        if not item.holders:
            return item
        if item.raw is item.message:
            content = item.message.content[: -len(item.holders)]
            return self.make_item(Message(item.message.role, content))
        # The first phase contains the original prompt, or the prompt with the records that this phase merged.
        return self.without_records(self.make_item(self.original_messages(self.archive.records[item.holders[0]])[0]))

    def with_late_summaries(self, item: ConversationItem) -> ConversationItem | None:
        """Return `item` with late summaries in its records.

        Return None if no summary has arrived for these records.
        """
        if not any(self.archive.records[id].summarized for id in item.holders):
            return None
        message = msgspec.structs.replace(item.message, content=tuple(map(self._current_block, item.message.content)))
        if message == item.message:
            return None
        _, difference = encode_message(
            self.format, item.raw if isinstance(item.raw, Message) else to_json_data(item.raw)
        )
        return self.make_item(decode_message(self.format, message, difference))

    def _current_block(self, block: Block) -> Block:
        """Return the record with its late summary if `block` is the record of an archive with a late summary.

        Return any other block unchanged.
        """
        record = self.archive.records.get(holder_of(block.text) or "") if isinstance(block, Text) else None
        if not isinstance(block, Text) or record is None or not record.summarized or is_brief(block.text):
            return block
        if record.record in block.text:
            return block
        return Text(stub_text(record.kind, record.id, record.record, record.answer))

    def original_messages(self, record: ArchiveRecord) -> list[Any]:
        """Return the original messages of `record` in the format of this reader."""
        stored = self.archive.messages(record.id)
        if record.format == self.format.name:
            return [decode_message(self.format, each.message, each.difference) for each in stored]
        return [raw for each in stored for raw in convert_message(self.format, each.message)]

    def unfold(self, raws: Sequence[Any]) -> list[Any]:
        """Return `raws` with the original messages in place of all records."""
        return unfold(self.archive, raws, self.format.read, self.original_messages)

    def without_archived(self, items: Sequence[ConversationItem]) -> list[ConversationItem]:
        """Return the items of `items` that are neither records nor prompts of archived turns."""
        archived = self.archive.record_positions([item.message for item in items])
        return [item for index, item in enumerate(items) if index not in archived]

    def view(
        self, items: Sequence[ConversationItem], stop_reason: StopReason | None, *, other_tokens: int, summaries: bool
    ) -> ConversationView:
        """Return `items` as a `ConversationView`, which the planning rules use."""
        records = self.archive.records
        holders = [id for item in items for id in item.holders]
        messages = [item.message for item in items if not item.is_record]
        return ConversationView(
            messages=[item.message for item in items],
            tokens=[item.tokens for item in items],
            own_tokens=[item.own_tokens for item in items],
            levels={index: records[item.holders[-1]].level for index, item in enumerate(items) if item.is_record},
            calls=responses(messages) + sum(records[id].calls for id in holders),
            archive_count=len(holders),
            other_tokens=other_tokens,
            summaries=summaries,
            stop_reason=stop_reason,
        )
