"""Reading log files line by line, and reading the appended lines of a growing file."""

from __future__ import annotations

from pathlib import Path

import pytest

from append_logs import HEADER, encoded, sealed, written
from orch_protocol.core.errors import ForeignFileError, StoreError
from orch_worker.session.log.log_reader import LogCursor, group_appends, load, scan_file


def objects_after(cursor: LogCursor, path: Path) -> list[bytes | None]:
    """Return the objects that `cursor` reads from the file at `path`."""
    with open(path, "rb") as file:
        return [line.object for line in cursor.read(file)]


def test_lines_have_numbers_and_offsets(path: Path) -> None:
    """The number, the offset and the bytes of each line match the file."""
    data = written(path, (encoded(1),), (encoded(2), encoded(3)))
    lines = list(scan_file(path))
    assert [line.number for line in lines] == [1, 2, 3, 4]
    assert b"".join(line.data for line in lines) == data
    assert all(data[line.offset : line.end] == line.data for line in lines)
    assert [line.object for line in lines] == [HEADER, encoded(1), encoded(2), encoded(3)]


def test_damaged_line_has_a_remark_and_no_object(path: Path) -> None:
    """The remark, the number and the offset match the damage that `load` reports."""
    path.write_bytes(sealed((encoded(1),), (encoded(2),)).replace(b'"n":1', b'"n":7'))
    _, bad, good = scan_file(path)
    assert (bad.object, good.object) == (None, encoded(2))
    (damage,) = load(path, header=HEADER).damage
    assert (damage.line, damage.offset, damage.reason) == (bad.number, bad.offset, bad.remark)


def test_damaged_lines_belong_to_the_append_after_them(path: Path) -> None:
    """A damaged line belongs to the next append; at the end of the file that append is incomplete."""
    path.write_bytes(sealed((encoded(1), encoded(2)), (encoded(3),), (encoded(4),)).replace(b'"n":3', b'"n":7')[:-1])
    appends = list(group_appends(scan_file(path)))
    assert [[line.number for line in lines] for lines, _ in appends] == [[1], [2, 3], [4, 5]]
    assert [complete for _, complete in appends] == [True, True, False]


def test_scanning_a_folder_or_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """Scanning a folder or a missing file raises an error."""
    with pytest.raises((ForeignFileError, StoreError)):
        list(scan_file(tmp_path))
    with pytest.raises(StoreError):
        list(scan_file(tmp_path / "missing"))


def test_cursor_reads_each_append_once(path: Path) -> None:
    """A second read returns only the lines that were appended after the first read."""
    cursor = LogCursor()
    written(path, (encoded(1),))
    assert objects_after(cursor, path) == [HEADER, encoded(1)]
    assert objects_after(cursor, path) == []
    written(path, (encoded(2), encoded(3)))
    assert objects_after(cursor, path) == [encoded(2), encoded(3)]
    assert cursor.end == path.stat().st_size


def test_cursor_waits_for_complete_appends(path: Path) -> None:
    """The cursor returns no line of an incomplete append, and all lines when the append is complete."""
    data = sealed((encoded(1),), (encoded(2), encoded(3)))
    start = len(sealed((encoded(1),)))
    for cut in range(start, len(data)):
        path.write_bytes(data[:cut])
        cursor = LogCursor()
        assert objects_after(cursor, path) == [HEADER, encoded(1)]
        path.write_bytes(data)
        assert objects_after(cursor, path) == [encoded(2), encoded(3)]


def test_cursor_yields_damaged_lines_in_their_place(path: Path) -> None:
    """The cursor returns a damaged line without an object and reads the lines before and after it."""
    path.write_bytes(sealed((encoded(1),), (encoded(2),), (encoded(3),)).replace(b'"n":2', b'"n":7'))
    assert objects_after(LogCursor(), path) == [HEADER, encoded(1), None, encoded(3)]


def test_cursor_notices_another_file(path: Path) -> None:
    """`is_valid` is false if the file was cut, emptied or replaced by a different file of the same length."""
    data = sealed((encoded(1),), (encoded(2),))
    cursor = LogCursor()
    path.write_bytes(data)
    objects_after(cursor, path)
    for other, same in (
        (data, True),
        (sealed((encoded(1),), (encoded(2),), (encoded(3),)), True),
        (data[:-3], False),
        (b"", False),
        (sealed((encoded(5),), (encoded(2),)), False),
    ):
        path.write_bytes(other)
        with open(path, "rb") as file:
            assert cursor.is_valid(file) is same
