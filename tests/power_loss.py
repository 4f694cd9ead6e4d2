"""A disk that loses power.

The bytes of a file are safe after a sync of the file. The name of the file is safe after a sync of its folder. Any part
of later writes may be on disk: nothing, the beginning, or pieces with zeros in between, because blocks reach the disk
in any order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from orch_worker.session.log.append_log import AppendLog

__all__ = ["Disk", "Outage"]

BLOCK = 512


class _File(Struct):
    content: bytearray
    safe: int = 0
    named: bool = False


class Outage(Struct, frozen=True):
    """A state in which the file may be found after a power loss.

    `content` is None if the name was lost. `done` contains the acknowledged changes.
    """

    content: bytes | None
    done: tuple[Any, ...]
    safe: int
    """The number of bytes that were synced."""


class Disk:
    """Watches one file by replacing the two calls that write and the call that makes the name of the file safe."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self._moments: list[tuple[bytes, int, bool, tuple[Any, ...]]] = []
        self._file = _File(bytearray())
        self._done: tuple[Any, ...] = ()
        write, sync, sync_folder, truncate = (
            AppendLog._write,
            AppendLog._fdatasync,
            AppendLog._sync_folder,
            os.ftruncate,
        )

        def on_write(descriptor: int, data: Any) -> int:
            count = write(descriptor, data)
            if self._is_it(descriptor):
                self._file.content += bytes(data)[:count]
                self._moment()
            return count

        def on_sync(descriptor: int) -> None:
            sync(descriptor)
            if self._is_it(descriptor):
                self._file.safe = len(self._file.content)
                self._moment()

        def on_sync_folder(folder: Path) -> None:
            sync_folder(folder)
            if folder == self.path.parent:
                self._file.named = True
                self._moment()

        def on_truncate(descriptor: int, size: int) -> None:
            truncate(descriptor, size)
            if self._is_it(descriptor):
                del self._file.content[size:]
                self._file.safe = min(self._file.safe, size)
                self._moment()

        monkeypatch.setattr(AppendLog, "_write", staticmethod(on_write))
        monkeypatch.setattr(AppendLog, "_fdatasync", staticmethod(on_sync))
        monkeypatch.setattr(AppendLog, "_sync_folder", staticmethod(on_sync_folder))
        monkeypatch.setattr(os, "ftruncate", on_truncate)

    def tell(self, what: Any) -> None:
        """Record that the change `what` was acknowledged. The change must survive from now on."""
        self._done += (what,)
        self._moment()

    def outages(self) -> Iterator[Outage]:
        """Yield every state in which the file may be found after a power loss at any moment."""
        seen: set[tuple[bytes | None, int]] = set()
        for content, safe, named, done in self._moments:
            for found in [*_remains(content, safe), *([] if named else [None])]:
                if (found, len(done)) not in seen:
                    seen.add((found, len(done)))
                    yield Outage(found, done, safe)

    def _is_it(self, descriptor: int) -> bool:
        return os.readlink(f"/proc/self/fd/{descriptor}") == str(self.path)

    def _moment(self) -> None:
        self._moments.append((bytes(self._file.content), self._file.safe, self._file.named, self._done))


def _remains(content: bytes, safe: int) -> Iterator[bytes]:
    """Yield the possible contents after a power loss. The first `safe` bytes of `content` are safe."""
    yield content[:safe]
    yield content
    new = len(content) - safe
    for part in range(1, 8):
        yield content[: safe + new * part // 8]
    lines = [place + 1 for place in range(safe, len(content)) if content[place : place + 1] == b"\n"]
    for place in lines[:-1][-4:]:
        yield content[:place]
    for start in range(safe - safe % BLOCK, len(content), max(BLOCK, new // 6 // BLOCK * BLOCK)):
        begin, end = max(start, safe), min(start + BLOCK, len(content))
        yield content[:begin] + b"\0" * (end - begin) + content[end:]
