"""The console's connections to the daemon: requests beside each other, and a watch that goes on meanwhile."""

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

AT_ONCE: Final = 8
OnEvent = Callable[[dict[str, Any]], None]
OnLost = Callable[[CommandError], None]


class _Left(Exception):
    """The watch is not wanted any more."""


class DaemonConnection:
    """Asks the daemon by connections that `connect` makes, each in a thread of its own while it waits.

    All callbacks come in the event loop that the link is used in.
    """

    def __init__(self, connect: Callable[[], Connection] = Connection) -> None:
        self._connect = connect
        self._idle: list[Connection] = []
        self._threads = ThreadPoolExecutor(AT_ONCE, "orch-chat")
        self._watch: threading.Event | None = None

    def sibling(self) -> DaemonConnection:
        """Return another link to the same daemon."""
        return DaemonConnection(self._connect)

    async def call(self, method: str, *, dropped: threading.Event | None = None, **params: Any) -> Any:
        """Return what comes of a request, however long that takes. Raises Failure, also soon after `dropped` is set."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._asked, method, params, dropped)

    @property
    def watching(self) -> bool:
        """Whether an agent is watched."""
        return self._watch is not None

    def watch(self, params: dict[str, Any], on_event: OnEvent, on_lost: OnLost) -> None:
        """Be told of the turns of an agent from now on, of no other any more; `on_lost` is called when that ends."""
        self.leave()
        self._watch = left = threading.Event()
        loop = asyncio.get_running_loop()

        def told(event: dict[str, Any]) -> None:
            if not left.is_set():
                on_event(event)

        def lost(failure: CommandError) -> None:
            if not left.is_set():
                self._watch = None
                on_lost(failure)

        threading.Thread(target=self._follow, args=(loop, params, left, told, lost), daemon=True).start()

    def leave(self) -> None:
        """Watch no more."""
        if self._watch is not None:
            self._watch.set()
            self._watch = None

    def close(self) -> None:
        """Hang up. What was asked for and is under way goes on."""
        self.leave()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._hang_up()

    def _hang_up(self) -> None:
        """Close what is idle: where one connection has ended, the others lead nowhere either."""
        with suppress(IndexError):  # threads take them too
            while True:
                self._idle.pop().close()

    def _asked(self, method: str, params: dict[str, Any], dropped: threading.Event | None) -> Any:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            result = connection.call(method, params, on_silence=_raising(dropped))
        except _Left:
            connection.close()  # which ends what waits at the other end
            raise CommandError("Interrupted", f"{method} is not waited for any more", 130) from None
        except CommandError as failure:
            connection.close()  # it may be half read
            if failure.kind in ENDED:
                self._hang_up()
            raise
        self._idle.append(connection)
        return result

    def _follow(
        self,
        loop: asyncio.AbstractEventLoop,
        params: dict[str, Any],
        left: threading.Event,
        told: OnEvent,
        lost: OnLost,
    ) -> None:
        connection = self._connect()
        try:
            connection.call(
                "watch",
                params,
                on_event=lambda event: _tell(loop, told, event),
                on_silence=_raising(left),
            )
        except _Left:
            pass
        except (CommandError, OSError) as error:
            failure = error if isinstance(error, CommandError) else CommandError("OSError", str(error))
            self._hang_up()
            _tell(loop, lost, failure)
        finally:
            connection.close()


def _raising(left: threading.Event | None) -> Callable[[], None] | None:
    """Return what ends the waiting of a connection once `left` is set."""

    def silent() -> None:
        if left is not None and left.is_set():
            raise _Left

    return silent if left is not None else None


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[Any], None], what: Any) -> None:
    try:
        loop.call_soon_threadsafe(callback, what)
    except RuntimeError:
        pass  # the loop is closed: nobody is there any more
