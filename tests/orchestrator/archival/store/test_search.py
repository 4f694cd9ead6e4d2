"""Search in archives: results, ranking, the tools for the model, and searches without an index."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_shapes import SHAPES, Shape, work
from orch.api.archiver import Archiver
from orch_protocol.agent.config import ArchivalConfig
from orch_protocol.core.errors import StoreError

NEEDLES = {
    "an identifier": "handle_pump_overflow42",
    "a part of one": "pump",
    "the end of one": "overflow42",
    "the middle of a word": "ndle_pum",
    "a camel's hump": "Overflow",
    "a path": "/srv/pumps/src/deep/valve.py",
    "the end of a path": "deep/valve.py",
    "a number with a unit": "42.742 ms",
    "a bare number": "90210",
    "an error": "ValueError: valve 7 is stuck (code=-13)",
    "a command": "grep -rn 'open(' src/ | head -3",
    "chinese": "世界和平",
    "two of its characters": "界和",
    "korean": "안녕하세요",
    "russian": "Насос",
    "punctuation": "}}%;",
    "a key of an argument": "secret_key_name",
    "quotes": '"quoted" AND NEAR(x)',
}
HAYSTACK = (
    "def handle_pump_overflow42(): pass\n/srv/pumps/src/deep/valve.py took 42.742 ms, 90210 times\n"
    "ValueError: valve 7 is stuck (code=-13)\n今天世界和平了 안녕하세요 Насос }}%; PumpOverflowHandler\n"
    'she said "quoted" AND NEAR(x)'
)


@pytest.fixture(params=SHAPES, ids=lambda shape: shape.name)
def shape(request: pytest.FixtureRequest) -> Shape:
    """Each message format in turn."""
    given_shape: Shape = request.param
    return given_shape


@pytest.fixture
def archiver(tmp_path: Path, shape: Shape) -> Iterator[Archiver]:
    """An archiver with ten ordinary turns and one turn that contains every needle."""
    with Archiver(tmp_path / "archive", shape.name, "seed") as made:
        made.fold([message for number in range(10) for message in work(shape, number, steps=6)])
        made.fold(telling(shape))
        yield made


def telling(shape: Shape) -> list[dict[str, Any]]:
    """Return a turn whose third message is the haystack."""
    turn = [shape.user("Look around"), shape.calls(("c0", "bash", {"command": "ls"})), *shape.results(("c0", HAYSTACK))]
    for number in range(1, 6):
        input = {"command": "grep -rn 'open(' src/ | head -3", "secret_key_name": True}
        turn += [shape.calls((f"c{number}", "bash", input)), *shape.results((f"c{number}", "nothing"))]
    return [*turn, shape.assistant("All seen.")]


def places(archiver: Archiver, query: str) -> list[tuple[str, int, str]]:
    """Return the place and the passage of each hit. The turn of a hit is known only after a fold."""
    return [(hit.id, hit.entry, hit.text) for hit in archiver.search(query)]


@pytest.mark.parametrize("what", NEEDLES)
def test_every_archived_text_is_found(archiver: Archiver, what: str) -> None:
    """The first hit contains the text, and so does the entry that the hit names."""
    needle = NEEDLES[what]
    hit = archiver.search(needle)[0]
    assert hit.exact
    assert needle in hit.text
    found = archiver.read_archive(hit.id, hit.entry, hit.entry)
    assert json.dumps(needle, ensure_ascii=False)[1:-1] in json.dumps(found, ensure_ascii=False).replace("\\\\", "\\")


def test_new_archive_is_searchable_at_once(shape: Shape, archiver: Archiver) -> None:
    """A search finds an archive directly after the fold that created it."""
    assert archiver.search("needle_77_1 ")[:1] == []
    archiver.fold(work(shape, 77, steps=6))
    assert archiver.search("needle_77_1")[0].task == "Look into module 77"


def test_results_rank_before_the_prompt_that_asked(shape: Shape, archiver: Archiver) -> None:
    """Hits in calls, results and answers precede hits in prompts; the newest come first, and equal ones appear once."""
    for number in (1, 2):
        call = shape.calls((f"c{number}", "grep", {"pattern": "valve_9"}))
        results = shape.results((f"c{number}", f"src/{number}.py: valve_9 = open()\n" + "words, more; " * 4000))
        turn = [shape.user("Where is valve_9?"), call, *results, shape.assistant("It is valve_9, as asked.")]
        archiver.fold(turn)
    hits = archiver.search("valve_9")
    assert ["Where is" in hit.text for hit in hits] == [*[False] * 4, True]
    assert len({hit.id for hit in hits[:3]}) == 1
    assert "src/1.py: valve_9" in hits[3].text
    assert len(archiver.search("valve_9", 2)) == 2


def test_passage_with_most_query_terms_is_shown(shape: Shape, archiver: Archiver) -> None:
    """The passage comes from the result and not from the prompt."""
    for number in range(6):
        call = shape.calls((f"c{number}", "read_file", {"path": "log"}))
        results = shape.results((f"c{number}", f"item {number}: valve V000{number} pressure 1.{number}1 bar\n" * 1200))
        archiver.fold([shape.user(f"How is valve V000{number}?"), call, *results, shape.assistant("Fine.")])
    for query in ("pressure of V0003", "What was the pressure of valve V0003?"):
        hit = archiver.search(query)[0]
        assert "V0003 pressure 1.31 bar" in hit.text
        assert "How is" not in hit.text


def test_exact_case_ranks_first(archiver: Archiver) -> None:
    """Matches in another case rank as similar."""
    assert archiver.search("handle_pump")[0].exact
    similar = archiver.search("HANDLE_PUMP")[0]
    assert not similar.exact
    assert "handle_pump" in similar.text


def test_separated_words_are_found(archiver: Archiver) -> None:
    """Entries with all words rank first. Otherwise entries with any of the words match."""
    both = archiver.search("valve 90210 stuck")
    assert not both[0].exact
    assert both[0].task == "Look around"
    assert archiver.search("zebra overflow42")[0].task == "Look around"
    assert archiver.search("zebra giraffe") == []


@pytest.mark.parametrize(
    "query", ["", "  ", "\n", '"', "*", "AND", "NEAR(", "a OR", "-", "x" * 100_000, "\ud800", "\x00"]
)
def test_any_query_is_answered(archiver: Archiver, query: str) -> None:
    """The query syntax of the index has no effect."""
    assert isinstance(archiver.search(query), list)


def test_hits_are_limited(archiver: Archiver) -> None:
    """A search returns at most the requested number of hits. A limit of zero returns none."""
    assert len(archiver.search("read_file", 3)) == 3
    assert len({hit.id for hit in archiver.search("read_file", 60)}) == 10
    assert archiver.search("read_file", 0) == []


def test_index_is_rebuilt_when_missing_damaged_or_foreign(tmp_path: Path, shape: Shape, archiver: Archiver) -> None:
    """A search after each kind of damage finds the same hits."""
    before = places(archiver, "overflow42")
    archiver.close()
    path = tmp_path / "archive" / "index.sqlite"
    for spoil in (None, b"", b"not a database at all, not even close", "ahead"):
        if spoil is None:
            path.unlink()
        elif isinstance(spoil, bytes):
            path.write_bytes(spoil)
        else:
            database = sqlite3.connect(path)
            database.execute("UPDATE state SET count = 999")
            database.commit()
            database.close()
        with Archiver(tmp_path / "archive", shape.name, "seed") as again:
            assert places(again, "overflow42") == before


def test_rebuilt_index_answers_like_an_incremental_one(tmp_path: Path, shape: Shape, archiver: Archiver) -> None:
    """An index built in one pass returns the same hits as an index built turn by turn."""
    queries = ["needle_3_1", "read_file", "valve 7", "世界", "module"]
    grown = [places(archiver, query) for query in queries]
    archiver.close()
    (tmp_path / "archive" / "index.sqlite").unlink()
    with Archiver(tmp_path / "archive", shape.name, "seed") as again:
        assert [places(again, query) for query in queries] == grown


def test_search_without_sqlite_finds_exact_matches(
    tmp_path: Path, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the full-text module of SQLite, a search still finds every exact match."""

    def missing(*_: object, **__: object) -> sqlite3.Connection:
        raise sqlite3.OperationalError("no such module: fts5")

    monkeypatch.setattr(sqlite3, "connect", missing)
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        archiver.fold(telling(shape))
        for needle in NEEDLES.values():
            assert archiver.search(needle)[0].exact


