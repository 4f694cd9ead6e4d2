"""What is known of a long file from last time spares work, and that is all: the file alone is believed."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest

from agent_history import EAGER, Life, steps
from damaged_lines import spoilt
from orch_protocol.core.errors import ForeignFileError, StoreError
from orch_protocol.core.messages import Usage, assistant, user
from orch_protocol.session.entries import Custom
from orch_worker.session.log import append_log, blocks, verified_prefix
from orch_worker.session.log.record_format import seal_lines, unseal_line
from orch_worker.session.log.verified_prefix import VerifiedPrefix, read_verified_prefix
from orch_worker.session.session import SessionState
from orch_worker.session.transcript import NAME, Transcript, read_session

FILES = 48


@pytest.fixture(autouse=True)
def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Note what is known of short files too, and read them in many blocks."""
    monkeypatch.setattr(append_log, "MIN_PREFIX_BYTES", 1000)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 700)


def opened(folder: Path) -> Transcript:
    """Return the transcript in `folder`, open."""
    return Transcript.open(folder, agent="agent", cwd="/")


def talk(folder: Path, turns: int = 12) -> Path:
    """Let there be a conversation of so many turns, closed; return its file."""
    transcript = opened(folder)
    for number in range(turns):
        transcript.message(
            user(f"ask {number} " + "x" * 90), f"q{number // 2}", said=f"s{number}" if number % 3 else ""
        )
        transcript.message(assistant("so " + "y" * 90), f"q{number // 2}", Usage(number, 1))
        if number % 4 == 3:
            fields: Any = transcript._next()
            transcript.append(Custom(**fields, custom_type="x", data=number))
    transcript.close()
    return folder / NAME


def facts(session: SessionState) -> dict[str, Any]:
    """Return all that a session says."""
    names = [name for name in vars(session) if not name.startswith("_") and name != "lineage"]
    names += ["entries", "messages", "responses", "leaf", "places", "unanswered", "fresh"]
    return {name: getattr(session, name) for name in names} | {"parents": session.lineage.parents.tolist()}


def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows with each block whose lines are looked at one by one."""
    seen: list[int] = []
    checked = blocks._line_checksums

    def counted(block: bytes, checksum: int) -> Any:
        seen.append(len(block))
        return checked(block, checksum)

    monkeypatch.setattr(blocks, "_line_checksums", counted)
    return seen


def test_lines_that_were_looked_at_are_not_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All bytes are read and compared; only what was appended since is taken apart. The session is the same."""
    path = talk(tmp_path)
    noted = read_verified_prefix(path)
    assert noted is not None
    assert (noted.end, noted.sum) == (path.stat().st_size, crc32(path.read_bytes()))
    expected = facts(read_session(tmp_path))
    seen = looked_at(monkeypatch)
    transcript = opened(tmp_path)
    assert facts(transcript.session) == expected
    assert seen == []
    transcript.message(user("one more"), "q9")
    transcript.close()
    assert read_verified_prefix(path) == noted  # so little more is not noted
    assert [entry.id for entry in read_session(tmp_path).entries][-1] == transcript.session.leaf
    assert sum(seen) == path.stat().st_size - noted.end


def test_a_file_that_was_noted_and_damaged_is_read_as_any_other(tmp_path: Path) -> None:
    """Of each damaged file the same is said, shown and cut off as if nothing had been noted: the note is of no use."""
    path = talk(tmp_path / "a")
    data, note = path.read_bytes(), path.with_name(f"{NAME}.known").read_bytes()
    worse = 0
    for number in range(FILES):
        luck = random.Random(number)
        changed = bytearray(spoilt(data, number) if number % 3 == 0 else data)
        if number % 3 == 1:
            changed[luck.randrange(len(changed))] ^= 1 << luck.randrange(8)
        elif number % 3 == 2:
            del changed[luck.randrange(len(changed)) :]
        told = []
        for name in ("noted", "plain"):
            folder = tmp_path / f"{name}-{number}"
            folder.mkdir()
            (folder / NAME).write_bytes(changed)
            if name == "noted":
                (folder / f"{NAME}.known").write_bytes(note)
            try:
                shown = facts(read_session(folder))
                transcript = opened(folder)
                said = transcript.repaired.replace(str(folder), "")
                told.append((shown, facts(transcript.session), said, transcript.log.end))
                transcript.close()
            except (ForeignFileError, StoreError) as error:
                told.append((str(error).replace(str(folder), ""),))
        assert told[0] == told[1], number
        worse += bool(told[0][-2:][0])
    assert worse > FILES // 2


