"""The word index is derived data: search works after the index is lost or damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_history import Life, steps
from orch.archival.store.index import NAME, Index
from orch.archival.store.search import Search
from orch_worker.conversation.archive_text import EntryLines


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    """An agent with an archive about a copper valve."""
    life = Life(tmp_path / "agent")
    life.turn(*steps(2), asked="the copper valve leaks")
    life.archive()
    yield life
    life.close()


def found(life: Life, query: str = "copper valve") -> list[str]:
    """Return the archives in which a new search finds `query`."""
    search = Search(life.ledger())
    hits = search.search(query, 5)
    search.close()
    return [hit.id for hit in hits]


def test_indexed_archives_are_not_indexed_again(life: Life) -> None:
    """A reopened index has no missing archives."""
    assert found(life) == list(life.ledger().records)
    index = Index(life.folder)
    assert list(index.missing(life.ledger().order)) == []
    assert {number for number, _ in index.find("valve", 5)} == {1}
    index.close()


def test_unwritable_index_falls_back_to_exact_search(life: Life) -> None:
    """The search finds the query only as an exact phrase."""
    (life.folder / NAME).mkdir()
    assert found(life) == list(life.ledger().records)
    assert found(life, "valve copper") == []


def test_unfinished_index_on_a_full_disk_is_rebuilt(life: Life) -> None:
    """The next search rebuilds the index and finds the archive."""
    index = Index(life.folder)
    assert index._database is not None
    index._database.execute("PRAGMA max_page_count = 8")
    for number in range(1, 200):
        index.add(number, f"id{number}", [EntryLines((" ".join(f"word{number * other}" for other in range(500)),))])
    assert index._database is None
    index.close()
    assert found(life) == list(life.ledger().records)


def test_damaged_index_is_rebuilt(life: Life) -> None:
    """The rebuilt index finds the same archives."""
    found(life)
    (life.folder / NAME).write_bytes(b"\0" * 8192)
    assert found(life, "valve copper") == list(life.ledger().records)


def test_index_of_a_killed_process_is_rolled_back_and_completed(life: Life) -> None:
    """SQLite rolls back the unfinished transaction when the index is opened again."""
    found(life)
    database = sqlite3.connect(life.folder / NAME, isolation_level=None)
    database.execute("PRAGMA cache_spill = 1")
    database.execute("PRAGMA cache_size = 1")
    database.execute("BEGIN IMMEDIATE")
    database.execute("UPDATE state SET count = 1000, last = 'x'")
    database.execute("CREATE TABLE more(x)")
    database.executemany("INSERT INTO more VALUES (?)", [("x" * 1000,) for _ in range(100)])
    copies = {path: path.read_bytes() for path in life.folder.glob(f"{NAME}*")}
    assert len(copies) == 2
    database.close()
    for path, data in copies.items():
        path.write_bytes(data)
    assert found(life, "valve copper") == list(life.ledger().records)


def test_leftover_journal_of_a_deleted_index_is_removed(life: Life) -> None:
    """A journal file next to an invalid index does not disturb the rebuilt index."""
    (life.folder / NAME).write_bytes(b"no database at all" * 100)
    journal = life.folder / f"{NAME}-journal"
    journal.write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"\0" * 1000)
    assert found(life, "valve copper") == list(life.ledger().records)
