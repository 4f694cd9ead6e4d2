"""The capture of a command's output: how much of it is kept, and how it is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_worker.tools.shell.output_capture import OutputCapture, plain_output


def captured(limit: int, *pieces: bytes) -> OutputCapture:
    """Return a capture with this limit that has received `pieces`."""
    capture = OutputCapture(limit)
    for piece in pieces:
        capture(piece)
    return capture


def test_short_stream_is_kept_whole() -> None:
    """Output within the limit is returned unchanged."""
    assert captured(100, b"one ", b"two ", b"three").text() == "one two three"


def test_long_stream_keeps_head_and_tail() -> None:
    """The text states how many bytes are left out between the beginning and the end."""
    capture = captured(10, b"abc", b"d" * 1000, b"xyz")
    assert capture.text() == "abcdd\n[... 996 bytes left out ...]\nddxyz"
    assert capture.total == 1006


@given(st.lists(st.binary(max_size=40), max_size=40), st.integers(2, 60))
def test_head_and_tail_are_exact_for_any_chunks(pieces: list[bytes], limit: int) -> None:
    """For any sizes of chunks, the kept text is exact and the memory is bounded."""
    capture, whole, half = captured(limit, *pieces), b"".join(pieces), limit // 2
    if len(whole) <= 2 * half:
        assert capture.text() == plain_output(whole)
    else:
        left_out = len(whole) - 2 * half
        ends = plain_output(whole[:half]), plain_output(whole[-half:])
        assert capture.text() == f"{ends[0]}\n[... {left_out:,} bytes left out ...]\n{ends[1]}"
    assert len(capture._head) + len(capture._tail) <= 3 * half + 40


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"a\tb\nc", "a\tb\nc"),
        ("h\u00e9\U0001f600".encode(), "h\u00e9\U0001f600"),
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07text", "text"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1bMup\x1b(B", "up"),
        (b"10%\r50%\r100%\r\ndone\r\n", "100%\ndone\n"),
        (b"a\x00b\x07\x7f", "a\ufffdb\ufffd\ufffd"),
        (b"\xff\xfe\xc3", "\ufffd\ufffd\ufffd"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        (b"\xc2\x9b31mred", "\ufffd31mred"),
    ],
)
def test_terminal_sequences_are_removed(data: bytes, shown: str) -> None:
    """Escape sequences and overwritten text are removed, and control characters and invalid bytes are replaced."""
    assert plain_output(data) == shown


@given(st.binary(max_size=200))
def test_any_bytes_become_safe_text(data: bytes) -> None:
    """The text can be encoded and contains no control characters except tabs and newlines."""
    text = plain_output(data)
    text.encode()
    assert not any(char < " " and char not in "\n\t" for char in text)
