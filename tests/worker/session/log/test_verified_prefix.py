"""The verified prefix of a session file: it saves checks when a long file is opened and never changes the result."""

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
from orch_worker.session.session_reader import NAME, read_session
from orch_worker.session.transcript import Transcript

FILES = 48


@pytest.fixture(autouse=True)
def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record verified prefixes for short files too, and read files in many blocks."""
    monkeypatch.setattr(append_log, "MIN_PREFIX_BYTES", 1000)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 700)


def opened(folder: Path) -> Transcript:
    """Return the open transcript in `folder`."""
    return Transcript.open(folder, agent="agent", cwd="/")


def write_session(folder: Path, turns: int = 12) -> Path:
    """Write a conversation of `turns` turns to `folder` and close it. Return the path of its file."""
    transcript = opened(folder)
    for number in range(turns):
        transcript.message(
            user(f"ask {number} " + "x" * 90), f"q{number // 2}", steer_id=f"s{number}" if number % 3 else ""
        )
        transcript.message(assistant("so " + "y" * 90), f"q{number // 2}", Usage(number, 1))
        if number % 4 == 3:
            fields: Any = transcript._next()
            transcript.append(Custom(**fields, custom_type="x", data=number))
    transcript.close()
    return folder / NAME


def facts(session: SessionState) -> dict[str, Any]:
    """Return all public state of a session."""
    names = [name for name in vars(session) if not name.startswith("_") and name != "lineage"]
    names += ["entries", "messages", "responses", "leaf", "places", "unanswered", "fresh"]
    return {name: getattr(session, name) for name in names} | {"parents": session.lineage.parents.tolist()}


def line_checked_blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the size of each block whose lines are checked one by one."""
    seen: list[int] = []
    checked = blocks._line_checksums

    def counted(block: bytes, checksum: int) -> Any:
        seen.append(len(block))
        return checked(block, checksum)

    monkeypatch.setattr(blocks, "_line_checksums", counted)
    return seen


