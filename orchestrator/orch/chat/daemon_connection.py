"""The chat's connections to the daemon. The connections carry concurrent requests and one watch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from ..client.connection import ENDED, Connection
from ..client.failure import CommandError

__all__ = ["DaemonConnection"]

MAX_THREADS: Final = 8
OnEvent = Callable[[dict[str, Any]], None]
OnLost = Callable[[CommandError], None]


class _StoppedWaiting(Exception):
    """This client has stopped waiting."""


class DaemonConnection:
    """Sends requests to the daemon over connections from `connect`. Each request waits in a separate thread.

    All callbacks run on the event loop of the caller.
    """

    def __init__(self, connect: Callable[[], Connection] = Connection) -> None:
        self._connect = connect
        self._idle: list[Connection] = []
        self._threads = ThreadPoolExecutor(MAX_THREADS, "orch-chat")
        self._watch: threading.Event | None = None

    def sibling(self) -> DaemonConnection:
        """Return another DaemonConnection to the same daemon."""
        return DaemonConnection(self._connect)

    async def call(self, method: str, *, dropped: threading.Event | None = None, **params: Any) -> Any:
        """Return the result of a request. There is no time limit.

        Raises CommandError if the request fails, and shortly after `dropped` is set.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._request, method, params, dropped)

    @property
    def watching(self) -> bool:
        """Whether an agent is watched."""
        return self._watch is not None

    def watch(self, params: dict[str, Any], on_event: OnEvent, on_lost: OnLost) -> None:
        """Watch the turns of an agent, and stop watching the previous agent.

        If the watch fails, `on_lost` is called.
        """
        self.leave()
        self._watch = stopped = threading.Event()
        loop = asyncio.get_running_loop()

        def deliver(event: dict[str, Any]) -> None:
            if not stopped.is_set():
                on_event(event)

        def lost(failure: CommandError) -> None:
            if not stopped.is_set():
                self._watch = None
                on_lost(failure)

        threading.Thread(target=self._run_watch, args=(loop, params, stopped, deliver, lost), daemon=True).start()

    def leave(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.set()
            self._watch = None

    def close(self) -> None:
        """Stop watching and close idle connections. Requests in progress continue in the daemon."""
        self.leave()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._close_idle()

    def _close_idle(self) -> None:
        """Close idle connections. If one connection has ended, the daemon has ended the other connections too."""
        with suppress(IndexError):  # other threads take connections too
            while True:
                self._idle.pop().close()

    def _request(self, method: str, params: dict[str, Any], dropped: threading.Event | None) -> Any:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            result = connection.call(method, params, on_silence=_stop_check(dropped))
        except _StoppedWaiting:
            connection.close()  # closing the connection ends the request in the daemon
            raise CommandError("Interrupted", f"stopped waiting for {method}", 130) from None
        except CommandError as failure:
            connection.close()  # the connection may have received a part of a response
            if failure.kind in ENDED:
                self._close_idle()
            raise
        self._idle.append(connection)
        return result

    def _run_watch(
        self,
        loop: asyncio.AbstractEventLoop,
        params: dict[str, Any],
        stopped: threading.Event,
        on_event: OnEvent,
        on_lost: OnLost,
    ) -> None:
        connection = self._connect()
        try:
            connection.call(
                "watch",
                params,
                on_event=lambda event: _call_soon(loop, on_event, event),
                on_silence=_stop_check(stopped),
            )
        except _StoppedWaiting:
            pass
        except (CommandError, OSError) as error:
            failure = error if isinstance(error, CommandError) else CommandError("OSError", str(error))
            self._close_idle()
            _call_soon(loop, on_lost, failure)
        finally:
            connection.close()


def _stop_check(stopped: threading.Event | None) -> Callable[[], None] | None:
    """Return a function that ends the wait of a connection when `stopped` is set."""

    def silent() -> None:
        if stopped is not None and stopped.is_set():
            raise _StoppedWaiting

    return silent if stopped is not None else None


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[Any], None], argument: Any) -> None:
    try:
        loop.call_soon_threadsafe(callback, argument)
    except RuntimeError:
        pass  # the event loop is closed
