"""Runs Python code in this process. Variables persist between runs."""

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
from ..api.shared_names import shared_names
from ..shell.output_capture import OutputCapture
from ..values import values
from ..values.repr import is_large, one_line_repr
from ..values.store import FOLDER
from ..values.values import Handles, UnknownHandleError, ValueStore

__all__ = [
    "Namespace",
    "SavedNames",
    "first_names",
    "forget",
    "names_before_restart",
    "remember",
]


# --- Variables of the previous process ---

NAMES_FILE: Final = f"{FOLDER}/names.json"
MAX_SHOWN_NAMES: Final = 30
CLOCK_TOLERANCE_SECONDS: Final = 0.05
"""Maximum number of seconds by which file timestamps are behind the clock."""


class SavedNames:
    """The saved variable names of the agent whose session is in `folder`. If `folder` is None, names are not saved."""

    def __init__(self, folder: Path | None) -> None:
        self._file = folder / NAMES_FILE if folder is not None else None
        self._saved: list[str] | None = None

    def lost_names_note(self, handles: Sequence[str]) -> str:
        """Return a note about lost variables for the first run in a new process.

        Return "" in the agent's first process.
        """
        if self._file is None or not self._file.exists():
            return ""
        try:
            names = atomic_json.read(self._file, list[str], [], "")
        except OrchError:
            names = []
        names_note = f" ({first_names(names)})" if names else ""
        handles_note = f" Handles are kept: {', '.join(handles[-MAX_SHOWN_NAMES:])}." if handles else ""
        return f"[This is a new Python process: what earlier calls had bound is gone{names_note}.{handles_note}]"

    def save(self, bound: Iterable[str]) -> None:
        """Save the names that are bound now. If writing fails, the error is only logged."""
        names = sorted(bound)
        if self._file is None or names == self._saved:
            return
        try:
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            atomic_json.write(self._file, names, durable=False)
        except (OrchError, OSError) as error:
            print(error, flush=True)
        self._saved = names


def first_names(names: Sequence[str]) -> str:
    """Return the first items of `names`, and the number of further items."""
    more = f" and {len(names) - MAX_SHOWN_NAMES} more" if len(names) > MAX_SHOWN_NAMES else ""
    return f"{', '.join(names[:MAX_SHOWN_NAMES])}{more}"


def names_before_restart(folder: Path, since: float = 0.0) -> list[str]:
    """Return the saved names of the agent whose session is in `folder`.

    The result is empty if the agent's code last ran before `since` (epoch seconds). Raise StoreError if reading fails.
    """
    try:
        ran = (folder / NAMES_FILE).stat().st_mtime
    except OSError:
        ran = since  # The file does not exist, or reading it will raise the error.
    return atomic_json.read(folder / NAMES_FILE, list[str], [], "") if ran >= since - CLOCK_TOLERANCE_SECONDS else []


def forget(folder: Path) -> None:
    """Delete the saved names. The file stays, because its existence shows that there were names.

    Raise StoreError if writing fails.
    """
    if (file := folder / NAMES_FILE).exists():
        atomic_json.write(file, [])


def remember(folder: Path, copy: Path) -> None:
    """Copy the saved names from the session `folder` to its copy `copy`.

    The agent of the copy then learns that the names are not bound. Raise StoreError if reading or writing fails.
    """
    if (folder / NAMES_FILE).exists():
        (copy / NAMES_FILE).parent.mkdir(mode=0o700, exist_ok=True)
        atomic_json.write(copy / NAMES_FILE, names_before_restart(folder))


VALUES_FILE: Final = values.__file__
GRACE_SECONDS: Final = 1.0
RAISE_INTERVAL_SECONDS: Final = 0.05
CHUNK_CHARS: Final = 1 << 16

_current_capture: ContextVar[OutputCapture | None] = ContextVar("_current_capture", default=None)


class RunStopped(BaseException):
    """Raised in the thread of a run at its timeout.

    The class is not a subclass of Exception, so that few handlers catch it.
    """


