"""Append-only files: what is written stays, what is damaged is skipped, what is foreign is not changed."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from append_logs import HEADER, encoded, sealed, written
from orch_protocol.core.errors import ForeignFileError, StoreError
from orch_worker.session.log import append_log
from orch_worker.session.log.append_log import AppendLog, load, newest_first
from orch_worker.session.log.record_format import seal_lines, sealed_at, unseal_line


def test_round_trip(path: Path) -> None:
    """What was appended comes back byte for byte, in order, after the header."""
    objects = [
        encoded(1),
        encoded(2, 'quotes "s":5,"c":"00000000"}'),
        b'{"s":7}',
        b'{"c":"x","m":1}',
        encoded(3, "\x85 "),
    ]
    written(path, (objects[0],), tuple(objects[1:3]), tuple(objects[3:]))
    loaded = load(path, header=HEADER)
    assert (loaded.header, loaded.objects, loaded.report) == (HEADER, objects, "")
    assert loaded.end == path.stat().st_size
    assert loaded.seq == 6


def test_sealing_without_a_file(path: Path) -> None:
    """The lines that the log writes are those that `seal_lines` makes."""
    appends = [(encoded(1),), (encoded(2), encoded(3))]
    assert written(path, *appends) == sealed(*appends)


def test_lines_are_plain_json(path: Path) -> None:
    """Each line is a JSON object with its number and, last, its checksum."""
    data = written(path, (encoded(1), encoded(2)))
    lines = [json.loads(line) for line in data.splitlines()]
    assert [line["s"] for line in lines] == [1, 2, 3]
    assert all(list(line)[-1] == "c" and len(line["c"]) == 8 for line in lines)


def test_append_continues_after_reopening(path: Path) -> None:
    """A second writer goes on where the first stopped: numbers and checksums are one chain."""
    written(path, (encoded(1),))
    written(path, (encoded(2),))
    loaded = load(path, header=HEADER)
    assert loaded.objects == [encoded(1), encoded(2)]
    assert (loaded.seq, loaded.report) == (3, "")


def test_file_is_private(log: AppendLog) -> None:
    """A new file has mode 0600 and its descriptor does not pass through exec."""
    assert log.path.stat().st_mode & 0o777 == 0o600
    assert not os.get_inheritable(log._descriptor)


def test_missing_and_empty_files_hold_nothing(path: Path) -> None:
    """Reading a file that is not there, or empty, is no error and creates nothing."""
    assert load(path, header=HEADER).objects == []
    assert list(newest_first(path)) == []
    assert not path.exists()
    path.touch()
    assert load(path, header=HEADER).objects == []
    assert written(path).count(b"\n") == 1


def test_cut_at_every_byte(path: Path) -> None:
    """Of a file cut anywhere, the whole appends before the cut are left; the rest is kept aside and work goes on."""
    appends = [(encoded(1),), (encoded(2), encoded(3)), (encoded(4, "ü\u2028"),)]
    ends, data = [], written(path)
    ends.append(len(data))
    for count in range(1, 4):
        path.unlink()
        data = written(path, *appends[:count])
        ends.append(len(data))
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends) - 1
        expected = [object for objects in appends[: max(whole, 0)] for object in objects]
        before = path.read_bytes()
        assert load(path, header=HEADER).objects == expected
        assert list(newest_first(path)) == ([*reversed(expected), HEADER] if whole >= 0 else [])
        assert path.read_bytes() == before
        log, loaded = AppendLog.open(path, header=HEADER)
        assert loaded.objects == expected
        assert loaded.torn == data[:cut][ends[whole] if whole >= 0 else 0 :]
        assert bool(loaded.torn) == bool(loaded.aside) == bool(loaded.report)
        if loaded.aside:
            assert loaded.aside.read_bytes() == loaded.torn
            loaded.aside.unlink()
        log.append(encoded(9))
        log.close()
        again = load(path, header=HEADER)
        assert (again.objects, again.report) == ([*expected, encoded(9)], "")


def test_torn_tails_are_kept_side_by_side(path: Path) -> None:
    """A second torn tail does not overwrite the first one's copy."""
    for number in (1, 2):
        with path.open("ab") as file:
            file.write(written(path) and b'{"n":%d' % number)
        log, loaded = AppendLog.open(path, header=HEADER)
        log.close()
        assert loaded.report == f"6 bytes of an unfinished write at the end, kept in log.jsonl.torn-{number}"
    assert path.with_name("log.jsonl.torn-1").read_bytes() == b'{"n":1'
    assert path.with_name("log.jsonl.torn-2").read_bytes() == b'{"n":2'


