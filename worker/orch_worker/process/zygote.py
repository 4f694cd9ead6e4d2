"""A process that has imported everything once and forks workers that start with it.

Called as `zygote <template> <entry> <run folder> <control> <lifeline> <root pidfd>`. It holds no thread, no socket but
its control end, no zmq context and no secret: a worker inherits all of it. Its messages are in
`orch_protocol.wire.zygote_messages`.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from orch_protocol.agent.spec import AgentSpec, BackendSpec, WorkerBirth
from orch_protocol.wire.frames import FrameChannel
from orch_protocol.wire.worker_messages import EmptyBody, Init, Ping, Query
from orch_protocol.wire.zygote_messages import (
    ForkFailed,
    ForkWorker,
    Report,
    WorkerForked,
    WorkerProcessExited,
    ZygoteFailed,
    ZygoteReady,
    decode_fork,
    encode,
)

from ..backends.registry import APIS, PROVIDERS
from ..session.log.append_log import without_fsync
from ..system import linux
from ..system.importing import Entry, load
from ..tools.dispatch.presets import BUILTIN, granted_tools
from ..transport.worker_endpoint import WorkerEndpoint
from . import worker_init

__all__ = ["fill_heap_holes", "main", "run_warm_up_agent"]


# --- Fill the holes in the heap before forking, so that a fork writes to fewer shared pages ---
# Measured without it: a fresh worker owns 11 % more memory (lean; 12 % with the SDKs), and its start takes 7 % more CPU
# (9 %). benchmarks/bench_memory.py prints the ratio of memory.

MALLOC_SIZES: Final = (*range(16_384, 4096, -512), *range(4096, 1024, -64), *range(1024, 512, -16))
"""Sizes, in bytes, of what Python asks the C library for: first what only the larger holes have room for."""
PYMALLOC_SIZES: Final = range(16, 513, 16)
"""Sizes of what Python keeps in pools of its own, one size in each."""
CONTIGUOUS_BYTES: Final = 12 << 10
"""Where the C library lays so much side by side, it has no smaller hole left: it takes those first."""
POOL_BYTES: Final = 16 << 10
"""Pools that have been begun are filled before another is, in any order."""
POOL_HEADER_BYTES: Final = 48
NEW_POOLS: Final = 2
"""So many that hold nothing else: one may be old, and nearly empty."""
MAX_NEIGHBOR_DISTANCE: Final = 4
"""What lies so many sizes from what came before it is its neighbour; a few others of that size may come between."""
MAX_FILL_BYTES: Final = 1 << 20
"""More than goes into the holes of any one size: an allocator that takes it never lays things side by side."""
BYTES_HEADER_SIZE: Final = b"".__sizeof__()


def fill_heap_holes() -> list[object]:
    """Return objects that fill all heap holes of up to 16 KiB. Keep them: freeing them opens the holes again."""
    kept = [each for size in MALLOC_SIZES for each in _fill_malloc_holes(size)]
    return kept + [each for size in PYMALLOC_SIZES for each in _fill_pymalloc_pools(size)]


def _fill_malloc_holes(size: int) -> list[object]:
    make, row, last = _allocator_of_size(size), 0, 0
    kept: list[object] = []
    while len(kept) < MAX_FILL_BYTES // size:
        made = make()
        row = row + 1 if abs(id(made) - last) < MAX_NEIGHBOR_DISTANCE * size else 1
        kept.append(made)
        last = id(made)
        if row * size > CONTIGUOUS_BYTES:
            return kept[:-row]
    return []  # as one that looks for mistakes does: nothing is gained, and no fork is to carry that


def _fill_pymalloc_pools(size: int) -> list[object]:
    make, whole = _allocator_of_size(size), (POOL_BYTES - POOL_HEADER_BYTES) // size - MAX_NEIGHBOR_DISTANCE
    kept: list[object] = []
    held: dict[int, int] = {}
    new: set[int] = set()
    while len(kept) < MAX_FILL_BYTES // size:
        made = make()
        kept.append(made)
        pool = id(made) // POOL_BYTES
        held[pool] = count = held.get(pool, 0) + 1
        if count >= whole:
            new.add(pool)
            if len(new) == NEW_POOLS:
                return [each for each in kept if id(each) // POOL_BYTES not in new]
    return []


def _allocator_of_size(size: int) -> Callable[[], object]:
    if size == 16:
        return object
    if size == 32:
        return lambda: float("0.5")
    return lambda: bytes(size - BYTES_HEADER_SIZE)


# --- Run a short agent in the zygote before forking, so that the interpreter specializes functions in shared pages ---
# Measured without it: a fresh worker owns 12 % more memory (lean; 11 % with the SDKs), and its start takes 21 % more
# CPU (15 %). benchmarks/bench_memory.py prints the ratio of memory.

WARM_UP_RUNS: Final = 10
"""Python rewrites a function after eight calls."""
WARM_UP_TIMEOUT_SECONDS: Final = 10.0
"""So long may one life last, which is over in some milliseconds."""
WARM_UP_TOOL: Final = "list_files"


def run_warm_up_agent(folder: Path) -> None:
    """Run a short agent TIMES times in `folder`, which is created for it and removed.

    A failure or a timeout is printed and otherwise ignored: only the saving is lost.
    """
    there = {*threading.enumerate()}
    shutil.rmtree(folder, ignore_errors=True)  # a zygote that was killed could not
    try:
        with without_fsync():
            for number in range(WARM_UP_RUNS):
                if asyncio.run(_run_agent_once(folder / str(number))):
                    break
    except Exception:
        traceback.print_exc()
    finally:
        for thread in {*threading.enumerate()} - there:  # those of its tools: none may be there when there are forks
            thread.join(WARM_UP_TIMEOUT_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


async def _run_agent_once(folder: Path) -> int:
    host = WorkerEndpoint(
        lambda on_data: _RehearsalRoot(on_data, folder), birth=WorkerBirth(b""), incarnation=1, spool=folder
    )
    async with asyncio.timeout(WARM_UP_TIMEOUT_SECONDS):
        return await host.serve()


class _RehearsalRoot:
    """The other end of a host's line: makes it an agent in `folder`, pings it, asks it something and lets it leave."""

    def __init__(self, on_data: Callable[[bytes], None], folder: Path) -> None:
        self._on_data = on_data
        self._channel = FrameChannel(1, folder)
        script = BackendSpec("scripted", options={"items": [{"tool": WARM_UP_TOOL, "input": {}}, "done"]})
        spec = AgentSpec(
            "a1", 1, "agent", "task", script, str(folder), str(folder.parent), tools=granted_tools(None, None)
        )
        self._answers: dict[str, tuple[str, Struct]] = {
            "hello": ("init", Init(spec)),
            "ready": ("ping", Ping(b"1")),
            "pong": ("query", Query("Begin")),
            "finished": ("stop", EmptyBody()),
        }

    def send(self, data: bytes) -> None:
        """Take a frame from the host, and answer it a moment later."""
        received = self._channel.decode(data)
        if received is not None and (answer := self._answers.get(received[0].kind)):
            kind, body = answer
            frame = self._channel.encode(kind, body, kind, now=0.0)
            asyncio.get_running_loop().call_soon(self._on_data, frame)

    def close(self) -> None:
        """Do nothing: what was sent is there."""