@pytest.mark.parametrize("noted", [b"", b"{}", b"no JSON", b'{"end":-4,"seq":1,"checksum":1,"sum":0}'])
def test_a_note_that_says_nothing_is_passed_over(tmp_path: Path, noted: bytes) -> None:
    """And a better one takes its place."""
    path = talk(tmp_path)
    expected, beside = facts(read_session(tmp_path)), path.with_name(f"{NAME}.known")
    beside.write_bytes(noted)
    transcript = opened(tmp_path)
    assert facts(transcript.session) == expected
    assert transcript.repaired == ""
    transcript.close()
    better = read_verified_prefix(path)
    assert better is not None
    assert better.sum == crc32(path.read_bytes())


def test_a_note_on_another_file_is_passed_over(tmp_path: Path) -> None:
    """A longer one, a shorter one, and one that is the same up to its end but for a byte."""
    path = talk(tmp_path / "a")
    for turns in (3, 40):
        other = talk(tmp_path / f"b{turns}", turns)
        beside = other.with_name(f"{NAME}.known")
        path.with_name(beside.name).write_bytes(beside.read_bytes())
        assert read_session(tmp_path / "a").turns == 0
        assert len(read_session(tmp_path / "a").entries) == 27
    whole = path.read_bytes()
    wrong = VerifiedPrefix(len(whole), 99, 0, crc32(whole) ^ 1)
    path.with_name(f"{NAME}.known").write_bytes(msgspec.json.encode(wrong))
    transcript = opened(tmp_path / "a")
    assert transcript.log.seq == len(whole.splitlines())
    transcript.close()


@pytest.mark.parametrize("field", ["end", "seq", "checksum", "sum"])
def test_a_note_that_was_damaged_spoils_nothing_that_follows(tmp_path: Path, field: str) -> None:
    """What is appended goes on where the file ends, not where the note says."""
    path = talk(tmp_path)
    noted = read_verified_prefix(path)
    assert noted is not None
    wrong = msgspec.structs.replace(noted, **{field: getattr(noted, field) ^ 1})
    beside = path.with_name(f"{NAME}.known")
    beside.write_bytes(msgspec.json.encode(wrong))
    transcript = opened(tmp_path)
    transcript.message(user("on"), "q9")
    transcript.close()
    beside.unlink(missing_ok=True)
    transcript = opened(tmp_path)
    assert transcript.repaired == ""
    assert transcript.log.seq == len(path.read_bytes().splitlines()) == noted.seq + 1
    transcript.close()


def test_nothing_is_noted_of_a_file_with_damage(tmp_path: Path) -> None:
    """Each opening tells of it; and where nothing can be noted, nothing is the matter."""
    path = talk(tmp_path)
    path.with_name(f"{NAME}.known").unlink()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        transcript = opened(tmp_path)
        assert "its checksum does not match" in transcript.repaired
        transcript.close()
        assert read_verified_prefix(path) is None
    sound = talk(tmp_path / "b")
    beside = sound.with_name(f"{NAME}.known")
    beside.unlink()
    beside.mkdir()
    opened(tmp_path / "b").close()
    assert len(read_session(tmp_path / "b").entries) == 27
    assert sorted(each.name for each in sound.parent.iterdir()) == ["lock", NAME, beside.name]