def test_torn_tail_stays_when_it_cannot_be_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no room for the copy of a torn tail, opening fails and the file is as it was."""
    data = written(path, (encoded(1),)) + b'{"n":'
    path.write_bytes(data)

    def full(*_: object) -> Path:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(append_log, "keep_aside", full)
    with pytest.raises(StoreError, match=r"cannot repair .*log\.jsonl: disk full"):
        AppendLog.open(path, header=HEADER)
    assert path.read_bytes() == data


def damaged(data: bytes, number: int, line: bytes | None) -> bytes:
    """Return `data` with its line `number`, from 1, replaced, or left out."""
    lines = data.split(b"\n")
    lines[number - 1 : number] = [] if line is None else [line]
    return b"\n".join(lines)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'"x"', b'"y"', "its checksum does not match"),
        (b'{"n"', b'\0\0\0\0"', "not a line of ours"),
        (b'"s":3', b'"s":1', "its checksum does not match"),
        (b'{"n":2,"text":"x","s":3', b"", "not a line of ours"),
    ],
)
def test_damage_inside_hides_nothing_else(path: Path, old: bytes, new: bytes, reason: str) -> None:
    """A bad line is skipped and reported by number; the lines before and after it are read; the file stays."""
    data = written(path, *((encoded(number),) for number in range(1, 5)))
    bad = damaged(data, 3, data.split(b"\n")[2].replace(old, new))
    assert bad != data
    path.write_bytes(bad)
    log, loaded = AppendLog.open(path, header=HEADER)
    log.close()
    assert loaded.objects == [encoded(1), encoded(3), encoded(4)]
    assert loaded.report == f"line 3: {reason}"
    assert path.read_bytes() == bad


@pytest.mark.parametrize("line", [b"garbage", b"", b"\0" * 70, None], ids=["garbage", "empty", "zeros", "gone"])
def test_line_behind_a_lost_one_is_read_unchecked(path: Path, line: bytes | None) -> None:
    """Where nothing of a line is left, the next one cannot be checked; it is read all the same, and that is said."""
    data = written(path, *((encoded(number),) for number in range(1, 5)))
    path.write_bytes(damaged(data, 3, line))
    loaded = load(path, header=HEADER)
    assert loaded.objects == [encoded(1), encoded(3), encoded(4)]
    assert "follows lost lines, so that it cannot be checked" in loaded.report


def test_neighbouring_damage_is_all_found(path: Path) -> None:
    """Altered lines in a row are each skipped: a bad line is still good enough to check the next one against."""
    data = written(path, *((encoded(number),) for number in range(1, 6)))
    for number in (3, 4):
        data = damaged(data, number, data.split(b"\n")[number - 1].replace(b'"x"', b'"y"'))
    path.write_bytes(data)
    loaded = load(path, header=HEADER)
    assert loaded.objects == [encoded(1), encoded(4), encoded(5)]
    assert [damage.line for damage in loaded.damage] == [3, 4]


def test_carriage_return_inside_is_damage(path: Path) -> None:
    """A line that an editor ended with CRLF is skipped; the next one is still checked against it."""
    data = written(path, (encoded(1),), (encoded(2),), (encoded(3),))
    path.write_bytes(damaged(data, 3, data.split(b"\n")[2] + b"\r"))
    loaded = load(path, header=HEADER)
    assert loaded.objects == [encoded(1), encoded(3)]
    assert [str(damage) for damage in loaded.damage] == ["line 3: not a line of ours"]


def test_inserted_and_repeated_lines_are_skipped(path: Path) -> None:
    """A line of elsewhere, or one that stands there twice, does not break the chain of the others."""
    data = written(path, (encoded(1),), (encoded(2),))
    lines = data.split(b"\n")
    for stranger in (lines[1], b"a stranger", seal_lines([encoded(7)], 1, 5)[0].strip()):
        path.write_bytes(b"\n".join([*lines[:2], stranger, *lines[2:]]))
        loaded = load(path, header=HEADER)
        assert loaded.objects == [encoded(1), encoded(2)]
        assert [damage.line for damage in loaded.damage] == [3]


def test_damaged_header_does_not_hide_the_file(path: Path) -> None:
    """A flipped bit in the header costs the header alone."""
    data = written(path, (encoded(1),), (encoded(2),))
    path.write_bytes(data.replace(b'"test"', b'"tesu"', 1))
    loaded = load(path, header=HEADER)
    assert (loaded.header, loaded.objects) == (b"", [encoded(1), encoded(2)])
    assert [damage.line for damage in loaded.damage] == [1]


@settings(deadline=None)
@given(
    texts=st.lists(st.text(max_size=20), min_size=1, max_size=12),
    where=st.floats(0, 1, exclude_max=True),
    run=st.one_of(st.integers(0, 7).map(lambda bit: (1, 1 << bit)), st.integers(1, 200).map(lambda size: (size, 0))),
)
def test_one_damaged_place_costs_the_lines_it_touches(texts: list[str], where: float, run: tuple[int, int]) -> None:
    """Whatever bit flips, or run of bytes turns to zeros, only lines it touches are lost; none comes back altered."""
    objects = [encoded(number, text) for number, text in enumerate(texts)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log")
        data = bytearray(sealed(*((object,) for object in objects)))
        ends = [0]
        for line in bytes(data).splitlines(keepends=True):
            ends.append(ends[-1] + len(line))
        size, flip = run
        start = int(where * len(data))
        stop = min(start + size, len(data))
        for at in range(start, stop):
            data[at] = data[at] ^ flip if flip else 0
        path.write_bytes(data)
        # A lost newline costs the line behind it as well.
        untouched = [
            object
            for number, object in enumerate(objects, 1)
            if not (start < ends[number + 1] and ends[number] <= stop)
        ]
        try:
            loaded = load(path, header=HEADER)
        except ForeignFileError:
            assert start < ends[1]
            return
        rest = iter(loaded.objects)
        assert all(object in rest for object in untouched)
        originals = iter(objects)
        assert all(object in originals for object in loaded.objects)
        assert loaded.report or len(loaded.objects) == len(objects)


@settings(deadline=None)
@given(
    count=st.integers(0, 6),
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 40), st.binary(max_size=40)), max_size=5),
)
def test_no_bytes_break_the_reader(count: int, edits: list[tuple[float, int, bytes]]) -> None:
    """Arbitrary edits lead to a StoreError or to a log that works: what it read stays, what is appended follows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log")
        data = sealed(*((encoded(number), encoded(number)) for number in range(count)))
        for where, size, new in edits:
            at = int(where * len(data))
            data = data[:at] + new + data[at + size :]
        path.write_bytes(data)
        try:
            list(newest_first(path))
            log, loaded = AppendLog.open(path, header=HEADER)
        except StoreError:
            assert path.read_bytes() == data
            return
        log.append(encoded(99))
        log.close()
        again = load(path, header=HEADER)
        assert again.objects == [*loaded.objects, encoded(99)]
        assert again.torn == b""


