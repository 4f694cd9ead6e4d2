"""Append-only log files: appending, reading, repair of incomplete writes, damaged lines, foreign files."""

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
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.log.log_reader import load, newest_first
from orch_worker.session.log.record_format import seal_lines, sealed_at, unseal_line


def test_round_trip(path: Path) -> None:
    """`load` returns the header and the appended objects byte for byte and in order."""
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


def test_seal_lines_matches_the_log(path: Path) -> None:
    """A log writes exactly the lines that `seal_lines` returns."""
    appends = [(encoded(1),), (encoded(2), encoded(3))]
    assert written(path, *appends) == sealed(*appends)


def test_lines_are_plain_json(path: Path) -> None:
    """Each line is a JSON object with a line number and, as the last field, a checksum."""
    data = written(path, (encoded(1), encoded(2)))
    lines = [json.loads(line) for line in data.splitlines()]
    assert [line["s"] for line in lines] == [1, 2, 3]
    assert all(list(line)[-1] == "c" and len(line["c"]) == 8 for line in lines)


def test_append_continues_after_reopening(path: Path) -> None:
    """A second writer continues the line numbers and the checksum chain of the first writer."""
    written(path, (encoded(1),))
    written(path, (encoded(2),))
    loaded = load(path, header=HEADER)
    assert loaded.objects == [encoded(1), encoded(2)]
    assert (loaded.seq, loaded.report) == (3, "")


def test_file_is_private(log: AppendLog) -> None:
    """A new file has mode 0600, and programs that the process starts do not inherit the descriptor."""
    assert log.path.stat().st_mode & 0o777 == 0o600
    assert not os.get_inheritable(log._descriptor)


def test_missing_and_empty_files_contain_no_objects(path: Path) -> None:
    """Reading a missing or an empty file returns no objects and creates no file."""
    assert load(path, header=HEADER).objects == []
    assert list(newest_first(path)) == []
    assert not path.exists()
    path.touch()
    assert load(path, header=HEADER).objects == []
    assert written(path).count(b"\n") == 1


def test_file_cut_at_any_byte_keeps_whole_appends(path: Path) -> None:
    """Opening a cut file keeps complete appends, saves the incomplete bytes elsewhere and allows appends."""
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
        assert bool(loaded.torn) == bool(loaded.torn_tail_file) == bool(loaded.report)
        if loaded.torn_tail_file:
            assert loaded.torn_tail_file.read_bytes() == loaded.torn
            loaded.torn_tail_file.unlink()
        log.append(encoded(9))
        log.close()
        again = load(path, header=HEADER)
        assert (again.objects, again.report) == ([*expected, encoded(9)], "")


def test_second_torn_tail_does_not_overwrite_the_first_copy(path: Path) -> None:
    """Each torn tail is saved in a separate file with a number in the name."""
    for number in (1, 2):
        with path.open("ab") as file:
            file.write(written(path) and b'{"n":%d' % number)
        log, loaded = AppendLog.open(path, header=HEADER)
        log.close()
        assert loaded.report == f"6 bytes of an unfinished write at the end, kept in log.jsonl.torn-{number}"
    assert path.with_name("log.jsonl.torn-1").read_bytes() == b'{"n":1'
    assert path.with_name("log.jsonl.torn-2").read_bytes() == b'{"n":2'


