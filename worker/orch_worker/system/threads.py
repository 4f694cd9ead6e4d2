"""Functions of the user's that run beside an event loop, in threads that keep nobody from leaving."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Final, NamedTuple, ParamSpec, TypeAlias, TypeVar

from .secrets import withheld_hint

__all__ = [
    "ASIDE",
    "DeadlineExceeded",
    "Task",
    "TaskResults",
    "ThreadPerCall",
    "ThreadPool",
    "await_result",
    "describe_exception",
    "in_thread",
    "is_interrupt",
    "transferable_error",
]


P = ParamSpec("P")
T = TypeVar("T")


class ThreadPerCall(Executor):
    """Runs each call in a thread of its own: none waits until another one's returns, and none keeps anybody from
    leaving. Those of the event loop's own executor do both, and belong to the program."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin the call, and return its future."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        future.set_running_or_notify_cancel()
        threading.Thread(target=run, name="orch-aside", daemon=True).start()
        return future


ASIDE: Final = ThreadPerCall()


def in_thread(act: Callable[[], Any]) -> asyncio.Future[tuple[Any, str]]:
    """Run `act` in a thread that keeps nobody from leaving, with the context variables that there are here; return what
    it returned, or what it raised as text."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[Any, str]] = loop.create_future()

    def settle(outcome: tuple[Any, str]) -> None:
        if not future.done():
            future.set_result(outcome)

    def run() -> None:
        try:
            outcome = act(), ""
        except BaseException as error:
            outcome = None, describe_exception(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, outcome)

    here = contextvars.copy_context()
    threading.Thread(target=here.run, args=(run,), name="orch-aside", daemon=True).start()
    return future


async def await_result(said: Any) -> tuple[Any, str]:
    """Return what `said` comes to, which may be awaitable, or what is raised as text: also when it leaves the program,
    or was cancelled from within, as by awaiting what somebody else has cancelled."""
    try:
        return (await said if inspect.isawaitable(said) else said), ""
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return None, describe_exception(error)
    except BaseException as error:
        if is_interrupt(error):
            raise
        return None, describe_exception(error)


def is_interrupt(error: BaseException) -> bool:
    """Tell whether `error` may be Ctrl-C: the main thread alone hears that, anywhere else a function raised it."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def describe_exception(error: BaseException) -> str:
    """Return the type and the text of `error`, and a hint where a variable was withheld from this process."""
    try:
        return f"{type(error).__name__}: {error}{withheld_hint(error)}"
    except Exception:
        return type(error).__name__


# --- Threads in which plain functions run for an event loop that does not wait longer for them than it wants ... ---

Job = Callable[[], None]
Task: TypeAlias = tuple[str, float, Callable[[Any, Any], Any], Any]
"""A function and its second argument, behind the seconds that it may take and the key that it is counted under while
it hangs. A plain tuple, which is made once: there are hundreds of them to be called in a turn."""


class DeadlineExceeded(Exception):
    """A function did not return in time; says so. It runs on."""


class TaskResults(NamedTuple):
    """What came of some tasks: how long each one took, and by its place what one returned that was not None, or raised
    (Late when it is late)."""

    seconds: list[float]
    said: dict[int, tuple[Any, Exception | None]]