# What runs in every worker but is not imported with the entry's module.
COMMON_MODULES: Final = ("orch_worker.process.main", "resource")
PACKET_BYTES: Final = 1 << 16
MAX_TRACEBACK_CHARACTERS: Final = 8000
# Its life is the root's: a polite signal to everybody must not end it, and its workers, before that has had its say.
IGNORED_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def worker_process_class() -> type[Any]:
    """Return a multiprocess Process that forks without the pipes of the stock one.

    Those cost two descriptors for each living worker, in the zygote and in every later sibling; and the stock class
    reaps behind our back, which loses exit codes. Nor does the child set multiprocess up for itself: a worker does not
    see it. Relied upon: `_Popen`, `_children`. What is imported for it is hidden again: whoever imports multiprocess
    in a worker gets all of it, dill included.
    """
    # multiprocess falls back to pickle without dill, which is two thirds of its import time. Forking pickles nothing.
    dill = sys.modules.get("dill")
    sys.modules["dill"] = None  # type: ignore[assignment]
    try:
        from multiprocess import get_context
    finally:
        del sys.modules["dill"]
        if dill is not None:
            sys.modules["dill"] = dill

    class Popen:
        method = "fork"
        sentinel = -1

        def __init__(self, process: Any) -> None:
            self.returncode: int | None = None
            zygote = os.getpid()
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    linux.die_with_parent(zygote)
                    process.run()
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)

        def poll(self, _flag: int = 0) -> int | None:
            return self.returncode

        def close(self) -> None:
            pass

    class WorkerProcess(get_context("fork").Process):  # type: ignore[misc]
        siblings = sys.modules["multiprocess.process"]._children

        @staticmethod
        def _Popen(process: Any) -> Popen:  # noqa: N802
            return Popen(process)

    for name in [name for name in sys.modules if name.partition(".")[0] == "multiprocess"]:
        del sys.modules[name]
    return WorkerProcess


