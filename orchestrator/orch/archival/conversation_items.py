"""A conversation as a list of items.

An item is a message with its orch form, its size, and the archives that it represents.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import takewhile
from operator import attrgetter, is_
from typing import Any, Final

import msgspec
from msgspec import Struct

from orch_protocol.agent.config import Profile
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Block, Message, StopReason, Text
from orch_worker.conversation.stubs import holder_of, is_brief, stub_text
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.conversation.turns import TurnSpan, is_prompt, turns_of

from .adapters import UNCOPYABLE, Format, convert_message, decode_message, encode_message, to_json_data
from .plan.plan import ConversationView, JudgedTurns
from .store.catalog import ArchiveCatalog, ArchivedMessage, ArchiveRecord
from .store.unfold import unfold

__all__ = ["ConversationItem", "ItemReader", "profile_estimator"]


CACHED_PER_ITEM: Final = 2
"""Maximum number of cached messages for each message of the conversation. More messages are forgotten."""
SNAPSHOT_OF: Final = attrgetter("snapshot")
RAW_OF: Final = attrgetter("raw")


class ConversationItem(Struct, frozen=True):
    """A message of a conversation, with its size in tokens and the archives that it represents.

    `own_tokens` is the size without the records of archives in the message. `holders` contains the ids of these
    archives. `snapshot` is what `raw` was when it was read; the caller may change `raw` later.
    """

    raw: Any
    message: Message
    tokens: int
    own_tokens: int
    holders: tuple[str, ...]
    snapshot: Any = None

    @property
    def data(self) -> Any:
        """The message in its format, as it was read."""
        return self.raw if self.snapshot is UNCOPYABLE else self.snapshot

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
        self._measured = _Measured()

    def read_all(self, raws: list[Any]) -> list[ConversationItem]:
        """Return the items for the messages `raws`. Messages that equal those of the last call are not read again.

        Raises ConfigError if a message is not valid.
        """
        last = self._measured.items[: len(raws)]
        # One comparison of all messages takes a fraction of the time of reading them.
        if [*map(SNAPSHOT_OF, last)] == raws[: len(last)]:
            items = last
        else:
            items = [item for item, _ in takewhile(_is_unchanged, zip(last, raws, strict=False))]
        for index, raw in enumerate(raws[len(items) :], len(items)):
            cached = self._cached_items.get(id(raw))
            items.append(cached if cached and _is_unchanged((cached, raw)) else self.make_item(raw, index))
        self._cache(items)
        return items

    def make_item(self, raw: Any, index: int = 0) -> ConversationItem:
        """Return the item for the message `raw` at index `index`. Raises ConfigError if `raw` is not valid."""
        try:
            message, snapshot = self.format.read_with_snapshot(raw)
        except ConfigError as error:
            raise ConfigError(f"message {index}: {error}") from error
        holders = self.archive.holders(message)
        tokens = own = self.estimator.message(message)
        if holders and message.role == "user":
            own = self.estimator.message(Message("user", message.content[: -len(holders)]))
        return ConversationItem(raw, message, tokens, own, holders, snapshot)

    def messages(self, items: Sequence[ConversationItem]) -> Sequence[Message]:
        """Return the messages of `items`, the conversation that the next call of `read_all` probably continues."""
        self._cache(items)
        self._measured = self._measured.continued(items, self.archive)
        return self._measured.messages

    def _cache(self, items: Sequence[ConversationItem]) -> None:
        if len(self._cached_items) > CACHED_PER_ITEM * len(items):
            self._cached_items = {}
        self._cached_items.update(zip(map(id, map(RAW_OF, items)), items, strict=True))

    def forget(self) -> None:
        """Read all messages again from now on, because their sizes have changed."""
        self._cached_items, self._measured = {}, _Measured()

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
            self.format, item.data if isinstance(item.data, Message) else to_json_data(item.data)
        )
        return self.make_item(decode_message(self.format, message, difference))

    def _current_block(self, block: Block) -> Block:
        """Return the record with its late summary if `block` is the record of an archive with a late summary.

        Return any other block unchanged.
        """
        record = self.archive.records.get(holder_of(block.text) or "") if isinstance(block, Text) else None
        if not isinstance(block, Text) or record is None or not record.summarized or is_brief(block.text):
            return block
        if not self.archive.is_record_text(record, block.text):
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

    def original_entry(self, entry: ArchivedMessage) -> list[Any]:
        """Return the message of one entry of an archive in the format of this reader."""
        record = self.archive.records[entry.owner]
        if record.format != self.format.name:
            return convert_message(self.format, entry.message)
        return [decode_message(self.format, entry.message, (record.differences or [None] * record.count)[entry.index])]

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
        measured = self._measured = self._measured.continued(items, self.archive)
        latest = measured.latest[-1] if items else None
        return ConversationView(
            messages=measured.messages,
            tokens=measured.tokens,
            own_tokens=measured.own_tokens,
            levels=measured.levels,
            calls=sum(measured.original_calls),
            archive_count=measured.archives[-1] if items else 0,
            other_tokens=other_tokens,
            summaries=summaries,
            stop_reason=stop_reason,
            original_tokens=measured.original_tokens,
            archived_calls=measured.archived_calls,
            original_calls=measured.original_calls,
            saved=latest.saved if latest else 0.0,
            saved_calls=latest.saved_calls if latest else 0,
            known_turns=measured.turns,
            judged=measured.judged,
        )


class _Measured:
    """The properties of the items of one conversation that the rules use, with the sums up to each item.

    Only `judged` changes later, which all objects of one conversation share. `continued` copies the properties of the
    items that a conversation has in common with the last one, so that a fold looks at new messages only.
    """

    def __init__(self) -> None:
        self.items: list[ConversationItem] = []
        self.messages: list[Message] = []
        self.tokens: list[int] = []
        self.own_tokens: list[int] = []
        self.original_tokens: list[int] = []
        self.original_calls: list[int] = []
        """For each item, the number of model calls that it stands for."""
        self.archives: list[int] = []
        """For each item, the number of archives up to it."""
        self.latest: list[ArchiveRecord | None] = []
        """For each item, the record with the highest number up to it."""
        self.after_response: list[bool] = []
        """For each item, whether the last message up to it that is not a record is a response."""
        self.levels: dict[int, int] = {}
        self.archived_calls: dict[int, int] = {}
        self.turns: list[TurnSpan] = []
        self.judged = JudgedTurns()

    def continued(self, items: Sequence[ConversationItem], archive: ArchiveCatalog) -> _Measured:
        """Return the properties of `items`."""
        same = [*map(is_, items, self.items)]
        common = same.index(False) if False in same else len(same)
        if common == len(items) == len(self.items):
            return self
        new = _Measured()
        added = items[common:]
        new.items = list(items)
        new.messages = [*self.messages[:common], *(item.message for item in added)]
        new.tokens = [*self.tokens[:common], *(item.tokens for item in added)]
        new.own_tokens = [*self.own_tokens[:common], *(item.own_tokens for item in added)]
        new.original_tokens = self.original_tokens[:common]
        new.original_calls, new.archives = self.original_calls[:common], self.archives[:common]
        new.latest = self.latest[:common]
        new.after_response = self.after_response[:common]
        new.levels = {index: level for index, level in self.levels.items() if index < common}
        new.archived_calls = {index: calls for index, calls in self.archived_calls.items() if index < common}
        new._add(added, archive.records)
        last = self.turns[-1] if self.turns else None
        if last and common == len(self.items) and last.body < last.stop and not any(map(_may_begin_turn, added)):
            new.turns = [*self.turns[:-1], TurnSpan(last.start, last.body, len(items))]
            new.judged = self.judged
            return new
        # The last turn that begins before the first new message may have changed.
        kept = max(bisect_left([turn.start for turn in self.turns], common) - 1, 0)
        start = self.turns[kept].start if self.turns and common else 0
        new.turns = [*self.turns[:kept], *turns_of(new.messages, start)]
        new.judged = self.judged.first(kept)
        return new

    def _add(self, items: Sequence[ConversationItem], records: Mapping[str, ArchiveRecord]) -> None:
        archives = self.archives[-1] if self.archives else 0
        latest = self.latest[-1] if self.latest else None
        after_response = bool(self.after_response) and self.after_response[-1]
        for item in items:
            index, original, calls = len(self.original_calls), item.own_tokens, 0
            if item.holders:
                held = [records[id] for id in item.holders]
                calls = sum(record.calls for record in held)
                archives += len(held)
                latest = max(*held, latest or held[0], key=lambda record: record.number)
                archived = sum(record.original_tokens for record in held)
                if item.is_record:
                    self.levels[index] = held[-1].level
                    # The prompts that stay before the record are in the archive too.
                    prompts = held[-1].replaced_messages - 1
                    original = max(0, archived - sum(self.own_tokens[max(0, index - prompts) : index]))
                else:
                    self.archived_calls[index] = sum(sum(record.receipt.tools.values()) for record in held)
                    original += archived
            if not item.is_record:
                is_response = item.message.role == "assistant"
                calls += is_response and not after_response
                after_response = is_response
            self.original_calls.append(calls)
            self.archives.append(archives)
            self.latest.append(latest)
            self.after_response.append(after_response)
            self.original_tokens.append(original)


def _is_unchanged(pair: tuple[ConversationItem, Any]) -> bool:
    """Return whether a message equals the item that was made from it or from an equal message."""
    return bool(pair[0].snapshot == pair[1])


def _may_begin_turn(item: ConversationItem) -> bool:
    return item.message.role == "system" or is_prompt(item.message)
