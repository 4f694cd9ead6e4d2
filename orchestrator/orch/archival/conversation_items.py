"""A conversation in pieces: each message as it came, as ours, how large it is, and which archives it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Block, Message, StopReason, Text
from orch_worker.conversation.stubs import holder_of, is_brief, stub_text
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.conversation.turns import responses

from .adapters import Format, convert_message, decode_message, encode_message, to_json_data
from .plan.plan import ConversationView
from .store.catalog import ArchiveCatalog, ArchiveRecord
from .store.unfold import unfold

__all__ = ["ConversationItem", "ItemReader"]


class ConversationItem(Struct, frozen=True):
    """One message. `own` is its size without the stubs in it; `holders` are the archives they stand for."""

    raw: Any
    message: Message
    tokens: int
    own: int
    holders: tuple[str, ...]

    @property
    def is_stub(self) -> bool:
        """Whether it is nothing but a stub: what an agent did in a turn, or in many."""
        return bool(self.holders) and self.message.role == "assistant"


class ItemReader:
    """Takes messages of one format for pieces, by what one archive holds."""

    def __init__(self, format: Format, archive: ArchiveCatalog, estimator: TokenEstimator) -> None:
        self.format = format
        self.archive = archive
        self.estimator = estimator
        self._known: dict[int, ConversationItem] = {}

    def piece(self, raw: Any, place: int = 0) -> ConversationItem:
        """Return the message `raw`, the `place`-th of a conversation, as a piece. Raises ConfigError."""
        known = self._known.get(id(raw))
        if known is not None and known.raw is raw:
            return known
        try:
            message = self.format.read(raw)
        except ConfigError as error:
            raise ConfigError(f"message {place}: {error}") from error
        holders = self.archive.holders(message)
        tokens = own = self.estimator.message(message)
        if holders and message.role == "user":
            own = self.estimator.message(Message("user", message.content[: -len(holders)]))
        return ConversationItem(raw, message, tokens, own, holders)

    def keep(self, pieces: Sequence[ConversationItem]) -> None:
        """Remember `pieces` until the next time, those that cannot have changed by then."""
        self._known = {id(piece.raw): piece for piece in pieces if piece.raw is piece.message}

    def written(self, message: Message) -> ConversationItem:
        """Return `message` as a piece, the way the format writes it."""
        return self.piece(self.format.write(message))

    def bare(self, piece: ConversationItem) -> ConversationItem:
        """Return a prompt as it was before any phase of its turn was archived."""
        if not piece.holders:
            return piece
        if piece.raw is piece.message:
            said = piece.message.content[: -len(piece.holders)]
            return self.piece(Message(piece.message.role, said))
        # The first phase was archived with the prompt as it was, or with the records that it merged.
        return self.bare(self.piece(self.contents(self.archive.records[piece.holders[0]])[0]))

    def upgraded(self, piece: ConversationItem) -> ConversationItem | None:
        """Return `piece` with the summaries that came since its stubs were written; None when there is none."""
        if not any(self.archive.records[id].summarised for id in piece.holders):
            return None
        message = msgspec.structs.replace(piece.message, content=tuple(map(self._current, piece.message.content)))
        if message == piece.message:
            return None
        _, rest = encode_message(self.format, piece.raw if isinstance(piece.raw, Message) else to_json_data(piece.raw))
        return self.piece(decode_message(self.format, message, rest))

    def _current(self, block: Block) -> Block:
        """Return `block`, a stub whose archive has a summary by now with that in it."""
        record = self.archive.records.get(holder_of(block.text) or "") if isinstance(block, Text) else None
        if not isinstance(block, Text) or record is None or not record.summarised or is_brief(block.text):
            return block
        if record.record in block.text:
            return block
        return Text(stub_text(record.kind, record.id, record.record, record.answer))

    def contents(self, record: ArchiveRecord) -> list[Any]:
        """Return the messages of `record` as they were; as this format writes them if they came in another."""
        stored = self.archive.messages(record.id)
        if record.format == self.format.name:
            return [decode_message(self.format, each.message, each.rest) for each in stored]
        return [raw for each in stored for raw in convert_message(self.format, each.message)]

    def unfold(self, raws: Sequence[Any]) -> list[Any]:
        """Return `raws` with everything archived put back in its place."""
        return unfold(self.archive, raws, self.format.read, self.contents)

    def unstubbed(self, part: Sequence[ConversationItem]) -> list[ConversationItem]:
        """Return what of `part` is no stub, and no prompt that stands before one."""
        hidden = self.archive.stubs_among([piece.message for piece in part])
        return [piece for place, piece in enumerate(part) if place not in hidden]

    def view(
        self, pieces: Sequence[ConversationItem], stop_reason: StopReason | None, *, beside: int, summaries: bool
    ) -> ConversationView:
        """Return `pieces` as the rules see them."""
        records = self.archive.records
        holders = [id for piece in pieces for id in piece.holders]
        said = [piece.message for piece in pieces if not piece.is_stub]
        return ConversationView(
            messages=[piece.message for piece in pieces],
            tokens=[piece.tokens for piece in pieces],
            own=[piece.own for piece in pieces],
            levels={place: records[piece.holders[-1]].level for place, piece in enumerate(pieces) if piece.is_stub},
            calls=responses(said) + sum(records[id].calls for id in holders),
            listed=len(holders),
            beside=beside,
            summaries=summaries,
            stop_reason=stop_reason,
        )
