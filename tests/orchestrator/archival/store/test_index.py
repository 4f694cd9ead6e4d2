"""The index of words is derived: whatever becomes of it, what is looked for is found."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_history import Life, steps
from orch.archival.store.index import NAME, Index
from orch.archival.store.search import Search


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    """An agent that has archived what it was told of a valve."""
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


def test_it_is_left_as_it_was(life: Life) -> None:
    """What was indexed once is not indexed again."""
    assert found(life) == list(life.ledger().records)
    index = Index(life.folder)
    assert list(index.missing(life.ledger().order)) == []
    assert next(index.stages("valve")) == [1]
    index.close()


def test_it_cannot_be_written(life: Life) -> None:
    """Then what stands in an archive letter by letter is found all the same."""
    (life.folder / NAME).mkdir()
    assert found(life) == list(life.ledger().records)
    assert found(life, "valve copper") == []


def test_the_disk_is_full(life: Life) -> None:
    """An index that could not be finished is none; the next one is whole."""
    index = Index(life.folder)
    assert index._database is not None
    index._database.execute("PRAGMA max_page_count = 8")
    for number in range(1, 200):
        index.add(number, f"id{number}", [f"word{number * other}" for other in range(500)])
    assert index._database is None
    index.close()
    assert found(life) == list(life.ledger().records)


def test_it_is_damaged(life: Life) -> None:
    """It is made anew."""
    found(life)
    (life.folder / NAME).write_bytes(b"\0" * 8192)
    assert found(life, "valve copper") == list(life.ledger().records)


def test_its_process_was_killed_as_it_was_written(life: Life) -> None:
    """What was half written is taken back when it is opened, and made up for."""
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


def test_the_journal_of_one_that_is_gone_is_not_the_next_ones(life: Life) -> None:
    """It goes with it."""
    (life.folder / NAME).write_bytes(b"no database at all" * 100)
    journal = life.folder / f"{NAME}-journal"
    journal.write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"\0" * 1000)
    assert found(life, "valve copper") == list(life.ledger().records)
