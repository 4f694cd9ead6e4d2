"""The archives in the session file of a running agent: growth, damage and replacement of the file."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from agent_history import EAGER, PROFILES, Life, steps
from orch.archival.store.session_archives import SessionArchives
from orch_protocol.core.errors import DamagedError, StoreError
from orch_protocol.core.messages import Message, assistant, text_of, user
from orch_protocol.session.entries import CompactionEntry
from orch_worker.context.holder_query import archived_text as shown_of
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.log.log_reader import LogCursor
from orch_worker.session.session_reader import read_session


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppendLog, "_fdatasync", staticmethod(lambda _: None))


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    """An agent whose finished turns are all archived."""
    life = Life(tmp_path / "agent")
    yield life
    life.close()


def lived(folder: Path) -> Life:
    """Return an agent with archived phases, turns and eras, and one turn that is not archived."""
    life = Life(folder, PROFILES["tight"])
    for number in range(7):
        life.work(number, 2, 40)
    life.turn(*steps(1, "last"))
    return life


class TestGrowing:
    """A reader continues where it stopped."""

    def test_each_new_archive_is_returned_once(self, life: Life) -> None:
        """`catch_up` returns an archive only at the first call after its creation."""
        ledger = SessionArchives(life.folder)
        assert ledger.catch_up() == []
        life.turn(*steps(1))
        (holder,) = life.archive()
        assert [record.id for record in ledger.catch_up()] == [holder]
        assert ledger.catch_up() == []

    def test_conversation_without_branches_is_read_once(self, life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
        """The header is not an entry of the tree, so the first entry after it does not look like a branch."""
        life.turn(*steps(1))
        (holder,) = life.archive()
        reads = []
        read = LogCursor.read
        monkeypatch.setattr(LogCursor, "read", lambda self, file: reads.append(1) or read(self, file))
        assert [record.id for record in SessionArchives(life.folder).catch_up()] == [holder]
        assert len(reads) == 1

    def test_missing_file_has_no_archives(self, tmp_path: Path) -> None:
        """`catch_up` returns an empty list if the file does not exist."""
        assert SessionArchives(tmp_path / "nobody").catch_up() == []

    def test_unreadable_file_is_named_with_the_reason(self, tmp_path: Path) -> None:
        """The StoreError contains the path."""
        (tmp_path / "session.jsonl").mkdir()
        with pytest.raises(StoreError, match=r"session\.jsonl"):
            SessionArchives(tmp_path).catch_up()

    def test_append_counts_when_complete(self, tmp_path: Path) -> None:
        """In a file cut at any byte, root and worker count both archives of an append or none."""
        life = Life(tmp_path / "agent", EAGER)
        life.begin("one")
        life.say(*steps(1, "a"), assistant("a"))
        life.say(user("two"), *steps(1, "b"), assistant("b"))
        life.end()
        before = (life.folder / "session.jsonl").stat().st_size
        assert len(life.archive()) == 2
        data = (life.folder / "session.jsonl").read_bytes()
        life.close()
        copy = tmp_path / "copy"
        copy.mkdir()
        growing = SessionArchives(copy)
        for size in range(before, len(data) + 1):
            (copy / "session.jsonl").write_bytes(data[:size])
            growing.catch_up()
            assert len(growing.records) == (2 if size == len(data) else 0)
        for size in range(before, len(data) + 1, 7):
            (copy / "session.jsonl").write_bytes(data[:size])
            agree(copy)


class TestAnotherFile:
    """The session file is not the file that the reader has read."""

    def test_shorter_file_replaces_what_was_read(self, life: Life) -> None:
        """After the file shrinks, only the archives in the file count."""
        kept, _ = life.turn(*steps(1)) and life.archive()[0], (life.folder / "session.jsonl").read_bytes()
        earlier = (life.folder / "session.jsonl").read_bytes()
        life.turn(*steps(1))
        (gone,) = life.archive()
        ledger = life.ledger()
        assert list(ledger.records) == [kept, gone]
        (life.folder / "session.jsonl").write_bytes(earlier)
        ledger.catch_up()
        assert list(ledger.records) == [kept]

    def test_replaced_and_longer_file_is_detected(self, life: Life) -> None:
        """The bytes at the last position differ, and the index is rebuilt for the new file."""
        life.turn(*steps(1, "old", 30), asked="first")
        life.archive()
        earlier = (life.folder / "session.jsonl").read_bytes()
        life.turn(*steps(1, "old", 30), asked="the copper valve")
        (gone,) = life.archive()
        assert [hit.id for hit in life.search("copper valve")] == [gone]
        life.transcript.close()
        (life.folder / "session.jsonl").write_bytes(earlier)
        life.transcript = life.opened()
        life.turn(*steps(3, "new", 90), asked="the iron pump")
        (new,) = life.archive()
        assert gone not in {record.id for record in life.records()}
        assert [hit.id for hit in life.search("iron pump")] == [new]
        assert life.search("copper valve")[:1] == [] or not life.search("copper valve")[0].exact

    def test_index_of_another_file_is_rebuilt(self, life: Life) -> None:
        """A new root finds an index that does not match the session file, and rebuilds it."""
        life.turn(*steps(1, "old", 30), asked="first")
        life.archive()
        earlier = (life.folder / "session.jsonl").read_bytes()
        life.turn(*steps(1, "old", 30), asked="the copper valve")
        life.archive()
        assert life.search("copper valve")
        life.forget()
        life.transcript.close()
        (life.folder / "session.jsonl").write_bytes(earlier)
        life.transcript = life.opened()
        life.turn(*steps(1, "new", 30), asked="the iron pump")
        (new,) = life.archive()
        assert [hit.id for hit in life.search("pump iron")] == [new]

    def test_removed_file_has_no_archives(self, life: Life) -> None:
        """After the file is removed, the reader has no archives."""
        life.turn(*steps(1))
        life.archive()
        ledger = life.ledger()
        (life.folder / "session.jsonl").unlink()
        assert ledger.catch_up() == []
        assert ledger.records == {}


def agree(folder: Path) -> SessionArchives:
    """Check that root and worker show the same conversation. Return the root's archives."""
    ledger = SessionArchives(folder)
    ledger.catch_up()
    shown = [(item.message, item.first, item.last) for item in read_session(folder).view.items]
    assert [(item.message, item.first, item.last) for item in ledger.view.items] == shown
    return ledger


