"""An event loop whose clock moves to the next timer as soon as there is no other work."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from orch_worker.system.threads import DAEMON_THREADS

__all__ = ["PatientLoop", "VirtualLoop", "passed", "until", "virtual"]

Test = Callable[..., Coroutine[Any, Any, None]]


class _Selector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    now = 0.0
    working = 0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        if self.working:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop on which hours pass at once.

    Work for a thread runs immediately. The clock does not wait for processes.
    """

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._virtual.now

    def skip(self, seconds: float) -> None:
        """Move the clock forward by `seconds`, as for a suspended machine. All timers in this time are late."""
        self._virtual.now += seconds

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Call `function` now, in place of a thread."""
        if executor not in (None, DAEMON_THREADS):
            return super().run_in_executor(executor, function, *args)
        done = self.create_future()
        try:
            done.set_result(function(*args))
        except Exception as error:
            done.set_exception(error)
        return done


class PatientLoop(VirtualLoop):
    """A loop whose clock stops while a thread works. Lateness then depends on the clock and not on the machine."""

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Call `function` in a thread of `executor`. No virtual time passes until its end."""
        future = super().run_in_executor(executor, function, *args)
        self._virtual.working += 1
        future.add_done_callback(self._done)
        return future

    def _done(self, _: asyncio.Future[Any]) -> None:
        self._virtual.working -= 1


def virtual(test: Test) -> Callable[..., None]:
    """Run an asynchronous test on a VirtualLoop."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


async def passed(seconds: float) -> None:
    """Return after `seconds` of virtual time."""
    await asyncio.sleep(seconds)


async def until(condition: Callable[[], object], limit: float = 1000.0) -> None:
    """Return when `condition` is true. Raises TimeoutError if it is not true within `limit` seconds."""
    async with asyncio.timeout(limit):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
