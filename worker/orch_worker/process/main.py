"""A worker that is a process of its own: its agent's host on an event loop, with a socket to the root."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from orch_protocol.agent.spec import AgentSpec, WorkerBirth

from ..transport.worker_endpoint import WorkerEndpoint
from ..transport.zmq_asyncio import DealerSocket

__all__ = ["main"]


def main(*, birth: WorkerBirth, address: str, ident: bytes, incarnation: int, spool: str, **_: object) -> int:
    """Serve the root at `address` as `incarnation` of the agent it will name; return the exit code."""

    async def serve() -> int:
        host = WorkerEndpoint(
            lambda on_data: DealerSocket(address, ident, on_data),
            birth=birth,
            incarnation=incarnation,
            spool=Path(spool),
            enter=_enter,
        )
        return await host.serve()

    # Named, for looking for the one that this system prefers runs code that makes pages of memory a worker's own.
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(serve())


def _enter(spec: AgentSpec) -> None:
    """Go where code that the agent runs in this process expects to be, and make files as whoever spawned it does.

    What is the agent's alone lies in folders that nobody else may enter.
    """
    if spec.umask is not None:
        os.umask(spec.umask)
    try:
        os.chdir(spec.cwd)
    except OSError as error:
        print(f"cannot go to {spec.cwd}: {error.strerror}", flush=True)  # the agent's tools will say so too
