"""The chat's connections to the daemon: concurrent requests, watches, and requests that are dropped."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from orch.chat.daemon_connection import DaemonConnection
from orch.client.failure import CommandError


class Wire:
    """A fake connection, and the factory of connections. Each request waits for `go`."""

    def __init__(self) -> None:
        self.made = 0
        self.closed = 0
        self.begun = threading.Event()
        self.go = threading.Event()
        self.events: list[dict[str, Any]] = []
        self.failure: CommandError | None = None

    def __call__(self) -> Any:
        """Count a new connection."""
        self.made += 1
        return self

    def call(self, method: str, params: Any, *, on_event: Any = None, on_silence: Any = None) -> Any:
        """Send the events, wait for `go`, and return the request or raise `failure`."""
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
        """Count a closed connection."""
        self.closed += 1


@pytest.fixture
def wire() -> Wire:
    return Wire()


async def test_concurrent_requests_share_a_pool_of_connections(wire: Wire) -> None:
    """Slow requests do not delay each other, and an idle connection is used again."""
    connection = DaemonConnection(wire)
    slow = [asyncio.ensure_future(connection.call("query", ref=str(n))) for n in range(3)]
    while wire.made < 3:  # noqa: ASYNC110  # yields to threads
        await asyncio.sleep(0)
    wire.go.set()
    assert [(await each)[1] for each in slow] == [{"ref": "0"}, {"ref": "1"}, {"ref": "2"}]
    await connection.call("list")
    assert wire.made == 3
    connection.close()
    assert wire.closed == 3


async def test_cancelled_request_fails_and_disconnects(wire: Wire) -> None:
    """The connection is closed, so that the daemon does not continue to wait."""
    connection, dropped = DaemonConnection(wire), threading.Event()
    task = asyncio.ensure_future(connection.call("execute", dropped=dropped, ref="1"))
    await asyncio.to_thread(wire.begun.wait)
    dropped.set()
    with pytest.raises(CommandError, match="stopped waiting for execute"):
        await task
    assert wire.closed == 1
    connection.close()


async def test_connections_of_an_ended_daemon_are_discarded(wire: Wire) -> None:
    """After the end of the daemon, the next request opens a new connection."""
    connection, lost = DaemonConnection(wire), asyncio.Event()
    wire.go.set()
    await asyncio.gather(*(connection.call("list") for _ in range(3)))
    made = wire.made
    wire.failure = CommandError("DaemonGone", "gone")
    connection.watch({"ref": "1"}, lambda _: None, lambda _: lost.set())
    await lost.wait()
    wire.failure = None
    await connection.call("submit", ref="1")
    assert wire.made == made + 2
    connection.close()


async def test_watch_delivers_events_until_it_is_closed(wire: Wire) -> None:
    """A lost connection is reported to the watcher."""
    connection = DaemonConnection(wire)
    seen: list[Any] = []
    lost = asyncio.Event()
    wire.events = [{"n": 1}]
    connection.watch({"ref": "1"}, seen.append, lambda _: lost.set())
    while not seen:  # noqa: ASYNC110  # yields to a thread
        await asyncio.sleep(0)
    connection.leave()
    assert not connection.watching
    wire.failure = CommandError("DaemonGone", "gone")
    wire.go.set()
    connection.watch({"ref": "2"}, seen.append, lambda _: lost.set())
    await lost.wait()
    assert seen == [{"n": 1}, {"n": 1}]
    assert not connection.watching
    connection.close()
