"""Decoding of event streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_worker.backends.formats.server_sent_events import EventDecoder, ServerSentEvent

TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=20)
EVENTS = st.lists(st.builds(ServerSentEvent, TEXT, TEXT), max_size=5)


def decoded(*pieces: bytes) -> list[ServerSentEvent]:
    decoder = EventDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


@given(EVENTS, st.sampled_from(["\n", "\r\n", "\r"]), st.data())
def test_events_do_not_depend_on_line_ends_and_pieces(
    events: list[ServerSentEvent], end: str, data: st.DataObject
) -> None:
    stream = "".join(f"event: {name}{end}data: {text}{end}{end}" for name, text in events).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[first:last] for first, last in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert decoded(*pieces) == events


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\ndata: b\n\n", [("", "a\nb")]),
        (b"data:a\n\n", [("", "a")]),
        (b"data:  a\n\n", [("", " a")]),
        (b"data\n\n", [("", "")]),
        (b": comment\n\n: another\nevent: x\ndata: 1\n\n", [("x", "1")]),
        (b"event: ping\n\n", []),
        (b"id: 4\nretry: 9\ndata: 1\n\n", [("", "1")]),
        (b"\n\n\n\ndata: 1\n\n\n", [("", "1")]),
        (b"data: incomplete\n", []),
    ],
)
def test_fields_of_events(stream: bytes, expected: list[tuple[str, str]]) -> None:
    assert decoded(stream) == expected


def test_line_feed_after_a_piece_that_ends_with_carriage_return_ends_no_second_line() -> None:
    assert decoded(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\ndata: c\r\n\r\n") == [("", "a\nb"), ("", "c")]


def test_invalid_utf_8_raises_an_error() -> None:
    with pytest.raises(UnicodeDecodeError):
        decoded(b'data: "\xff"\n\n')


def test_events_before_invalid_utf_8_can_be_used() -> None:
    events = EventDecoder().feed(b'data: 1\n\nevent: x\ndata: "\xff"\n\n')
    assert next(events) == ("", "1")
    with pytest.raises(UnicodeDecodeError, match="position 7"):
        next(events)
