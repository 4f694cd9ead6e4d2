"""An event loop whose clock jumps to the next timer as soon as nothing else is to be done."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from orch_worker.system.threads import ASIDE

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
    """Hours pass in no time. What is meant for a thread is done at once; for processes the clock does not wait."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Return the seconds that have passed."""
        return self._virtual.now

    def skip(self, seconds: float) -> None:
        """Let so much time pass at once, as for a machine that is suspended: everything is late together."""
        self._virtual.now += seconds

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Call `function` here and now, if it is for any thread there is."""
        if executor not in (None, ASIDE):
            return super().run_in_executor(executor, function, *args)
        done = self.create_future()
        try:
            done.set_result(function(*args))
        except Exception as error:
            done.set_exception(error)
        return done


class PatientLoop(VirtualLoop):
    """One whose clock stands still while a thread is at work: what is late is so by the clock, not by the machine."""

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Call `function` in a thread of `executor`, and let no time pass meanwhile."""
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
    """Return when so much time has passed."""
    await asyncio.sleep(seconds)


async def until(condition: Callable[[], object], most: float = 1000.0) -> None:
    """Return when `condition` holds. Raises TimeoutError when it does not within `most` seconds."""
    async with asyncio.timeout(most):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