class ThreadPool:
    """As many threads as functions run at once. One that hangs keeps its thread, and holds up nobody else.

    A thread cannot be ended: `overdue` counts the functions that were given up and run on, by key.
    """

    def __init__(self) -> None:
        self.overdue: Counter[str] = Counter()
        self._idle: list[SimpleQueue[Job | None]] = []

    async def run(self, key: str, function: Callable[[], Any], seconds: float) -> Any:
        """Return what `function` returns, or raise what it raises. Raises Late after `seconds`."""
        ran = await self.run_all([(key, seconds, lambda _first, _second: function(), None)], [None])
        value, error = ran.said.get(0, (None, None))
        if error is not None:
            raise error
        return value

    async def run_all(self, tasks: Sequence[Task], firsts: Sequence[Any]) -> TaskResults:
        """Call the functions of `tasks` one after the other, each with its one of `firsts`, and return what came of it.

        All run in one thread, so that going there and back is paid for once; behind one that hangs another thread goes
        on. Raises nothing but CancelledError.
        """
        if not tasks:
            return TaskResults([], {})
        ran = await self._run(tasks, firsts)
        while (done := len(ran.seconds)) < len(tasks):
            more = await self._run(tasks[done:], firsts[done:])
            ran.said.update((done + place, said) for place, said in more.said.items())
            ran.seconds.extend(more.seconds)
        return ran

    async def _run(self, tasks: Sequence[Task], firsts: Sequence[Any]) -> TaskResults:
        """Return what came of `tasks`: of all, or of those up to one that hangs."""
        queue = self._idle.pop() if self._idle else _started()
        batch = _TaskBatch(tasks, firsts)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        timer: asyncio.TimerHandle

        def job() -> None:
            batch.work()
            try:
                loop.call_soon_threadsafe(self._finish, batch, queue, done)
            except RuntimeError:
                queue.put(None)  # the loop is closed: nobody will need this thread again

        def look() -> None:
            nonlocal timer
            if done.done():
                return
            if (left := batch.left()) > 0:
                timer = loop.call_later(min(left, shortest), look)
            else:
                batch.leave()
                done.set_result(None)

        queue.put(job)
        # One whose time is short may be due before the time of the first one ends.
        shortest = min(seconds for _, seconds, _, _ in tasks)
        timer = loop.call_later(shortest, look)
        try:
            await done
        except asyncio.CancelledError:
            batch.leave()
            raise
        finally:
            timer.cancel()
            if batch.hangs:
                self.overdue[batch.hangs] += 1
        return batch.ran()

    def close(self) -> None:
        """End the threads that do nothing."""
        while self._idle:
            self._idle.pop().put(None)

    def _finish(self, batch: _TaskBatch, queue: SimpleQueue[Job | None], done: asyncio.Future[None]) -> None:
        self._idle.append(queue)
        if batch.hangs:
            self.overdue[batch.hangs] -= 1
            if not self.overdue[batch.hangs]:
                del self.overdue[batch.hangs]
        if not done.done():
            done.set_result(None)


class _TaskBatch:
    """Tasks that one thread does in order, until they are done or it is left behind with one that hangs.

    A task is whose turn it is to take the next number of `_turns` takes: the thread, or whoever leaves it, who takes
    all there are. No lock is needed for that, and nothing is done twice.
    """

    def __init__(self, tasks: Sequence[Task], firsts: Sequence[Any]) -> None:
        self.hangs = ""
        """The key of the task with which the thread was left behind."""
        self._tasks = tasks
        self._firsts = firsts
        self._turns: Iterator[int] = iter(range(len(tasks)))
        self._owned = len(tasks)
        """How many of them are the thread's."""
        self._began = perf_counter()
        self._ended: list[float] = []
        """When each of those ended that are done."""
        self._said: dict[int, tuple[Any, Exception | None]] = {}
        """What they returned that was not None, and what they raised."""

    def work(self) -> None:
        """Do the tasks."""
        self._began = perf_counter()
        tasks, firsts, ended, said = self._tasks, self._firsts, self._ended, self._said
        for place in self._turns:
            _, _, function, second = tasks[place]
            try:
                value = function(firsts[place], second)
                if value is not None:
                    said[place] = value, None
            except StopIteration as raised:
                said[place] = None, transferable_error(raised)
            except Exception as raised:
                said[place] = None, raised
            except BaseException as raised:
                said[place] = None, transferable_error(raised)
            ended.append(perf_counter())

    def left(self) -> float:
        """Return for how many seconds the task under way may go on."""
        place = min(len(self._ended), len(self._tasks) - 1)
        began = self._ended[place - 1] if place else self._began
        return began + self._tasks[place][1] - perf_counter()

    def leave(self) -> None:
        """Let the thread begin no other task. The one under way, if there is one, runs on unheard."""
        self._owned -= len(list(self._turns))
        done = len(self._ended)
        if done < self._owned:
            self.hangs = self._tasks[done][0]
            self._ended = self._ended[:done]  # the thread keeps the other list

    def ran(self) -> TaskResults:
        """Return what came of the tasks that were the thread's."""
        ended = self._ended
        seconds = [end - begin for begin, end in zip([self._began, *ended], ended, strict=False)]
        said = self._said
        if self.hangs:
            place, most = len(seconds), self._tasks[len(seconds)][1]
            said = {at: each for at, each in said.copy().items() if at < place}
            said[place] = None, DeadlineExceeded(f"did not answer within {most:g} s")
            seconds.append(most)
        return TaskResults(seconds, said)


def transferable_error(error: BaseException) -> Exception:
    """Return what stands for an error that does not pass from a thread through a future and an event loop unharmed."""
    return RuntimeError(f"{type(error).__name__}: {error}")


def _started() -> SimpleQueue[Job | None]:
    queue: SimpleQueue[Job | None] = SimpleQueue()
    threading.Thread(target=_serve, args=(queue,), name="orch hook", daemon=True).start()
    return queue


def _serve(queue: SimpleQueue[Job | None]) -> None:
    while (job := queue.get()) is not None:
        job()
        del job
