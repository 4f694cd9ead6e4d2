"""A conversation as it was before anything was archived."""

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
    """Return `items` with each stub, and what it stands for, replaced by what was archived, down to the last one."""
    done: list[T] = []
    waiting = list(reversed(items))
    while waiting:
        item = waiting.pop()
        holders = archive.holders(read(item))
        if not holders:
            done.append(item)
            continue
        record = archive.records[holders[-1]]
        if record.stands > 1:
            del done[len(done) - (record.stands - 1) :]
        waiting += reversed(contents(record))
    return done
