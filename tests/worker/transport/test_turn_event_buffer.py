"""The buffer of a turn's events, which clients that connect later receive."""

from __future__ import annotations

from orch_protocol.wire.worker_messages import TurnEvent, TurnSoFar
from orch_worker.transport.turn_event_buffer import MAX_CHARACTERS, MAX_EVENTS, MAX_PIECES, TurnEventBuffer


def kept_events(*events: TurnEvent) -> TurnSoFar:
    """Return what the buffer keeps of `events`."""
    tale = TurnEventBuffer()
    for event in events:
        tale.add(event)
    return tale.so_far("q")


def test_pieces_of_the_current_response_are_merged() -> None:
    """Pieces of complete responses and of responses that were retried are dropped."""
    first = (TurnEvent(1, "text", "a"), TurnEvent(2, "message", "a", step=1), TurnEvent(3, "text", "void"))
    so_far = kept_events(*first, TurnEvent(4, "retry", "again"), TurnEvent(5, "text", "b"), TurnEvent(6, "text", "c"))
    assert [(each.kind, each.text, each.n) for each in so_far.events] == [
        ("message", "a", 2),
        ("retry", "again", 4),
        ("text", "bc", 6),
    ]
    assert (so_far.n, so_far.lost) == (6, 0)


def test_buffer_is_bounded() -> None:
    """The oldest events are dropped and counted, and the text of the current response is cut."""
    many = kept_events(*(TurnEvent(n, "hook", "x") for n in range(1, MAX_EVENTS + 4)))
    assert (len(many.events), many.lost, many.n) == (MAX_EVENTS, 3, MAX_EVENTS + 3)
    large = kept_events(*(TurnEvent(n, "message", "x" * (MAX_CHARACTERS // 2)) for n in range(1, 4)))
    assert (len(large.events), large.lost) == (2, 1)
    tale = TurnEventBuffer()
    for n in range(3 * MAX_PIECES):
        tale.add(TurnEvent(n + 1, "text", "y" * (MAX_CHARACTERS // MAX_PIECES)))
    assert len(tale.so_far("q").events[-1].text) == MAX_CHARACTERS
    assert len(tale._pieces) <= MAX_PIECES


def test_buffer_continues_the_state_of_another_process() -> None:
    """The buffer continues event numbers, text and the count of dropped events."""
    tale = TurnEventBuffer()
    tale.merge(TurnSoFar("q", (TurnEvent(5, "message", "a"), TurnEvent(9, "text", "b")), n=9, lost=2))
    tale.add(TurnEvent(10, "text", "c"))
    so_far = tale.so_far("q")
    assert ([each.text for each in so_far.events], so_far.n, so_far.lost) == (["a", "bc"], 10, 2)
