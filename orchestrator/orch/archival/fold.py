"""Archives one range of a conversation.

This module computes the record of the range, stores the messages, and replaces the range by the record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from orch_protocol.agent.config import TriggerConfig
from orch_protocol.core.messages import Block, Image, Message, StopReason, Text, assistant, text_of, user
from orch_worker.backends.prices import Prices
from orch_worker.conversation.receipt import Receipt, merge, receipt_of, render
from orch_worker.conversation.stubs import era_prompt, is_summary, stub_text
from orch_worker.conversation.tokens import CHARS_PER_TOKEN, clip
from orch_worker.conversation.turns import responses, task_of, turns_of

from ..config.archival_profiles import ArchivalRules
from .conversation_items import ConversationItem, ItemReader
from .plan import plan
from .plan.plan import RECEIPT_TOKENS, ArchiveRange
from .plan.rollup import era_tokens
from .store.catalog import ArchiveRecord

__all__ = ["ArchivedRange", "RangeArchiver"]

StoreItems = Callable[[ArchiveRecord, Sequence[ConversationItem], Sequence[Message], bool], ArchiveRecord]
"""A function that stores items under a record and returns the complete record. Raises StoreError.

The third argument contains the messages of those items that are not records. The last argument is whether to request a
summary from a model.
"""
OnChange = Callable[[Sequence[ConversationItem], Sequence[ConversationItem], str, int, int], None]
"""A function that is called after a change of the conversation.

