"""Processes that kill themselves at a named point of archiving. The code of orch does not contain these points.

The module is the entry of a worker (`killed_archiving:main`) or a program (`killed_archiving.py <home> <config>`). The
variable DEADLY names a file with the point. Without the file, the process is not killed.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import inspect
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from orch_protocol.services.service import AnyService

ARCHIVE: Final = b'{"type":"archive"'
COMPACTION: Final = b'{"type":"compaction"'
UPGRADE: Final = b'{"type":"archive_summary"'
SCRIPT: Final = [
    {"tools": [{"tool": "read_file", "input": {"path": "note.txt"}}, {"tool": "list_files", "input": {}}]},
    "The port is 4711.",
    "second answer",
    "third answer",
]
SUMMARIES: Final = ['{"outcome": "The port is known.", "key_findings": ["port 4711"]}']


def die(*_: Any) -> None:
    """Kill this process with SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)


def last_words() -> None:
    """Kill this process after its messages have been sent. No answer is handled, because the event loop is blocked."""
    time.sleep(0.1)
    die()


def before(holder: Any, name: str, when: Callable[..., bool] = lambda *_, **__: True) -> None:
    """Kill this process when `holder.name` is called with arguments for which `when` returns True."""
    _wrap(holder, name, when, early=True)


def after(holder: Any, name: str, when: Callable[..., bool] = lambda *_, **__: True) -> None:
    """Kill this process when `holder.name` has returned from a call for which `when` returned True."""
    _wrap(holder, name, when, early=False)


def _wrap(holder: Any, name: str, when: Callable[..., bool], *, early: bool) -> None:
    function = getattr(holder, name)

    @functools.wraps(function)
    def plain(*args: Any, **named: Any) -> Any:
        meant = when(*args, **named)
        if meant and early:
            die()
        result = function(*args, **named)
        if meant:
            die()
        return result

    @functools.wraps(function)
    async def awaited(*args: Any, **named: Any) -> Any:
        meant = when(*args, **named)
        if meant and early:
            die()
        result = await function(*args, **named)
        if meant:
            die()
        return result

    wrapped = awaited if inspect.iscoroutinefunction(function) else plain
    static = isinstance(inspect.getattr_static(holder, name), staticmethod)
    setattr(holder, name, staticmethod(wrapped) if static else wrapped)


# In a worker.


def asks(service: str, *, answered: bool | None = None) -> Callable[..., bool]:
    """Return a function that returns whether a call is for `service`.

    For a summary, `answered` selects calls before or after the model's answer.
    """

    def is_it(_: Any, asked: AnyService, params: Any, *__: Any) -> bool:
        return asked.name == service and (answered is None or (params.answer is not None) == answered)

    return is_it


def holds(*heads: bytes) -> Callable[..., bool]:
    """Return a function that returns whether one of the appended entries begins with one of `heads`."""
    return lambda _log, *objects, **__: any(object.startswith(heads) for object in objects)


