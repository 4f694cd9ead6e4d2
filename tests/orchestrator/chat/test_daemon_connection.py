"""The console's connections: one beside the other, a watch that can be left, requests that can be dropped."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from orch.chat.daemon_connection import DaemonConnection
from orch.client.failure import CommandError


class Wire:
    """Stands where connections would: each waits until it may answer, and has a word for it."""

    def __init__(self) -> None:
        self.made = 0
        self.closed = 0
        self.begun = threading.Event()
        self.go = threading.Event()
        self.events: list[dict[str, Any]] = []
        self.failure: CommandError | None = None

    def __call__(self) -> Any:
        """Make a connection."""
        self.made += 1
        return self

    def call(self, method: str, params: Any, *, on_event: Any = None, on_silence: Any = None) -> Any:
        """Tell the events, then wait, in silence."""
        for event in self.events:
            on_event(event)
        self.begun.set()
        while not self.go.wait(0.001):
            if on_silence is not None:
                on_silence()
        if self.failure is not None:
            raise self.failure
        return [method, params]

    def close(self) -> None:
        """Count it."""
        self.closed += 1


@pytest.fixture
def wire() -> Wire:
    """A wire."""
    return Wire()


async def test_requests_wait_beside_each_other_and_share_connections(wire: Wire) -> None:
    """What takes long holds nothing else up; a connection that is idle is used again."""
    link = DaemonConnection(wire)
    slow = [asyncio.ensure_future(link.call("query", ref=str(n))) for n in range(3)]
    while wire.made < 3:  # noqa: ASYNC110  # gives way to threads
        await asyncio.sleep(0)
    wire.go.set()
    assert [(await each)[1] for each in slow] == [{"ref": "0"}, {"ref": "1"}, {"ref": "2"}]
    await link.call("list")
    assert wire.made == 3
    link.close()
    assert wire.closed == 3


async def test_a_request_that_is_dropped_fails_and_hangs_up(wire: Wire) -> None:
    """So that the other end does not wait either."""
    link, dropped = DaemonConnection(wire), threading.Event()
    task = asyncio.ensure_future(link.call("execute", dropped=dropped, ref="1"))
    await asyncio.to_thread(wire.begun.wait)
    dropped.set()
    with pytest.raises(CommandError, match="execute is not waited for any more"):
        await task
    assert wire.closed == 1
    link.close()


async def test_a_daemon_that_ended_leaves_no_connection_behind(wire: Wire) -> None:
    """What is asked next, of the next daemon, goes by a new one: those that were idle are as dead."""
    link, lost = DaemonConnection(wire), asyncio.Event()
    wire.go.set()
    await asyncio.gather(*(link.call("list") for _ in range(3)))
    made = wire.made
    wire.failure = CommandError("DaemonGone", "gone")
    link.watch({"ref": "1"}, lambda _: None, lambda _: lost.set())
    await lost.wait()
    wire.failure = None
    await link.call("submit", ref="1")
    assert wire.made == made + 2
    link.close()


async def test_a_watch_tells_until_it_is_left(wire: Wire) -> None:
    """Events come in the loop; of an agent that is not watched any more none does; that it was lost is told."""
    link = DaemonConnection(wire)
    seen: list[Any] = []
    lost = asyncio.Event()
    wire.events = [{"n": 1}]
    link.watch({"ref": "1"}, seen.append, lambda _: lost.set())
    while not seen:  # noqa: ASYNC110  # gives way to a thread
        await asyncio.sleep(0)
    link.leave()
    assert not link.watching
    wire.failure = CommandError("DaemonGone", "gone")
    wire.go.set()
    link.watch({"ref": "2"}, seen.append, lambda _: lost.set())
    await lost.wait()
    assert seen == [{"n": 1}, {"n": 1}]
    assert not link.watching
    link.close()