def flip(line: bytes, place: int) -> bytes:
    """Return `line` with one bit changed."""
    return line[:place] + bytes([line[place] ^ 1]) + line[place + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a bit in the text": lambda line: flip(line, len(line) // 2),
    "a bit in the type": lambda line: flip(line, 12),
    "a bit in the checksum": lambda line: flip(line, len(line) - 6),
    "a newline lost": lambda line: flip(line, len(line) - 1),
    "zeros": lambda line: b"\0" * (len(line) - 1) + b"\n",
    "a line gone": lambda _: b"",
}


class TestDamage:
    """One line of the file is damaged or lost."""

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_damage_costs_only_dependent_archives(self, damage: str, tmp_path: Path) -> None:
        """Every other archive can be read, root and worker agree, and the agent continues."""
        life = lived(tmp_path / "agent")
        whole = {record.id: life.read(record.id) for record in life.records()}
        spans = {record.id: record.spans for record in life.records()}
        life.close()
        lines = (life.folder / "session.jsonl").read_bytes().splitlines(keepends=True)
        offset = len(lines[0])  # without the header, the file is foreign; the last line would be a torn tail
        for number, line in enumerate(lines[1:-1], 1):
            folder = tmp_path / f"{number}"
            folder.mkdir()
            data = b"".join([*lines[:number], DAMAGES[damage](line), *lines[number + 1 :]])
            (folder / "session.jsonl").write_bytes(data)
            ledger = agree(folder)
            gone = {json.loads(each).get("collapse", {}).get("holder") for each in lines[number : number + 2]}
            assert set(whole) - gone <= set(ledger.records)
            for id in ledger.records:
                if damage == "a line gone" or any(at <= offset < at + length for at, length in spans[id]):
                    read_or_told(ledger, id, whole[id])
                else:
                    assert ledger.read(id) == whole[id]
            if number % 6 == 0:
                goes_on(folder)
            shutil.rmtree(folder)
            offset += len(line)

    def test_undamaged_entries_of_an_archive_are_readable(self, life: Life) -> None:
        """The error contains the number and position of the damaged entry. The holder receives all other entries."""
        life.turn(*steps(2), answer="green")
        (holder,) = life.archive()
        whole = life.read(holder)
        life.spoil(b"word0", b"w0rd0")
        with pytest.raises(DamagedError, match=rf"archive {holder}: entry 3, in .*session\.jsonl at byte \d+, is"):
            life.read(holder)
        assert life.read(holder, 1, 2) == whole[:2]
        assert life.read(holder, 4) == whole[3:]
        text = [text_of(message) for message in shown_of(life.source(holder), 0)]
        assert text[2] == "[entry 3]\n(This entry is damaged on the disk and cannot be read.)"
        assert text[5] == "[entry 6]\ngreen"
        assert [hit.entry for hit in life.search("word1")] == [5]

    def test_entries_damaged_before_archiving_are_not_part_of_the_archive(self, life: Life) -> None:
        """The agent never read the damaged entry, so the archive contains only the other entries."""
        life.begin("one")
        life.say(*steps(2), assistant("first"), assistant("then"))
        life.end()
        life.spoil(b"first", b"f1rst")
        life.restart()
        (holder,) = life.archive()
        assert "f1rst" not in str(life.read(holder))
        assert [text_of(message) for message in life.read(holder)][-1:] == ["then"]
        assert len(life.read(holder)) == life.records()[0].count == 6
        agree(life.folder)

    def test_replaced_lines_are_detected(self, life: Life) -> None:
        """The lines of another session are valid, but their hash differs from that of the archived messages."""
        life.turn(*steps(1), asked="one")
        (holder,) = life.archive()
        ledger = life.ledger()
        other = Life(life.folder.with_name("other"))
        other.turn(*steps(1), asked="two")
        other.archive()
        (life.folder / "session.jsonl").write_bytes((other.folder / "session.jsonl").read_bytes())
        other.close()
        with pytest.raises(DamagedError, match=f"archive {holder}: .* differs from the archived messages"):
            ledger.read(holder)


