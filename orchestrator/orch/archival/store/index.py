"""The full-text index of a folder of archives.

The index has one row for each archived message, with words and their positions but without text. Edits and failed
results have their own columns. The index is derived data and is rebuilt if it does not match the archives. If the index
cannot be opened, a search is slower and finds only exact matches.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sqlite3
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from orch_worker.conversation.archive_text import EntryLines

__all__ = [
    "NAME",
    "Index",
    "Place",
    "index_fault",
    "remove_index",
    "rename_damaged_index",
    "separate_wide_characters",
]

NAME: Final = "index.sqlite"
VERSION: Final = 3
COMMIT_INTERVAL: Final = 500

_WIDE: Final = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff])")

Place: TypeAlias = tuple[int, int]
"""The number of an archive, and the index of one of its own messages."""


class Index:
    """The index of one folder. Only one owner has the index open."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._database: sqlite3.Connection | None = None
        self.count = 0
        """The number of the archive that was indexed last."""
        self._last_id = ""
        # The rows of an archive are numbered in the order of its messages, because small steps make the index small.
        self._first_rows: list[int] = []
        self._next_row = 0
        self._connect()

    def close(self) -> None:
        """Close the file."""
        database, self._database = self._database, None
        if database is not None:
            try:
                database.commit()
            except sqlite3.Error:
                pass  # the next opening adds the missing archives
            database.close()

    def add(self, number: int, id: str, entries: Iterable[EntryLines | None]) -> None:
        """Add the archive `id` to the index.

        `number` is the number of the archive, and `entries` are its own messages.
        """
        if self._database is None:
            return
        try:
            # Not every archive is committed at once, because a commit takes as long as the indexing. The next opening
            # adds lost archives again.
            first, row = self._next_row, self._next_row - 1
            rows = []
            for row, entry in enumerate(entries, first):
                if entry is not None:
                    rows.append((row, *map(separate_wide_characters, _columns(entry))))
            self._database.executemany("INSERT INTO words(rowid, text, edits, failures) VALUES (?, ?, ?, ?)", rows)
            self._database.execute("INSERT INTO archives VALUES (?, ?)", (number, first))
            self._database.execute("UPDATE state SET count = ?, last = ?, rows = ?", (number, id, row + 1))
            if number % COMMIT_INTERVAL == 0:
                self._database.commit()
            self.count, self._last_id, self._next_row = number, id, row + 1
            self._first_rows.append(first)
        except sqlite3.Error:
            self._drop()

    def missing(self, ids: Sequence[str]) -> range:
        """Return the numbers of the archives in `ids` that are not indexed.

        If the index belongs to other archives, return all numbers.
        """
        if self.count > len(ids) or (self.count and ids[self.count - 1] != self._last_id):
            self._drop()
            self._connect()
        return range(self.count + 1, len(ids) + 1) if self._database is not None else range(0)

    def find(self, expression: str, limit: int, *, newest: bool = False) -> list[Place]:
        """Return at most `limit` messages that match the FTS5 `expression`: the best first, or the newest first."""
        rows = self._select(
            f"SELECT rowid FROM words WHERE words MATCH ? ORDER BY {'rowid DESC' if newest else 'rank'} LIMIT ?",
            expression,
            limit,
        )
        numbers = [bisect_right(self._first_rows, row) for row in rows]
        return [(number, row - self._first_rows[number - 1]) for number, row in zip(numbers, rows, strict=True)]

    def weights(self, expressions: Sequence[str]) -> list[float]:
        """Return a weight for each FTS5 expression. An expression that few messages match has a large weight."""
        total = self._next_row
        counts = [self._select("SELECT count(*) FROM words WHERE words MATCH ?", each) or [0] for each in expressions]
        return [math.log(1 + (total - count + 0.5) / (count + 0.5)) for (count,) in counts]

    def _select(self, statement: str, *values: str | int) -> list[int]:
        if self._database is None:
            return []
        try:
            return [row[0] for row in self._database.execute(statement, values)]
        except sqlite3.Error:
            self._drop()
            return []

    def _connect(self) -> None:
        for _ in range(2):  # the second pass rebuilds an invalid or damaged database
            try:
                with contextlib.suppress(OSError):  # connecting to the database reports the error
                    # Only the user may read the file, independent of the umask. SQLite creates its journal with the
                    # same mode.
                    os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
                self._database = sqlite3.connect(self._path, isolation_level="IMMEDIATE", check_same_thread=False)
                # A power failure may lose the index, but the index can be rebuilt.
                self._database.execute("PRAGMA synchronous = OFF")
                self._database.execute("PRAGMA journal_mode = TRUNCATE")
                if self._database.execute("PRAGMA user_version").fetchone()[0] != VERSION:
                    self._create(self._database)
                state = self._database.execute("SELECT count, last, rows FROM state").fetchone()
                self.count, self._last_id, self._next_row = int(state[0]), state[1], int(state[2])
                self._first_rows = self._select("SELECT first FROM archives ORDER BY number")
                if len(self._first_rows) != self.count:
                    raise ValueError("the index has no rows of some archives")
                return
            except (sqlite3.Error, TypeError, ValueError):
                self._drop()

    def _create(self, database: sqlite3.Connection) -> None:
        with database:
            database.execute("DROP TABLE IF EXISTS words")
            database.execute("DROP TABLE IF EXISTS archives")
            database.execute("DROP TABLE IF EXISTS state")
            database.execute(
                "CREATE VIRTUAL TABLE words USING fts5(text, edits, failures, content='', tokenize='unicode61')"
            )
            database.execute("CREATE TABLE archives(number INTEGER PRIMARY KEY, first INTEGER)")
            database.execute("CREATE TABLE state(count INTEGER, last TEXT, rows INTEGER)")
            database.execute("INSERT INTO state VALUES (0, '', 0)")
            database.execute(f"PRAGMA user_version = {VERSION}")

    def _drop(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()
        with contextlib.suppress(OSError):
            remove_index(self._path.parent)
        self.count, self._last_id = 0, ""
        self._first_rows, self._next_row = [], 0


def _columns(entry: EntryLines) -> tuple[str, str, str]:
    """Return the text of `entry` outside of edits and failures, its edits, and its failures."""
    if not entry.edits and not entry.failures:
        return entry.text, "", ""
    edits = {line for first, end, _ in entry.edits for line in range(first, end)}
    failures = {line for first, end in entry.failures for line in range(first, end)}
    parts: tuple[list[str], list[str], list[str]] = ([], [], [])
    for number, line in enumerate(entry.lines):
        parts[1 if number in edits else 2 if number in failures else 0].append(line)
    return "\n".join(parts[0]), "\n".join(parts[1]), "\n".join(parts[2])


def index_fault(path: Path) -> str:
    """Return a description of the fault of the index at `path`.

    Return "" if the index is intact, or if another process is writing to it.
    """
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("PRAGMA query_only = ON")
            (result,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if result == "ok":
                database.execute("SELECT count, last FROM state").fetchone()
            return "" if result == "ok" else str(result)
    except sqlite3.OperationalError as error:
        return "" if "locked" in str(error) else str(error)
    except sqlite3.Error as error:
        return str(error)


def rename_damaged_index(path: Path) -> Path:
    """Rename the closed index at `path` to the first free name `<name>.damaged-<n>`. Return the new path.

    Raises OSError.
    """
    number = 1
    while (new_path := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(new_path)
    with contextlib.suppress(FileNotFoundError):  # otherwise the next index would use this journal
        path.with_name(f"{path.name}-journal").rename(new_path.with_name(f"{new_path.name}-journal"))
    return new_path


def remove_index(folder: Path) -> None:
    """Remove the closed index of `folder`. Raises OSError."""
    # If the journal stayed, the next index would use it.
    for name in (NAME, f"{NAME}-journal"):
        (folder / name).unlink(missing_ok=True)


def separate_wide_characters(text: str) -> str:
    """Return `text` with spaces around each character of scripts that do not separate words."""
    return text if text.isascii() else _WIDE.sub(r" \1 ", text)