def test_open_fails_when_a_torn_tail_cannot_be_saved(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without space for the copy of the torn tail, opening fails and the file is unchanged."""
    data = written(path, (encoded(1),)) + b'{"n":'
    path.write_bytes(data)

    def full(*_: object) -> Path:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(append_log, "keep_aside", full)
    with pytest.raises(StoreError, match=r"cannot repair .*log\.jsonl: disk full"):
        AppendLog.open(path, header=HEADER)
    assert path.read_bytes() == data


def damaged(data: bytes, number: int, line: bytes | None) -> bytes:
    """Return `data` with the line `number` (counted from 1) replaced by `line`, or removed if `line` is None."""
    lines = data.split(b"\n")
    lines[number - 1 : number] = [] if line is None else [line]
    return b"\n".join(lines)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'"x"', b'"y"', "its checksum does not match"),
        (b'{"n"', b'\0\0\0\0"', "not in the format of orch"),
        (b'"s":3', b'"s":1', "its checksum does not match"),
        (b'{"n":2,"text":"x","s":3', b"", "not in the format of orch"),
    ],
)
def test_damaged_line_hides_no_other_line(path: Path, old: bytes, new: bytes, reason: str) -> None:
    """A damaged line is skipped and reported with its number; other lines are read and the file is unchanged."""
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
def test_line_after_a_lost_line_is_read_unverified(path: Path, line: bytes | None) -> None:
    """A line after a lost line is read, and the report states that the line cannot be checked."""
    data = written(path, *((encoded(number),) for number in range(1, 5)))
    path.write_bytes(damaged(data, 3, line))
    loaded = load(path, header=HEADER)
    assert loaded.objects == [encoded(1), encoded(3), encoded(4)]
    assert "follows lost lines, so that it cannot be checked" in loaded.report


def test_adjacent_damaged_lines_are_each_reported(path: Path) -> None:
    """The line after two damaged lines is still verified, against the checksum in the damaged line."""
    data = written(path, *((encoded(number),) for number in range(1, 6)))
    for number in (3, 4):
        data = damaged(data, number, data.split(b"\n")[number - 1].replace(b'"x"', b'"y"'))
    path.write_bytes(data)
    loaded = load(path, header=HEADER)
    assert loaded.objects == [encoded(1), encoded(4), encoded(5)]
    assert [damage.line for damage in loaded.damage] == [3, 4]


def test_crlf_line_is_damage(path: Path) -> None:
    """A line that ends with CRLF is damaged, and the next line is still verified against its checksum."""
    data = written(path, (encoded(1),), (encoded(2),), (encoded(3),))
    path.write_bytes(damaged(data, 3, data.split(b"\n")[2] + b"\r"))
    loaded = load(path, header=HEADER)
    assert loaded.objects == [encoded(1), encoded(3)]
    assert [str(damage) for damage in loaded.damage] == ["line 3: not in the format of orch"]


def test_inserted_and_repeated_lines_are_skipped(path: Path) -> None:
    """A copied, foreign or invalid line in the middle of a file does not break the checksum chain."""
    data = written(path, (encoded(1),), (encoded(2),))
    lines = data.split(b"\n")
    for stranger in (lines[1], b"a stranger", seal_lines([encoded(7)], 1, 5)[0].strip()):
        path.write_bytes(b"\n".join([*lines[:2], stranger, *lines[2:]]))
        loaded = load(path, header=HEADER)
        assert loaded.objects == [encoded(1), encoded(2)]
        assert [damage.line for damage in loaded.damage] == [3]


def test_damaged_header_costs_the_header_only(path: Path) -> None:
    """A flipped bit in the header loses the header and no other line."""
    data = written(path, (encoded(1),), (encoded(2),))
    path.write_bytes(data.replace(b'"test"', b'"tesu"', 1))
    loaded = load(path, header=HEADER)
    assert (loaded.header, loaded.objects) == (b"", [encoded(1), encoded(2)])
    assert [damage.line for damage in loaded.damage] == [1]


@given(
    texts=st.lists(st.text(max_size=20), min_size=1, max_size=12),
    where=st.floats(0, 1, exclude_max=True),
    run=st.one_of(st.integers(0, 7).map(lambda bit: (1, 1 << bit)), st.integers(1, 200).map(lambda size: (size, 0))),
)
def test_damage_costs_only_the_lines_it_touches(texts: list[str], where: float, run: tuple[int, int]) -> None:
    """After a flipped bit or a zeroed run, every untouched line is read and no line is returned altered."""
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
        # A lost newline also damages the next line.
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


@given(
    count=st.integers(0, 6),
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 40), st.binary(max_size=40)), max_size=5),
)
def test_arbitrary_edits_never_crash_the_reader(count: int, edits: list[tuple[float, int, bytes]]) -> None:
    """Opening an edited file either raises StoreError without a change or returns a log that accepts appends."""
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
    """A file without a header of orch raises ForeignFileError, and no byte of the file changes."""
    path.write_bytes(data)
    with pytest.raises(ForeignFileError, match="was not changed"):
        load(path, header=HEADER)
    with pytest.raises(ForeignFileError, match="was not changed"):
        AppendLog.open(path, header=HEADER)
    assert path.read_bytes() == data
    assert list(path.parent.iterdir()) == [path]


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """A FIFO, a device and a folder are refused without blocking."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/null")
    for path in ("fifo", "device", "."):
        with pytest.raises(StoreError, match="is not a regular file"):
            AppendLog.open(tmp_path / path, header=HEADER)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    """Opening a log in a folder that does not exist raises an error that states this cause."""
    with pytest.raises(StoreError, match="its folder does not exist"):
        AppendLog.open(tmp_path / "none" / "log", header=HEADER)


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 4096, HEADER[:9], HEADER + b',"s":1,"c'], ids=["empty", "zeros", "a", "b"]
)
def test_file_without_a_complete_header_is_restarted(path: Path, data: bytes) -> None:
    """Opening such a file saves its bytes in another file and writes a new header."""
    path.write_bytes(data)
    log, loaded = AppendLog.open(path, header=HEADER)
    log.close()
    assert loaded.torn == data
    assert load(path, header=HEADER).header == HEADER


