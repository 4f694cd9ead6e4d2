"""Atomic rewriting of a log file: the file is replaced completely or stays unchanged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.core.errors import StoreError
from orch_worker.session.archived_entries import lines_in
from orch_worker.session.log import atomic_rewrite as module
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.log.atomic_rewrite import LogRewrite, rewriting
from orch_worker.session.log.log_reader import load, scan_lines

HEADER = b'{"type":"test","version":1}'
MESSAGES = [b'{"type":"message","n":%d}' % number for number in range(6)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of a header and six lines. The first three lines are one append."""
    path = tmp_path / "file.jsonl"
    log, _ = AppendLog.open(path, header=HEADER)
    log.append(*MESSAGES[:3])
    for message in MESSAGES[3:]:
        log.append(message)
    log.close()
    return path


def copied(path: Path, new: LogRewrite, drop: int | None = None) -> None:
    """Copy the lines of the file at `path` to `new`, without the message number `drop`."""
    with open(path, "rb") as file:
        for line in scan_lines(file):
            if line.sealed is None:
                new.keep(line.data)
            elif line.number - 2 != drop:
                new.append(line.sealed.object, line.sealed)


def test_rewrite_without_removals_copies_the_file_exactly(path: Path) -> None:
    """A rewrite that removes no line preserves each byte, including the ends of appends."""
    before = path.read_bytes()
    with rewriting(path) as new:
        copied(path, new)
    assert path.read_bytes() == before
    assert path.stat().st_mode & 0o777 == 0o600


def test_rewrite_rechains_the_remaining_lines(path: Path) -> None:
    """After a line is removed, the file has no damage and accepts appends."""
    with rewriting(path) as new:
        copied(path, new, drop=4)
        assert path.read_bytes().count(b"\n") == 7
    loaded = load(path, header=HEADER)
    assert loaded.objects == [message for number, message in enumerate(MESSAGES) if number != 4]
    assert (loaded.report, loaded.seq) == ("", 7)
    log, _ = AppendLog.open(path, header=HEADER)
    log.append(b'{"more":1}')
    log.close()
    assert load(path, header=HEADER).report == ""


def test_rewritten_bytes_are_readable_before_the_replace(path: Path) -> None:
    """`LogRewrite.read` returns new lines in any order before the old file is replaced."""
    with open(path, "rb") as file:
        likes = [line.sealed for line in scan_lines(file) if line.sealed is not None]
    with rewriting(path) as new:
        new.append(b'{"n":1}', likes[0])
        end = new.end
        new.append(b'{"n":2}', likes[1])
        read = b"".join(new.read([(end, new.end - end), (0, end)]))
    assert [line[:6] for line in read.splitlines()] == [b'{"n":2', b'{"n":1']


@pytest.mark.parametrize("fault", ["open", "write", "fsync", "replace"])
def test_full_disk_during_a_rewrite_keeps_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """An error at any step leaves the old file unchanged and no temporary file."""
    before = path.read_bytes()

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, fault, full)
    with pytest.raises(StoreError, match="disk full"), rewriting(path) as new:
        copied(path, new)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_short_writes_are_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewrite is complete even if each `os.write` writes only seven bytes."""
    before, write = path.read_bytes(), os.write
    monkeypatch.setattr(module.os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    with rewriting(path) as new:
        copied(path, new)
    monkeypatch.undo()
    assert path.read_bytes() == before


def test_error_during_a_rewrite_keeps_the_old_file(path: Path) -> None:
    """KeyboardInterrupt leaves the old file unchanged and no temporary file."""
    before = path.read_bytes()

    def interrupted(new: LogRewrite) -> None:
        copied(path, new, drop=1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), rewriting(path) as new:
        interrupted(new)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_temporary_file_of_a_killed_rewrite_is_removed_on_open(path: Path) -> None:
    """Opening the log or rewriting it again removes the unfinished temporary file."""
    before = path.read_bytes()
    half = path.with_name("file.jsonl.new")
    half.write_bytes(b"half a li")
    log, loaded = AppendLog.open(path, header=HEADER)
    log.close()
    assert not half.exists()
    assert (path.read_bytes(), loaded.report) == (before, "")
    half.write_bytes(b"half a li")
    with rewriting(path) as new:
        copied(path, new)
    assert os.listdir(path.parent) == [path.name]


def test_link_at_the_temporary_path_is_removed_not_followed(path: Path, tmp_path: Path) -> None:
    """The target of the link is unchanged."""
    other = tmp_path / "other"
    other.write_text("mine")
    path.with_name("file.jsonl.new").symlink_to(other)
    with rewriting(path) as new:
        copied(path, new)
    assert other.read_text() == "mine"
    assert load(path, header=HEADER).report == ""


def spoil_messages(path: Path, *numbers: int) -> None:
    """Change the text of these messages in the file without changing the checksums."""
    for number in numbers:
        path.write_bytes(path.read_bytes().replace(b'"n":%d' % number, b'"n":%d' % (number + 10)))


def undamaged_from_each_line(path: Path) -> list[bool]:
    """Return for each undamaged line whether the line is still undamaged when reading starts at the line."""
    with open(path, "rb") as file:
        spans = [(line.offset, len(line.data)) for line in scan_lines(file) if line.sealed is not None]
    return [line.undamaged for span in spans for line in lines_in(path, [span])]


@pytest.mark.parametrize("numbers", [(3,), (5,), (1, 4), (3, 4), (0, 1, 2)])
def test_rewrite_keeps_damaged_lines(path: Path, numbers: tuple[int, ...]) -> None:
    """A rewrite keeps damaged lines with the same reports, and the other lines stay verifiable."""
    spoil_messages(path, *numbers)
    before, data = load(path, header=HEADER), path.read_bytes()
    with rewriting(path) as new:
        copied(path, new)
    assert path.read_bytes() == data
    with open(path, "rb") as file, rewriting(path) as new:
        for line in scan_lines(file):
            if line.sealed is not None:
                new.append(line.sealed.object.replace(b'"n":', b'"number":'), line.sealed)
            else:
                new.keep(line.data)
    after = load(path, header=HEADER)
    assert [str(damage) for damage in after.damage] == [str(damage) for damage in before.damage]
    assert after.objects == [object.replace(b'"n":', b'"number":') for object in before.objects]
    assert all(undamaged_from_each_line(path))


@pytest.mark.parametrize("numbers", [(3,), (5,), (1, 4), (3, 4), (0, 1, 2)])
def test_damaged_line_can_be_blanked(path: Path, numbers: tuple[int, ...]) -> None:
    """`replace_damaged` removes the content of a damaged line, which stays damaged; the other lines are unchanged."""
    spoil_messages(path, *numbers)
    before = load(path, header=HEADER)
    with open(path, "rb") as file, rewriting(path) as new:
        for line in scan_lines(file):
            if line.sealed is None:
                new.replace_damaged(line.data, b'{"type":"message",gone}')
            else:
                new.append(line.sealed.object, line.sealed)
    after = load(path, header=HEADER)
    assert after.objects == before.objects
    assert [str(damage) for damage in after.damage] == [str(damage) for damage in before.damage]
    assert not any(b'"n":%d' % (number + 10) in path.read_bytes() for number in numbers)
    assert all(undamaged_from_each_line(path))