The arguments are the conversation before and after the change, the id of the new archive, and the start and end of the
changed range.
"""

MIN_RECEIPT: Final = 30
UNKNOWN_ID: Final = "a00000000000"
CLIP_HINT: Final = "the archive holds it all"


class ArchivedRange(Struct, frozen=True):
    """One archived range, with its id, kind (turn, phase or era), reason, task and size."""

    id: str
    kind: str
    reason: str
    task: str
    tokens: int
    summarized: bool


class RangeArchiver:
    """Archives ranges of conversations according to `rules`. `store` and `on_change` are callbacks."""

    def __init__(
        self, reader: ItemReader, rules: ArchivalRules, store: StoreItems, on_change: OnChange | None = None
    ) -> None:
        self._reader = reader
        self._archive = reader.archive
        self._rules = rules
        self._store = store
        self._on_change = on_change

    def fold_all(
        self,
        items: list[ConversationItem],
        trigger: TriggerConfig,
        prices: Prices,
        stop_reason: StopReason | None,
        *,
        other_tokens: int,
        summaries: bool,
        depth: int = 0,
        every_turn: bool = False,
    ) -> tuple[list[ConversationItem], list[ArchivedRange]]:
        """Archive finished turns, merge excess records into eras, then archive phases of long turns. Raises StoreError.

        Return the remaining items and the archived ranges. If `every_turn` is True, archive every finished turn that
        becomes smaller by archiving. If the conversation exceeded the high-water mark, or a range was archived, archive
        further ranges until the conversation is within the limit of the profile, as far as possible.
        """

        def view() -> plan.ConversationView:
            return self._reader.view(items, stop_reason, other_tokens=other_tokens, summaries=summaries)

        estimator = self._reader.estimator
        view_before = view()
        if every_turn:
            turns = plan.all_archivable_turns(view_before, self._rules, trigger, depth=depth)
        else:
            turns = plan.turns_to_archive(view_before, self._rules, trigger, prices, estimator, depth=depth)
        items, archived = self._fold(items, turns)
        while era := plan.next_era(view(), self._rules, prices):
            items, new_ranges = self._fold(items, [era])
            archived += new_ranges
        items, new_ranges = self._fold(items, plan.next_phases(view(), self._rules, prices))
        archived += new_ranges
        view_after = view()
        if (archived or view_before.total_tokens > self._rules.high_tokens) and plan.is_over_bound(
            view_after, self._rules
        ):
            items, new_ranges = self._fold(
                items, plan.all_archivable_turns(view_after, self._rules, trigger, depth=depth)
            )
            archived += new_ranges
            while plan.is_over_bound(current := view(), self._rules) and (
                next_range := plan.next_range_over_bound(current, self._rules)
            ):
                items, new_ranges = self._fold(items, [next_range])
                archived += new_ranges
        return items, archived

    def _fold(
        self, items: list[ConversationItem], ranges: Sequence[ArchiveRange]
    ) -> tuple[list[ConversationItem], list[ArchivedRange]]:
        methods = {"turn": self._archive_turn, "era": self._archive_era, "phase": self._archive_phase}
        archived: list[ArchivedRange] = []
        old_count = len(items)
        for planned in ranges:
            shift = len(items) - old_count
            positions = {name: getattr(planned, name) + shift for name in ("start", "body", "stop")}
            old_items = items
            items, new_ranges = methods[planned.kind](old_items, msgspec.structs.replace(planned, **positions))
            archived += new_ranges
            if new_ranges and self._on_change is not None:
                self._on_change(old_items, items, new_ranges[0].id, positions["start"], positions["stop"])
        return items, archived

    def _archive_turn(
        self, items: list[ConversationItem], archive_range: ArchiveRange
    ) -> tuple[list[ConversationItem], list[ArchivedRange]]:
        turn_items = items[archive_range.start : archive_range.stop]
        prompts = [self._shorten_prompt(item) for item in items[archive_range.start : archive_range.body]]
        task = task_of([item.message for item in prompts])
        removed = sum(item.tokens for item in turn_items) - sum(item.tokens for item in prompts)
        messages = [item.message for item in turn_items]
        record = self._build_record(
            archive_range, turn_items, messages, task, replaced_messages=max(len(prompts), 1) + 1
        )
        max_tokens = max(min(RECEIPT_TOKENS, removed // 4), MIN_RECEIPT)
        record = msgspec.structs.replace(
            record, record=self._render_receipt(record.receipt, max_tokens), answer=self._final_answer(messages[-1])
        )
        size = self._reader.estimator.text(stub_text("turn", UNKNOWN_ID, record.record, record.answer))
        if self._rules.gate and size >= removed:
            return items, []
        stored = self._store(record, turn_items, messages, archive_range.summarize)
        stub = self._reader.write_message(assistant(stub_text("turn", stored.id, stored.record, stored.answer)))
        prompts = prompts or [self._reader.write_message(user(task))]
        return [*items[: archive_range.start], *prompts, stub, *items[archive_range.stop :]], [_archived_range(stored)]

    def _archive_era(
        self, items: list[ConversationItem], archive_range: ArchiveRange
    ) -> tuple[list[ConversationItem], list[ArchivedRange]]:
        era_items = items[archive_range.start : archive_range.stop]
        messages = [item.message for item in self._reader.without_archived(era_items)]
        record = self._build_record(
            archive_range, era_items, messages, task_of(messages) if messages else "", replaced_messages=2
        )
        text = self._render_receipt(record.receipt, era_tokens(self._rules.rollup_tokens))
        record = msgspec.structs.replace(record, task=f"{record.turns} earlier turns", record=text)
        stored = self._store(record, era_items, messages, False)
        stubs = [user(era_prompt(stored.turns)), assistant(stub_text("era", stored.id, stored.record))]
        return [*items[: archive_range.start], *map(self._reader.write_message, stubs), *items[archive_range.stop :]], [
            _archived_range(stored)
        ]

    def _archive_phase(
        self, items: list[ConversationItem], archive_range: ArchiveRange
    ) -> tuple[list[ConversationItem], list[ArchivedRange]]:
        prompt_indexes = [
            index for index in range(archive_range.start, archive_range.body) if items[index].message.role == "user"
        ]
        start = prompt_indexes[-1] if prompt_indexes else archive_range.body
        phase_items = items[start : archive_range.stop]
        task = task_of([items[index].message for index in prompt_indexes])
        messages = [item.message for item in phase_items[bool(prompt_indexes) :]]
        merges = archive_range.merges and bool(prompt_indexes) and not is_summary(phase_items[0].message)
        # The prompt contains records of earlier phases. These records belong to the new archive only if its record
        # replaces them.
        record = self._build_record(
            archive_range,
            phase_items if merges else phase_items[bool(prompt_indexes) :],
            messages,
            task,
            replaced_messages=1,
        )
        text = self._render_receipt(record.receipt, RECEIPT_TOKENS)
        record = msgspec.structs.replace(record, prompts=int(bool(prompt_indexes)), turns=0, record=text)
        stored = self._store(record, phase_items, messages, archive_range.summarize)
        stub = stub_text("phase", stored.id, stored.record)
        format = self._reader.format
        prompt = self._reader.without_records(phase_items[0]) if merges else phase_items[0]
        raw = format.with_text(prompt.raw, stub) if prompt_indexes else format.write(user(stub))
        return [*items[:start], self._reader.make_item(raw), *items[archive_range.stop :]], [_archived_range(stored)]

    def _shorten_prompt(self, item: ConversationItem) -> ConversationItem:
        """Return the prompt that remains after archiving.

        The result has no records of phases. A long prompt is truncated, and texts replace the images in it.
        """
        item = self._reader.without_records(item)
        if item.tokens <= self._rules.prompt_tokens:
            return item
        blocks: list[Block] = []
        for block in item.message.content:
            match block:
                case Text(text):
                    blocks.append(Text(self._clip(text, self._rules.prompt_tokens)))
                case Image():
                    blocks.append(Text(block.text))
                case _:
                    blocks.append(block)
        return self._reader.write_message(Message(item.message.role, tuple(blocks)))

    def _final_answer(self, last: Message) -> str:
        text = text_of(last) if last.role == "assistant" else ""
        return self._clip(text.strip(), self._rules.answer_tokens)

    def _clip(self, text: str, limit: int) -> str:
        """Return `text` with at most about `limit` tokens. A long text is cut in the middle."""
        size = self._reader.estimator.text(text)
        return text if size <= limit else clip(text, len(text) * limit // size, CLIP_HINT)

    def _render_receipt(self, receipt: Receipt, max_tokens: int) -> str:
        chars = max_tokens * CHARS_PER_TOKEN
        size = self._reader.estimator.text(text := render(receipt, chars))
        return text if size <= max_tokens else render(receipt, chars * max_tokens // size)

    def _build_record(
        self,
        archive_range: ArchiveRange,
        items: Sequence[ConversationItem],
        messages: Sequence[Message],
        task: str,
        *,
        replaced_messages: int,
    ) -> ArchiveRecord:
        members = tuple(id for item in items for id in item.holders)
        records = [self._archive.records[id] for id in members]
        own_receipts = [receipt_of(messages, task)] if messages else []
        return ArchiveRecord(
            id=UNKNOWN_ID,
            number=0,
            kind=archive_range.kind,
            task=task,
            count=0,
            prompts=archive_range.body - archive_range.start,
            replaced_messages=replaced_messages,
            calls=responses(messages) + sum(record.calls for record in records),
            turns=len(turns_of(messages)) + sum(record.turns for record in records),
            tokens=sum(item.tokens for item in items),
            level=archive_range.level,
            timestamp="",
            format=self._reader.format.name,
            record="",
            reason=archive_range.reason,
            receipt=merge([*(record.receipt for record in records), *own_receipts]),
            members=members,
        )


def _archived_range(record: ArchiveRecord) -> ArchivedRange:
    return ArchivedRange(record.id, record.kind, record.reason, record.task, record.tokens, record.summarized)
