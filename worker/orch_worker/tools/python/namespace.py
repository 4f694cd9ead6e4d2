"""Live Python: code run in this process, in names that stay bound from one run to the next."""

from __future__ import annotations

import ast
import asyncio
import builtins
import ctypes
import io
import linecache
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, Final, TextIO

from orch_protocol.core.errors import OrchError
from orch_protocol.core.taint import TaintLabel, bits_in, join_labels

from ...system import atomic_json
from ..api.base import ToolContext, ToolError, ToolOutput
from ..shell.output_capture import OutputCapture
from ..values import values
from ..values.repr import is_large, one_line_repr
from ..values.values import Handles, UnknownHandleError, ValueStore

__all__ = [
    "Namespace",
    "SavedNames",
    "first_names",
    "forget",
    "names_before_restart",
    "remember",
    "share_names",
    "take_back",
]


# --- Which names the process before this one had bound ---

NAME: Final = "names.json"
MOST: Final = 30
COARSE: Final = 0.05
"""Seconds. The times of files come from a clock that is that much behind, at the most."""


class SavedNames:
    """The names of an agent whose session is in `folder`, None where nothing is to be remembered."""

    def __init__(self, folder: Path | None) -> None:
        self._file = folder / NAME if folder is not None else None
        self._now: list[str] | None = None

    def lost(self, handles: Sequence[str]) -> str:
        """Return what is to be said in a process that has just begun, "" in the first one of an agent."""
        if self._file is None or not self._file.exists():
            return ""
        try:
            names = atomic_json.read(self._file, list[str], [], "")
        except OrchError:
            names = []
        which = f" ({first_names(names)})" if names else ""
        there = f" Handles are kept: {', '.join(handles[-MOST:])}." if handles else ""
        return f"[This is a new Python process: what earlier calls had bound is gone{which}.{there}]"

    def now(self, bound: Iterable[str]) -> None:
        """Remember what is bound now. What cannot be written is not told of one day."""
        names = sorted(bound)
        if self._file is None or names == self._now:
            return
        try:
            atomic_json.write(self._file, names, durable=False)
        except OrchError as error:
            print(error, flush=True)
        self._now = names


def first_names(names: Sequence[str]) -> str:
    """Return the first of `names`, and how many more there are."""
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return f"{', '.join(names[:MOST])}{more}"


def names_before_restart(folder: Path, since: float = 0.0) -> list[str]:
    """Return what the agent whose session is in `folder` had bound when its code ran last, nothing where that was
    before `since`, in seconds of the epoch. Raises StoreError."""
    try:
        ran = (folder / NAME).stat().st_mtime
    except OSError:
        ran = since  # there is none, or reading it tells what is wrong
    return atomic_json.read(folder / NAME, list[str], [], "") if ran >= since - COARSE else []


def forget(folder: Path) -> None:
    """Let it not be known any more what the names were, but that there were some. Raises StoreError."""
    if (file := folder / NAME).exists():
        atomic_json.write(file, [])


def remember(folder: Path, copy: Path) -> None:
    """Let the agent whose session is in `copy`, made of that in `folder`, hear that what had been bound there is not
    bound in its process. Raises StoreError."""
    if (folder / NAME).exists():
        atomic_json.write(copy / NAME, names_before_restart(folder))


OURS: Final = values.__file__
GRACE_SECONDS: Final = 1.0
NUDGE_SECONDS: Final = 0.05
PIECE_CHARS: Final = 1 << 16

_taken: ContextVar[OutputCapture | None] = ContextVar("_taken", default=None)


class RunStopped(BaseException):
    """Raised in the thread of a run whose time is up. No Exception, so that few handlers catch it."""


_lent: dict[str, dict[str, Any]] = {}


def share_names(agent_id: str, names: dict[str, Any]) -> None:
    """Let the code of the agent, which lives in this very process, run in `names` of its host."""
    _lent[agent_id] = names


def take_back(agent_id: str) -> None:
    """Let the agent have no names of its host's any more."""
    _lent.pop(agent_id, None)


