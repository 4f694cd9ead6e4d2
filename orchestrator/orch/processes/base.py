"""The interface of launchers, which start workers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from orch_protocol.agent.spec import Template, WorkerBirth

__all__ = ["LaunchRequest", "Launcher", "WorkerProcess"]


class LaunchRequest(Struct, frozen=True):
    """The parameters for the start of one worker.

    `ident` is the routing identity of the worker's DEALER socket, which is new for each incarnation. `address` is the
    address to which the socket connects. `birth` is sent through the worker's birth pipe. `log` is the file for stdout
    and stderr. `spool` is the folder for bodies that are too large for the socket.
    """

    agent_id: str
    incarnation: int
    ident: bytes
    address: str
    birth: WorkerBirth
    template: Template
    log: str
    spool: str


class WorkerProcess(Protocol):
    """A worker that was started."""

    pid: int
    """The process id of the worker. For a worker inside the root, this is the process id of the root."""

    ended: asyncio.Future[int | None]
    """A future that resolves when the worker has ended.

    Its result is the exit code, a negative signal number, or None if the exit code is unknown.
    """

    def is_running(self) -> bool:
        """Return whether the worker is running. Must not raise.

        For a process, the kernel determines the answer.
        """

    def owns(self, pid: int) -> bool:
        """Return whether `pid` is the running process of the worker, or of its tool host. Must not raise."""

    def terminate(self) -> None:
        """Send SIGTERM, unless the worker has ended. Must not raise."""

    def kill(self) -> None:
        """Kill this worker immediately. Must not raise."""


class Launcher(Protocol):
    """Starts workers. Call `start` before the first `launch`. After `stop`, no process of the launcher is left."""

    environment: Sequence[str]
    """Names and glob patterns of variables that the processes get in addition to `environment.ALLOWED`.
    Set before `start`.
    """

    async def start(self) -> None:
        """Start the processes that all launches need, without waiting until they are ready. Raises LaunchError."""

    def warm(self, template: Template) -> None:
        """Prepare for launches from `template`, without waiting. Raises LaunchError."""

    def mount_namespace_problem(self) -> str:
        """Return why commands of the workers cannot have mount namespaces. Return "" if they can."""

    async def launch(self, request: LaunchRequest) -> WorkerProcess:
        """Start a worker and return it. Raises LaunchError.

        The worker's first frame may arrive before this method returns. If the call is canceled, a worker that already
        exists is ended.
        """

    async def stop(self) -> None:
        """End every process that this launcher started, and wait at most 5 s for the exits.

        Further calls have no effect.
        """
