"""What it takes to archive one thing: compute what stays, have it stored, and put that in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from orch_protocol.agent.config import TriggerConfig
from orch_protocol.core.messages import Message, StopReason, Text, assistant, text_of, user
from orch_worker.conversation.receipt import Receipt, merge, receipt_of, render
from orch_worker.conversation.stubs import era_prompt, is_summary, stub_text
from orch_worker.conversation.tokens import clip
from orch_worker.conversation.turns import responses, task_of, turns_of

from ..config.archival_profiles import Rules
from .conversation_items import ConversationItem, ItemReader
from .plan import plan
from .plan.economics import Prices
from .plan.plan import RECEIPT_TOKENS, ArchiveRange
from .plan.rollup import era_tokens
from .store.catalog import ArchiveRecord

__all__ = ["ArchivedRange", "RangeArchiver"]

Store = Callable[[ArchiveRecord, Sequence[ConversationItem], Sequence[Message], bool], ArchiveRecord]
"""Stores pieces, of which these messages are no stubs, under a record, and returns that as it is known from then on.

The last argument says whether a model is to be asked for a summary. Raises StoreError.
"""
Changed = Callable[[Sequence[ConversationItem], Sequence[ConversationItem], str, int, int], None]
"""Told what a conversation was, what it is, and the id of the archive that made the difference."""

CHARS_A_TOKEN: Final = 4
LEAST_RECEIPT: Final = 30
UNKNOWN: Final = "a00000000000"
HINT: Final = "the archive holds it all"


class ArchivedRange(Struct, frozen=True):
    """One thing that was archived: its id, its kind (turn, phase, era), why, what it was about, how large it was."""

    id: str
    kind: str
    reason: str
    task: str
    tokens: int
    summarised: bool


class RangeArchiver:
    """Archives parts of conversations by the rules. What is archived goes to `store`, the change to `changed`."""

    def __init__(self, pieces: ItemReader, rules: Rules, store: Store, changed: Changed | None = None) -> None:
        self._pieces = pieces
        self._archive = pieces.archive
        self._rules = rules
        self._store = store
        self._changed = changed

    def fold_all(
        self,
        pieces: list[ConversationItem],
        trigger: TriggerConfig,
        prices: Prices,
        stop_reason: StopReason | None,
        *,
        beside: int,
        summaries: bool,
        depth: int = 0,
        now: bool = False,
    ) -> tuple[list[ConversationItem], list[ArchivedRange]]:
        """Archive everything that the rules let go: finished turns, then stubs too many, then the past of long turns.

        With `now` all finished turns go that become smaller by that. If the conversation was past the high water, or
        something was archived, the bound of the profile holds afterwards. Returns the pieces that go on, and what was
        done. Raises StoreError.
        """

        def view() -> plan.ConversationView:
            return self._pieces.view(pieces, stop_reason, beside=beside, summaries=summaries)

        estimator = self._pieces.estimator
        seen = view()
        if now:
            turns = plan.all_archivable_turns(seen, self._rules, trigger, depth=depth)
        else:
            turns = plan.turns_to_archive(seen, self._rules, trigger, prices, estimator, depth=depth)
        pieces, folded = self._fold(pieces, turns)
        while merging := plan.next_era(view(), self._rules, prices):
            pieces, done = self._fold(pieces, [merging])
            folded += done
        pieces, done = self._fold(pieces, plan.next_phases(view(), self._rules, prices))
        folded += done
        now_seen = view()
        if (folded or seen.live > self._rules.high) and plan.is_over_bound(now_seen, self._rules):
            pieces, done = self._fold(pieces, plan.all_archivable_turns(now_seen, self._rules, trigger, depth=depth))
            folded += done
            while plan.is_over_bound(over := view(), self._rules) and (
                next_fold := plan.next_range_over_bound(over, self._rules)
            ):
                pieces, done = self._fold(pieces, [next_fold])
                folded += done
        return pieces, folded

    def _fold(
        self, pieces: list[ConversationItem], collapses: Sequence[ArchiveRange]
    ) -> tuple[list[ConversationItem], list[ArchivedRange]]:
        means = {"turn": self._turn, "era": self._era, "phase": self._phase}
        folded: list[ArchivedRange] = []
        before = len(pieces)
        for planned in collapses:
            shift = len(pieces) - before
            places = {name: getattr(planned, name) + shift for name in ("start", "body", "stop")}
            was = pieces
            pieces, done = means[planned.kind](was, msgspec.structs.replace(planned, **places))
            folded += done
            if done and self._changed is not None:
                self._changed(was, pieces, done[0].id, places["start"], places["stop"])
        return pieces, folded

    def _turn(
        self, pieces: list[ConversationItem], collapse: ArchiveRange
    ) -> tuple[list[ConversationItem], list[ArchivedRange]]:
        part = pieces[collapse.start : collapse.stop]
        asked = [self._prompt(piece) for piece in pieces[collapse.start : collapse.body]]
        task = task_of([piece.message for piece in asked])
        removed = sum(piece.tokens for piece in part) - sum(piece.tokens for piece in asked)
        said = [piece.message for piece in part]
        record = self._record(collapse, part, said, task, stands=max(len(asked), 1) + 1)
        room = max(min(RECEIPT_TOKENS, removed // 4), LEAST_RECEIPT)
        record = msgspec.structs.replace(record, record=self._text(record.receipt, room), answer=self._answer(said[-1]))
        size = self._pieces.estimator.text(stub_text("turn", UNKNOWN, record.record, record.answer))
        if self._rules.gate and size >= removed:
            return pieces, []
        known = self._store(record, part, said, collapse.summarise)
        stub = self._pieces.written(assistant(stub_text("turn", known.id, known.record, known.answer)))
        asked = asked or [self._pieces.written(user(task))]
        return [*pieces[: collapse.start], *asked, stub, *pieces[collapse.stop :]], [_told(known)]

    def _era(
        self, pieces: list[ConversationItem], collapse: ArchiveRange
    ) -> tuple[list[ConversationItem], list[ArchivedRange]]:
        part = pieces[collapse.start : collapse.stop]
        said = [piece.message for piece in self._pieces.unstubbed(part)]
        record = self._record(collapse, part, said, task_of(said) if said else "", stands=2)
        text = self._text(record.receipt, era_tokens(self._rules.rollup))
        record = msgspec.structs.replace(record, task=f"{record.turns} earlier turns", record=text)
        known = self._store(record, part, said, False)
        stubs = [user(era_prompt(known.turns)), assistant(stub_text("era", known.id, known.record))]
        return [*pieces[: collapse.start], *map(self._pieces.written, stubs), *pieces[collapse.stop :]], [_told(known)]

    def _phase(
        self, pieces: list[ConversationItem], collapse: ArchiveRange
    ) -> tuple[list[ConversationItem], list[ArchivedRange]]:
        asked = [place for place in range(collapse.start, collapse.body) if pieces[place].message.role == "user"]
        start = asked[-1] if asked else collapse.body
        part = pieces[start : collapse.stop]
        task = task_of([pieces[place].message for place in asked])
        said = [piece.message for piece in part[bool(asked) :]]
        merges = collapse.merges and bool(asked) and not is_summary(part[0].message)
        # The stubs in the prompt stand for earlier phases: they are a part of this one only if it replaces them.
        record = self._record(collapse, part if merges else part[bool(asked) :], said, task, stands=1)
        text = self._text(record.receipt, RECEIPT_TOKENS)
        record = msgspec.structs.replace(record, prompts=int(bool(asked)), turns=0, record=text)
        known = self._store(record, part, said, collapse.summarise)
        stub = stub_text("phase", known.id, known.record)
        format = self._pieces.format
        prompt = self._pieces.bare(part[0]) if merges else part[0]
        raw = format.with_text(prompt.raw, stub) if asked else format.write(user(stub))
        return [*pieces[:start], self._pieces.piece(raw), *pieces[collapse.stop :]], [_told(known)]

    def _prompt(self, piece: ConversationItem) -> ConversationItem:
        """Return a prompt as it stays when its turn is archived: without its phases; head and tail if it is huge."""
        piece = self._pieces.bare(piece)
        if piece.tokens <= self._rules.prompt:
            return piece
        blocks = [
            Text(self._clipped(block.text, self._rules.prompt)) if isinstance(block, Text) else block
            for block in piece.message.content
        ]
        return self._pieces.written(Message(piece.message.role, tuple(blocks)))

    def _answer(self, last: Message) -> str:
        text = text_of(last) if last.role == "assistant" else ""
        return self._clipped(text.strip(), self._rules.answer)

    def _clipped(self, text: str, limit: int) -> str:
        """Return `text` in about `limit` tokens: head and tail, and between them what was left out."""
        size = self._pieces.estimator.text(text)
        return text if size <= limit else clip(text, len(text) * limit // size, HINT)

    def _text(self, receipt: Receipt, tokens: int) -> str:
        chars = tokens * CHARS_A_TOKEN
        size = self._pieces.estimator.text(text := render(receipt, chars))
        return text if size <= tokens else render(receipt, chars * tokens // size)

    def _record(
        self,
        collapse: ArchiveRange,
        part: Sequence[ConversationItem],
        said: Sequence[Message],
        task: str,
        *,
        stands: int,
    ) -> ArchiveRecord:
        members = tuple(id for piece in part for id in piece.holders)
        records = [self._archive.records[id] for id in members]
        own = [receipt_of(said, task)] if said else []
        return ArchiveRecord(
            id=UNKNOWN,
            number=0,
            kind=collapse.kind,
            task=task,
            count=0,
            prompts=collapse.body - collapse.start,
            stands=stands,
            calls=responses(said) + sum(record.calls for record in records),
            turns=len(turns_of(said)) + sum(record.turns for record in records),
            tokens=sum(piece.tokens for piece in part),
            level=collapse.level,
            timestamp="",
            format=self._pieces.format.name,
            record="",
            reason=collapse.reason,
            receipt=merge([*(record.receipt for record in records), *own]),
            members=members,
        )


def _told(record: ArchiveRecord) -> ArchivedRange:
    return ArchivedRange(record.id, record.kind, record.reason, record.task, record.tokens, record.summarised)