def test_deleted_file_is_noticed_at_the_next_sync(log: AppendLog) -> None:
    """`sync` raises an error if the file was deleted while the log was open."""
    log.append(encoded(1))
    log.path.unlink()
    with pytest.raises(StoreError, match="the file was removed"):
        log.sync()


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(0, 300_000), max_size=8))
def test_newest_first_is_load_reversed(sizes: list[int]) -> None:
    """Reading from the end returns the objects of `load` in reverse order, for lines of any length."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log")
        path.write_bytes(sealed(*((encoded(number, "x" * size),) for number, size in enumerate(sizes))))
        loaded = load(path, header=HEADER)
        assert [*reversed(list(newest_first(path)))] == [loaded.header, *loaded.objects]


def test_reverse_reading_skips_damaged_lines(path: Path) -> None:
    """Reverse reading also skips the line that only a damaged line could verify."""
    data = written(path, *((encoded(number),) for number in range(1, 5)))
    path.write_bytes(damaged(data, 3, b"garbage") + b'{"torn')
    assert list(newest_first(path)) == [encoded(4), encoded(1), HEADER]


@given(st.binary(max_size=60))
def test_unseal_takes_any_bytes(line: bytes) -> None:
    """`unseal_line` returns None or a line for any bytes, and never raises."""
    assert unseal_line(line) is None or line.startswith(b"{")


@given(st.lists(st.binary(max_size=30).map(lambda text: text.replace(b"\n", b"")), max_size=4), st.integers(0, 9))
def test_line_is_recognized_in_any_context(others: list[bytes], place: int) -> None:
    """`sealed_at` finds a sealed line in a file exactly if `unseal_line` accepts the line alone."""
    sealed_lines, _, _ = seal_lines([b'{"x":1}', b'{"y":2}'], place, 0)
    data = b"\n".join([*others, *sealed_lines.splitlines(), *others])
    start = 0
    for line in data.split(b"\n"):
        sealed = unseal_line(line)
        at = sealed_at(data, start, start + len(line))
        assert at == (-1 if sealed is None else start + sealed.end)
        start += len(line) + 1
