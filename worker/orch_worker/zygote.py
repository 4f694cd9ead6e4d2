"""A process that has imported everything once and forks workers that start with it.

Called as `zygote <template> <entry> <run folder> <control> <lifeline> <root pidfd>`. It holds no thread, no socket but
its control end, no zmq context and no secret: a worker inherits all of it. What it says is in `orch_protocol.zygote`.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, Final

from orch_protocol.zygote import (
    Booted,
    BootFailed,
    Exited,
    Fork,
    Forked,
    ForkFailed,
    Report,
    decode_fork,
    encode,
)

from . import birth, holes, kernel
from .backends.registry import APIS, PROVIDERS
from .entry import Entry, load
from .rehearsal import rehearse
from .tools.presets import BUILTIN

__all__ = ["main"]

# What runs in every worker but is not imported with the entry's module.
EVERY_WORKER: Final = ("orch_worker.process", "resource")
PACKET_BYTES: Final = 1 << 16
TEXT_CHARACTERS: Final = 8000
# Its life is the root's: a polite signal to everybody must not end it, and its workers, before that has had its say.
IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def worker_process() -> type[Any]:
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
                    kernel.die_with_parent(zygote)
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

    def _fork(self, fork: Fork, pipe: int) -> None:
        process = self._process(target=self._be, args=(fork, pipe))
        try:
            process.start()
        except OSError as error:
            self._tell(ForkFailed(fork.req, str(error)))
            return
        self._alive[process.pid] = fork.req, process
        pidfd = os.pidfd_open(process.pid)
        self._tell(Forked(fork.req, process.pid), pidfd)
        os.close(pidfd)

    def _be(self, fork: Fork, pipe: int) -> None:
        """Turn from a fork of the zygote into a worker."""
        signal.set_wakeup_fd(-1)
        kernel.default_signals((*IGNORED, signal.SIGCHLD))
        self._control.detach()
        birth.live(lambda: self._entry, fork, pipe)

    def _reap(self) -> None:
        """Report every ended worker, in the order of their ends."""
        while self._alive and (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
            _, status = os.waitpid(dead.si_pid, 0)
            req, process = self._alive.pop(dead.si_pid)
            process._popen.returncode = os.waitstatus_to_exitcode(status)
            self._process.siblings.discard(process)
            self._tell(Exited(req, process._popen.returncode))

    def _tell(self, report: Report, *descriptors: int) -> None:
        socket.send_fds(self._control, [encode(report)], descriptors)


def _boot(template: str, entry: str, folder: Path) -> tuple[Entry, type[Any], list[object]]:
    """Import what workers of `template` run, and settle the heap, so that forks share all of it.

    The last of what is returned is to be kept.
    """
    gc.disable()  # what is imported stays, and there is much of it to look through
    birth.prepare()
    function, process = load(entry), worker_process()
    for module in _modules(template):
        importlib.import_module(module)
    if template == "sdk":
        from .backends import warm

        warm.warm()
    sys._clear_type_cache()  # of what importing looked up: each would be let go by a fork that looks up something else
    rehearse(folder / f"rehearsal-{template}")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    gc.enable()
    gc.collect()
    kept = holes.filled()
    gc.freeze()
    kernel.huge_pages()
    tasks = len(os.listdir("/proc/self/task"))
    if tasks != 1:
        raise RuntimeError(f"the template {template!r} left {tasks - 1} threads behind, which no fork would have")
    return function, process, kept


def _modules(template: str) -> list[str]:
    backends = (*PROVIDERS.values(), *APIS.values())
    providers = [backend.module for backend in backends if backend.template in ("lean", template)]
    return [*EVERY_WORKER, *providers, *(tool.module for tool in BUILTIN.values())]


def main(template: str, entry: str, folder: str, control: str, lifeline: str, root: str) -> None:
    """Boot and serve. A failed boot is told to the root and raised."""
    kernel.reset_signals(ignore=IGNORED)
    os.setpgid(0, 0)
    for descriptor in (control, lifeline, root):
        os.set_inheritable(int(descriptor), False)
    kernel.arm_lifeline(int(lifeline))
    with socket.socket(fileno=int(control)) as line:
        try:
            function, process, _kept = _boot(template, entry, Path(folder))
        except BaseException:
            line.send(encode(BootFailed(traceback.format_exc()[-TEXT_CHARACTERS:])))
            raise
        kernel.reset_signals(ignore=IGNORED)  # whatever was imported may have had ideas of its own
        wake = kernel.wake_on_child()
        zygote = Zygote(line, function, process)
        line.send(encode(Booted(os.getpid(), len(os.listdir("/proc/self/fd")) - 1)))
        try:
            zygote.serve(int(root), wake)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the root hung up in the middle of an answer
    os._exit(0)