class Namespace:
    """The variables of one agent: its own variables, or the variables that the program shares with it.

    Only one run is active at a time.

    Variables last as long as the process. The first run in a new process reports lost variables. Large values are
    stored under handles, which code accesses through `handles`.
    """

    def __init__(self, context: ToolContext) -> None:
        program_names = shared_names(context.agent_id)
        self._is_shared = program_names is not None
        self._values = context.agent_object(ValueStore)
        self._handles = Handles(self._values, self._add_labels, lambda: self.read_labels)
        self.names: dict[str, Any] = {"__name__": "__main__"} if program_names is None else program_names
        self.names.setdefault("__builtins__", builtins)
        self.names.setdefault("handles", self._handles)
        if program_names is None:
            self.names["input"] = _no_input
        self._saved_names = SavedNames(context.folder if program_names is None else None)
        self._granted = context.granted
        self._taint_labels: tuple[TaintLabel, ...] = ()
        self._local = False
        self._agent = context.agent_id
        self._runs = 0
        self._running: _CodeRun | None = None

    def bound(self) -> dict[str, Any]:
        """Return the variables that code has bound, without private variables (`_name`)."""
        # The items are copied at once, because code that could not be stopped may bind more names.
        names = list(self.names.items())
        return {
            name: value
            for name, value in names
            if not name.startswith("_") and value is not _no_input and value is not self._handles
        }

    def value(self, name: str) -> Any:
        """Return the value of the variable `name`. Raise ToolError while code runs, or if the name is not bound."""
        if self._running is not None and self._running.is_running():
            raise ToolError(f"code of the agent is still running: read {name!r} after the code has ended")
        if name not in self.names or name in ("handles", "input", "__builtins__"):
            known_names = ", ".join(list(self.bound())[-20:])
            raise ToolError(
                f"no variable {name!r}; {f'variables: {known_names}' if known_names else 'there are no variables'}"
            )
        return self.names[name]

    @property
    def read_labels(self) -> tuple[tuple[TaintLabel, ...], bool]:
        """The taint labels of stored values that code has read, and whether one of these values is for local models
        only.
        """
        return self._taint_labels, self._local

    def close(self) -> None:
        """Remove orch's names from the host's variables."""
        if self.names.get("handles") is self._handles:
            del self.names["handles"]

    async def run(self, code: str, seconds: float) -> ToolOutput:
        """Run `code` and return its output and the value of its last expression, or its traceback.

        After `seconds`, the code is stopped. Code that cannot be stopped is abandoned. In this case, no further run can
        start.
        """
        if self._running is not None and self._running.is_running():
            raise ToolError("the code of an earlier call is still running and cannot be stopped: use run_python_script")
        self._runs += 1
        lost_note = self._saved_names.lost_names_note(list(self._values)) if self._runs == 1 else ""
        run = self._running = _CodeRun(code, f"<python {self._agent}:{self._runs}>", self)
        with _capture_prints():
            run.start()
            try:
                in_time = await run.wait(seconds)
            finally:
                stopped = run.done or await run.stop()
        self._saved_names.save(self.bound())
        parts = [lost_note, run.capture.text().rstrip("\n")]
        if not in_time:
            state = (
                "was stopped" if stopped else "cannot be stopped: it still runs, and nothing else can until it is done"
            )
            parts.append(f"[not done after {seconds:.0f} s; it {state}]")
        text = "\n".join(filter(None, (*parts, *self._values.take_notices())))
        return ToolOutput(text, is_error=run.failed or not in_time, local=self._local, marks=self._taint_labels)

    def show(self, value: Any) -> str:
        """Return the text for the value of a last expression. A value that is too large is stored."""
        if not self._is_shared:
            self.names["_"] = value
        if not is_large(value):
            return repr(value)
        try:
            return self._values.keep(value, bits=bits_in(self._taint_labels), local=self._local).text(self._granted)
        except OSError as error:
            return f"{one_line_repr(value)}\n[too large to be shown, and could not be stored: {error.strerror}]"

    def _add_labels(self, handle: str) -> None:
        """Add the labels of a stored value that code has read, because later output may depend on this value."""
        self._taint_labels = join_labels(self._taint_labels, self._values.taint_labels(handle))
        self._local = self._local or self._values.get(handle).note.local


