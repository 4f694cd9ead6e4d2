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
from orch_worker.conversation.receipt import Receipt, merge, receipt_of, with_places
from orch_worker.conversation.receipt_text import KEPT_CHARS, render, title_of, with_summary
from orch_worker.conversation.records.prose import cut_at_sentence, last_sentences
from orch_worker.conversation.stubs import era_prompt, is_summary, stub_text
from orch_worker.conversation.tokens import CHARS_PER_TOKEN, clip
from orch_worker.conversation.turns import responses, task_of, turns_of

from ..config.archival_profiles import ArchivalRules
from .conversation_items import ConversationItem, ItemReader
from .plan import plan
from .plan.economics import summary_cost
from .plan.plan import ArchiveRange
from .plan.rollup import RECORD_TOKENS, era_tokens, record_tokens
from .store.catalog import ArchiveRecord

__all__ = ["ArchivedRange", "RangeArchiver", "summarized_text"]

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

UNKNOWN_ID: Final = "a00000000000"
CLIP_HINT: Final = "the archive holds it all"
ANSWER_MARK: Final = "[… the archive holds the rest{entry}]"
NO_PROMPT: Final = "(no prompt)"
TITLE_CHARS: Final = 80


def summarized_text(record: ArchiveRecord, summary: str) -> str:
    """Return the text of `record` with a model's `summary`, and with the facts that the summary leaves out."""
    growth = record_tokens(record.original_tokens) - RECORD_TOKENS
    return with_summary(record.receipt, summary, KEPT_CHARS + growth * CHARS_PER_TOKEN)


class ArchivedRange(Struct, frozen=True):
    """One archived range, with its id, kind (turn, phase or era), reason, task and size."""

    id: str
    kind: str
    reason: str
    task: str
    tokens: int
    summarized: bool


