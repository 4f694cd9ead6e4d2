"""What it takes to archive one thing: make it durable, compute what stays, and put that in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from orch_protocol.config import ArchivalConfig
from orch_protocol.errors import StoreError
from orch_protocol.messages import Message, Text, assistant, text_of, user

from .adapters import pack, plain
from .archive import Record, Stored
from .asker import Asker
from .gate import Prices
from .pieces import Piece, Pieces
from .plan import RECEIPT_TOKENS, Collapse, upgrades
from .profiles import Rules
from .receipt import Receipt, merge, receipt_of, render
from .rollup import era_tokens
from .stub import clip_tokens, era_prompt, stub_text
from .summary import SummaryRequest
from .turns import responses, task_of, turns_of

__all__ = ["Folded", "Folding"]

CHARS_A_TOKEN: Final = 4
LEAST_RECEIPT: Final = 30
UNKNOWN: Final = "a00000000000"
HINT: Final = "the archive holds it all"


class Folded(Struct, frozen=True):
    """One thing that was archived: its id, its kind (turn, phase, era), why, what it was about, how large it was."""

    id: str
    kind: str
    reason: str
    task: str
    tokens: int
    summarised: bool


class Folding:
    """Archives parts of conversations by the rules. Each method returns the pieces that go on, and what was done."""

    def __init__(
        self,
        pieces: Pieces,
        rules: Rules,
        config: ArchivalConfig,
        summarise: Callable[[SummaryRequest], str] | None,
        stored: Callable[[Record], None],
    ) -> None:
        self._pieces = pieces
        self._archive = pieces.archive
        self._rules = rules
        self._asker = None if summarise is None else Asker(summarise, config.summary, pieces.archive.notes)
        self._told = stored

    def fold(self, pieces: list[Piece], collapses: Sequence[Collapse]) -> tuple[list[Piece], list[Folded]]:
        """Carry `collapses` out, in order. Raises StoreError when one cannot be made durable."""
        means = {"turn": self._turn, "era": self._era, "phase": self._phase}
        folded: list[Folded] = []
        before = len(pieces)
        for planned in collapses:
            shift = len(pieces) - before
            places = {name: getattr(planned, name) + shift for name in ("start", "body", "stop")}
            pieces, done = means[planned.kind](pieces, msgspec.structs.replace(planned, **places))
            folded += done
        return pieces, folded

    def late(self) -> None:
        """Take in, durably, the summaries that came after their time. Never raises; what cannot be written is noted."""
        for id, text in self._asker.late() if self._asker else ():
            try:
                self._archive.summarise(id, text)
            except StoreError as error:
                self._archive.notes.append(f"the late summary of archive {id} is lost: {error}")

    def upgraded(self, pieces: list[Piece], before: Sequence[Piece], fresh: int, prices: Prices) -> list[Piece]:
        """Return `pieces` with late summaries in place of receipts, where that breaks little of what is cached.

        `before` is the conversation as it was in the last request, but for what stands from `fresh` on.
        """
        found = {place: new for place, piece in enumerate(pieces) if (new := self._pieces.upgraded(piece))}
        if not found:
            return pieces
        same = (now.raw is was.raw for now, was in zip(pieces, before, strict=False))
        broken = next((place for place, kept in enumerate(same) if not kept), min(len(pieces), len(before)))
        places = upgrades(sorted(found), [piece.tokens for piece in pieces], min(broken, fresh), prices)
        return [found[place] if place in places else piece for place, piece in enumerate(pieces)]

    def _turn(self, pieces: list[Piece], collapse: Collapse) -> tuple[list[Piece], list[Folded]]:
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
        known = self._durable(record, part, said, collapse.summarise)
        stub = self._pieces.written(assistant(stub_text("turn", known.id, known.record, known.answer)))
        asked = asked or [self._pieces.written(user(task))]
        return [*pieces[: collapse.start], *asked, stub, *pieces[collapse.stop :]], [_told(known)]

    def _era(self, pieces: list[Piece], collapse: Collapse) -> tuple[list[Piece], list[Folded]]:
        part = pieces[collapse.start : collapse.stop]
        said = [piece.message for piece in self._pieces.unstubbed(part)]
        record = self._record(collapse, part, said, task_of(said) if said else "", stands=2)
        text = self._text(record.receipt, era_tokens(self._rules.rollup))
        record = msgspec.structs.replace(record, task=f"{record.turns} earlier turns", record=text)
        known = self._durable(record, part, said, False)
        stubs = [user(era_prompt(known.turns)), assistant(stub_text("era", known.id, known.record))]
        return [*pieces[: collapse.start], *map(self._pieces.written, stubs), *pieces[collapse.stop :]], [_told(known)]

    def _phase(self, pieces: list[Piece], collapse: Collapse) -> tuple[list[Piece], list[Folded]]:
        asked = [place for place in range(collapse.start, collapse.body) if pieces[place].message.role == "user"]
        start = asked[-1] if asked else collapse.body
        part = pieces[start : collapse.stop]
        task = task_of([pieces[place].message for place in asked])
        said = [piece.message for piece in part[bool(asked) :]]
        # The stubs in the prompt are of phases before this one, and no part of it.
        record = self._record(collapse, part[bool(asked) :], said, task, stands=1)
        text = self._text(record.receipt, RECEIPT_TOKENS)
        record = msgspec.structs.replace(record, prompts=int(bool(asked)), turns=0, record=text)
        known = self._durable(record, part, said, collapse.summarise)
        stub = stub_text("phase", known.id, known.record)
        format = self._pieces.format
        raw = format.with_text(part[0].raw, stub) if asked else format.write(user(stub))
        return [*pieces[:start], self._pieces.piece(raw), *pieces[collapse.stop :]], [_told(known)]

    def _prompt(self, piece: Piece) -> Piece:
        """Return a prompt as it stays when its turn is archived: without its phases; head and tail if it is huge."""
        if piece.holders:
            # The first phase was archived with the prompt as it was before any.
            piece = self._pieces.piece(self._pieces.contents(self._archive.records[piece.holders[0]])[0])
        if piece.tokens <= self._rules.prompt:
            return piece
        blocks = [
            Text(clip_tokens(block.text, self._rules.prompt, self._pieces.estimator, HINT))
            if isinstance(block, Text)
            else block
            for block in piece.message.content
        ]
        return self._pieces.written(Message(piece.message.role, tuple(blocks)))

    def _answer(self, last: Message) -> str:
        text = text_of(last) if last.role == "assistant" else ""
        return clip_tokens(text.strip(), self._rules.answer, self._pieces.estimator, HINT)

    def _text(self, receipt: Receipt, tokens: int) -> str:
        chars = tokens * CHARS_A_TOKEN
        size = self._pieces.estimator.text(text := render(receipt, chars))
        return text if size <= tokens else render(receipt, chars * tokens // size)

    def _record(
        self, collapse: Collapse, part: Sequence[Piece], said: Sequence[Message], task: str, *, stands: int
    ) -> Record:
        members = tuple(id for piece in part for id in piece.holders)
        records = [self._archive.records[id] for id in members]
        own = [receipt_of(said, task)] if said else []
        return Record(
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

    def _durable(self, record: Record, part: Sequence[Piece], said: Sequence[Message], summarise: bool) -> Record:
        """Return `record` as it is on the disk, with `part`, which may leave the conversation from now on."""
        raws = [piece.raw if isinstance(piece.raw, Message) else plain(piece.raw) for piece in part]
        known = self._archive.add(record, [Stored(*pack(self._pieces.format, raw)) for raw in raws])
        self._told(known)
        if summarise and self._asker and not known.summarised and (text := self._asker.ask(known.id, said)):
            return self._archive.summarise(known.id, text)
        return known


def _told(record: Record) -> Folded:
    return Folded(record.id, record.kind, record.reason, record.task, record.tokens, record.summarised)
