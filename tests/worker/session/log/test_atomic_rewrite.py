"""A file is written anew whole, or stays as it was."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.core.errors import StoreError
from orch_worker.session.log import atomic_rewrite as module
from orch_worker.session.log.append_log import AppendLog, load, scan_lines
from orch_worker.session.log.atomic_rewrite import LogRewrite, rewriting
from orch_worker.session.log_reader import lines_in

HEADER = b'{"type":"test","version":1}'
MESSAGES = [b'{"type":"message","n":%d}' % number for number in range(6)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of a header and six lines, the first three of them one append."""
    path = tmp_path / "file.jsonl"
    log, _ = AppendLog.open(path, header=HEADER)
    log.append(*MESSAGES[:3])
    for message in MESSAGES[3:]:
        log.append(message)
    log.close()
    return path


def copied(path: Path, new: LogRewrite, drop: int | None = None) -> None:
    """Write the file anew, without the message with that number."""
    with open(path, "rb") as file:
        for number, (_, line, sealed, _) in enumerate(scan_lines(file)):
            if sealed is None:
                new.keep(line)
            elif number - 1 != drop:
                new.append(sealed.object, sealed)


def test_a_copy_is_the_same_file(path: Path) -> None:
    """To the byte, when nothing is left out: what was one append still is."""
    before = path.read_bytes()
    with rewriting(path) as new:
        copied(path, new)
    assert path.read_bytes() == before
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_left_out_is_not_missed(path: Path) -> None:
    """Lines are chained anew, and the file goes on from there."""
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


def test_what_was_written_can_be_read_before_it_is_in_place(path: Path) -> None:
    """Wherever it is: still waiting, or handed to the kernel."""
    with open(path, "rb") as file:
        likes = [sealed for *_, sealed, _ in scan_lines(file) if sealed is not None]
    with rewriting(path) as new:
        new.append(b'{"n":1}', likes[0])
        end = new.end
        new.append(b'{"n":2}', likes[1])
        read = b"".join(new.read([(end, new.end - end), (0, end)]))
    assert [line[:6] for line in read.splitlines()] == [b'{"n":2', b'{"n":1']


@pytest.mark.parametrize("fault", ["open", "write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Whichever step it is that fails; the error says what to do, and nothing else is left."""
    before = path.read_bytes()

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, fault, full)
    with pytest.raises(StoreError, match="disk full"), rewriting(path) as new:
        copied(path, new)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_write_may_be_short(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of it follows."""
    before, write = path.read_bytes(), os.write
    monkeypatch.setattr(module.os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    with rewriting(path) as new:
        copied(path, new)
    monkeypatch.undo()
    assert path.read_bytes() == before


def test_an_error_on_the_way_leaves_the_old_file(path: Path) -> None:
    """Whatever it is."""
    before = path.read_bytes()

    def interrupted(new: LogRewrite) -> None:
        copied(path, new, drop=1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), rewriting(path) as new:
        interrupted(new)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_what_somebody_who_was_killed_left_goes_with_the_next_opening(path: Path) -> None:
    """It is half a file, and never took the other's place."""
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


def test_a_link_in_the_way_is_not_followed(path: Path, tmp_path: Path) -> None:
    """Somebody may have put it there: it is removed, and what it leads to is left alone."""
    other = tmp_path / "other"
    other.write_text("mine")
    path.with_name("file.jsonl.new").symlink_to(other)
    with rewriting(path) as new:
        copied(path, new)
    assert other.read_text() == "mine"
    assert load(path, header=HEADER).report == ""


def spoilt(path: Path, *numbers: int) -> None:
    """Change what stands on the lines of these messages."""
    for number in numbers:
        path.write_bytes(path.read_bytes().replace(b'"n":%d' % number, b'"n":%d' % (number + 10)))


def behind(path: Path) -> list[bool]:
    """Return whether each good line is sound to who begins to read with it."""
    with open(path, "rb") as file:
        spans = [(offset, len(line)) for offset, line, sealed, _ in scan_lines(file) if sealed is not None]
    return [line.sound for span in spans for line in lines_in(path, [span])]


@pytest.mark.parametrize("numbers", [(3,), (5,), (1, 4), (3, 4), (0, 1, 2)])
def test_damaged_lines_are_kept(path: Path, numbers: tuple[int, ...]) -> None:
    """What is said of them is what was said, and those behind them are sound."""
    spoilt(path, *numbers)
    before, data = load(path, header=HEADER), path.read_bytes()
    with rewriting(path) as new:
        copied(path, new)
    assert path.read_bytes() == data
    with open(path, "rb") as file, rewriting(path) as new:
        for _, line, sealed, _ in scan_lines(file):
            if sealed is not None:
                new.append(sealed.object.replace(b'"n":', b'"number":'), sealed)
            else:
                new.keep(line)
    after = load(path, header=HEADER)
    assert [str(damage) for damage in after.damage] == [str(damage) for damage in before.damage]
    assert after.objects == [object.replace(b'"n":', b'"number":') for object in before.objects]
    assert all(behind(path))


@pytest.mark.parametrize("numbers", [(3,), (5,), (1, 4), (3, 4), (0, 1, 2)])
def test_a_damaged_line_can_be_emptied(path: Path, numbers: tuple[int, ...]) -> None:
    """It stays as damaged as it was, and tells nothing; those around it are what they were."""
    spoilt(path, *numbers)
    before = load(path, header=HEADER)
    with open(path, "rb") as file, rewriting(path) as new:
        for _, line, sealed, _ in scan_lines(file):
            if sealed is None:
                new.spoil(line, b'{"type":"message",gone}')
            else:
                new.append(sealed.object, sealed)
    after = load(path, header=HEADER)
    assert after.objects == before.objects
    assert [str(damage) for damage in after.damage] == [str(damage) for damage in before.damage]
    assert not any(b'"n":%d' % (number + 10) in path.read_bytes() for number in numbers)
    assert all(behind(path))
