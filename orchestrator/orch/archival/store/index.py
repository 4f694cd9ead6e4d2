"""The full-text index of a folder of archives: a row an archive, words and their places, none of the text.

It is derived: what does not fit the archives is made anew, and without it searching is slower and finds the same.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from orch_protocol.core.messages import Block, Message, Opaque, Text, Thinking, ToolResult, ToolUse
from orch_worker.conversation.stubs import holder_of
from orch_worker.conversation.tokens import strings

__all__ = ["NAME", "Index", "index_fault", "message_text", "passage", "remove_index", "set_aside", "words_of"]

PASSAGE: Final = 240
CANDIDATES: Final = 40
NAME: Final = "index.sqlite"
VERSION: Final = 2
MOST_WORDS: Final = 400
BATCH: Final = 500

_WIDE: Final = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff])")
_WORD: Final = re.compile(r"\w+")


class Index:
    """The index of one folder, which its owner alone has open."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._database: sqlite3.Connection | None = None
        self.count = 0
        """The number of the last archive in it."""
        self._last = ""
        self._connect()

    def close(self) -> None:
        """Close the file."""
        database, self._database = self._database, None
        if database is not None:
            try:
                database.commit()
            except sqlite3.Error:
                pass  # what is missing is made up for when it is opened again
            database.close()

    def add(self, number: int, id: str, texts: Iterable[str]) -> None:
        """Index the archive `id`, the one with that `number`, whose messages say `texts`."""
        if self._database is None:
            return
        try:
            # Committing takes as long as indexing, and what is lost without is made up for at the next opening.
            self._database.execute("INSERT INTO words(rowid, text) VALUES (?, ?)", (number, _spaced("\n".join(texts))))
            self._database.execute("UPDATE state SET count = ?, last = ?", (number, id))
            if number % BATCH == 0:
                self._database.commit()
            self.count, self._last = number, id
        except sqlite3.Error:
            self._drop()

    def missing(self, ids: Sequence[str]) -> range:
        """Return the numbers of those of the archives `ids` that are to be added: all, when it is none of these."""
        if self.count > len(ids) or (self.count and ids[self.count - 1] != self._last):
            self._drop()
            self._connect()
        return range(self.count + 1, len(ids) + 1) if self._database is not None else range(0)

    def stages(self, query: str, most: int = CANDIDATES) -> Iterator[list[int]]:
        """Yield the numbers of archives that may hold `query`, the best first: with its words in a row, all, any.

        Each time at most `most`.
        """
        words = _WORD.findall(_spaced(query))[:MOST_WORDS]
        for join in (" + ", " AND ", " OR ") if len(words) > 1 else (" + ",) if words else ():
            yield self._match(join.join(f'"{word}"' for word in words), most)

    def _match(self, expression: str, most: int) -> list[int]:
        if self._database is None:
            return []
        try:
            rows = self._database.execute(
                "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?", (expression, most)
            )
            return [row[0] for row in rows]
        except sqlite3.Error:
            self._drop()
            return []

    def _connect(self) -> None:
        for _ in range(2):  # what is no database, or a damaged one, is removed and made anew
            try:
                with contextlib.suppress(OSError):  # which connecting tells
                    # Its user's alone, whatever the umask; its journal takes after it.
                    os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
                self._database = sqlite3.connect(self._path, isolation_level="IMMEDIATE", check_same_thread=False)
                # A loss of power may take it: it can be made anew.
                self._database.execute("PRAGMA synchronous = OFF")
                self._database.execute("PRAGMA journal_mode = TRUNCATE")
                if self._database.execute("PRAGMA user_version").fetchone()[0] != VERSION:
                    self._create(self._database)
                count, self._last = self._database.execute("SELECT count, last FROM state").fetchone()
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
        self.count, self._last = 0, ""


def index_fault(path: Path) -> str:
    """Return what is wrong with the index at `path`, "" when nothing is, or when somebody writes it just now."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("PRAGMA query_only = ON")
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if found == "ok":
                database.execute("SELECT count, last FROM state").fetchone()
            return "" if found == "ok" else str(found)
    except sqlite3.OperationalError as error:
        return "" if "locked" in str(error) else str(error)
    except sqlite3.Error as error:
        return str(error)


def set_aside(path: Path) -> Path:
    """Move the index at `path`, which nobody has open, to the first free `<name>.damaged-<n>`. Raises OSError."""
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(aside)
    with contextlib.suppress(FileNotFoundError):  # it would be taken for the next one's
        path.with_name(f"{path.name}-journal").rename(aside.with_name(f"{aside.name}-journal"))
    return aside


def remove_index(folder: Path) -> None:
    """Remove the index of `folder`, which nobody has open. Raises OSError."""
    # A journal that is left would be taken for the next one's.
    for name in (NAME, f"{NAME}-journal"):
        (folder / name).unlink(missing_ok=True)


def message_text(message: Message) -> str:
    """Return everything in `message` that can be looked for; what stands for other archives is left to them."""
    return "\n".join(text for block in message.content for text in _texts(block))


def passage(text: str, query: str, chars: int = PASSAGE) -> tuple[str, bool] | None:
    """Return the part of `text` around `query`, and whether all of it is there, be it in another case.

    Else that around the word of it that is rarest in `text`; None when none is.
    """
    place = text.find(query)
    if place >= 0:
        return _around(text, place, len(query), chars), True
    lowered, wanted = text.lower(), query.lower()
    if len(lowered) == len(text) and (place := lowered.find(wanted)) >= 0:
        return _around(text, place, len(query), chars), True
    counts = [(lowered.count(word), -len(word), word) for word in words_of(wanted)]
    there = sorted(entry for entry in counts if entry[0])
    if not there:
        return None
    word = there[0][2]
    return _around(text, min(lowered.find(word), len(text)), len(word), chars), False


def words_of(query: str) -> set[str]:
    """Return the words of `query`, in lower case, that are worth looking for one by one."""
    return {word for word in _WORD.findall(query.lower()) if len(word) > 1}


def _around(text: str, place: int, length: int, chars: int) -> str:
    chars = max(chars, length)
    room = chars - length
    begin = max(0, place - room // 2)
    line = text.rfind("\n", begin, place)
    begin = line + 1 if line >= 0 and place - line > 40 else begin
    end = min(len(text), max(place + length, begin + chars))
    return f"{'...' if begin else ''}{text[begin:end]}{'...' if end < len(text) else ''}"


def _spaced(text: str) -> str:
    """Return `text` with spaces around each character of a script that is written without any."""
    return text if text.isascii() else _WIDE.sub(r" \1 ", text)


def _texts(block: Block) -> Iterator[str]:
    match block:
        case Text(text):
            if holder_of(text) is None:
                yield text
        case Thinking(thinking):
            yield thinking
        case ToolUse(name=name, input=input):
            yield name
            yield from strings(input)
        case ToolResult(content=content):
            for part in content:
                yield from _texts(part)
        case Opaque(raw=raw):
            yield from strings(raw)