FOREIGN = {
    "text": b"hello\n",
    "json": b'{"type":"test","version":1}\n',
    "json without newline": b'{"type":"other"}',
    "binary": bytes(range(256)) * 10,
    "empty line": b"\n",
    "other kind": seal_lines([b'{"type":"other","version":1}'], 0, 0)[0],
    "later version": seal_lines([b'{"type":"test","version":2}'], 0, 0)[0],
    "odd version": seal_lines([b'{"type":"test","version":"new"}'], 0, 0)[0],
    "byte order mark": b"\xef\xbb\xbf" + seal_lines([HEADER], 0, 0)[0],
    "carriage returns": seal_lines([HEADER], 0, 0)[0].replace(b"\n", b"\r\n"),
}


@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN.keys())
def test_foreign_files_are_refused_untouched(path: Path, data: bytes) -> None:
    """A file that does not begin with our header raises ForeignFileError and keeps every byte."""
    path.write_bytes(data)
    with pytest.raises(ForeignFileError, match=r"left alone|was not changed"):
        load(path, header=HEADER)
    with pytest.raises(ForeignFileError, match=r"left alone|was not changed"):
        AppendLog.open(path, header=HEADER)
    assert path.read_bytes() == data
    assert list(path.parent.iterdir()) == [path]


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    """A FIFO, a device or a folder in the file's place is refused at once, for what it is."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/null")
    for path in ("fifo", "device", "."):
        with pytest.raises(StoreError, match="is not a regular file: it was left alone"):
            AppendLog.open(tmp_path / path, header=HEADER)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    """Opening a log in a folder that is not there says so."""
    with pytest.raises(StoreError, match="its folder does not exist"):
        AppendLog.open(tmp_path / "none" / "log", header=HEADER)


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 4096, HEADER[:9], HEADER + b',"s":1,"c'], ids=["empty", "zeros", "a", "b"]
)
def test_unborn_file_is_born_again(path: Path, data: bytes) -> None:
    """A file whose very first line never reached the disk is begun anew; its bytes are kept aside."""
    path.write_bytes(data)
    log, loaded = AppendLog.open(path, header=HEADER)
    log.close()
    assert loaded.torn == data
    assert load(path, header=HEADER).header == HEADER


def test_removed_file_is_noticed(log: AppendLog) -> None:
    """A file deleted under its log is an error at the next sync, not a silent loss."""
    log.append(encoded(1))
    log.path.unlink()
    with pytest.raises(StoreError, match="somebody removed it"):
        log.sync()


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 300_000), max_size=8))
def test_newest_first_is_load_reversed(sizes: list[int]) -> None:
    """Reading from the end gives the same objects as reading from the start, however long the lines are."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log")
        path.write_bytes(sealed(*((encoded(number, "x" * size),) for number, size in enumerate(sizes))))
        loaded = load(path, header=HEADER)
        assert [*reversed(list(newest_first(path)))] == [loaded.header, *loaded.objects]


