"""What is kept of a stream, and what is shown of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_worker.tools.shell.output_capture import OutputCapture, plain_output


def captured(most: int, *pieces: bytes) -> OutputCapture:
    """Return a capture of `most` bytes that took `pieces`."""
    capture = OutputCapture(most)
    for piece in pieces:
        capture(piece)
    return capture


def test_all_of_little_is_kept() -> None:
    """A stream that fits is kept whole."""
    assert captured(100, b"one ", b"two ", b"three").text() == "one two three"


def test_head_and_tail_of_much_are_kept() -> None:
    """Of a longer stream both ends are kept, and how much lay between them."""
    capture = captured(10, b"abc", b"d" * 1000, b"xyz")
    assert capture.text() == "abcdd\n[... 996 bytes left out ...]\nddxyz"
    assert capture.total == 1006


@given(st.lists(st.binary(max_size=40), max_size=40), st.integers(2, 60))
def test_ends_are_exact(pieces: list[bytes], most: int) -> None:
    """However a stream is cut into pieces, exactly its first and last bytes are kept, in bounded memory."""
    capture, whole, half = captured(most, *pieces), b"".join(pieces), most // 2
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
def test_plain(data: bytes, shown: str) -> None:
    """Text is as a terminal would leave it, and nothing in it does anything to a terminal."""
    assert plain_output(data) == shown


@given(st.binary(max_size=200))
def test_plain_takes_anything(data: bytes) -> None:
    """Any bytes become text that every encoding carries and no terminal obeys."""
    text = plain_output(data)
    text.encode()
    assert not any(char < " " and char not in "\n\t" for char in text)