def test_hits_in_phases_and_eras_point_to_the_message(tmp_path: Path, shape: Shape) -> None:
    """The entry of each hit contains the text in archives of turns, phases and eras."""
    config = ArchivalConfig(profile="economy", high_tokens=3000, low_tokens=800, rollup_tokens=900)
    with Archiver(tmp_path, shape.name, config=config) as archiver:
        live: list[dict[str, Any]] = []
        for number in range(25):
            for message in [
                *work(shape, number, steps=8, size=1500),
                shape.user(f"aside_{number}"),
                shape.assistant("ok"),
            ]:
                live = archiver.fold([*live, message])
        assert {record.kind for record in archiver.archives(merged=True)} == {"turn", "phase", "era"}
        for needle in [f"needle_{number}_{step} " for number in range(23) for step in (0, 4, 7)] + [
            "aside_3",
            "aside_9",
        ]:
            hit = archiver.search(needle.strip())[0]
            assert needle.strip() in json.dumps(archiver.read_archive(hit.id, hit.entry, hit.entry))


@settings(max_examples=30)
@given(st.data())
def test_any_substring_is_found_exactly(data: st.DataObject) -> None:
    """Any substring of an archived result is an exact match."""
    from tempfile import TemporaryDirectory

    shape = SHAPES[0]
    text = data.draw(st.text(alphabet="abAB_/.- \n\"\\'12世界é", min_size=1, max_size=80))
    start = data.draw(st.integers(0, len(text) - 1))
    piece = text[start : data.draw(st.integers(start + 1, len(text)))]
    with TemporaryDirectory() as folder, Archiver(folder, shape.name, "seed") as archiver:
        turn = telling(shape)
        turn[2:3] = shape.results(("c0", text))
        archiver.fold(turn)
        if piece.strip():
            assert archiver.search(piece)[0].exact


