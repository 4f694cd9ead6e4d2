"""Reading a log in blocks of lines gives the same result as reading line by line, also for damaged files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from zlib import crc32

import pytest
from msgspec.structs import replace

from agent_history import EAGER, Life, steps
from damaged_lines import spoilt
from orch_protocol.core.errors import ForeignFileError
from orch_worker.session.entry_codec import SESSION_HEADER, UnknownEntry, decode_entry
from orch_worker.session.log import blocks
from orch_worker.session.log.log_reader import LogContents, load, read_objects
from orch_worker.session.log.record_format import seal_lines, unseal_line
from orch_worker.session.log.verified_prefix import LineSpan
from orch_worker.session.session import HiddenEntry, SessionState
from orch_worker.session.session_reader import read_session
from orch_worker.session.transcript import Transcript

FILES = 360
APPENDS = (1, 1, 1, 2, 5)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a session with archives, branches and appends of several lines."""
    folder = tmp_path_factory.mktemp("life") / "agent"
    life = Life(folder, EAGER)
    for turn in range(5):
        life.turn(*steps(2, f"t{turn}", 30))
        life.archive()
        if turn == 2:
            life.go(None)
    life.close()
    return (folder / "session.jsonl").read_bytes()


def mutated(data: bytes, number: int) -> bytes:
    """Return `data` with changed lines or flipped bits, often near the ends of lines, where the checksums are."""
    luck = random.Random(number)
    if number % 3 == 0:
        return spoilt(data, number)
    changed = bytearray(data)
    ends = [place for place, byte in enumerate(data) if byte == 10]
    for _ in range(luck.choice((1, 1, 3))):
        at = luck.choice(ends) - luck.randrange(30) if number % 3 == 1 else luck.randrange(len(changed))
        changed[max(0, at)] ^= 1 << luck.randrange(8)
    return bytes(changed[: luck.randrange(len(changed))] if luck.random() < 0.3 else changed)


def both(path: Path) -> tuple[list[bytes], LogContents, list[bytes], LogContents, int]:
    """Return the objects and the report of the line reader, then of the block reader, and the number of blocks."""
    plain: list[bytes] = []
    slow = load(path, header=SESSION_HEADER, on_object=plain.append)
    taken: list[bytes] = []
    many: list[int] = []

    def take_lines(lines: bytes, where: LineSpan) -> None:
        assert where.read(path) == lines
        many.append(len(lines))
        taken.extend(sealed.object for line in lines.split(b"\n") if (sealed := unseal_line(line)))

    fast = load(path, header=SESSION_HEADER, on_object=taken.append, on_block=take_lines)
    assert fast.sum in (None, crc32(path.read_bytes()[: fast.end]))
    return plain, slow, taken, replace(fast, sum=None), len(many)


@pytest.mark.parametrize("size", [64, 1000, blocks.BLOCK_BYTES])
def test_block_reader_agrees_with_the_line_reader(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Both readers report the same objects, damage, torn tail, line numbers and checksums."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", size)
    path = tmp_path / "session.jsonl"
    used = 0
    for number in range(FILES // 3):
        path.write_bytes(mutated(data, number) if number else data)
        try:
            plain, slow, taken, fast, many = both(path)
        except ForeignFileError:
            continue
        assert (taken, fast) == (plain, slow), number
        given = [
            unsealed.object if (unsealed := unseal_line(each)) else each
            for each in read_objects(path, header=SESSION_HEADER)
        ]
        assert given == [*filter(None, [slow.header]), *plain]
        used += many > 0
        assert number or (not slow.damage and many >= len(data) // (2 * size + 3000))
    assert used > (FILES // 6 if size < 2000 else 0)


def test_blocks_contain_whole_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An incomplete append at the end of the file is torn in both readers."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 100)
    luck = random.Random(3)
    lines, seq, checksum = seal_lines([SESSION_HEADER], 0, 0)
    whole = [len(lines)]
    for number in range(60):
        objects = [b'{"type":"x","id":"%d-%d"}' % (number, each) for each in range(luck.choice(APPENDS))]
        more, seq, checksum = seal_lines(objects, seq, checksum)
        lines += more
        whole.append(len(lines))
    path = tmp_path / "session.jsonl"
    for cut in range(0, len(lines) + 1, 37):
        path.write_bytes(lines[:cut])
        if not cut:
            continue
        plain, slow, taken, fast, _ = both(path)
        assert (taken, fast) == (plain, slow)
        assert fast.end == max((end for end in whole if end <= cut), default=0)


def test_unknown_entry_types_keep_their_place_in_a_block(data: bytes, tmp_path: Path) -> None:
    """An entry of an unknown type stays in the tree, and the entries around it are read."""
    objects = [sealed.object for line in data.split(b"\n") if (sealed := unseal_line(line))]
    at = len(objects) // 2
    objects[at] = objects[at].replace(b'{"type":"', b'{"type":"new_', 1)
    (tmp_path / "session.jsonl").write_bytes(seal_lines(objects, 0, 0)[0])
    session = read_session(tmp_path)
    assert [entry.id for entry in session.entries] == [json.loads(each)["id"] for each in objects[1:]]
    assert isinstance(session.entries[at - 1], (UnknownEntry, HiddenEntry))
    transcript = Transcript.open(tmp_path, agent="agent", cwd="/")
    assert transcript.session.leaf == session.leaf
    transcript.close()


def test_folding_a_block_equals_folding_its_entries(data: bytes) -> None:
    """`extend` gives the same state as `apply`, also with duplicate ids, missing parents and moves."""
    for number in range(40):
        lines = [sealed.object for line in spoilt(data, number * 2 + 1).split(b"\n") if (sealed := unseal_line(line))]
        entries = [entry for line in lines if (entry := decode_entry(line)) is not None]
        one, other = SessionState(), SessionState()
        for entry in entries:
            one.apply(entry)
        other.extend(entries)
        if one.must_refold:
            one, other = one.refolded(entries), other.refolded(entries)
        listed = [name for name in vars(one) if not name.startswith("_")]
        for name in {*listed, "_turn", "_used_before", "messages", "entries", "responses", "places"} - {"lineage"}:
            assert getattr(other, name) == getattr(one, name), (number, name)
        assert vars(other.lineage) == vars(one.lineage)
        assert other.view.items == one.view.items
