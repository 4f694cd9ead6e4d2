"""Test doubles for programs that use orch. The test doubles run real agents without processes and sockets.

    async with AsyncOrchestrator(**fake_world()) as o:
        agent = await o.spawn("...", backend=ScriptedBackend(["hello"]))

Agents run on the test's event loop and write real transcripts. `FakeLauncher` can also simulate failed launches and
agents that die during a turn.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orch_protocol.agent.spec import Template
from orch_protocol.core.errors import LaunchError
from orch_worker.agent.runtime import Runtime
from orch_worker.transport.worker_endpoint import MakeRuntime, RootConnection, WorkerEndpoint

from ..processes.base import LaunchRequest
from ..processes.router import ConnectionTable, Deliver

__all__ = ["FakeLauncher", "FakeWorker", "InMemoryRouter", "fake_world"]


class InMemoryRouter:
    """A router without a socket. The event loop delivers the frames in order."""

    address = "memory:"

    def __init__(self, spool: Path, deliver: Deliver) -> None:
        self.peers = ConnectionTable(spool, self._to_worker, deliver)
        self.lose: Callable[[bytes], bool] = lambda _: False
        """A function that is called with each frame. The frame is lost if the function returns True."""
        self._workers: dict[bytes, Callable[[bytes], None]] = {}

    def close(self) -> None:
        """Disconnect every worker."""
        self._workers.clear()

    def plug(self, ident: bytes, on_data: Callable[[bytes], None]) -> RootConnection:
        """Connect the worker `ident` and return the worker's connection.

        `on_data` receives the frames for the worker.
        """
        self._workers[ident] = on_data
        return _MemoryLine(self, ident)

    def unplug(self, ident: bytes) -> None:
        """Disconnect the worker `ident`. Frames that were not delivered are lost."""
        self._workers.pop(ident, None)

    def to_root(self, ident: bytes, data: bytes) -> None:
        """Deliver a frame from a worker."""
        if ident in self._workers and not self.lose(data):
            asyncio.get_running_loop().call_soon(self.peers.accept, ident, data, os.getpid())

    def _to_worker(self, ident: bytes, data: bytes) -> None:
        if not self.lose(data):
            asyncio.get_running_loop().call_soon(self._deliver, ident, data)

    def _deliver(self, ident: bytes, data: bytes) -> None:
        on_data = self._workers.get(ident)
        if on_data is not None:
            on_data(data)


class _MemoryLine:
    def __init__(self, board: InMemoryRouter, ident: bytes) -> None:
        self._board = board
        self._ident = ident

    def send(self, data: bytes) -> None:
        self._board.to_root(self._ident, data)

    def close(self) -> None:
        self._board.unplug(self._ident)


class FakeWorker:
    """A worker on the test's event loop. `make` creates the agent of the worker."""

    def __init__(self, request: LaunchRequest, board: InMemoryRouter, make: MakeRuntime = Runtime) -> None:
        self.pid = os.getpid()
        self.request = request
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._board = board
        self._host = WorkerEndpoint(
            lambda on_data: board.plug(request.ident, on_data),
            birth=request.birth,
            incarnation=request.incarnation,
            spool=Path(request.spool),
            make=make,
        )
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def is_running(self) -> bool:
        """Return whether the worker is running."""
        return not self.ended.done()

    def terminate(self) -> None:
        """End the worker as SIGTERM does."""
        self.die(-signal.SIGTERM)

    def kill(self) -> None:
        """End the worker as SIGKILL does. The worker sends no more frames."""
        self.die(-signal.SIGKILL)

    def die(self, code: int) -> None:
        """End the worker with the exit status `code`. The worker sends no more frames."""
        self._board.unplug(self.request.ident)
        self._host.stop(code)

    async def _serve(self) -> None:
        code: int | None = 1
        try:
            code = await self._host.serve()
        finally:
            self.ended.set_result(code)


class FakeLauncher:
    """Starts agents on the test's event loop.

    `workers` contains all workers that were started. `failures` contains messages for the LaunchErrors of the next
    launches.
    """

    def __init__(self, make: MakeRuntime = Runtime) -> None:
        self._make = make
        self.board: InMemoryRouter | None = None
        self.workers: list[FakeWorker] = []
        self.failures: list[str] = []
        self.warmed: list[Template] = []
        self.environment: Sequence[str] = ()
        self.without_mounts = ""
        """The reason why the machine has no mount namespaces, "" if it has them."""

    def connect(self, _: Path, spool: Path, deliver: Deliver) -> InMemoryRouter:
        """Return the router of this launcher's agents."""
        self.board = InMemoryRouter(spool, deliver)
        return self.board

    def worker(self, agent_id: str) -> FakeWorker:
        """Return the latest worker of the agent `agent_id`."""
        return [worker for worker in self.workers if worker.request.agent_id == agent_id][-1]

    async def start(self) -> None:
        """Do nothing."""

    def warm(self, template: Template) -> None:
        """Record the template."""
        self.warmed.append(template)

    def mount_namespace_problem(self) -> str:
        """Return why commands of the workers cannot run in separate mount namespaces, "" if they can."""
        return self.without_mounts

    async def launch(self, request: LaunchRequest) -> FakeWorker:
        """Start a worker and return it. If `failures` is not empty, raise LaunchError with the next message instead."""
        if self.failures:
            raise LaunchError(self.failures.pop(0))
        assert self.board is not None, "pass this launcher's `connect` to the orchestrator, as `fake_world` does"
        worker = FakeWorker(request, self.board, self._make)
        self.workers.append(worker)
        return worker

    async def stop(self) -> None:
        """End every worker."""
        for worker in self.workers:
            worker.kill()
        running = [worker.ended for worker in self.workers if not worker.ended.done()]
        if running:
            await asyncio.wait(running, timeout=5.0)


def fake_world(launcher: FakeLauncher | None = None) -> dict[str, Any]:
    """Return arguments for AsyncOrchestrator. With these arguments, the agents run on the test's event loop."""
    launcher = launcher or FakeLauncher()
    return {"launcher": lambda _run, _folder: launcher, "connect": launcher.connect}
