"""The text of files that a person wrote."""

from __future__ import annotations

import codecs

import pytest

from orch_protocol.core.text import UTF8_MARK, TextEncodingError, decode_text, without_mark

TEXT = "Größe = 1\r\nx\n"


@pytest.mark.parametrize("mark", [b"", UTF8_MARK])
def test_mark_is_left_out_and_line_ends_become_newlines(mark: bytes) -> None:
    """The line ends stay on request."""
    assert decode_text(mark + TEXT.encode()) == TEXT.replace("\r\n", "\n")
    assert decode_text(mark + TEXT.encode(), keep_line_ends=True) == TEXT


def test_only_one_mark_at_the_beginning_is_left_out() -> None:
    """A second one is text."""
    assert decode_text(UTF8_MARK * 2 + b"a" + UTF8_MARK) == "\ufeffa\ufeff"


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (TEXT.encode("utf-16"), "UTF-16"),
        (codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"), "UTF-16"),
        (TEXT.encode("utf-32"), "UTF-32"),
        (codecs.BOM_UTF32_BE + TEXT.encode("utf-32-be"), "UTF-32"),
        (TEXT.encode("utf-16-le"), "UTF-16LE"),
        (TEXT.encode("utf-16-be"), "UTF-16BE"),
    ],
)
def test_other_encoding_is_named_or_decoded(data: bytes, encoding: str) -> None:
    """The error says what to do. A lossy reader gets the text if there is a mark."""
    with pytest.raises(TextEncodingError, match=f"^it is encoded as {encoding}: save it as UTF-8$") as caught:
        decode_text(data)
    assert caught.value.line == 1
    if len(encoding) == len("UTF-16"):
        assert decode_text(data, lossy=True) == TEXT.replace("\r\n", "\n")


def test_invalid_byte_is_named_with_its_line() -> None:
    """A lossy reader gets a replacement character."""
    with pytest.raises(TextEncodingError, match=r"^not UTF-8 \(byte 0xe9\): save it as UTF-8$") as caught:
        decode_text(UTF8_MARK + b"a\r\nb\n\xe9")
    assert caught.value.line == 3
    assert decode_text(b"a\xe9", lossy=True) == "a\N{REPLACEMENT CHARACTER}"


def test_half_a_character_of_another_encoding_is_replaced() -> None:
    """A reader may have read only the beginning of a file."""
    assert decode_text("ab".encode("utf-16")[:-1], lossy=True) == "a\N{REPLACEMENT CHARACTER}"


def test_bytes_of_a_record_lose_their_mark_only() -> None:
    """A zero byte in a damaged record does not make another encoding of it."""
    assert without_mark(UTF8_MARK + b"{\0\r\n") == b"{\0\r\n"
    with pytest.raises(TextEncodingError, match="UTF-16"):
        without_mark("{".encode("utf-16"))
