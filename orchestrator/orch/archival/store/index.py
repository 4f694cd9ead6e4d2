"""The full-text index of a folder of archives.

The index has one row for each archive, with words and their positions but without text. The index is derived data and
is rebuilt if it does not match the archives. If the index cannot be opened, a search is slower and finds only exact
matches.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from orch_protocol.core.messages import Block, Image, Message, Opaque, Text, Thinking, ToolResult, ToolUse
from orch_worker.conversation.stubs import holder_of
from orch_worker.conversation.tokens import strings

__all__ = [
    "NAME",
    "Index",
    "index_fault",
    "message_text",
    "passage",
    "remove_index",
    "rename_damaged_index",
    "words_of",
]

PASSAGE_CHARS: Final = 240
MAX_CANDIDATES: Final = 40
NAME: Final = "index.sqlite"
VERSION: Final = 2
MAX_WORDS: Final = 400
COMMIT_INTERVAL: Final = 500

_WIDE: Final = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff])")
_WORD: Final = re.compile(r"\w+")


class Index:
    """The index of one folder. Only one owner has the index open."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._database: sqlite3.Connection | None = None
        self.count = 0
        """The number of the archive that was indexed last."""
        self._last_id = ""
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

    def add(self, number: int, id: str, texts: Iterable[str]) -> None:
        """Add the archive `id` to the index.

        `number` is the number of the archive, and `texts` are the texts of its messages.
        """
        if self._database is None:
            return
        try:
            # Not every archive is committed at once, because a commit takes as long as the indexing. The next opening
            # adds lost archives again.
            self._database.execute(
                "INSERT INTO words(rowid, text) VALUES (?, ?)", (number, _separate_wide_characters("\n".join(texts)))
            )
            self._database.execute("UPDATE state SET count = ?, last = ?", (number, id))
            if number % COMMIT_INTERVAL == 0:
                self._database.commit()
            self.count, self._last_id = number, id
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

    def stages(self, query: str, limit: int = MAX_CANDIDATES) -> Iterator[list[int]]:
        """Yield lists of at most `limit` archives that may contain `query`, best first.

        The first list contains archives with the query as a phrase. The next lists contain archives with all words,
        then with any word of the query.
        """
        words = _WORD.findall(_separate_wide_characters(query))[:MAX_WORDS]
        for join in (" + ", " AND ", " OR ") if len(words) > 1 else (" + ",) if words else ():
            yield self._match(join.join(f'"{word}"' for word in words), limit)

    def _match(self, expression: str, limit: int) -> list[int]:
        if self._database is None:
            return []
        try:
            rows = self._database.execute(
                "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?", (expression, limit)
            )
            return [row[0] for row in rows]
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
                count, self._last_id = self._database.execute("SELECT count, last FROM state").fetchone()
                self.count = int(count)
                return
            except (sqlite3.Error, TypeError, ValueError):
                self._drop()

    def _create(self, database: sqlite3.Connection) -> None:
        with database:
            database.execute("DROP TABLE IF EXISTS words")
            database.execute("DROP TABLE IF EXISTS state")
            database.execute("CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='unicode61')")
            database.execute("CREATE TABLE state(count INTEGER, last TEXT)")
            database.execute("INSERT INTO state VALUES (0, '')")
            database.execute(f"PRAGMA user_version = {VERSION}")

    def _drop(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()
        with contextlib.suppress(OSError):
            remove_index(self._path.parent)
        self.count, self._last_id = 0, ""


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


def message_text(message: Message) -> str:
    """Return the searchable text of `message`. The records of other archives are left out."""
    return "\n".join(text for block in message.content for text in _block_texts(block))


def passage(text: str, query: str, chars: int = PASSAGE_CHARS) -> tuple[str, bool] | None:
    """Return the part of `text` around `query`, and whether this part contains the whole query. Case is ignored.

    If `text` does not contain the whole query, return the part around that word of the query that is rarest in `text`.
    Return None if `text` contains no word of the query.
    """
    position = text.find(query)
    if position >= 0:
        return _excerpt(text, position, len(query), chars), True
    lowered_text, lowered_query = text.lower(), query.lower()
    if len(lowered_text) == len(text) and (position := lowered_text.find(lowered_query)) >= 0:
        return _excerpt(text, position, len(query), chars), True
    counts = [(lowered_text.count(word), -len(word), word) for word in words_of(lowered_query)]
    occurring = sorted(entry for entry in counts if entry[0])
    if not occurring:
        return None
    word = occurring[0][2]
    return _excerpt(text, min(lowered_text.find(word), len(text)), len(word), chars), False


def words_of(query: str) -> set[str]:
    """Return the words of `query` in lower case, without single characters."""
    return {word for word in _WORD.findall(query.lower()) if len(word) > 1}


def _excerpt(text: str, position: int, length: int, chars: int) -> str:
    chars = max(chars, length)
    context_chars = chars - length
    start = max(0, position - context_chars // 2)
    line = text.rfind("\n", start, position)
    start = line + 1 if line >= 0 and position - line > 40 else start
    end = min(len(text), max(position + length, start + chars))
    return f"{'...' if start else ''}{text[start:end]}{'...' if end < len(text) else ''}"


def _separate_wide_characters(text: str) -> str:
    """Return `text` with spaces around each character of scripts that do not separate words."""
    return text if text.isascii() else _WIDE.sub(r" \1 ", text)


def _block_texts(block: Block) -> Iterator[str]:
    match block:
        case Text(text):
            if holder_of(text) is None:
                yield text
        case Image():
            yield block.text
        case Thinking(thinking):
            yield thinking
        case ToolUse(name=name, input=input):
            yield name
            yield from strings(input)
        case ToolResult(content=content):
            for part in content:
                yield from _block_texts(part)
        case Opaque(raw=raw):
            yield from strings(raw)
