"""Workers that are threads of this process, for notebooks and debuggers.

The workers are not isolated. A crash in a tool crashes this process, and an agent that holds the interpreter lock
blocks all other agents. Sockets, frames and transcripts are the same as for worker processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from orch_protocol.agent.spec import Template
from orch_protocol.core.errors import LaunchError
from orch_worker.agent.runtime import Runtime
from orch_worker.process.start_tool_host import run_tool_host_program
from orch_worker.sandbox.launcher_client import unavailable_reason
from orch_worker.tool_host.client import StartHost
from orch_worker.transport.worker_endpoint import WorkerEndpoint
from orch_worker.transport.zmq_asyncio import DealerSocket

from .base import LaunchRequest
from .environment import worker_environment

__all__ = ["InProcessLauncher"]

STOP_SECONDS = 5.0


class ThreadWorker:
    """A worker that is a thread of this process."""

    def __init__(self, request: LaunchRequest, start_tool_host: StartHost) -> None:
        self.pid = os.getpid()
        self._root_loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int | None] = self._root_loop.create_future()
        self._request, self._start_tool_host = request, start_tool_host
        self._endpoint: WorkerEndpoint | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_code: int | None = None
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=self._run, name=f"orch-{request.agent_id}", daemon=True)
        self.thread.start()

    def is_running(self) -> bool:
        """Return whether the thread has not ended."""
        return not self.ended.done()

    def owns(self, pid: int) -> bool:  # noqa: ARG002
        """Return False, because a process that this program started is the user's."""
        return False

    def terminate(self) -> None:
        """End the worker at its next await."""
        self._end(-signal.SIGTERM)

    def kill(self) -> None:
        """End the worker at its next await, because a thread cannot be killed."""
        self._end(-signal.SIGKILL)

    def _end(self, code: int) -> None:
        with self._lock:
            self._stop_code = code
            if self._loop is not None and self._endpoint is not None:
                with contextlib.suppress(RuntimeError):  # the loop of the worker is closed, so the worker has ended
                    self._loop.call_soon_threadsafe(self._endpoint.stop, code)

    def _run(self) -> None:
        try:
            code: int | None = asyncio.run(self._serve())
        except BaseException as error:
            code = 1
            Path(self._request.log).write_text(f"{type(error).__name__}: {error}\n")
        with self._lock:
            self._loop = None
        try:
            self._root_loop.call_soon_threadsafe(self._set_exit_code, code)
        except RuntimeError:
            return  # the loop of the root is closed

    async def _serve(self) -> int:
        request = self._request
        endpoint = WorkerEndpoint(
            lambda on_data: DealerSocket(request.address, request.ident, on_data),
            birth=request.birth,
            incarnation=request.incarnation,
            spool=Path(request.spool),
            make=partial(Runtime, in_process=True, start_tool_host=self._start_tool_host),
        )
        with self._lock:
            self._loop, self._endpoint = asyncio.get_running_loop(), endpoint
            if self._stop_code is not None:
                endpoint.stop(self._stop_code)
        return await endpoint.serve()

    def _set_exit_code(self, code: int | None) -> None:
        if not self.ended.done():
            self.ended.set_result(code)


class InProcessLauncher:
    """Starts each worker as a thread of this process, without isolation."""

    def __init__(self, run: str = "", folder: Path | None = None) -> None:
        self.run, self.folder = run, folder
        self.environment: Sequence[str] = ()
        self._workers: list[ThreadWorker] = []

    async def start(self) -> None:
        """Do nothing."""

    def warm(self, template: Template) -> None:
        """Do nothing, because each worker imports what it needs."""

    def mount_namespace_problem(self) -> str:
        """Return why commands of the workers cannot have mount namespaces. Return "" if they can."""
        return unavailable_reason()

    async def launch(self, request: LaunchRequest) -> ThreadWorker:
        """Start a thread and return the worker. Raises LaunchError if the system cannot start a thread."""
        self._workers = [worker for worker in self._workers if worker.thread.is_alive()]
        try:
            environment = worker_environment(self.run, self.environment)
            worker = ThreadWorker(request, partial(run_tool_host_program, environment, request.log))
        except RuntimeError as error:
            raise LaunchError(f"agent {request.agent_id}: no thread could be started: {error}") from error
        self._workers.append(worker)
        return worker

    async def stop(self) -> None:
        """Ask every worker to end, and wait at most 5 s for them."""
        for worker in self._workers:
            worker.kill()
        ended = [worker.ended for worker in self._workers if not worker.ended.done()]
        if ended:
            await asyncio.wait(ended, timeout=STOP_SECONDS)
        self._workers.clear()