def test_verified_lines_are_not_parsed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening compares the CRC-32 of the prefix, checks only appended lines, and gives the same session."""
    path = write_session(tmp_path)
    noted = read_verified_prefix(path)
    assert noted is not None
    assert (noted.end, noted.sum) == (path.stat().st_size, crc32(path.read_bytes()))
    expected = facts(read_session(tmp_path))
    seen = line_checked_blocks(monkeypatch)
    transcript = opened(tmp_path)
    assert facts(transcript.session) == expected
    assert seen == []
    transcript.message(user("one more"), "q9")
    transcript.close()
    assert read_verified_prefix(path) == noted  # the file has not grown enough for a new prefix
    assert [entry.id for entry in read_session(tmp_path).entries][-1] == transcript.session.leaf
    assert sum(seen) == path.stat().st_size - noted.end


def test_damaged_file_ignores_its_note(tmp_path: Path) -> None:
    """For a damaged file, the report, the contents and the repair are the same with and without a prefix."""
    path = write_session(tmp_path / "a")
    data, note = path.read_bytes(), path.with_name(f"{NAME}.known").read_bytes()
    reported = 0
    for number in range(FILES):
        luck = random.Random(number)
        changed = bytearray(spoilt(data, number) if number % 3 == 0 else data)
        if number % 3 == 1:
            changed[luck.randrange(len(changed))] ^= 1 << luck.randrange(8)
        elif number % 3 == 2:
            del changed[luck.randrange(len(changed)) :]
        collected = []
        for name in ("noted", "plain"):
            folder = tmp_path / f"{name}-{number}"
            folder.mkdir()
            (folder / NAME).write_bytes(changed)
            if name == "noted":
                (folder / f"{NAME}.known").write_bytes(note)
            try:
                shown = facts(read_session(folder))
                transcript = opened(folder)
                found = transcript.repaired.replace(str(folder), "")
                collected.append((shown, facts(transcript.session), found, transcript.log.end))
                transcript.close()
            except (ForeignFileError, StoreError) as error:
                collected.append((str(error).replace(str(folder), ""),))
        assert collected[0] == collected[1], number
        reported += bool(collected[0][-2:][0])
    assert reported > FILES // 2


@pytest.mark.parametrize("noted", [b"", b"{}", b"no JSON", b'{"end":-4,"seq":1,"checksum":1,"sum":0}'])
def test_invalid_note_is_ignored_and_replaced(tmp_path: Path, noted: bytes) -> None:
    """Opening the session replaces an invalid prefix file by a correct one."""
    path = write_session(tmp_path)
    expected, note_path = facts(read_session(tmp_path)), path.with_name(f"{NAME}.known")
    note_path.write_bytes(noted)
    transcript = opened(tmp_path)
    assert facts(transcript.session) == expected
    assert transcript.repaired == ""
    transcript.close()
    better = read_verified_prefix(path)
    assert better is not None
    assert better.sum == crc32(path.read_bytes())


def test_note_for_another_file_is_ignored(tmp_path: Path) -> None:
    """A prefix that is longer, shorter, or has a different CRC-32 than the file does not change what is read."""
    path = write_session(tmp_path / "a")
    for turns in (3, 40):
        other = write_session(tmp_path / f"b{turns}", turns)
        note_path = other.with_name(f"{NAME}.known")
        path.with_name(note_path.name).write_bytes(note_path.read_bytes())
        assert read_session(tmp_path / "a").turns == 0
        assert len(read_session(tmp_path / "a").entries) == 27
    whole = path.read_bytes()
    wrong = VerifiedPrefix(len(whole), 99, 0, crc32(whole) ^ 1)
    path.with_name(f"{NAME}.known").write_bytes(msgspec.json.encode(wrong))
    transcript = opened(tmp_path / "a")
    assert transcript.log.seq == len(whole.splitlines())
    transcript.close()


@pytest.mark.parametrize("field", ["end", "seq", "checksum", "sum"])
def test_damaged_note_does_not_affect_later_appends(tmp_path: Path, field: str) -> None:
    """After a prefix with one wrong field, an append continues the line numbers at the end of the file."""
    path = write_session(tmp_path)
    noted = read_verified_prefix(path)
    assert noted is not None
    wrong = msgspec.structs.replace(noted, **{field: getattr(noted, field) ^ 1})
    note_path = path.with_name(f"{NAME}.known")
    note_path.write_bytes(msgspec.json.encode(wrong))
    transcript = opened(tmp_path)
    transcript.message(user("on"), "q9")
    transcript.close()
    note_path.unlink(missing_ok=True)
    transcript = opened(tmp_path)
    assert transcript.repaired == ""
    assert transcript.log.seq == len(path.read_bytes().splitlines()) == noted.seq + 1
    transcript.close()


def test_damaged_files_get_no_note(tmp_path: Path) -> None:
    """Each opening reports the damage; a prefix file that cannot be written is not an error."""
    path = write_session(tmp_path)
    path.with_name(f"{NAME}.known").unlink()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        transcript = opened(tmp_path)
        assert "its checksum does not match" in transcript.repaired
        transcript.close()
        assert read_verified_prefix(path) is None
    sound = write_session(tmp_path / "b")
    note_path = sound.with_name(f"{NAME}.known")
    note_path.unlink()
    note_path.mkdir()
    opened(tmp_path / "b").close()
    assert len(read_session(tmp_path / "b").entries) == 27
    assert sorted(each.name for each in sound.parent.iterdir()) == ["lock", NAME, note_path.name]


def test_torn_tail_is_removed_from_a_noted_file(tmp_path: Path) -> None:
    """After the torn tail is removed, the new prefix covers the whole file."""
    path = write_session(tmp_path)
    path.with_name(f"{NAME}.known").unlink()
    path.write_bytes(path.read_bytes() + b'{"type":"mess')
    transcript = opened(tmp_path)
    assert "unfinished" in transcript.repaired
    transcript.message(user("on"), "q9")
    transcript.close()
    noted = read_verified_prefix(path)
    assert noted is not None
    assert (noted.end, noted.sum) == (path.stat().st_size, crc32(path.read_bytes()))


def test_file_changed_between_skimming_and_reading_is_an_error(tmp_path: Path) -> None:
    """Reading the messages of a file that changed after opening raises StoreError."""
    path = write_session(tmp_path)
    transcript = opened(tmp_path)
    assert transcript.session.leaf
    path.write_bytes(path.read_bytes().replace(b"ask 3", b"ask 4"))
    with pytest.raises(StoreError, match="changed by another process"):
        _ = transcript.session.messages
    transcript.close()


def test_skimmed_session_equals_the_read_session(tmp_path: Path) -> None:
    """Both are equal for sessions with archives, branches, duplicate ids and unknown entry types."""
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


def test_after_a_killed_writer_only_the_tail_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prefix is updated during writing, so that only the lines after it are checked."""
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
    seen = line_checked_blocks(monkeypatch)
    assert facts(read_session(tmp_path)) == expected | {"header": transcript.session.header}
    assert sum(seen) == written - noted.end
    assert read_verified_prefix(other.path) is None
    assert len(read_session(tmp_path / "other").entries) == 40
    transcript.close()
    other.close()


def test_fifo_in_place_of_a_note_does_not_block(tmp_path: Path) -> None:
    """Reading and replacing the prefix file return at once if a FIFO has its name."""
    path = write_session(tmp_path)
    noted = read_verified_prefix(path)
    assert noted is not None
    note_path = path.with_name(f"{NAME}.known")
    note_path.unlink()
    for each in (note_path, path.with_name(f"{NAME}.known.new")):
        os.mkfifo(each)
    found: list[VerifiedPrefix | None] = []

    def look() -> None:
        found.append(read_verified_prefix(path))
        verified_prefix.write_verified_prefix(path, noted)
        found.append(read_verified_prefix(path))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(20)
    assert found == [None, noted]


def test_short_files_get_no_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_log, "MIN_PREFIX_BYTES", verified_prefix.MIN_PREFIX_BYTES)
    assert read_verified_prefix(write_session(tmp_path)) is None