class _CodeRun:
    """A run of code in a separate thread."""

    def __init__(self, code: str, name: str, namespace: Namespace) -> None:
        self.capture = OutputCapture()
        self.failed = False
        self.done = False
        self._code, self._name, self._namespace = code, name, namespace
        self._loop = asyncio.get_running_loop()
        self._finished = self._loop.create_future()
        self._lock = threading.Lock()
        context = copy_context()
        context.run(_current_capture.set, self.capture)
        self._thread = threading.Thread(target=context.run, args=(self._run_thread,), name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_running(self) -> bool:
        return not self.done and self._thread.is_alive()

    async def wait(self, seconds: float) -> bool:
        return bool((await asyncio.wait({self._finished}, timeout=seconds))[0])

    async def stop(self) -> bool:
        """Raise RunStopped in the thread repeatedly for up to one second. Return whether the thread has ended."""
        deadline = self._loop.time() + GRACE_SECONDS
        while self._loop.time() < deadline:
            with self._lock:
                if not self.done:
                    _raise_in(self._thread, RunStopped)
            if await self.wait(RAISE_INTERVAL_SECONDS):
                return True
        return False

    def _run_thread(self) -> None:
        try:
            try:
                self.failed = not self._execute()
            finally:
                with self._lock:  # From now on, no exception is raised in this thread.
                    self.done = True
                    _raise_in(self._thread, None)
        except RunStopped:
            self.failed = self.done = True
        try:
            self._loop.call_soon_threadsafe(self._finish)
        except RuntimeError:
            pass  # The loop is closed, and no task waits for the result.

    def _finish(self) -> None:
        if not self._finished.done():
            self._finished.set_result(None)

    def _execute(self) -> bool:
        """Run the code. Return whether the code succeeded. Errors are printed."""
        linecache.cache[self._name] = (len(self._code), None, self._code.splitlines(keepends=True), self._name)
        try:
            body, last = _compile_parts(self._code, self._name)
            exec(body, self._namespace.names)
            value = eval(last, self._namespace.names) if last is not None else None
            if value is not None:
                self._print(f"{self._namespace.show(value)}\n")
        except RunStopped:
            raise
        except SystemExit as error:
            self._print(f"SystemExit: {error}".rstrip(": "))
            return error.code in (None, 0)
        except BaseException as error:
            self._print("".join(traceback.format_exception(error.with_traceback(self._agent_traceback(error)))))
            return False
        return True

    def _agent_traceback(self, error: BaseException) -> TracebackType | None:
        """Return the part of the traceback that starts in the agent's code, without frames of orch.

        Return None if no frame belongs to the agent's code. The inner frames that raise UnknownHandleError are
        removed too.
        """
        first_frame = error.__traceback__
        while first_frame is not None and first_frame.tb_frame.f_code.co_filename != self._name:
            first_frame = first_frame.tb_next
        frame = first_frame
        while isinstance(error, UnknownHandleError) and frame is not None and frame.tb_next is not None:
            if frame.tb_next.tb_frame.f_code.co_filename == VALUES_FILE:
                frame.tb_next = None
            frame = frame.tb_next
        return first_frame

    def _print(self, text: str) -> None:
        _capture_text(self.capture, text)


def _compile_parts(code: str, name: str) -> tuple[CodeType, CodeType | None]:
    """Return `code` in two parts.

    If the last statement is an expression, this expression is the second part. Otherwise, the second part is None.
    """
    tree = ast.parse(code, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        expression = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        last = compile(expression, name, "eval", dont_inherit=True)
    return compile(tree, name, "exec", dont_inherit=True), last


def _raise_in(thread: threading.Thread, error: type[BaseException] | None) -> None:
    """Raise `error` in `thread` at the next instruction of the thread. None cancels a pending exception."""
    exception = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), exception)


def _no_input(prompt: object = "") -> str:
    raise EOFError(f"cannot read input for {str(prompt)!r}: run_python has no standard input")


def _capture_text(capture: OutputCapture, text: str) -> None:
    """Pass `text` to `capture` in chunks. Encoding a long text at once would need twice the memory of the text."""
    for start in range(0, len(text), CHUNK_CHARS):
        capture(text[start : start + CHUNK_CHARS].encode(errors="replace"))


class _StreamSwitch(io.TextIOBase):
    """Replaces a standard stream.

    The output of a run goes to the run's capture, and other output to the original stream.
    """

    def __init__(self, original: TextIO) -> None:
        self._original = original

    def write(self, text: str) -> int:
        capture = _current_capture.get()
        if capture is None:
            return self._original.write(text)
        _capture_text(capture, text)
        return len(text)

    def flush(self) -> None:
        if not self._original.closed:  # The program may have closed the stream before Python flushes it.
            self._original.flush()

    def fileno(self) -> int:
        return self._original.fileno()


_switch_lock = threading.Lock()
_active_runs = 0
_original_streams: tuple[TextIO, TextIO] = (sys.stdout, sys.stderr)


@contextmanager
def _capture_prints() -> Iterator[None]:
    """Capture the output of runs as long as any run is active in this process."""
    global _active_runs, _original_streams
    with _switch_lock:
        if _active_runs == 0:
            _original_streams = (sys.stdout, sys.stderr)
            sys.stdout, sys.stderr = _StreamSwitch(sys.stdout), _StreamSwitch(sys.stderr)
        _active_runs += 1
    try:
        yield
    finally:
        with _switch_lock:
            _active_runs -= 1
            if _active_runs == 0:
                sys.stdout, sys.stderr = _original_streams