class Zygote:
    """Forks on request and reports every exit, until the root is gone."""

    def __init__(self, control: socket.socket, entry: Entry, process: type[Any]) -> None:
        self._control = control
        self._entry = entry
        self._process = process
        self._alive: dict[int, tuple[int, Any]] = {}

    def serve(self, root: int, wake: int) -> None:
        """Work until the process behind the pidfd `root` has ended or has hung up."""
        poller = select.poll()
        for descriptor in (self._control.fileno(), root, wake):
            poller.register(descriptor, select.POLLIN)
        while True:
            ready = dict(poller.poll())
            if root in ready:
                return
            if wake in ready:
                os.read(wake, 4096)
                self._reap()
            if self._control.fileno() in ready:
                packet, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
                if not packet:
                    return
                self._fork(decode_fork(packet), descriptors[0])
                os.close(descriptors[0])

    def _fork(self, fork: ForkWorker, pipe: int) -> None:
        process = self._process(target=self._be, args=(fork, pipe))
        try:
            process.start()
        except OSError as error:
            self._tell(ForkFailed(fork.req, str(error)))
            return
        self._alive[process.pid] = fork.req, process
        pidfd = os.pidfd_open(process.pid)
        self._tell(WorkerForked(fork.req, process.pid), pidfd)
        os.close(pidfd)

    def _be(self, fork: ForkWorker, pipe: int) -> None:
        """Turn from a fork of the zygote into a worker."""
        signal.set_wakeup_fd(-1)
        linux.default_signals((*IGNORED_SIGNALS, signal.SIGCHLD))
        self._control.detach()
        worker_init.run_worker(lambda: self._entry, fork, pipe)

    def _reap(self) -> None:
        """Report every ended worker, in the order of their ends."""
        while self._alive and (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
            _, status = os.waitpid(dead.si_pid, 0)
            req, process = self._alive.pop(dead.si_pid)
            process._popen.returncode = os.waitstatus_to_exitcode(status)
            self._process.siblings.discard(process)
            self._tell(WorkerProcessExited(req, process._popen.returncode))

    def _tell(self, report: Report, *descriptors: int) -> None:
        socket.send_fds(self._control, [encode(report)], descriptors)


def _boot(template: str, entry: str, folder: Path) -> tuple[Entry, type[Any], list[object]]:
    """Import what workers of `template` run, and settle the heap, so that forks share all of it.

    The last of what is returned is to be kept.
    """
    gc.disable()  # what is imported stays, and there is much of it to look through
    worker_init.prepare()
    function, process = load(entry), worker_process_class()
    for module in _modules_of_template(template):
        importlib.import_module(module)
    if template == "sdk":
        from ..backends.http import warm_connection

        warm_connection.warm()
    sys._clear_type_cache()  # of what importing looked up: each would be let go by a fork that looks up something else
    run_warm_up_agent(folder / f"rehearsal-{template}")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    gc.enable()
    gc.collect()
    kept = fill_heap_holes()
    gc.freeze()
    linux.huge_pages()
    tasks = len(os.listdir("/proc/self/task"))
    if tasks != 1:
        raise RuntimeError(f"the template {template!r} left {tasks - 1} threads behind, which no fork would have")
    return function, process, kept


def _modules_of_template(template: str) -> list[str]:
    backends = (*PROVIDERS.values(), *APIS.values())
    providers = [backend.module for backend in backends if backend.template in ("lean", template)]
    return [*COMMON_MODULES, *providers, *(tool.module for tool in BUILTIN.values())]


def main(template: str, entry: str, folder: str, control: str, lifeline: str, root: str) -> None:
    """Boot and serve. A failed boot is told to the root and raised."""
    linux.reset_signals(ignore=IGNORED_SIGNALS)
    os.setpgid(0, 0)
    for descriptor in (control, lifeline, root):
        os.set_inheritable(int(descriptor), False)
    linux.arm_lifeline(int(lifeline))
    with socket.socket(fileno=int(control)) as line:
        try:
            function, process, _kept = _boot(template, entry, Path(folder))
        except BaseException:
            line.send(encode(ZygoteFailed(traceback.format_exc()[-MAX_TRACEBACK_CHARACTERS:])))
            raise
        linux.reset_signals(ignore=IGNORED_SIGNALS)  # whatever was imported may have had ideas of its own
        wake = linux.wake_on_child()
        zygote = Zygote(line, function, process)
        line.send(encode(ZygoteReady(os.getpid(), len(os.listdir("/proc/self/fd")) - 1)))
        try:
            zygote.serve(int(root), wake)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the root hung up in the middle of an answer
    os._exit(0)
