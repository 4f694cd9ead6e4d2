"""A fresh interpreter for each worker, where forking a loaded process is unsafe (macOS). Half a second each."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Final

from orch_protocol.errors import LaunchError
from orch_protocol.spec import Template
from orch_protocol.zygote import Fork, encode
from orch_worker import kernel

from .base import LaunchRequest
from .child import Child, Children, birth_pipe
from .descriptors import hold, release
from .environment import check_platform, clean_environment, command
from .logs import open_log

__all__ = ["ExecLauncher"]

STOP_SECONDS: Final = 5.0
PIDFDS: Final = hasattr(os, "pidfd_open")


class ExecChild(Child):
    """A worker that is this process's own child: watched by its pidfd, or by a thread where there are none."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: int, log: str) -> None:
        self._process = process
        end = os.pidfd_open(process.pid) if PIDFDS else _readable_at_end(process)
        super().__init__(process.pid, end, lifeline, log, self._reap)

    def _reap(self, end: int) -> int | None:
        code = kernel.reap(end) if PIDFDS else self._process.wait()
        self._process.returncode = code or 0  # it must neither wait for it again nor warn
        return code

    def _signal(self, number: signal.Signals) -> None:
        if PIDFDS:
            super()._signal(number)
        else:
            self._process.send_signal(number)


def _readable_at_end(process: subprocess.Popen[bytes]) -> int:
    reader, writer = map(hold, os.pipe())

    def wait() -> None:
        process.wait()
        release(writer)

    threading.Thread(target=wait, name=f"wait-{process.pid}", daemon=True).start()
    return reader


class ExecLauncher:
    """A `Launcher` whose workers are this process's own children. They carry ORCH_RUN=`run_id`.

    A worker ends with its birth pipe. Nothing adopts what its tools leave behind, which forked workers' shim does.
    """

    def __init__(self, run_id: str, folder: Path, *, entry: str = "orch_worker.process:main") -> None:
        self._run_id = run_id
        self._folder = folder
        self._entry = entry
        self._children = Children(lambda: None)
        self._stopped = False

    async def start(self) -> None:
        """Check that workers can be started here, and have a folder for their logs."""
        check_platform()
        if not os.access(self._folder, os.W_OK):
            raise LaunchError(f"cannot write to {self._folder}, the folder of the run")

    def warm(self, template: Template) -> None:
        """Do nothing: each worker imports what it needs."""

    async def launch(self, request: LaunchRequest) -> Child:
        """Return the worker, whose interpreter has only begun to start. Raises LaunchError."""
        if self._stopped:
            raise LaunchError("the launcher was stopped")
        reader, lifeline = birth_pipe(request.birth)
        try:
            child = ExecChild(self._start(request, reader), lifeline, request.log)
        except OSError as error:
            release(lifeline)
            raise LaunchError(f"agent {request.agent_id}: no process could be started: {error}") from error
        finally:
            release(reader)
        self._children.add(child)
        return child

    def _start(self, request: LaunchRequest, reader: int) -> subprocess.Popen[bytes]:
        fork = Fork(
            0, request.agent_id, request.incarnation, request.ident, request.address, request.log, request.spool
        )
        with open(open_log(Path(request.log)), "ab") as output:
            return subprocess.Popen(
                command("worker", self._entry, str(reader), encode(fork).hex()),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=clean_environment(self._run_id),
                pass_fds=(reader,),
                process_group=0,
            )

    async def stop(self) -> None:
        """End every worker and wait until they are gone (at most 5 s)."""
        self._stopped = True
        await self._children.end(STOP_SECONDS)
