"""Runs user functions in daemon threads beside an event loop, so that a function that hangs cannot block the exit."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor, Future
from operator import sub
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Final, NamedTuple, ParamSpec, TypeAlias, TypeVar

from .memory_limit import with_memory_limit
from .secrets import withheld_hint

__all__ = [
    "DAEMON_THREADS",
    "DeadlineExceeded",
    "OverdueTasks",
    "Task",
    "TaskBatch",
    "TaskResults",
    "ThreadPerCall",
    "ThreadPool",
    "await_result",
    "describe_exception",
    "in_thread",
    "is_interrupt",
    "run_coroutine",
    "transferable_error",
]


P = ParamSpec("P")
T = TypeVar("T")


class ThreadPerCall(Executor):
    """An executor that runs each call in a new daemon thread. Calls never wait for each other and never block the exit.

    In the default executor of the event loop, calls may wait for each other and block the exit. Moreover, the default
    executor belongs to the user's program.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start the call, and return its future."""
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


DAEMON_THREADS: Final = ThreadPerCall()


def in_thread(act: Callable[[], Any]) -> asyncio.Future[tuple[Any, str]]:
    """Run `act` in a daemon thread with a copy of the current context variables.

    The result of the future is a pair: the value and "", or None and the text of the exception.
    """
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
        with contextlib.suppress(RuntimeError):  # The loop is closed, and no task waits for the result.
            loop.call_soon_threadsafe(settle, outcome)

    here = contextvars.copy_context()
    threading.Thread(target=here.run, args=(run,), name="orch-aside", daemon=True).start()
    return future


async def await_result(value: Any) -> tuple[Any, str]:
    """Return the value of `value` and "". Await `value` if necessary.

    On failure, return None and the text of the exception.

    SystemExit, and a cancellation inside the awaited code, count as exceptions. A cancellation of the caller is raised.
    """
    try:
        return (await value if inspect.isawaitable(value) else value), ""
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
    """Return whether `error` is a Ctrl-C.

    Only the main thread receives a Ctrl-C. In other threads, a function raised the exception itself.
    """
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def describe_exception(error: BaseException) -> str:
    """Return the type and text of `error`, with a hint if the error concerns a withheld variable."""
    try:
        return with_memory_limit(f"{type(error).__name__}: {error}{withheld_hint(error)}")
    except Exception:
        return type(error).__name__


# --- Thread pool with timeouts ---

Job = Callable[[], None]
Task: TypeAlias = tuple[str, float, Callable[[Any, Any], Any], Any]
"""A task: key for `overdue`, timeout in seconds, function, and second argument of the function.

A task is a plain tuple, because a turn may run hundreds of tasks.
"""


class DeadlineExceeded(Exception):
    """A function did not return before its timeout. The function may still be running."""


class TaskResults(NamedTuple):
    """The durations of tasks in seconds, and their return values (other than None) or errors.

    Keys of `results` are positions.
    """

    seconds: list[float]
    results: dict[int, tuple[Any, Exception | None]]


class OverdueTasks(Counter[str]):
    """The number of tasks that still run after their timeout, by the key of the task."""

    def returned(self, key: str) -> None:
        """Count a task that returned after its timeout."""
        self[key] -= 1
        if not self[key]:
            del self[key]


class TaskBatch:
    """Tasks that one thread runs in order. If a task hangs, the thread is abandoned.

    `turns` is an iterator with one item for each task from the position `first` on: the thread takes one item at a
    time, and `abandon` takes all remaining items. Taking an item from an iterator is atomic. Therefore no lock is
    needed, and no task runs twice.
    """

    def __init__(self, tasks: Sequence[Task], turns: Iterator[Any], first: int = 0) -> None:
        self.tasks, self.turns, self.first = tasks, turns, first
        self.stop = len(tasks)
        """The position before which the tasks belong to the thread."""
        self.hanging_task = ""
        """Key of the task that did not return when the thread was abandoned, otherwise ""."""
        self.began = perf_counter()
        self.end_times: list[float] = []
        """End times of the finished tasks."""
        self.results: dict[int, tuple[Any, Exception | None]] = {}
        """The return values other than None, and the errors. Keys are positions of tasks."""

    def remaining_seconds(self) -> float:
        """Return the seconds until the current task exceeds its timeout."""
        done = len(self.end_times)
        place = min(self.first + done, len(self.tasks) - 1)
        return (self.end_times[done - 1] if done else self.began) + self.tasks[place][1] - perf_counter()

    def abandon(self) -> None:
        """Prevent the thread from starting further tasks. A running task continues, but its result is ignored."""
        self.stop -= len(list(self.turns))
        done = len(self.end_times)
        if self.first + done < self.stop:
            # The task counts as late even if it returns at this moment.
            self.hanging_task = self.tasks[self.first + done][0]
            self.end_times = self.end_times[:done]  # This is a copy, because the thread still appends to the old list.

    def durations(self) -> list[float]:
        """Return the durations of the finished tasks in seconds."""
        return list(map(sub, self.end_times, (self.began, *self.end_times)))

    def timeout_error(self) -> DeadlineExceeded:
        """Return the error of the task that hangs."""
        return DeadlineExceeded(f"did not answer within {self.tasks[self.first + len(self.end_times)][1]:g} s")