def read_or_told(ledger: SessionArchives, id: str, whole: list[Message]) -> None:
    """Check that the archive is read unchanged or reported as damaged."""
    found = None
    with contextlib.suppress(DamagedError):
        found = ledger.read(id)
    if found is None:
        with pytest.raises(DamagedError, match=id):
            ledger.read(id)
    else:
        assert found == whole


def goes_on(folder: Path) -> None:
    """Check that the agent in `folder` answers, archives and can be read."""
    life = Life(folder, PROFILES["eager"])
    life.turn(*steps(2, "more"))
    made = life.archive()
    assert made
    assert text_of(life.read(made[-1])[-1]) == "answer 1"
    agree(folder)
    life.close()


def test_archive_entry_of_another_version_still_counts(life: Life) -> None:
    """The archive replaces its entries in the conversation, and its messages can be searched and read."""
    life.turn(*steps(1), asked="the copper valve")
    (collapse,) = life.plan().collapses
    life.transcript.archive([msgspec.structs.replace(collapse, record={"version": 2})])
    ledger = agree(life.folder)
    assert text_of(ledger.read(collapse.holder)[0]) == "the copper valve"
    assert [hit.id for hit in life.search("copper")] == [collapse.holder]
    life.turn(*steps(1))
    assert len(life.archive()) == 1
    agree(life.folder)


def test_archive_of_a_compaction_contains_everything_it_replaced(life: Life) -> None:
    """Root and worker show the same after a compaction, and its summary covers four messages."""
    life.turn(*steps(1), asked="old")
    life.turn(*steps(1), asked="new")
    kept = next(entry.id for entry in life.entries() if text_of(entry.message) == "new")
    session = life.transcript.session
    summary = CompactionEntry(
        id="0123abcd", parent_id=session.leaf, timestamp="t", summary="so far", first_kept_entry_id=kept
    )
    life.transcript.append(summary)
    ledger = life.ledger()
    assert list(ledger.view) == list(life.transcript.session.view)
    assert "so far" in text_of(next(iter(ledger.view)))
    cover = ledger.view.items[0].note
    assert (cover.messages, cover.contains_message) == (4, False)


def test_text_compacted_within_a_turn_is_found_in_its_first_phase(tmp_path: Path) -> None:
    """A search finds the text in the phase that contains the summary and in no other archive."""
    life = Life(tmp_path, PROFILES["phases"])
    life.begin("ask")
    life.say(*steps(2, "early", 8))
    life.compact(4)
    for number in range(2):
        life.say(*steps(3, f"late{number}", 60))
        life.archive(None)
        life.check()
    first, second = life.records()
    (hit,) = life.search("early0.txt")
    assert hit.id == first.id
    assert "early0.txt" in repr(life.read(hit.id, hit.entry, hit.entry))
    assert {hit.id for hit in life.search("late11.txt")} == {second.id}
    life.prune("9999-01-01T00:00:00Z")
    life.check()
    assert life.search("early0.txt") == []
    life.close()
