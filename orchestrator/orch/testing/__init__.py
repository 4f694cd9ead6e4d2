"""Doubles for tests of programs that use orch: real agents, no process, no socket.

    async with AsyncOrchestrator(**fake_world()) as o:
        agent = await o.spawn("...", backend=ScriptedBackend(["hello"]))

Agents run on the test's own event loop and keep real transcripts. `FakeLauncher` can also fail to launch, and let an
agent die in the middle of a turn.
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
from orch_worker.transport.worker_endpoint import Make, RootConnection, WorkerEndpoint

from ..processes.base import LaunchRequest
from ..processes.router import ConnectionTable, Deliver

__all__ = ["FakeLauncher", "FakeWorker", "InMemoryRouter", "fake_world"]


class InMemoryRouter:
    """A switchboard without a socket: frames pass through the event loop, in order."""

    address = "memory:"

    def __init__(self, spool: Path, deliver: Deliver) -> None:
        self.peers = ConnectionTable(spool, self._to_worker, deliver)
        self.lose: Callable[[bytes], bool] = lambda _: False
        """Called with each frame; one for which it returns true is lost."""
        self._workers: dict[bytes, Callable[[bytes], None]] = {}

    def close(self) -> None:
        """Forget every worker."""
        self._workers.clear()

    def plug(self, ident: bytes, on_data: Callable[[bytes], None]) -> RootConnection:
        """Return the line of the worker known as `ident`, which hears through `on_data`."""
        self._workers[ident] = on_data
        return _MemoryLine(self, ident)

    def unplug(self, ident: bytes) -> None:
        """Cut a worker's line; what is under way is lost."""
        self._workers.pop(ident, None)

    def to_root(self, ident: bytes, data: bytes) -> None:
        """Carry a frame from a worker."""
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
    """A worker on the test's event loop. `make` makes its agent."""

    def __init__(self, request: LaunchRequest, board: InMemoryRouter, make: Make = Runtime) -> None:
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
        """Return whether it has not ended."""
        return not self.ended.done()

    def terminate(self) -> None:
        """End as on SIGTERM."""
        self.die(-signal.SIGTERM)

    def kill(self) -> None:
        """End as on SIGKILL: nothing more is heard of it."""
        self.die(-signal.SIGKILL)

    def die(self, code: int) -> None:
        """End with `code` and without a last word."""
        self._board.unplug(self.request.ident)
        self._host.stop(code)

    async def _serve(self) -> None:
        code: int | None = 1
        try:
            code = await self._host.serve()
        finally:
            self.ended.set_result(code)


class FakeLauncher:
    """Starts agents on the test's event loop. `workers` are all it started, `failures` the errors to raise next."""

    def __init__(self, make: Make = Runtime) -> None:
        self._make = make
        self.board: InMemoryRouter | None = None
        self.workers: list[FakeWorker] = []
        self.failures: list[str] = []
        self.warmed: list[Template] = []
        self.environment: Sequence[str] = ()
        self.without_mounts = ""
        """Why the machine has no mount namespaces."""

    def connect(self, _: Path, spool: Path, deliver: Deliver) -> InMemoryRouter:
        """Return the switchboard that this launcher's agents use."""
        self.board = InMemoryRouter(spool, deliver)
        return self.board

    def worker(self, agent_id: str) -> FakeWorker:
        """Return the youngest worker of the agent."""
        return [worker for worker in self.workers if worker.request.agent_id == agent_id][-1]

    async def start(self) -> None:
        """Nothing needs starting."""

    def warm(self, template: Template) -> None:
        """Keep what was asked for."""
        self.warmed.append(template)

    def mounts_missing(self) -> str:
        """Return why commands of its workers cannot have mount namespaces of their own, "" when they can."""
        return self.without_mounts

    async def launch(self, request: LaunchRequest) -> FakeWorker:
        """Return a started agent, or raise LaunchError with the next of `failures`."""
        if self.failures:
            raise LaunchError(self.failures.pop(0))
        assert self.board is not None, "pass this launcher's `connect` to the orchestrator, as `fake_world` does"
        worker = FakeWorker(request, self.board, self._make)
        self.workers.append(worker)
        return worker

    async def stop(self) -> None:
        """End every agent."""
        for worker in self.workers:
            worker.kill()
        running = [worker.ended for worker in self.workers if not worker.ended.done()]
        if running:
            await asyncio.wait(running, timeout=5.0)


def fake_world(launcher: FakeLauncher | None = None) -> dict[str, Any]:
    """Return the arguments that make an AsyncOrchestrator run its agents on the test's event loop."""
    launcher = launcher or FakeLauncher()
    return {"launcher": lambda _run, _folder: launcher, "connect": launcher.connect}
