"""Hooks that receive a response while it arrives."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from orch_protocol.core.errors import BackendError
from orch_protocol.core.messages import assistant
from orch_protocol.hooks.events import Event
from orch_protocol.hooks.patches import Abort
from orch_worker.backends.base import AssistantTurn
from orch_worker.backends.offline.scripted import ScriptedBackend
from orch_worker.hooks.hook import Hook, make_hook
from worker.agent.test_turn_hooks import CALL, Hooked, Watched, on

STAGES = ("message_start", "message_update", "message_end")


class Piecewise(ScriptedBackend):
    """A model that streams `first`, and then raises `error`, or retries and streams `then`."""

    def __init__(self, first: list[str], then: list[str] | None = None, error: Exception | None = None) -> None:
        super().__init__([])
        self._first, self._then, self._error = first, then, error

    async def assistant_turn(self, on_text: Any = None) -> AssistantTurn:
        """Stream the pieces and return the whole response."""
        on_text = on_text or (lambda _piece: None)
        for piece in self._first:
            on_text(piece)
            await asyncio.sleep(0)
        if self._error is not None:
            raise self._error
        if self._then is not None:
            assert self.on_retry is not None
            self.on_retry("again")  # type: ignore[arg-type]
            for piece in self._then:
                on_text(piece)
        return AssistantTurn(assistant("".join(self._then or self._first)), "end_turn")


def watching(seen: list[Any], *stages: str, until: asyncio.Event | None = None) -> Hook:
    """Return a hook that appends events to `seen`, and then waits for `until` if it is given."""

    async def slowly(event: Event, _ctx: Any) -> None:
        seen.append(event)
        assert until is not None
        await until.wait()

    if until is None:
        return make_hook(lambda event, _ctx: seen.append(event), *stages, name="w", kind="observe")
    return make_hook(slowly, *stages, name="w", kind="observe")


def brief_events(seen: list[Any]) -> list[Any]:
    """Return the text or the attempt of each event."""
    return [getattr(event, "text", getattr(event, "attempt", None)) for event in seen]


async def test_stream_stages_report_start_pieces_and_end() -> None:
    """The end reports the whole text and the stop reason."""
    seen: list[Any] = []
    talk = Hooked(Piecewise(["a", "b", "c"]), watching(seen, *STAGES))  # type: ignore[arg-type]
    await talk.ask()
    assert seen[0].stage == "message_start"
    assert "".join(event.text for event in seen if event.stage == "message_update") == "abc"
    assert seen[-1].stage == "message_end"
    assert (seen[-1].text, seen[-1].stop_reason) == ("abc", "end_turn")


async def test_streaming_hooks_see_every_piece_without_delaying_it() -> None:
    """The end of the turn waits until the hooks have received every piece."""
    seen: list[Any] = []
    gate = threading.Event()

    def slow(event: Event, _ctx: Any) -> None:
        assert gate.wait(20)
        seen.append(event)

    talk = Hooked(Piecewise(list("abcdef")), make_hook(slow, "message_update", name="slow", kind="observe"))  # type: ignore[arg-type]
    talk.shown = []
    asked = asyncio.create_task(talk.ask())
    for _ in range(100):
        await asyncio.sleep(0)
    assert (talk.shown, seen, asked.done()) == (list("abcdef"), [], False)
    gate.set()
    assert (await asked).text == "abcdef"
    assert brief_events(seen) == list("abcdef")


async def test_retried_request_restarts_the_stream() -> None:
    """A retried request reports a new start with the number of the attempt."""
    seen: list[Any] = []
    talk = Hooked(Piecewise(["old"], ["new"]), watching(seen, "message_start", "message_update"))  # type: ignore[arg-type]
    await talk.ask()
    assert brief_events(seen)[-2:] == [2, "new"]
    assert brief_events(seen)[0] == 1


async def test_response_without_text_starts_and_ends() -> None:
    """The end reports the calls of the response."""
    seen: list[Any] = []
    talk = Hooked(Watched(CALL, "done"), watching(seen, *STAGES))
    await talk.ask()
    assert [event.stage for event in seen][:2] == ["message_start", "message_end"]
    assert seen[1].calls == ("shout",)


async def test_failed_response_ends_the_stream_without_leftovers() -> None:
    """After an error there is no `message_end` event, and no task remains."""
    seen: list[Any] = []
    talk = Hooked(Piecewise(["x"], error=BackendError("gone")), watching(seen, *STAGES, until=asyncio.Event()))  # type: ignore[arg-type]
    with pytest.raises(BackendError):
        await talk.ask()
    talk.calls.notify("error", kind="BackendError", message="gone")
    await talk.calls.wait_until_delivered()
    await talk.calls.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert "message_end" not in [event.stage for event in seen]


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (lambda event: event.patch(text=event.text.replace("key", "***")), "the *** is here"),
        (Abort("It is not told."), "It is not told."),
        (None, "the key is here"),
    ],
)
async def test_text_is_shown_after_hooks_that_may_change_it(answer: Any, shown: str) -> None:
    """The user sees only the text that the hook returned, because shown text cannot be withdrawn."""
    talk = Hooked(Piecewise(["the k", "ey is", " here"]), on("after_provider_response", answer))  # type: ignore[arg-type]
    talk.shown = []
    await talk.ask()
    assert talk.shown == [shown]


async def test_text_streams_directly_with_observers_only() -> None:
    """An output hook that may change the reply at the end does not prevent streaming."""
    look = watching([], "after_provider_response", "message_update")
    talk = Hooked(Piecewise(["a", "b"]), look, on("before_output", None, name="o"))  # type: ignore[arg-type]
    talk.shown = []
    await talk.ask()
    assert talk.shown == ["a", "b"]


async def test_failed_attempt_is_not_shown_before_response_hooks() -> None:
    """Only the text of the second attempt is shown."""
    talk = Hooked(Piecewise(["old"], ["new"]), on("after_provider_response", None))  # type: ignore[arg-type]
    talk.shown = []
    await talk.ask()
    assert talk.shown == ["new"]
