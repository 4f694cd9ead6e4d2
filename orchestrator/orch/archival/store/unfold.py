"""Restores the original messages of archived turns in a conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from orch_protocol.core.messages import Message

from .catalog import ArchiveCatalog, ArchiveRecord

__all__ = ["unfold"]

T = TypeVar("T")


def unfold(
    archive: ArchiveCatalog,
    items: Sequence[T],
    read: Callable[[T], Message],
    contents: Callable[[ArchiveRecord], list[T]],
) -> list[T]:
    """Return `items` with the original messages in place of each record and the prompts before the record."""
    unfolded: list[T] = []
    pending = list(reversed(items))
    while pending:
        item = pending.pop()
        holders = archive.holders(read(item))
        if not holders:
            unfolded.append(item)
            continue
        record = archive.records[holders[-1]]
        if record.replaced_messages > 1:
            del unfolded[len(unfolded) - (record.replaced_messages - 1) :]
        pending += reversed(contents(record))
    return unfolded
