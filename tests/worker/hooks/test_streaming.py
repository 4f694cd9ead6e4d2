"""A response as hooks hear of it while it arrives."""

from __future__ import annotations

import asyncio
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
    """A model that says `first`, has to begin anew if there is `then`, and says that."""

    def __init__(self, first: list[str], then: list[str] | None = None, error: Exception | None = None) -> None:
        super().__init__([])
        self._first, self._then, self._error = first, then, error

    async def assistant_turn(self, on_text: Any = None) -> AssistantTurn:
        """Return all of it, after it was told in pieces."""
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
    """Return a hook that keeps what it is told of a response, and takes its time when there is `until`."""

    async def slowly(event: Event, _ctx: Any) -> None:
        seen.append(event)
        assert until is not None
        await until.wait()

    if until is None:
        return make_hook(lambda event, _ctx: seen.append(event), *stages, name="w", kind="observe")
    return make_hook(slowly, *stages, name="w", kind="observe")


def told(seen: list[Any]) -> list[Any]:
    """Return what was told, in short."""
    return [getattr(event, "text", getattr(event, "attempt", None)) for event in seen]


async def test_it_begins_goes_on_and_is_on_record() -> None:
    """A response is told when it begins to arrive, piece by piece, and whole once it is on record."""
    seen: list[Any] = []
    talk = Hooked(Piecewise(["a", "b", "c"]), watching(seen, *STAGES))  # type: ignore[arg-type]
    await talk.ask()
    assert seen[0].stage == "message_start"
    assert "".join(event.text for event in seen if event.stage == "message_update") == "abc"
    assert seen[-1].stage == "message_end"
    assert (seen[-1].text, seen[-1].stop_reason) == ("abc", "end_turn")


async def test_each_piece_is_told_and_nobody_waits() -> None:
    """Whoever listens hears every piece, in order; the response does not wait for that, the turn's end does."""
    seen: list[Any] = []
    talk = Hooked(Piecewise(list("abcdef")), watching(seen, "message_update"))  # type: ignore[arg-type]
    assert (await talk.ask()).text == "abcdef"
    assert told(seen) == list("abcdef")


async def test_a_request_that_is_made_again_begins_again() -> None:
    """What came of the first attempt is void, and whoever heard of it hears so."""
    seen: list[Any] = []
    talk = Hooked(Piecewise(["old"], ["new"]), watching(seen, "message_start", "message_update"))  # type: ignore[arg-type]
    await talk.ask()
    assert told(seen)[-2:] == [2, "new"]
    assert told(seen)[0] == 1


async def test_a_response_without_text_begins_and_ends() -> None:
    """Calls alone are a message too; which ones is told with its end."""
    seen: list[Any] = []
    talk = Hooked(Watched(CALL, "done"), watching(seen, *STAGES))
    await talk.ask()
    assert [event.stage for event in seen][:2] == ["message_start", "message_end"]
    assert seen[1].calls == ("shout",)


async def test_one_that_fails_leaves_nothing_behind() -> None:
    """When there is no response, hooks hear no more of it, and no task is left."""
    seen: list[Any] = []
    talk = Hooked(Piecewise(["x"], error=BackendError("gone")), watching(seen, *STAGES, until=asyncio.Event()))  # type: ignore[arg-type]
    with pytest.raises(BackendError):
        await talk.ask()
    await talk.hooks.error(BackendError("gone"))
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
async def test_nothing_is_shown_that_a_hook_may_still_change(answer: Any, shown: str) -> None:
    """Whoever watches is shown what the hook has let pass, once it has; what was shown could not be taken back."""
    talk = Hooked(Piecewise(["the k", "ey is", " here"]), on("after_provider_response", answer))  # type: ignore[arg-type]
    talk.shown = []
    await talk.ask()
    assert talk.shown == [shown]


async def test_where_hooks_only_look_on_it_is_shown_as_it_arrives() -> None:
    """Also where another one may change the reply in the end."""
    look = watching([], "after_provider_response", "message_update")
    talk = Hooked(Piecewise(["a", "b"]), look, on("before_output", None, name="o"))  # type: ignore[arg-type]
    talk.shown = []
    await talk.ask()
    assert talk.shown == ["a", "b"]


async def test_of_a_request_that_failed_nothing_was_shown() -> None:
    """The first attempt is void, and no hook has seen it."""
    talk = Hooked(Piecewise(["old"], ["new"]), on("after_provider_response", None))  # type: ignore[arg-type]
    talk.shown = []
    await talk.ask()
    assert talk.shown == ["new"]