def test_newest_first_passes_over_what_does_not_fit(path: Path) -> None:
    """A bad line, and the one behind it that only it could vouch for, are left out."""
    data = written(path, *((encoded(number),) for number in range(1, 5)))
    path.write_bytes(damaged(data, 3, b"garbage") + b'{"torn')
    assert list(newest_first(path)) == [encoded(4), encoded(1), HEADER]


@given(st.binary(max_size=60))
def test_unseal_takes_any_bytes(line: bytes) -> None:
    """Taking a line apart never raises."""
    assert unseal_line(line) is None or line.startswith(b"{")


@given(st.lists(st.binary(max_size=30).map(lambda text: text.replace(b"\n", b"")), max_size=4), st.integers(0, 9))
def test_a_line_is_known_where_it_stands(others: list[bytes], place: int) -> None:
    """Whatever stands before and behind it, it is one of ours exactly if it is one by itself."""
    ours, _, _ = seal_lines([b'{"x":1}', b'{"y":2}'], place, 0)
    data = b"\n".join([*others, *ours.splitlines(), *others])
    start = 0
    for line in data.split(b"\n"):
        sealed = unseal_line(line)
        at = sealed_at(data, start, start + len(line))
        assert at == (-1 if sealed is None else start + sealed.end)
        start += len(line) + 1