class ThreadPool:
    """A pool with one thread for each concurrent batch.

    A function that hangs keeps its thread and delays no other task.

    Threads cannot be ended. `overdue` counts the functions that still run after their timeout.
    """

    def __init__(self) -> None:
        self.overdue = OverdueTasks()
        self._idle: list[SimpleQueue[Job | None]] = []

    async def run(self, key: str, function: Callable[[], Any], seconds: float) -> Any:
        """Return the result of `function`, or raise its exception. Raise DeadlineExceeded after `seconds`."""
        ran = await self.run_all([(key, seconds, lambda _first, _second: function(), None)], [None])
        value, error = ran.results.get(0, (None, None))
        if error is not None:
            raise error
        return value

    async def run_all(self, tasks: Sequence[Task], first_arguments: Sequence[Any]) -> TaskResults:
        """Call the functions of `tasks` in order, and return the results.

        The first argument of each function is the item of `first_arguments` at the same position. All calls share one
        thread, because switching threads takes time. If a function hangs, another thread continues with the next
        function. Raise only CancelledError.
        """
        if not tasks:
            return TaskResults([], {})
        ran = await self._run(tasks, first_arguments)
        while (done := len(ran.seconds)) < len(tasks):
            more = await self._run(tasks[done:], first_arguments[done:])
            ran.results.update((done + place, result) for place, result in more.results.items())
            ran.seconds.extend(more.seconds)
        return ran

    async def _run(self, tasks: Sequence[Task], first_arguments: Sequence[Any]) -> TaskResults:
        """Return the results of `tasks` up to the first task that hangs."""
        queue = self._idle.pop() if self._idle else _started()
        batch = _PoolBatch(tasks, first_arguments)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        timer: asyncio.TimerHandle

        def job() -> None:
            batch.run_tasks()
            try:
                loop.call_soon_threadsafe(self._finish, batch, queue, done)
            except RuntimeError:
                queue.put(None)  # The loop is closed, so the thread is not needed again.

        def check_timeout() -> None:
            nonlocal timer
            if done.done():
                return
            if (left := batch.remaining_seconds()) > 0:
                timer = loop.call_later(min(left, shortest), check_timeout)
            else:
                batch.abandon()
                done.set_result(None)

        queue.put(job)
        # A later task with a short timeout may time out before the first task's timeout ends.
        shortest = min(seconds for _, seconds, _, _ in tasks)
        timer = loop.call_later(shortest, check_timeout)
        try:
            await done
        except asyncio.CancelledError:
            batch.abandon()
            raise
        finally:
            timer.cancel()
            if batch.hanging_task:
                self.overdue[batch.hanging_task] += 1
        return batch.ran()

    def close(self) -> None:
        """End the idle threads."""
        while self._idle:
            self._idle.pop().put(None)

    def _finish(self, batch: _PoolBatch, queue: SimpleQueue[Job | None], done: asyncio.Future[None]) -> None:
        self._idle.append(queue)
        if batch.hanging_task:
            self.overdue.returned(batch.hanging_task)
        if not done.done():
            done.set_result(None)


class _PoolBatch(TaskBatch):
    """The tasks of one call of `run_all`. `first_arguments` are the first arguments of their functions."""

    def __init__(self, tasks: Sequence[Task], first_arguments: Sequence[Any]) -> None:
        super().__init__(tasks, iter(range(len(tasks))))
        self._first_arguments = first_arguments

    def run_tasks(self) -> None:
        """Run the tasks."""
        self.began = perf_counter()
        tasks, first_arguments, ended, results = self.tasks, self._first_arguments, self.end_times, self.results
        for place in self.turns:
            _, _, function, second = tasks[place]
            try:
                value = function(first_arguments[place], second)
                if value is not None:
                    results[place] = value, None
            except StopIteration as raised:
                results[place] = None, transferable_error(raised)
            except Exception as raised:
                results[place] = None, raised
            except BaseException as raised:
                results[place] = None, transferable_error(raised)
            ended.append(perf_counter())

    def ran(self) -> TaskResults:
        """Return the results of the tasks that belong to the thread."""
        seconds, results = self.durations(), self.results
        if self.hanging_task:
            place = len(seconds)
            results = {at: each for at, each in results.copy().items() if at < place}
            results[place] = None, self.timeout_error()
            seconds.append(self.tasks[place][1])
        return TaskResults(seconds, results)


async def run_coroutine(coroutine: Coroutine[Any, Any, T], seconds: float) -> T:
    """Return the result of `coroutine`, or raise its exception. Raise DeadlineExceeded after `seconds`."""
    task: asyncio.Task[T] = asyncio.create_task(_transferable(coroutine))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        task.add_done_callback(_retrieve)
        raise DeadlineExceeded(f"did not answer within {seconds:g} s")
    if task.cancelled():
        raise RuntimeError("cancelled itself")
    return task.result()


async def _transferable(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        return await coroutine
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise transferable_error(error) from error


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def transferable_error(error: BaseException) -> Exception:
    """Return a RuntimeError for an exception that futures and event loops treat specially, such as StopIteration."""
    return RuntimeError(f"{type(error).__name__}: {error}")


def _started() -> SimpleQueue[Job | None]:
    queue: SimpleQueue[Job | None] = SimpleQueue()
    threading.Thread(target=_serve, args=(queue,), name="orch hook", daemon=True).start()
    return queue


def _serve(queue: SimpleQueue[Job | None]) -> None:
    while (job := queue.get()) is not None:
        job()
        del job