class Namespace:
    """The names of one agent: its own, or those of its host. One run at a time.

    They live as long as the process; the first run in another one says so. What is large is kept under a handle, and
    `handles` leads to it.
    """

    def __init__(self, context: ToolContext) -> None:
        lent = _lent.get(context.agent_id)
        self._hosted = lent is not None
        self._values = context.own(ValueStore)
        self._handles = Handles(self._values, self._saw, lambda: self.brought)
        self.names: dict[str, Any] = {"__name__": "__main__"} if lent is None else lent
        self.names.setdefault("__builtins__", builtins)
        self.names.setdefault("handles", self._handles)
        if lent is None:
            self.names["input"] = _no_input
        self._past = SavedNames(context.folder if lent is None else None)
        self._granted = context.granted
        self._marks: tuple[TaintLabel, ...] = ()
        self._local = False
        self._agent = context.agent_id
        self._runs = 0
        self._running: _CodeRun | None = None

    def bound(self) -> dict[str, Any]:
        """Return what code has bound, without what is its own affair (`_name`)."""
        names = list(self.names.items())  # at once: code that could not be stopped may be binding more
        return {
            name: value
            for name, value in names
            if not name.startswith("_") and value is not _no_input and value is not self._handles
        }

    def value(self, name: str) -> Any:
        """Return what `name` is bound to. Raises ToolError while code runs, and for a name that is not bound."""
        if self._running is not None and self._running.alive():
            raise ToolError(f"code of the agent still runs: {name!r} can be taken when it is done")
        if name not in self.names or name in ("handles", "input", "__builtins__"):
            known = ", ".join(list(self.bound())[-20:])
            raise ToolError(f"no name {name!r} is bound; {f'bound are {known}' if known else 'nothing is'}")
        return self.names[name]

    @property
    def brought(self) -> tuple[tuple[TaintLabel, ...], bool]:
        """What values from elsewhere, read here so far, have brought along; whether one is for local models alone."""
        return self._marks, self._local

    def close(self) -> None:
        """Give back what the host has lent."""
        if self.names.get("handles") is self._handles:
            del self.names["handles"]

    async def run(self, code: str, seconds: float) -> ToolOutput:
        """Run `code` and return what it printed and the value of its last expression, or its traceback.

        After `seconds` it is stopped; what cannot be stopped is left behind, and then no other run can start.
        """
        if self._running is not None and self._running.alive():
            raise ToolError("the code of an earlier call still runs and cannot be stopped: use run_python_script")
        self._runs += 1
        lost = self._past.lost(list(self._values)) if self._runs == 1 else ""
        run = self._running = _CodeRun(code, f"<python {self._agent}:{self._runs}>", self)
        with _prints_taken():
            run.start()
            try:
                in_time = await run.wait(seconds)
            finally:
                stopped = run.done or await run.stop()
        self._past.now(self.bound())
        said = [lost, run.capture.text().rstrip("\n")]
        if not in_time:
            how = (
                "was stopped" if stopped else "cannot be stopped: it still runs, and nothing else can until it is done"
            )
            said.append(f"[not done after {seconds:.0f} s; it {how}]")
        text = "\n".join(filter(None, (*said, *self._values.told())))
        return ToolOutput(text, is_error=run.failed or not in_time, local=self._local, marks=self._marks)

    def show(self, value: Any) -> str:
        """Return what is to be shown of the value of a last expression, and keep one that is too large for that."""
        if not self._hosted:
            self.names["_"] = value
        if not is_large(value):
            return repr(value)
        try:
            return self._values.keep(value, bits=bits_in(self._marks), local=self._local).text(self._granted)
        except OSError as error:
            return f"{one_line_repr(value)}\n[too large to be shown, and it could not be kept: {error.strerror}]"

    def _saw(self, handle: str) -> None:
        """Something that was kept is read by code: from now on, what it says may be of that."""
        self._marks = join_labels(self._marks, self._values.marks(handle))
        self._local = self._local or self._values.get(handle).note.local