def test_passages_are_short_and_contain_the_query(tmp_path: Path, shape: Shape) -> None:
    """A passage has the matching line and two lines around it, also in a long entry and for a long query."""
    lines = [f"before {number}" for number in range(3000)]
    lines[2000] = f"{'x ' * 3000}the needle is here{' y' * 3000}"
    turn = telling(shape)
    turn[2:3] = shape.results(("c0", "\n".join(lines)))
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        archiver.fold(turn)
        hit = archiver.search("needle is")[0]
        assert "the needle is here" in hit.text
        assert [f"before {number}" in hit.text for number in (1997, 1998, 1999, 2001, 2002, 2003)] == [
            False,
            *[True] * 4,
            False,
        ]
        assert len(hit.text) <= 310
        assert hit.line == 2001
        long = "\n".join(lines[100:200])
        assert long in archiver.search(long)[0].text


def test_archive_tools_for_the_model(archiver: Archiver) -> None:
    """The tools `search_archive` and `read_archive` have the caller's message format and return text."""
    names = [tool.get("name") or tool["function"]["name"] for tool in archiver.tools()]
    assert names == ["search_archive", "read_archive"]
    found = archiver.call("search_archive", {"query": "overflow42"})
    assert "; Look around):" in found
    id, _, entry = found.split()[:3]
    assert "handle_pump_overflow42" in archiver.call(
        "read_archive", {"id": id, "first": int(entry), "last": int(entry)}
    )
    assert archiver.call("read_archive", {"id": id}).startswith("[entry 1] user\nLook around")
    assert archiver.call("search_archive", {"query": "zebra"}) == "Nothing in the archives resembles that."
    assert archiver.call("read_archive", {"id": id, "first": 99}) == "There is no such entry."
    for input in ({}, {"query": 7}, {"id": "zz"}, {"id": id, "first": 0}, {"id": id, "first": 3, "last": 2}):
        name = "search_archive" if "query" in input or not input else "read_archive"
        assert archiver.call(name, input).startswith("Error: ")


def test_tool_answers_are_bounded(tmp_path: Path, shape: Shape) -> None:
    """A truncated answer says how to get the rest."""
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        archiver.fold([message for n in range(60) for message in work(shape, n, steps=6, size=3000)])
        hits = archiver.call("search_archive", {"query": "words, more", "limit": 50})
        assert len(hits) <= 4_000
        assert "more: use a more specific query" in hits
        archiver.fold(work(shape, 60, steps=60, size=3000))
        read = archiver.call("read_archive", {"id": archiver.archives()[0].id})
        assert len(read) < 7_000
        assert "[stopped before entry " in read


def test_unreadable_archive_hides_no_other(tmp_path: Path, shape: Shape, archiver: Archiver) -> None:
    """Search reports the damaged archive and finds the others, with and without an index."""
    archiver.close()
    path = tmp_path / "archive" / "archive-000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b"needle_3_1 ", b"noodle_3_1 "))
    for _ in range(2):
        with Archiver(tmp_path / "archive", shape.name, "seed") as again:
            assert again.notes
            assert again.search("overflow42")[0].exact
            assert again.search("noodle_3_1") == []
            assert again.search("ndle_pum")[0].exact
        (tmp_path / "archive" / "index.sqlite").unlink()


def test_missing_archive_file_is_named(tmp_path: Path, archiver: Archiver) -> None:
    """The error and the text for the model contain the file's name."""
    (tmp_path / "archive" / "archive-000001.jsonl").unlink()
    with pytest.raises(StoreError, match="archive-000001"):
        archiver.search("overflow42")
    assert "archive-000001" in archiver.call("search_archive", {"query": "overflow42"})
