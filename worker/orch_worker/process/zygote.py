"""A process that has imported all modules once and forks workers from this state.

The zygote is called as `zygote <template> <entry> <run folder> <control> <lifeline> <root pidfd>`. Workers inherit the
state of the zygote. Therefore, the zygote has no threads, no sockets except its control socket, no zmq context and no
secrets. The messages of the zygote are in `orch_protocol.wire.zygote_messages`.
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

import multiprocess
from msgspec import MsgspecError, Struct

from orch_protocol.agent.spec import AgentSpec, BackendSpec, WorkerBirth
from orch_protocol.policy.builtin_tools import BUILTIN_TOOLS
from orch_protocol.wire.frames import FrameChannel
from orch_protocol.wire.worker_messages import EmptyBody, Init, Ping, Query
from orch_protocol.wire.zygote_messages import (
    ForkFailed,
    ForkWorker,
    Report,
    ToolHostExited,
    ToolHostForked,
    WorkerForked,
    WorkerProcessExited,
    ZygoteFailed,
    ZygoteReady,
    decode_fork,
    decode_tool_host,
    encode,
)

from ..backends.registry import APIS, PROVIDERS, templates_in
from ..session.log.append_log import without_fsync
from ..system import linux
from ..system.importing import Entry, load
from ..tools.dispatch.presets import granted_tools
from ..transport.worker_endpoint import WorkerEndpoint
from . import tool_host, worker_init

__all__ = ["fill_heap_holes", "main", "run_warm_up_agent"]


# --- Fill the holes in the heap before forking, so that a fork writes to fewer shared pages ---
# Without it, a new worker has 11 % more private memory (lean template; 12 % with the SDKs), and its start takes
# 7 % more CPU time (9 %). benchmarks/bench_memory.py prints the memory ratio.

MALLOC_SIZES: Final = (*range(16_384, 4096, -512), *range(4096, 1024, -64), *range(1024, 512, -16))
"""Sizes of malloc requests in bytes. The largest come first, because large requests fit only into large holes."""
PYMALLOC_SIZES: Final = range(16, 513, 16)
"""Sizes of objects in Python's own pools. Each pool contains objects of one size."""
CONTIGUOUS_BYTES: Final = 12 << 10
"""If malloc returns this number of contiguous bytes, no smaller holes are left, because malloc fills holes first."""
POOL_BYTES: Final = 16 << 10
"""Size of a pool. Python fills partly used pools before it starts a new pool."""
POOL_HEADER_BYTES: Final = 48
NEW_POOLS: Final = 2
"""Number of full new pools that prove that no holes are left. A single pool may be an old pool that is nearly empty."""
MAX_NEIGHBOR_DISTANCE: Final = 4
"""Two objects count as neighbors up to this distance, in object sizes. Other objects may lie between neighbors."""
MAX_FILL_BYTES: Final = 1 << 20
"""Maximum number of bytes to fill per size. An allocator that exceeds this limit never returns contiguous memory."""
BYTES_HEADER_SIZE: Final = b"".__sizeof__()


def fill_heap_holes() -> list[object]:
    """Return objects that fill all heap holes of up to 16 KiB.

    Keep these objects, because freeing them opens the holes again.
    """
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
    return []  # This is a debugging allocator. Filling has no effect, so free the objects.


def _fill_pymalloc_pools(size: int) -> list[object]:
    make, full_pool_count = _allocator_of_size(size), (POOL_BYTES - POOL_HEADER_BYTES) // size - MAX_NEIGHBOR_DISTANCE
    kept: list[object] = []
    count_by_pool: dict[int, int] = {}
    new: set[int] = set()
    while len(kept) < MAX_FILL_BYTES // size:
        made = make()
        kept.append(made)
        pool = id(made) // POOL_BYTES
        count_by_pool[pool] = count = count_by_pool.get(pool, 0) + 1
        if count >= full_pool_count:
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
# Without it, a new worker has 12 % more private memory (lean template; 11 % with the SDKs), and its start takes
# 21 % more CPU time (15 %). benchmarks/bench_memory.py prints the memory ratio.

WARM_UP_RUNS: Final = 10
"""Number of runs. Python specializes a function after eight calls."""
WARM_UP_TIMEOUT_SECONDS: Final = 10.0
"""Time limit of one run. A run usually takes some milliseconds."""
WARM_UP_TOOL: Final = "list_files"