def test_a_torn_end_is_cut_off_what_is_known(tmp_path: Path) -> None:
    """And what is noted then is of what is left."""
    path = talk(tmp_path)
    path.with_name(f"{NAME}.known").unlink()
    path.write_bytes(path.read_bytes() + b'{"type":"mess')
    transcript = opened(tmp_path)
    assert "unfinished" in transcript.repaired
    transcript.message(user("on"), "q9")
    transcript.close()
    noted = read_verified_prefix(path)
    assert noted is not None
    assert (noted.end, noted.sum) == (path.stat().st_size, crc32(path.read_bytes()))


def test_what_was_skimmed_and_changes_before_it_is_read_is_an_error(tmp_path: Path) -> None:
    """Nothing of it is shown."""
    path = talk(tmp_path)
    transcript = opened(tmp_path)
    assert transcript.session.leaf
    path.write_bytes(path.read_bytes().replace(b"ask 3", b"ask 4"))
    with pytest.raises(StoreError, match="changed by another process"):
        _ = transcript.session.messages
    transcript.close()


def test_a_session_that_is_skimmed_is_the_one_that_is_read(tmp_path: Path) -> None:
    """Whatever happened in it: archives, branches, ids that come twice, kinds that nobody knows."""
    life = Life(tmp_path / "life", EAGER)
    for turn in range(5):
        life.turn(*steps(2, f"t{turn}", 30))
        if turn % 2:
            life.archive()
        if turn == 2:
            life.go(None)
    life.close()
    data = (tmp_path / "life" / NAME).read_bytes()
    for number in range(25):
        objects = [sealed.object for line in spoilt(data, number * 2 + 1).split(b"\n") if (sealed := unseal_line(line))]
        if number % 5 == 0:
            at = random.Random(number).randrange(1, len(objects))
            objects[at] = objects[at].replace(b'{"type":"', b'{"type":"new_', 1)
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / NAME).write_bytes(seal_lines(objects, 0, 0)[0])
        expected = facts(read_session(folder))
        for _ in range(2):
            transcript = opened(folder)
            assert facts(transcript.session) == expected, number
            transcript.close()


def test_of_a_file_whose_writer_is_killed_only_the_end_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known is noted while it is written, too; so it is where notes cannot be written, but for the note."""
    monkeypatch.setattr(append_log, "PREFIX_NOTE_INTERVAL_BYTES", 3000)
    transcript, other = opened(tmp_path), opened(tmp_path / "other")
    (tmp_path / "other" / f"{NAME}.known.new").mkdir()
    for number in range(40):
        for each in (transcript, other):
            each.message(user(f"ask {number} " + "x" * 90), f"q{number}")
    written, expected = transcript.path.stat().st_size, facts(transcript.session)
    noted = read_verified_prefix(transcript.path)
    assert noted is not None
    assert 0 < written - noted.end < 3000 + 400
    seen = looked_at(monkeypatch)
    assert facts(read_session(tmp_path)) == expected | {"header": transcript.session.header}
    assert sum(seen) == written - noted.end
    assert read_verified_prefix(other.path) is None
    assert len(read_session(tmp_path / "other").entries) == 40
    transcript.close()
    other.close()


def test_a_pipe_in_the_place_of_a_note_is_not_waited_for(tmp_path: Path) -> None:
    """Neither by who opens the session, nor by who notes what is known of it."""
    path = talk(tmp_path)
    noted = read_verified_prefix(path)
    assert noted is not None
    beside = path.with_name(f"{NAME}.known")
    beside.unlink()
    for each in (beside, path.with_name(f"{NAME}.known.new")):
        os.mkfifo(each)
    found: list[VerifiedPrefix | None] = []

    def look() -> None:
        found.append(read_verified_prefix(path))
        verified_prefix.write_verified_prefix(path, noted)
        found.append(read_verified_prefix(path))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(20)
    assert found == [None, None]
    verified_prefix.write_verified_prefix(path, noted)  # what was in the way is gone
    assert read_verified_prefix(path) == noted


def test_notes_are_for_long_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of most sessions there is none."""
    monkeypatch.setattr(append_log, "MIN_PREFIX_BYTES", verified_prefix.MIN_PREFIX_BYTES)
    assert read_verified_prefix(talk(tmp_path)) is None
