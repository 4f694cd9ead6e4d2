"""Encoding and decoding of entries, including lines of unknown types."""

from __future__ import annotations

import json

import pytest

from orch_protocol.core.errors import StoreError
from orch_protocol.core.messages import Message, Opaque, Thinking, user
from orch_protocol.session.entries import ArchiveEntry, MessageEntry, SessionHeader, SessionInfo, UpgradeEntry
from orch_worker.backends.formats.normalize_messages import with_model
from orch_worker.session.entry_codec import (
    DECODE_ERRORS,
    ENTRY_PREFIXES,
    HEADER_PREFIX,
    MESSAGE_PREFIXES,
    UnknownEntry,
    decode_entry,
    decode_lines,
    decode_link,
    encode_entry,
    encode_json,
    line_prefixes,
    read_entry,
)

MESSAGE = MessageEntry(id="00000001", parent_id=None, timestamp="", message=user("a"))
LATER = b'{"type":"poem","id":"00000002","parentId":"00000001","verse":1}'
"""An entry of a type that only a later version knows."""


def test_line_is_read_as_the_entry_that_was_encoded() -> None:
    """`read_entry` and `decode_entry` both return the entry that `encode_entry` encoded."""
    line, same = encode_entry(MESSAGE)
    assert same is MESSAGE
    assert read_entry(line) == decode_entry(line) == MESSAGE


def test_entry_of_unknown_type_keeps_its_place() -> None:
    """An entry of an unknown type is decoded to its id, its parent and its type."""
    assert decode_entry(LATER) == UnknownEntry("00000002", "00000001", "poem") == decode_link(LATER)
    with pytest.raises(DECODE_ERRORS):
        read_entry(LATER)


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b'{"type":"message"}', b'{"id":1}', b"\xff", b"[" * 100_000])
def test_line_without_a_place_is_no_entry(line: bytes) -> None:
    """A line without a valid entry id is decoded to None."""
    assert decode_entry(line) is None
    assert decode_link(line) is None


def test_lines_with_an_unknown_entry_are_decoded_one_by_one() -> None:
    """An unknown entry does not change the other entries, and lines without an entry are omitted."""
    line, _ = encode_entry(MESSAGE)
    assert decode_lines(line + b"\n" + line + b"\n") == [MESSAGE, MESSAGE]
    assert decode_lines(b"\n".join([line, LATER, b"{}", line, b""])) == [
        MESSAGE,
        UnknownEntry("00000002", "00000001", "poem"),
        MESSAGE,
    ]


def test_prefix_identifies_the_kind_of_a_line() -> None:
    """Prefixes distinguish kinds even if the name of one kind begins with the name of another."""
    line, _ = encode_entry(MESSAGE)
    assert line.startswith(MESSAGE_PREFIXES)
    assert line.startswith(ENTRY_PREFIXES)
    assert not line.startswith(HEADER_PREFIX)
    title, _ = encode_entry(SessionInfo(id="00000001", parent_id=None, timestamp="", name="x"))
    header, _ = encode_entry(SessionHeader(id="a", timestamp="", cwd="/"))
    assert header.startswith(HEADER_PREFIX)
    assert not title.startswith(HEADER_PREFIX)
    assert line_prefixes(ArchiveEntry | UpgradeEntry) == (b'{"type":"archive"', b'{"type":"archive_summary"')
    assert not b'{"type":"archive_summary"'.startswith(line_prefixes(ArchiveEntry))


def test_half_of_a_character_is_replaced() -> None:
    """An unpaired surrogate in a key or in a value is replaced by U+FFFD."""
    assert json.loads(encode_json({"k\udc00": ["a\ud800"]})) == {"k\ufffd": ["a\ufffd"]}


def test_reasoning_without_a_model_is_read() -> None:
    """Imported reasoning can lack a model. Its block has no key `model`."""
    blocks = (Thinking("hm", "sig", "p"), Opaque("p", {"type": "reasoning"}))
    entry = MessageEntry(id="a", parent_id=None, timestamp="t", message=Message("assistant", blocks))
    line, _ = encode_entry(entry)
    assert b"model" not in line
    assert read_entry(line) == entry
    labeled = MessageEntry(id="a", parent_id=None, timestamp="t", message=Message("assistant", with_model(blocks, "m")))
    assert read_entry(encode_entry(labeled)[0]) == labeled != entry


def test_value_other_than_json_is_refused() -> None:
    """A value that JSON cannot represent raises StoreError with the type of the value."""
    with pytest.raises(StoreError, match="cannot record a object"):
        encode_json(object())