def run_warm_up_agent(folder: Path) -> None:
    """Create `folder`, run a short agent WARM_UP_RUNS times in this folder, and remove the folder.

    A failure or timeout is only printed, because without the runs, workers are slower but correct.
    """
    threads_before = {*threading.enumerate()}
    shutil.rmtree(folder, ignore_errors=True)  # The folder remains if a zygote was killed.
    try:
        with without_fsync():
            for number in range(WARM_UP_RUNS):
                if asyncio.run(_run_agent_once(folder / str(number))):
                    break
    except Exception:
        traceback.print_exc()
    finally:
        for thread in {*threading.enumerate()} - threads_before:  # Threads of the agent's tools must end before a fork.
            thread.join(WARM_UP_TIMEOUT_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


async def _run_agent_once(folder: Path) -> int:
    host = WorkerEndpoint(
        lambda on_data: _RehearsalRoot(on_data, folder), birth=WorkerBirth(b""), incarnation=1, spool=folder
    )
    async with asyncio.timeout(WARM_UP_TIMEOUT_SECONDS):
        return await host.serve()


class _RehearsalRoot:
    """A root for the warm-up, which initializes an agent in `folder`, sends a ping and a query, and stops the agent."""

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
        """Receive a frame from the worker, and schedule the answer."""
        received = self._channel.decode(data)
        if received is not None and (answer := self._answers.get(received[0].kind)):
            kind, body = answer
            frame = self._channel.encode(kind, body, kind, now=0.0)
            asyncio.get_running_loop().call_soon(self._on_data, frame)

    def close(self) -> None:
        """Do nothing, because frames are delivered immediately."""


# Modules that every worker needs and that the entry module does not import.
COMMON_MODULES: Final = (
    "orch_worker.process.main",
    "orch_worker.process.start_tool_host",
    "orch_worker.tools.python.namespace",
    "resource",
)
# Modules that a long conversation needs. Their regular expressions take 20 ms of each worker that compiles them itself.
CONVERSATION_MODULES: Final = ("orch_worker.context.compactor",)
PACKET_BYTES: Final = 1 << 16
TOOL_HOST_DESCRIPTORS: Final = 3
FORK: Final = multiprocess.get_context("fork")
MAX_TRACEBACK_CHARACTERS: Final = 8000
# A signal to the process group must not end the zygote, and thus its workers, before the root reacts.
IGNORED_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Zygote:
    """Forks workers for the root, and tool hosts for workers, until the root ends. Reports the end of each process."""

    def __init__(
        self,
        control: socket.socket,
        requests: tuple[socket.socket, socket.socket],
        entry: Entry,
        process: Callable[..., Any] = FORK.Process,
    ) -> None:
        self._control = control
        # All workers share the second socket. Each request is one packet, so requests of several workers do not mix.
        self._requests, self._workers_end = requests
        self._entry = entry
        self._process = process
        self._pid = os.getpid()
        self._alive: list[tuple[int, Any]] = []
        """The request number and the process of each worker, in the order in which the workers started."""
        self._tool_hosts: list[tuple[int, Any]] = []
        """The request number of the worker, and the process, of each tool host."""

    def serve(self, root: int, wake: int) -> None:
        """Serve requests until the process of the pidfd `root` ends, or until the root closes the socket."""
        poller = select.poll()
        for descriptor in (self._control.fileno(), self._requests.fileno(), root, wake):
            poller.register(descriptor, select.POLLIN)
        while True:
            ready = dict(poller.poll())
            if root in ready:
                return
            if wake in ready:
                os.read(wake, 4096)
                self._reap()
            if self._requests.fileno() in ready:
                self.handle_request()
            if self._control.fileno() in ready:
                packet, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
                if not packet:
                    return
                self._fork(decode_fork(packet), descriptors[0])
                os.close(descriptors[0])

    def handle_request(self) -> None:
        """Handle the next request of a worker."""
        packet, descriptors, _, _ = socket.recv_fds(
            self._requests, PACKET_BYTES, TOOL_HOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        try:
            if len(descriptors) == TOOL_HOST_DESCRIPTORS:  # Fewer arrive if this process has none left.
                self._fork_tool_host(decode_tool_host(packet).req, *descriptors)
        except MsgspecError as error:  # The code of a user in a worker can write to any descriptor.
            print(f"invalid request of a worker: {error}", flush=True)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork(self, fork: ForkWorker, pipe: int) -> None:
        process = self._process(target=self._run_as_worker, args=(fork, pipe))
        try:
            process.start()
        except OSError as error:
            self._tell(ForkFailed(fork.req, str(error)))
            return
        self._alive.append((fork.req, process))
        pidfd = os.pidfd_open(process.pid)
        self._tell(WorkerForked(fork.req, process.pid), pidfd)
        os.close(pidfd)

    def _fork_tool_host(self, req: int, connection: int, lifeline: int, log: int) -> None:
        process = self._process(target=self._run_as_tool_host, args=(connection, lifeline, log))
        try:
            process.start()
        except OSError as error:
            print(f"no process could be started for a tool host: {error}", flush=True)
            return  # The worker notices that its connection was closed.
        self._tool_hosts.append((req, process))
        pidfd = os.pidfd_open(process.pid)
        self._tell(ToolHostForked(req, process.pid), pidfd)
        os.close(pidfd)

    def _run_as_worker(self, fork: ForkWorker, pipe: int) -> None:
        """Turn this fork of the zygote into a worker."""
        self._leave_zygote()
        worker_init.run_worker(lambda: self._entry, fork, pipe, self._workers_end.detach())

    def _run_as_tool_host(self, connection: int, lifeline: int, log: int) -> None:
        """Turn this fork of the zygote into a tool host."""
        self._leave_zygote()
        self._workers_end.detach()
        tool_host.run_tool_host(connection, lifeline, log)

    def _leave_zygote(self) -> None:
        linux.die_with_parent(self._pid)
        signal.set_wakeup_fd(-1)
        linux.default_signals((*IGNORED_SIGNALS, signal.SIGCHLD))
        self._control.detach()
        self._requests.detach()

    def _reap(self) -> None:
        """Report all ended workers and tool hosts.

        Exit codes are read from `Process.exitcode` only. `multiprocess` also reaps children when it starts the next
        child, and stores their exit codes. A call of `os.waitpid` in this method would lose exit codes.
        """
        ended = [each for each in self._alive if each[1].exitcode is not None]
        for req, process in ended:
            self._alive.remove((req, process))
            exit_code = process.exitcode
            process.close()  # Before the report: a root that knows of the end finds no descriptor of the worker here.
            self._tell(WorkerProcessExited(req, exit_code))
        for req, process in [each for each in self._tool_hosts if each[1].exitcode is not None]:
            self._tool_hosts.remove((req, process))
            pid = process.pid
            process.close()
            self._tell(ToolHostExited(req, pid))

    def _tell(self, report: Report, *descriptors: int) -> None:
        socket.send_fds(self._control, [encode(report)], descriptors)


def _boot(template: str, entry: str, folder: Path) -> tuple[Entry, list[object]]:
    """Import the modules that workers of `template` need, and prepare the heap. Forked workers share both.

    The caller must keep a reference to the last item of the result.
    """
    gc.disable()  # Imported objects stay alive, and garbage collection during imports is slow.
    worker_init.prepare()
    function = load(entry)
    for module in _modules_of_template(template):
        importlib.import_module(module)
    if apis := [api for api, backend in APIS.items() if backend.template in templates_in(template)]:
        from ..backends.http import warm_connection

        warm_connection.warm(apis)
    # Remove cache entries that imports created. A fork that replaces these entries would write to shared pages.
    sys._clear_type_cache()
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
        raise RuntimeError(f"the template {template!r} left {tasks - 1} threads running, which a fork would not have")
    return function, kept


def _modules_of_template(template: str) -> list[str]:
    backends = (*PROVIDERS.values(), *APIS.values())
    providers = [backend.module for backend in backends if backend.template in ("lean", *templates_in(template))]
    conversation = () if template == "lean" else CONVERSATION_MODULES
    return [*COMMON_MODULES, *conversation, *providers, *(tool.module for tool in BUILTIN_TOOLS.values())]


def main(template: str, entry: str, folder: str, control: str, lifeline: str, root: str) -> None:
    """Boot the zygote and serve requests. If booting fails, report the error to the root and raise it."""
    linux.reset_signals(ignore=IGNORED_SIGNALS)
    os.setpgid(0, 0)
    for descriptor in (control, lifeline, root):
        os.set_inheritable(int(descriptor), False)
    linux.arm_lifeline(int(lifeline))
    with socket.socket(fileno=int(control)) as line:
        try:
            function, _kept = _boot(template, entry, Path(folder))
        except BaseException:
            line.send(encode(ZygoteFailed(traceback.format_exc()[-MAX_TRACEBACK_CHARACTERS:])))
            raise
        linux.reset_signals(ignore=IGNORED_SIGNALS)  # Imported modules may have changed signal handlers.
        wake = linux.wake_on_child()
        requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        requests[1].setblocking(False)
        zygote = Zygote(line, requests, function)
        line.send(encode(ZygoteReady(os.getpid(), len(os.listdir("/proc/self/fd")) - 1)))
        try:
            zygote.serve(int(root), wake)
        except (BrokenPipeError, ConnectionResetError):
            pass  # The root closed the socket during an answer.
    os._exit(0)
