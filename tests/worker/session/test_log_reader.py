"""Messages read where they stand, and what is said when they are not what stood there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orch_protocol.core.archives import Span
from orch_protocol.core.errors import DamagedError, StoreError
from orch_protocol.core.messages import Reply, assistant, text_of, user
from orch_worker.session.log_reader import entries_in, lines_in, messages_in, read_spans, sha256_of
from orch_worker.session.transcript import Transcript


class File:
    """A session file with three messages, the end of a turn between the second and the third."""

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
        """Return the lines `first` to `last`; the head of the file is 0."""
        return sum(map(len, self.lines[:first])), sum(map(len, self.lines[first : last + 1]))

    def spoil(self, was: bytes, now: bytes) -> None:
        """Change what stands in it."""
        self.path.write_bytes(self.path.read_bytes().replace(was, now))


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    """A file."""
    return File(tmp_path)


def said(file: File, *spans: Span, expected: str = "", first: int = 1, last: int | None = None) -> list[str]:
    """Return what the messages on `spans` say."""
    return [text_of(entry.message) for _, entry in messages_in(file.path, spans, expected, first, last)]


def test_messages_alone_and_in_order(file: File) -> None:
    """Other lines between them are passed over; each comes with where its line begins."""
    span = file.span(1, 4)
    assert said(file, span) == ["one", "two", "three"]
    assert said(file, file.span(1, 1), file.span(4, 4)) == ["one", "three"]
    assert [offset for offset, _ in messages_in(file.path, [span])] == [file.span(n, n)[0] for n in (1, 2, 4)]
    assert said(file, span, expected=sha256_of(read_spans(file.path, [span]))) == ["one", "two", "three"]


def test_some_of_them(file: File) -> None:
    """They count from 1; what is behind the last is not read."""
    span = file.span(1, 4)
    assert said(file, span, first=2) == ["two", "three"]
    assert said(file, span, first=2, last=2) == ["two"]
    assert said(file, span, first=4) == []
    file.spoil(b"three", b"thrxe")
    assert said(file, span, last=2) == ["one", "two"]


def test_nothing_is_on_no_lines(file: File) -> None:
    """And that is no damage."""
    assert said(file) == []
    assert said(file, expected=sha256_of([])) == []


@pytest.mark.parametrize("expected", [False, True])
def test_a_damaged_message_is_named(file: File, expected: bool) -> None:
    """With its number and place, also when it is the first of its span: the line before has what it is checked by."""
    span = file.span(2, 4)
    known = sha256_of(read_spans(file.path, [span])) if expected else ""
    file.spoil(b"two", b"twx")
    with pytest.raises(DamagedError, match=rf"entry 1, in .* at byte {span[0]}, is damaged"):
        said(file, span, expected=known)
    assert [held.entry is None for held in entries_in(file.path, [span], known)] == [True, False]
    assert said(file, span, expected=known, first=2) == ["three"]


def test_damage_beside_the_messages_is_none_of_theirs(file: File) -> None:
    """The end of a turn stands between them; without it they are what they were."""
    span = file.span(1, 4)
    known = sha256_of(read_spans(file.path, [span]))
    file.spoil(b'"steps"', b'"stepz"')
    file.spoil(b'"id":"a"', b'"id":"b"')
    assert said(file, span, expected=known) == ["one", "two", "three"]


@pytest.mark.parametrize("was", [b'{"type":"mess', b'"},{"', b'"c":"'])
def test_what_cannot_be_counted_is_damaged_as_a_whole(file: File, was: bytes) -> None:
    """A line whose type or end is gone may have been a message or not, so no number behind it can be believed."""
    lines = list(file.lines)
    lines[2] = lines[2].replace(was, was[:-1] + b"?") if was in lines[2] else lines[2][:-1]
    file.path.write_bytes(b"".join(lines))
    with pytest.raises(DamagedError, match="at byte"):
        said(file, file.span(1, 4))


def test_sound_lines_of_another_file_are_not_what_was_archived(file: File, tmp_path: Path) -> None:
    """Their checksums fit, and yet they hash to something else."""
    span = file.span(1, 4)
    known = sha256_of(read_spans(file.path, [span]))
    other = File(tmp_path / "other")
    file.path.write_bytes(other.path.read_bytes())
    with pytest.raises(DamagedError, match="differs from the archived messages: was the file replaced"):
        said(file, span, expected=known)


def test_a_file_that_is_too_short_is_damaged(file: File) -> None:
    """Wherever it ends."""
    span = file.span(1, 4)
    known = sha256_of(read_spans(file.path, [span]))
    data = file.path.read_bytes()
    for size in range(span[0], len(data)):
        file.path.write_bytes(data[:size])
        for expected in ("", known):
            with pytest.raises(DamagedError):
                said(file, span, expected=expected)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """It cannot be read, which is no damage."""
    with pytest.raises(StoreError, match=r"cannot read .*nothing\.jsonl: No such file"):
        list(lines_in(tmp_path / "nothing.jsonl", [(0, 10)]))
