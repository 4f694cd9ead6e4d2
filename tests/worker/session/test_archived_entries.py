"""Reading archived messages at known positions of a session file, and errors when the file has changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orch_protocol.core.archives import Span
from orch_protocol.core.errors import DamagedError, StoreError
from orch_protocol.core.messages import Reply, assistant, text_of, user
from orch_worker.session.archived_entries import entries_in, lines_in, messages_in, read_spans, sha256_of
from orch_worker.session.transcript import Transcript


class File:
    """A session file with three messages. A turn ends between the second and the third message."""

    def __init__(self, folder: Path) -> None:
        transcript = Transcript.open(folder, agent="a", cwd="/")
        for message in (user("one"), assistant("two")):
            transcript.message(message, "q")
        transcript.turn_end("q", Reply("a", "q", "two"))
        transcript.message(user("three"), "q2")
        transcript.close()
        self.path = transcript.path
        self.lines = self.path.read_bytes().splitlines(keepends=True)

    def span(self, first: int, last: int) -> Span:
        """Return the span of the lines `first` to `last`. The header is line 0."""
        return sum(map(len, self.lines[:first])), sum(map(len, self.lines[first : last + 1]))

    def spoil(self, was: bytes, now: bytes) -> None:
        """Replace `was` by `now` in the file."""
        self.path.write_bytes(self.path.read_bytes().replace(was, now))


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    return File(tmp_path)


def texts_on(file: File, *spans: Span, expected: str = "", first: int = 1, last: int | None = None) -> list[str]:
    """Return the texts of the messages at `spans`."""
    return [text_of(entry.message) for _, entry in messages_in(file.path, spans, expected, first, last)]


def test_reader_yields_messages_with_their_offsets(file: File) -> None:
    """The reader skips entries that are not messages."""
    span = file.span(1, 4)
    assert texts_on(file, span) == ["one", "two", "three"]
    assert texts_on(file, file.span(1, 1), file.span(4, 4)) == ["one", "three"]
    assert [offset for offset, _ in messages_in(file.path, [span])] == [file.span(n, n)[0] for n in (1, 2, 4)]
    assert texts_on(file, span, expected=sha256_of(read_spans(file.path, [span]))) == ["one", "two", "three"]


def test_reader_returns_a_range_of_messages(file: File) -> None:
    """Message numbers start at 1, and the reader does not read lines after the last message of the range."""
    span = file.span(1, 4)
    assert texts_on(file, span, first=2) == ["two", "three"]
    assert texts_on(file, span, first=2, last=2) == ["two"]
    assert texts_on(file, span, first=4) == []
    file.spoil(b"three", b"thrxe")
    assert texts_on(file, span, last=2) == ["one", "two"]


def test_empty_range_is_not_damaged(file: File) -> None:
    """An empty list of spans returns no messages, with and without an expected hash."""
    assert texts_on(file) == []
    assert texts_on(file, expected=sha256_of([])) == []


@pytest.mark.parametrize("expected", [False, True])
def test_damaged_message_is_reported_with_number_and_offset(file: File, expected: bool) -> None:
    """A damaged message raises DamagedError, and later messages can still be read."""
    span = file.span(2, 4)
    known = sha256_of(read_spans(file.path, [span])) if expected else ""
    file.spoil(b"two", b"twx")
    with pytest.raises(DamagedError, match=rf"entry 1, in .* at byte {span[0]}, is damaged"):
        texts_on(file, span, expected=known)
    assert [held.entry is None for held in entries_in(file.path, [span], known)] == [True, False]
    assert texts_on(file, span, expected=known, first=2) == ["three"]


def test_damage_between_messages_is_ignored(file: File) -> None:
    """Damage in the entry between two messages does not prevent reading the messages."""
    span = file.span(1, 4)
    known = sha256_of(read_spans(file.path, [span]))
    file.spoil(b'"steps"', b'"stepz"')
    file.spoil(b'"id":"a"', b'"id":"b"')
    assert texts_on(file, span, expected=known) == ["one", "two", "three"]


@pytest.mark.parametrize("was", [b'{"type":"mess', b'"},{"', b'"c":"'])
def test_unreadable_line_makes_message_numbers_unreliable(file: File, was: bytes) -> None:
    """An unreadable line may have been a message, so reading past it raises DamagedError."""
    lines = list(file.lines)
    lines[2] = lines[2].replace(was, was[:-1] + b"?") if was in lines[2] else lines[2][:-1]
    file.path.write_bytes(b"".join(lines))
    with pytest.raises(DamagedError, match="at byte"):
        texts_on(file, file.span(1, 4))


def test_valid_lines_with_another_hash_are_damaged(file: File, tmp_path: Path) -> None:
    """Valid lines of a replaced file raise DamagedError, because they are not the archived messages."""
    span = file.span(1, 4)
    known = sha256_of(read_spans(file.path, [span]))
    other = File(tmp_path / "other")
    file.path.write_bytes(other.path.read_bytes())
    with pytest.raises(DamagedError, match=r"differs from the archived messages \(file replaced"):
        texts_on(file, span, expected=known)


def test_file_shorter_than_the_archive_is_damaged(file: File) -> None:
    """A file that is cut at any byte of the archived span raises DamagedError."""
    span = file.span(1, 4)
    known = sha256_of(read_spans(file.path, [span]))
    data = file.path.read_bytes()
    for size in range(span[0], len(data)):
        file.path.write_bytes(data[:size])
        for expected in ("", known):
            with pytest.raises(DamagedError):
                texts_on(file, span, expected=expected)


def test_missing_file_is_named(tmp_path: Path) -> None:
    """A missing file raises StoreError with the path and the cause."""
    with pytest.raises(StoreError, match=r"cannot read .*nothing\.jsonl: No such file"):
        list(lines_in(tmp_path / "nothing.jsonl", [(0, 10)]))
