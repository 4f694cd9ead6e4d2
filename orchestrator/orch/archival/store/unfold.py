"""Restores the original messages of archived turns in a conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from orch_protocol.core.messages import Block, Image, Message, Text
from orch_protocol.core.text import scrub
from orch_worker.context.holder_query import DAMAGED
from orch_worker.conversation.stubs import era_prompt, holder_of
from orch_worker.conversation.tokens import is_clipped

from .catalog import ArchiveCatalog, ArchiveRecord

__all__ = ["unfold"]

T = TypeVar("T")


def unfold(
    archive: ArchiveCatalog,
    items: Sequence[T],
    read: Callable[[T], Message],
    contents: Callable[[ArchiveRecord], list[T]],
) -> list[T]:
    """Return `items` with the original messages in place of each record and the prompts before the record.

    Messages before a record that are not its prompts stay. A second copy of a record without its prompts stays too.
    """
    unfolded: list[T] = []
    restored: set[str] = set()
    pending = list(reversed(items))
    while pending:
        item = pending.pop()
        holders = archive.holders(read(item))
        if not holders:
            unfolded.append(item)
            continue
        record = archive.records[holders[-1]]
        originals = contents(record)
        if count := record.replaced_messages - 1:
            kept = [read(each) for each in unfolded[-count:]]
            if _are_prompts_of(record, kept, [read(each) for each in originals[: record.prompts]]):
                del unfolded[len(unfolded) - count :]
            elif record.id in restored:
                unfolded.append(item)
                continue
        restored.add(record.id)
        pending += reversed(originals)
    return unfolded


def _are_prompts_of(record: ArchiveRecord, kept: Sequence[Message], originals: Sequence[Message]) -> bool:
    """Return whether `kept` are the messages that archiving left before `record`, whose prompts were `originals`."""
    if len(kept) != record.replaced_messages - 1:
        return False
    if record.deleted:
        return True  # the original prompts are unknown
    if record.kind == "era":
        return [block for message in kept for block in message.content] == [Text(era_prompt(record.turns))]
    if not originals:
        return kept[0].role == "user"
    return len(kept) == len(originals) and all(map(_is_prompt_of, kept, originals))


def _is_prompt_of(kept: Message, original: Message) -> bool:
    if original == DAMAGED:
        return True
    blocks = [block for block in original.content if not (isinstance(block, Text) and holder_of(block.text))]
    return (
        kept.role == original.role and len(kept.content) == len(blocks) and all(map(_is_block_of, kept.content, blocks))
    )


def _is_block_of(kept: Block, original: Block) -> bool:
    """Return whether archiving leaves `kept` of the block `original` of a prompt."""
    if kept == original or not isinstance(kept, Text):
        return kept == original
    if isinstance(original, Image):
        return kept.text == original.text
    return isinstance(original, Text) and is_clipped(scrub(kept.text), scrub(original.text))
