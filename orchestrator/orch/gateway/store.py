"""The state of conversations: a folder for each, with its archives and a file of the gateway's own entries."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from orch_protocol.agent.config import ArchivalConfig, Profile
from orch_protocol.core.errors import StoreError
from orch_protocol.core.ids import new_id
from orch_protocol.session.entries import Custom, SessionHeader
from orch_worker.backends.models import load
from orch_worker.backends.prices import prices_of
from orch_worker.session.entry_codec import DECODE_ERRORS, encode_json, timestamp
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.log.atomic_rewrite import replace_log

from ..api.archiver import Archiver
from .receipt import Receipt, model_named
from .receipt_log import ReceiptLog, read_receipt

__all__ = ["FileStore", "State", "Store"]

ENTRIES_FILE: Final = "gateway.jsonl"

_customs: Final = msgspec.json.Decoder(Custom)


class State(Protocol):
    """The stored state of one conversation."""

    archiver: Archiver
    notes: list[str]
    """Damage that was found, one line each."""
    entries: list[tuple[str, Any]]
    """The kind and the data of each entry that was stored before."""

    @property
    def size(self) -> int:
        """The size of the stored entries in bytes."""

    def replace(self, entries: Sequence[tuple[str, Any]]) -> None:
        """Replace all stored entries, each with its kind and its data. Raises StoreError; then nothing is replaced."""

    def append(self, kind: str, data: Any) -> None:
        """Store an entry, which then survives the death of every process. Raises StoreError."""

    def close(self) -> None:
        """Close the files."""


class Store(Protocol):
    """Where the gateway keeps its state."""

    def exists(self, key: str) -> bool:
        """Return whether there is state for the conversation `key`."""

    def receipts(self) -> ReceiptLog:
        """Open the receipts of this process. Raises OrchError or OSError if they cannot be used."""

    def receipt(self) -> Receipt:
        """Return the receipt of all conversations. Raises OrchError or OSError."""

    def open(self, key: str, format: str, beside: int, model: str = "") -> State:
        """Open the state of the conversation `key`, and create it if it does not exist.

        `format` is the message format of its archives, and `beside` the number of tokens of a request that are not in
        messages. The prices of `model` decide what archiving pays; "" stands for typical prices. Raises OrchError or
        OSError if the state cannot be used.
        """


class FileStore:
    """A folder with one folder for each conversation. See `Archiver` for `profile` and `config`.

    `models` is the folder with the file models.json of the user, which can contain prices.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        profile: Profile | None = None,
        config: ArchivalConfig | None = None,
        *,
        models: Path | None = None,
    ) -> None:
        self._models = models
        self._folder = Path(folder)
        self._profile = profile
        self._config = config

    def receipts(self) -> ReceiptLog:
        return ReceiptLog(self._folder, partial(load, self._models))

    def receipt(self) -> Receipt:
        return read_receipt(self._folder)

    def exists(self, key: str) -> bool:
        return (self._folder / key / ENTRIES_FILE).exists()

    def open(self, key: str, format: str, beside: int, model: str = "") -> State:
        folder = self._folder / key
        known = model_named(load(self._models), format, model)
        prices = prices_of(known, beside) if known else None
        archiver = Archiver(folder, format, self._profile, config=self._config, prices=prices, beside=beside)
        try:
            return _FolderState(archiver, folder / ENTRIES_FILE)
        except BaseException:
            archiver.close()
            raise


class _FolderState:
    """The state in one folder. The archiver has locked the folder."""

    def __init__(self, archiver: Archiver, path: Path) -> None:
        self.archiver = archiver
        self.entries: list[tuple[str, Any]] = []
        header = SessionHeader(id=new_id(), timestamp=timestamp(), cwd="", agent="gateway")
        self._header = encode_json(header)
        self._log, loaded = AppendLog.open(path, header=self._header)
        self.notes = archiver.notes + ([f"{path}: {loaded.report}"] if loaded.report else [])
        for line in loaded.objects:
            try:
                entry = _customs.decode(line)
            except DECODE_ERRORS:
                continue  # The header, or an entry of another version.
            self.entries.append((entry.custom_type, entry.data))

    @property
    def size(self) -> int:
        return self._log.end

    def append(self, kind: str, data: Any) -> None:
        self._log.append(self._line(self._log.seq + 1, kind, data))

    def replace(self, entries: Sequence[tuple[str, Any]]) -> None:
        lines = [self._line(number, kind, data) for number, (kind, data) in enumerate(entries, 2)]
        path = self._log.path
        self._log.close()
        try:
            replace_log(path, [self._header, *lines])
        finally:
            self._log, _ = AppendLog.open(path, header=self._header)

    def _line(self, number: int, kind: str, data: Any) -> bytes:
        entry = Custom(id=f"{number:08x}", parent_id=None, timestamp=timestamp(), custom_type=kind, data=data)
        try:
            return encode_json(entry)
        except (TypeError, ValueError) as error:
            raise StoreError(f"cannot append to {self._log.path}: {error}") from error

    def close(self) -> None:
        try:
            self._log.close()
        finally:
            self.archiver.close()