class _Ledger:
    """Counts what archiving saves in a conversation, from the state `view` on. See `ArchiveRecord.saved`."""

    def __init__(self, view: plan.ConversationView, rules: ArchivalRules, prices: Prices) -> None:
        self._view = view
        self._saved: float | None = None
        self._calls, self._context = view.calls, view.other_tokens + view.total_tokens
        self._rules, self._prices = rules, prices
        self._archives, self._listed = view.archive_count, 0
        self._cached_end = plan.first_uncached_message(view.messages)
        """The position up to which the next request reads the conversation from the cache."""

    def booked(
        self, record: ArchiveRecord, items: Sequence[ConversationItem], archived: ArchiveRange, added: int
    ) -> ArchiveRecord:
        """Return `record` with what archiving has saved after `archived`, which adds `added` tokens."""
        cut = max(archived.body, min(self._cached_end, archived.stop))
        read = sum(item.tokens for item in items[archived.body : cut])
        written = sum(item.tokens for item in items[cut : archived.stop])
        kept = sum(item.tokens for item in items[archived.stop : max(self._cached_end, archived.stop)])
        if archived.kind == "phase" and archived.start < archived.body <= self._cached_end:
            kept += items[archived.body - 1].own_tokens  # the record is added to the last prompt
        # The list of archives is written once, after the last of the archives that are made together.
        self._archives += 1 - len(record.members)
        listed, self._listed = self._listed, plan.list_tokens(self._rules, self._archives)
        prices = self._prices
        if self._saved is None:
            self._saved = self._view.account(self._rules, prices).saved
        self._saved += (written + listed - added - self._listed) * prices.write
        self._saved -= kept * (prices.write - prices.read)
        if archived.summarize:
            self._saved -= summary_cost(
                read + written, self._context - written, plan.SUMMARY_TOKENS, prices, unsent=written
            )
        self._cached_end = min(self._cached_end, archived.body)
        return msgspec.structs.replace(record, saved=self._saved, saved_calls=self._calls)


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
        self._ledger: _Ledger

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

        view_before = view()
        self._ledger = _Ledger(view_before, self._rules, prices)
        if every_turn:
            turns = plan.all_archivable_turns(view_before, self._rules, trigger, depth=depth)
        else:
            turns = plan.turns_to_archive(view_before, self._rules, trigger, prices, depth=depth)
        items, archived = self._fold(items, turns)
        current = view() if archived else view_before
        while era := plan.next_era(current, self._rules, prices):
            items, new_ranges = self._fold(items, [era])
            archived += new_ranges
            current = view()
        items, new_ranges = self._fold(items, plan.next_phases(current, self._rules, prices))
        archived += new_ranges
        if archived or view_before.total_tokens > self._rules.high_tokens:
            current = view() if new_ranges else current
            while plan.is_over_bound(current, self._rules) and (
                next_range := plan.next_range_over_bound(current, self._rules, prices)
            ):
                items, new_ranges = self._fold(items, [next_range])
                archived += new_ranges
                current = view()
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
        removed = sum(item.tokens for item in turn_items) - sum(item.tokens for item in prompts)
        messages = [item.message for item in turn_items]
        task = task_of([item.message for item in prompts])
        record = self._build_record(
            archive_range, turn_items, messages, task, replaced_messages=max(len(prompts), 1) + 1
        )
        max_tokens = max(min(record_tokens(record.original_tokens), removed // 4), plan.MIN_RECEIPT)
        answer = self._final_answer(messages[-1], record.entries)
        record = msgspec.structs.replace(
            record, record=self._render_receipt(record.receipt, max_tokens, answer), answer=answer
        )
        size = self._reader.estimator.text(stub_text("turn", UNKNOWN_ID, record.record, record.answer))
        if self._rules.gate and not archive_range.triggered and size >= removed:
            return items, []
        record = self._ledger.booked(record, items, archive_range, size)
        stored = self._store(record, turn_items, messages, archive_range.summarize)
        stub = self._reader.write_message(assistant(stub_text("turn", stored.id, stored.record, stored.answer)))
        prompts = prompts or [self._reader.write_message(user(NO_PROMPT))]
        return [*items[: archive_range.start], *prompts, stub, *items[archive_range.stop :]], [_archived_range(stored)]

    def _archive_era(
        self, items: list[ConversationItem], archive_range: ArchiveRange
    ) -> tuple[list[ConversationItem], list[ArchivedRange]]:
        era_items = items[archive_range.start : archive_range.stop]
        messages = [item.message for item in self._reader.without_archived(era_items)]
        record = self._build_record(archive_range, era_items, messages, task_of(messages), replaced_messages=2)
        limit = era_tokens(self._rules.rollup_tokens, record.original_tokens)
        text = self._render_receipt(record.receipt, limit, requests=True)
        record = msgspec.structs.replace(record, task=f"{record.turns} earlier turns", record=text)
        record = self._ledger.booked(record, items, archive_range, self._reader.estimator.text(text))
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
            first_entry=1 if merges or not prompt_indexes else 2,  # the prompt is the first entry of a phase
        )
        text = self._render_receipt(record.receipt, record_tokens(record.original_tokens))
        record = msgspec.structs.replace(record, prompts=int(bool(prompt_indexes)), turns=0, record=text)
        record = self._ledger.booked(record, items, archive_range, self._reader.estimator.text(text))
        stored = self._store(record, phase_items, messages, archive_range.summarize)
        stub = stub_text("phase", stored.id, stored.record)
        format = self._reader.format
        prompt = self._reader.without_records(phase_items[0]) if merges else phase_items[0]
        raw = format.with_text(prompt.data, stub) if prompt_indexes else format.write(user(stub))
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

    def _final_answer(self, last: Message, entry: int) -> str:
        """Return the final answer whole, or cut at the end of a sentence. `entry` is its entry, 0 if unknown."""
        text = text_of(last).strip() if last.role == "assistant" else ""
        limit = self._rules.answer_tokens
        size = self._reader.estimator.text(text)
        mark = ANSWER_MARK.format(entry=f": entry {entry}" if entry else "")
        return text if size <= limit else cut_at_sentence(text, len(text) * limit // size, mark)

    def _clip(self, text: str, limit: int) -> str:
        """Return `text` with at most about `limit` tokens. A long text is cut in the middle."""
        size = self._reader.estimator.text(text)
        return text if size <= limit else clip(text, len(text) * limit // size, CLIP_HINT)

    def _render_receipt(self, receipt: Receipt, max_tokens: int, answer: str = "", *, requests: bool = False) -> str:
        chars = max_tokens * CHARS_PER_TOKEN
        size = self._reader.estimator.text(text := render(receipt, chars, answer, requests=requests))
        if size <= max_tokens:
            return text
        return render(receipt, chars * max_tokens // size, answer, requests=requests)

    def _build_record(
        self,
        archive_range: ArchiveRange,
        items: Sequence[ConversationItem],
        messages: Sequence[Message],
        task: str,
        *,
        replaced_messages: int,
        first_entry: int = 1,
    ) -> ArchiveRecord:
        members = tuple(holder for item in items for holder in item.holders)
        records = [self._archive.records[member] for member in members]
        receipts, entries = self._receipts(archive_range, items, messages, first_entry)
        receipt = merge(receipts)
        own = {id(message) for message in messages}
        own_tokens = sum(item.own_tokens for item in items if id(item.message) in own)
        return ArchiveRecord(
            id=UNKNOWN_ID,
            number=0,
            kind=archive_range.kind,
            task=task or title_of(receipt) or _first_words(messages),
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
            receipt=receipt,
            members=members,
            original_tokens=own_tokens + sum(record.original_tokens for record in records),
            entries=entries,
        )

    def _receipts(
        self,
        archive_range: ArchiveRange,
        items: Sequence[ConversationItem],
        messages: Sequence[Message],
        first_entry: int,
    ) -> tuple[list[Receipt], int]:
        """Return the receipts of `items` in order, and the number of entries of their archive.

        Adjacent messages of `messages` have one receipt. The receipts of archives have their places in the new archive,
        or below the id of the earlier archive if the new one does not contain its entries. The number is 0 if unknown.
        The first item is the entry `first_entry`.
        """
        own = {id(message) for message in messages}
        receipts: list[Receipt] = []
        run: list[Message] = []
        numbers: list[int] = []
        entry = first_entry  # the number of the next entry, 0 if unknown

        def end_run() -> None:
            if run:
                receipts.append(receipt_of(run, numbers if all(numbers) else ()))
                run.clear()
                numbers.clear()

        for item in items:
            records = [self._archive.records[holder] for holder in item.holders]
            if records and not item.is_record:
                is_own = id(item.message) in own
                if is_summary(item.message):
                    entry = 0
                if is_own:
                    run.append(item.message)
                    numbers.append(entry)
                entry += bool(entry)
                end_run()
                for record in records:
                    contained = archive_range.kind != "phase" and bool(entry)
                    first = entry + self._merged_entries(record) - record.prompts if contained else 0
                    receipts.append(with_places(record.receipt, first - 1, "" if contained else record.id))
                    if contained:
                        entry = first + record.entries if record.entries else 0
            elif records:
                end_run()
                for record in records:
                    first = entry - (record.replaced_messages - 1) if entry else 0
                    contained = first > 0
                    receipts.append(with_places(record.receipt, first - 1, "" if contained else record.id))
                    entry = first + record.entries if contained and record.entries else 0
            else:
                if id(item.message) in own:
                    run.append(item.message)
                    numbers.append(entry)
                entry += bool(entry)
        end_run()
        return receipts, max(entry - 1, 0)

    def _merged_entries(self, record: ArchiveRecord) -> int:
        """Return the number of entries of the earlier phases that the phase `record` merged."""
        members = [self._archive.records[id] for id in record.members]
        return sum(self._merged_entries(member) + member.entries - member.prompts for member in members)


def _first_words(messages: Sequence[Message]) -> str:
    """Return a title for messages without a request and calls: the last sentence of the agent or of the user."""
    spoken = [
        text_of(message) for role in ("assistant", "user") for message in reversed(messages) if message.role == role
    ]
    return next((line for text in spoken if (line := last_sentences(text, 1, TITLE_CHARS))), NO_PROMPT)


def _archived_range(record: ArchiveRecord) -> ArchivedRange:
    return ArchivedRange(record.id, record.kind, record.reason, record.task, record.tokens, record.summarized)