def half_written(head: bytes) -> None:
    """Kill this process in the middle of a write that begins with `head`."""
    from orch_worker.session.log.append_log import AppendLog

    def write(descriptor: int, data: Any) -> int:
        if bytes(data).startswith(head):
            os.write(descriptor, bytes(data)[: len(data) // 2])
            die()
        return os.write(descriptor, data)

    AppendLog._write = staticmethod(write)  # type: ignore[method-assign]


def written(head: bytes) -> None:
    """Kill this process after a write that begins with `head`, before the data is synchronized to the disk."""
    from orch_worker.session.log.append_log import AppendLog

    def write(descriptor: int, data: Any) -> int:
        count = os.write(descriptor, data)
        if bytes(data).startswith(head):
            die()
        return count

    AppendLog._write = staticmethod(write)  # type: ignore[method-assign]


def asked_and_gone(service: str) -> None:
    """Kill this process when the root has received a request for `service`, before the answer arrives."""
    from orch_worker.transport.worker_endpoint import WorkerEndpoint

    call = WorkerEndpoint.call_root

    async def call_root(self: Any, asked: AnyService, params: Any, seconds: float | None = None) -> Any:
        if asked.name == service:
            asyncio.get_running_loop().call_soon(last_words)
        return await call(self, asked, params, seconds)

    WorkerEndpoint.call_root = call_root  # type: ignore[method-assign]


def worker_points() -> dict[str, Callable[[], None]]:
    """Return a function for each point at which the worker is killed, in the order in which a worker reaches them."""
    from orch_worker.context.archiving import TurnArchiver
    from orch_worker.session.log.append_log import AppendLog
    from orch_worker.session.session import SessionState
    from orch_worker.session.transcript import Transcript
    from orch_worker.transport.worker_endpoint import WorkerEndpoint

    return {
        "the turn's end is on record": lambda: after(Transcript, "turn_end"),
        "the root is to be asked": lambda: before(WorkerEndpoint, "call_root", asks("plan_archiving")),
        "the root is being asked": lambda: asked_and_gone("plan_archiving"),
        "the plan is there": lambda: after(WorkerEndpoint, "call_root", asks("plan_archiving")),
        "the entry is to be written": lambda: before(AppendLog, "append", holds(ARCHIVE)),
        "the entry is half written": lambda: half_written(ARCHIVE),
        "the entry is written": lambda: written(ARCHIVE),
        "the entry is on the disk": lambda: after(AppendLog, "append", holds(ARCHIVE)),
        "the session is what the entry says": lambda: after(
            SessionState, "apply", lambda _, entry: type(entry).__name__ == "ArchiveEntry"
        ),
        "the backend is to be what the session is": lambda: before(TurnArchiver, "_reload"),
        "the root is to be told": lambda: before(WorkerEndpoint, "call_root", asks("commit_archives")),
        "the root is being told": lambda: asked_and_gone("commit_archives"),
        "the root has taken note": lambda: after(WorkerEndpoint, "call_root", asks("commit_archives")),
        "a summary is to be asked for": lambda: before(
            WorkerEndpoint, "call_root", asks("summarize_archive", answered=False)
        ),
        "the question for a summary is there": lambda: after(
            WorkerEndpoint, "call_root", asks("summarize_archive", answered=False)
        ),
        "the model has answered": lambda: before(WorkerEndpoint, "call_root", asks("summarize_archive", answered=True)),
        "the summary is to be written": lambda: before(Transcript, "upgrade"),
        "the summary is half written": lambda: half_written(UPGRADE),
        "the summary is written": lambda: after(Transcript, "upgrade"),
    }


def compaction_points() -> dict[str, Callable[[], None]]:
    """Return a function for each point of a compaction at which the process is killed, in order."""
    from orch_worker.context.compactor import Compactor
    from orch_worker.session.transcript import Transcript

    return {
        "notes are to be asked for": lambda: before(Compactor, "_ask"),
        "the notes are there": lambda: before(Compactor, "_record"),
        "the compaction is half written": lambda: half_written(COMPACTION),
        "the compaction is written": lambda: written(COMPACTION),
        "the model is to go on with it": lambda: after(Transcript, "compaction"),
    }


def failing(name: str, number: int, *, half: bool = False) -> None:
    """Make the disk fail with the error `number` when an archive is written.

    If `half` is True, the disk fails after some bytes.
    """
    from orch_worker.session.log.append_log import AppendLog

    append, work = AppendLog.append, getattr(AppendLog, name)
    at_it = False

    def fail(descriptor: int, data: Any = b"") -> Any:
        if not at_it:
            return work(descriptor, *([data] if name == "_write" else []))
        if half and bytes(data).startswith(ARCHIVE):
            return os.write(descriptor, bytes(data)[:100])
        raise OSError(number, os.strerror(number))

    def noticed(self: Any, *objects: bytes, sync: bool = False) -> None:
        nonlocal at_it
        at_it = any(object.startswith(ARCHIVE) for object in objects)
        try:
            append(self, *objects, sync=sync)
        finally:
            at_it = False

    AppendLog.append = noticed  # type: ignore[method-assign]
    setattr(AppendLog, name, staticmethod(fail))


def worker_faults() -> dict[str, Callable[[], None]]:
    """Return a function for each fault of the worker's disk during archiving."""
    return {
        "disk full": lambda: failing("_write", errno.ENOSPC),
        "disk full: after some bytes": lambda: failing("_write", errno.ENOSPC, half=True),
        "input/output error": lambda: failing("_fdatasync", errno.EIO),
        "read-only": lambda: failing("_write", errno.EROFS),
    }


# In a root.


def tells(kind: str) -> Callable[..., bool]:
    """Return a function that returns whether an entry of the type `kind` is written to the journal."""
    return lambda _journal, entries: any(type(entry).__name__ == kind for entry in entries)


def root_points() -> dict[str, Callable[[], None]]:
    """Return a function for each point at which the root is killed, in the order in which a root reaches them."""
    from orch import services
    from orch.archival import engine
    from orch.archival.store import archive_pool, index
    from orch.tree.journal import journal

    def service(name: str, how: Callable[..., None]) -> None:
        handler = services.HANDLERS[name]
        module, function = sys.modules[handler.__module__], handler.__name__  # type: ignore[attr-defined]
        how(module, function)
        services.HANDLERS[name] = getattr(module, function)

    def answered(when: Callable[[Any], bool]) -> Callable[..., bool]:
        return lambda _root, _caller, params: when(params)

    return {
        "a worker asks": lambda: service("plan_archiving", before),
        "a thread is to work it out": lambda: before(engine.ArchiveEngine, "_plan_archiving"),
        "the file is read": lambda: after(
            archive_pool.OpenArchives, "catch_up", lambda shelves: bool(shelves.archives.path.stat().st_size > 2000)
        ),
        "an archive is planned": lambda: after(engine.ArchiveDraft, "store"),
        "the plan is worked out": lambda: after(engine.ArchiveEngine, "_plan_archiving"),
        "the plan is to be sent": lambda: service("plan_archiving", after),
        "a worker tells": lambda: service("commit_archives", before),
        "the journal is to be told": lambda: before(journal.Journal, "record", tells("TurnsArchived")),
        "the journal was told": lambda: after(journal.Journal, "record", tells("TurnsArchived")),
        "the worker is to hear that": lambda: service("commit_archives", after),
        "the index is to be told": lambda: before(index.Index, "add"),
        "the index was told": lambda: after(index.Index, "add"),
        "a summary is asked for": lambda: service("summarize_archive", before),
        "the question for a summary is to be sent": lambda: service("summarize_archive", after),
        "the summary is there": lambda: service(
            "summarize_archive", functools.partial(after, when=answered(lambda params: params.answer is not None))
        ),
    }


def _armed(points: dict[str, Callable[[], None]]) -> None:
    path = Path(os.environ["DEADLY"])
    if path.exists():
        points[path.read_text()]()


def main(**named: Any) -> int:
    """Run as a worker."""
    from orch_worker.process import main as process

    if not Path(os.environ["DEADLY"]).name.startswith("root"):
        _armed(worker_points() | worker_faults() | compaction_points())
    return process.main(**named)


async def root(home: str, config: str) -> None:
    """Run as a root whose agent archives its first turn."""
    import msgspec

    from orch import AsyncOrchestrator, Config, ScriptedBackend

    _armed(root_points())
    async with AsyncOrchestrator(
        home=home, env={}, run="r", config=msgspec.json.decode(config, type=Config, strict=False)
    ) as o:
        agent = await o.spawn(
            "look", tools=["read_file", "list_files"], backend=ScriptedBackend(SCRIPT, SUMMARIES), cwd=home, name="a"
        )
        await agent.query("which port?")
        await o.archives.search("4711")
    print("lived", flush=True)


if __name__ == "__main__":
    asyncio.run(root(*sys.argv[1:]))