class _CodeRun:
    """One piece of code in a thread of its own."""

    def __init__(self, code: str, name: str, space: Namespace) -> None:
        self.capture = OutputCapture()
        self.failed = False
        self.done = False
        self._code, self._name, self._space = code, name, space
        self._loop = asyncio.get_running_loop()
        self._over = self._loop.create_future()
        self._lock = threading.Lock()
        context = copy_context()
        context.run(_taken.set, self.capture)
        self._thread = threading.Thread(target=context.run, args=(self._live,), name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def alive(self) -> bool:
        return not self.done and self._thread.is_alive()

    async def wait(self, seconds: float) -> bool:
        return bool((await asyncio.wait({self._over}, timeout=seconds))[0])

    async def stop(self) -> bool:
        """Raise Stopped in the thread until it has ended, for a second; say whether it has."""
        deadline = self._loop.time() + GRACE_SECONDS
        while self._loop.time() < deadline:
            with self._lock:
                if not self.done:
                    _raise_in(self._thread, RunStopped)
            if await self.wait(NUDGE_SECONDS):
                return True
        return False

    def _live(self) -> None:
        try:
            try:
                self.failed = not self._execute()
            finally:
                with self._lock:  # from here on nobody raises anything in this thread
                    self.done = True
                    _raise_in(self._thread, None)
        except RunStopped:
            self.failed = self.done = True
        try:
            self._loop.call_soon_threadsafe(self._end)
        except RuntimeError:
            pass  # the loop is closed; nobody waits any more

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _execute(self) -> bool:
        """Run the code; say whether it went well. What went wrong is printed."""
        linecache.cache[self._name] = (len(self._code), None, self._code.splitlines(keepends=True), self._name)
        try:
            body, last = _compiled(self._code, self._name)
            exec(body, self._space.names)
            value = eval(last, self._space.names) if last is not None else None
            if value is not None:
                self._print(f"{self._space.show(value)}\n")
        except RunStopped:
            raise
        except SystemExit as error:
            self._print(f"SystemExit: {error}".rstrip(": "))
            return error.code in (None, 0)
        except BaseException as error:
            self._print("".join(traceback.format_exception(error.with_traceback(self._own(error)))))
            return False
        return True

    def _own(self, error: BaseException) -> TracebackType | None:
        """Return the traceback from the first line of the code on: the frames above it are ours, and so are those below
        that say which handle there is not."""
        found = error.__traceback__
        while found is not None and found.tb_frame.f_code.co_filename != self._name:
            found = found.tb_next
        last = found
        while isinstance(error, UnknownHandleError) and last is not None and last.tb_next is not None:
            if last.tb_next.tb_frame.f_code.co_filename == OURS:
                last.tb_next = None
            last = last.tb_next
        return found

    def _print(self, text: str) -> None:
        _take(self.capture, text)


def _compiled(code: str, name: str) -> tuple[CodeType, CodeType | None]:
    """Return `code` in two parts, the second of which is its last statement when that is an expression."""
    tree = ast.parse(code, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        expression = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        last = compile(expression, name, "eval", dont_inherit=True)
    return compile(tree, name, "exec", dont_inherit=True), last


def _raise_in(thread: threading.Thread, error: type[BaseException] | None) -> None:
    """Raise `error` in `thread` at its next instruction; None takes back what was not raised yet."""
    what = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), what)


def _no_input(prompt: object = "") -> str:
    raise EOFError(f"cannot read input for {str(prompt)!r}: run_python has no standard input")


def _take(capture: OutputCapture, text: str) -> None:
    """Give `text` to `capture` in pieces: encoded as a whole, a long one would be in memory twice more."""
    for start in range(0, len(text), PIECE_CHARS):
        capture(text[start : start + PIECE_CHARS].encode(errors="replace"))


class _StreamSwitch(io.TextIOBase):
    """Stands in for a standard stream: what a run prints goes to the run, all else to where it went before."""

    def __init__(self, before: TextIO) -> None:
        self._before = before

    def write(self, text: str) -> int:
        capture = _taken.get()
        if capture is None:
            return self._before.write(text)
        _take(capture, text)
        return len(text)

    def flush(self) -> None:
        if not self._before.closed:  # a program may have closed it meanwhile, and Python flushes whatever it forgets
            self._before.flush()

    def fileno(self) -> int:
        return self._before.fileno()


_switching = threading.Lock()
_switches = 0
_before: tuple[TextIO, TextIO] = (sys.stdout, sys.stderr)


@contextmanager
def _prints_taken() -> Iterator[None]:
    """Have what runs print go to them, as long as any run is on in this process, whichever agent's it is."""
    global _switches, _before
    with _switching:
        if _switches == 0:
            _before = (sys.stdout, sys.stderr)
            sys.stdout, sys.stderr = _StreamSwitch(sys.stdout), _StreamSwitch(sys.stderr)
        _switches += 1
    try:
        yield
    finally:
        with _switching:
            _switches -= 1
            if _switches == 0:
                sys.stdout, sys.stderr = _before
