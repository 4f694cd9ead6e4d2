"""What is kept of a turn for who comes later."""

from __future__ import annotations

from orch_protocol.wire.worker_messages import TurnEvent, TurnSoFar
from orch_worker.transport.turn_event_buffer import MOST_CHARACTERS, MOST_EVENTS, MOST_PIECES, TurnEventBuffer


def told(*events: TurnEvent) -> TurnSoFar:
    """Return what is kept of them."""
    tale = TurnEventBuffer()
    for event in events:
        tale.add(event)
    return tale.so_far("q")


def test_pieces_of_the_response_under_way_are_one_text_at_the_end() -> None:
    """Those of a response that is complete, or void, are left out."""
    first = (TurnEvent(1, "text", "a"), TurnEvent(2, "message", "a", step=1), TurnEvent(3, "text", "void"))
    so_far = told(*first, TurnEvent(4, "retry", "again"), TurnEvent(5, "text", "b"), TurnEvent(6, "text", "c"))
    assert [(each.kind, each.text, each.n) for each in so_far.events] == [
        ("message", "a", 2),
        ("retry", "again", 4),
        ("text", "bc", 6),
    ]
    assert (so_far.n, so_far.lost) == (6, 0)


def test_it_does_not_grow_without_end() -> None:
    """What is oldest goes, and is counted; of a response without end the last is kept."""
    many = told(*(TurnEvent(n, "hook", "x") for n in range(1, MOST_EVENTS + 4)))
    assert (len(many.events), many.lost, many.n) == (MOST_EVENTS, 3, MOST_EVENTS + 3)
    large = told(*(TurnEvent(n, "message", "x" * (MOST_CHARACTERS // 2)) for n in range(1, 4)))
    assert (len(large.events), large.lost) == (2, 1)
    tale = TurnEventBuffer()
    for n in range(3 * MOST_PIECES):
        tale.add(TurnEvent(n + 1, "text", "y" * (MOST_CHARACTERS // MOST_PIECES)))
    assert len(tale.so_far("q").events[-1].text) == MOST_CHARACTERS
    assert len(tale._pieces) <= MOST_PIECES


def test_what_another_process_has_kept_is_gone_on_with() -> None:
    """Its numbers and what it has lost stay."""
    tale = TurnEventBuffer()
    tale.follow(TurnSoFar("q", (TurnEvent(5, "message", "a"), TurnEvent(9, "text", "b")), n=9, lost=2))
    tale.add(TurnEvent(10, "text", "c"))
    so_far = tale.so_far("q")
    assert ([each.text for each in so_far.events], so_far.n, so_far.lost) == (["a", "bc"], 10, 2)
