"""What it takes to turn a request into a running worker. One way of doing it a module."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from orch_protocol.agent.spec import Template, WorkerBirth

__all__ = ["LaunchRequest", "Launcher", "WorkerProcess"]


class LaunchRequest(Struct, frozen=True):
    """One worker to start.

    `ident` is the routing identity its DEALER takes, fresh for each incarnation; `address` where it connects; `birth`
    goes through its birth pipe; `log` is the file its descriptors 1 and 2 are bound to; `spool` the folder for bodies
    too large for the socket.
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
    """Its process id, or the root's own for a worker inside it."""

    ended: asyncio.Future[int | None]
    """Resolves once, when the worker is gone: exit code, minus the signal's number, or None when nobody knows."""

    def is_running(self) -> bool:
        """Return whether the worker has not ended, according to the kernel where it is a process. Must not raise."""

    def terminate(self) -> None:
        """Send SIGTERM; nothing happens if it is gone. Must not raise."""

    def kill(self) -> None:
        """End exactly this worker at once, whatever it is doing. Must not raise."""


class Launcher(Protocol):
    """Starts workers. `start` before the first `launch`; after `stop` none of its processes is left."""

    environment: Sequence[str]
    """Names and globs of variables that its processes get besides `environment.ALLOWED`; set before `start`."""

    async def start(self) -> None:
        """Begin whatever launching needs; returns without waiting for it to be warm. Raises LaunchError."""

    def warm(self, template: Template) -> None:
        """Make the next launch from `template` quick, as far as it can be; returns at once. Raises LaunchError."""

    def mounts_missing(self) -> str:
        """Return why commands of its workers cannot have mount namespaces of their own, "" when they can."""

    async def launch(self, request: LaunchRequest) -> WorkerProcess:
        """Return the started worker, whose first frame may already have arrived. Raises LaunchError.

        When cancelled, no worker is left: one that exists already ends.
        """

    async def stop(self) -> None:
        """End every process this launcher started, and wait until they are gone (at most 5 s). May come twice."""
