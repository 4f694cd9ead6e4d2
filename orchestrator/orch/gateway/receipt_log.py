"""The files of receipts: `receipts/N/receipts.jsonl` in the folder of a gateway. Each process has a number N.

A process continues a file that no other process uses. A file contains numbers and names of models, no texts and no
keys. When it is large, it is replaced by its sums, so its size is limited.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.core.errors import ConfigError, LockedError, OrchError, StoreError
from orch_protocol.core.ids import new_id
from orch_protocol.session.entries import SessionHeader
from orch_worker.backends.models import Model, ModelCatalog
from orch_worker.session.entry_codec import DECODE_ERRORS, encode_json, timestamp
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.log.atomic_rewrite import replace_log
from orch_worker.session.log.lock import FolderLock
from orch_worker.session.log.log_reader import read_objects

from .client_request import ClientRequest
from .receipt import (
    Bookkeeper,
    ConversationReceipt,
    Entry,
    Line,
    Receipt,
    add_lines,
    compacted,
    model_named,
    receipt_of,
)
from .usage import Used

__all__ = ["ReceiptLog", "read_receipt", "stats"]

FOLDER: Final = "receipts"
FILE: Final = "receipts.jsonl"
MAX_PROCESSES: Final = 64
MAX_BYTES: Final = 2 << 20
"""Size at which a file is replaced by its sums."""

_lines: Final = msgspec.json.Decoder(Line)


class ReceiptLog:
    """Writes the receipts of one process below `folder`.

    `models` returns the catalog with the prices. Raises StoreError, and LockedError if too many processes use the
    folder.
    """

    def __init__(self, folder: Path, models: Callable[[], ModelCatalog]) -> None:
        @lru_cache(maxsize=100)
        def model_of(api: str, name: str) -> Model | None:
            return model_named(models(), api, name)

        self._books = Bookkeeper(model_of)
        self._lock = _lock_free_folder(folder / FOLDER)
        self._path = self._lock.folder / FILE
        try:
            self._log, loaded = AppendLog.open(self._path, header=_header())
        except BaseException:
            self._lock.release()
            raise
        for line in _decoded(loaded.objects):
            self._books.restore(line)
        self._limit = MAX_BYTES

    def add(
        self, request: ClientRequest, at: float, responses: Sequence[Used], recalls: int, sent: int | None
    ) -> Entry:
        """Add a request and return its entry. See `Bookkeeper.entry`.

        Raises StoreError; then the request is not part of the receipt.
        """
        entry = self._books.entry(request, at, responses, recalls, sent)
        self._write(entry)
        return entry

    def close(self) -> None:
        """Close the file."""
        try:
            self._log.close()
        finally:
            self._lock.release()

    def _write(self, entry: Entry) -> None:
        if self._log.broken:
            self._log.close()
            self._log, _ = AppendLog.open(self._path, header=_header())
        self._log.append(encode_json(entry))
        if self._log.end >= self._limit:
            self._compact(entry.at)

    def _compact(self, now: float) -> None:
        """Replace the lines by their sums. After an error, the file stays as it is."""
        lines = compacted(_read_lines(self._path), now)
        self._log.close()
        try:
            replace_log(self._path, [_header(), *map(encode_json, lines)])
        finally:
            self._log, loaded = AppendLog.open(self._path, header=_header())
            self._books.restart(_decoded(loaded.objects))
            self._limit = max(MAX_BYTES, 2 * self._log.end)


def read_receipt(folder: str | os.PathLike[str]) -> Receipt:
    """Return what the conversations in the gateway's `folder` have cost, in all processes that have used it.

    A folder that does not exist has no requests. Raises StoreError if a file cannot be read.
    """
    sums: dict[str, ConversationReceipt] = {}
    for path in sorted((Path(folder).expanduser() / FOLDER).glob(f"*/{FILE}")):
        add_lines(sums, _read_lines(path))
    return receipt_of(sums)


def stats(folder: str | os.PathLike[str]) -> Receipt:
    """Return what the conversations in the `folder` of `orch.gateway.client` have cost, in all processes.

    Raises ConfigError if the folder does not exist, and StoreError if a file cannot be read.
    """
    if not Path(folder).expanduser().is_dir():
        raise ConfigError(f"there is no folder {os.fspath(folder)!r}: pass the folder of orch.gateway.client")
    return read_receipt(folder)


def _header() -> bytes:
    return encode_json(SessionHeader(id=new_id(), timestamp=timestamp(), cwd="", agent="gateway receipts"))


def _read_lines(path: Path) -> list[Line]:
    return _decoded(read_objects(path, header=_header()))


def _decoded(objects: Any) -> list[Line]:
    lines = []
    for each in objects:
        try:
            lines.append(_lines.decode(each))
        except DECODE_ERRORS:
            continue  # The header, or an entry of another version.
    return lines


def _lock_free_folder(folder: Path) -> FolderLock:
    """Lock the first folder in `folder` that no process uses."""
    locked: OrchError = StoreError(f"{folder} cannot be used")
    for number in range(1, MAX_PROCESSES + 1):
        try:
            return FolderLock.acquire(folder / str(number))
        except LockedError as error:
            locked = error
    raise locked
