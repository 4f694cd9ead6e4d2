"""The main function of a worker process: an event loop with a connection to the root."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

from orch_protocol.agent.spec import AgentSpec, WorkerBirth

from ..agent.runtime import Runtime
from ..tool_host.client import StartHost
from ..transport.worker_endpoint import WorkerEndpoint
from ..transport.zmq_asyncio import DealerSocket

__all__ = ["main"]


def main(
    *,
    birth: WorkerBirth,
    address: str,
    ident: bytes,
    incarnation: int,
    spool: str,
    start_tool_host: StartHost,
    **_: object,
) -> int:
    """Serve the root at `address` as a worker, which receives its agent later. Return the exit code."""

    async def serve() -> int:
        host = WorkerEndpoint(
            lambda on_data: DealerSocket(address, ident, on_data),
            birth=birth,
            incarnation=incarnation,
            spool=Path(spool),
            enter=_enter,
            make=partial(Runtime, start_tool_host=start_tool_host),
        )
        return await host.serve()

    # The loop class is fixed, because choosing the default class runs code that writes to memory pages shared with the
    # zygote.
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(serve())


def _enter(spec: AgentSpec) -> None:
    """Set the working folder and the umask that the agent's code expects.

    Private data of the agent is stored in folders that other users cannot enter.
    """
    if spec.umask is not None:
        os.umask(spec.umask)
    try:
        os.chdir(spec.cwd)
    except OSError as error:
        print(
            f"cannot change to folder {spec.cwd}: {error.strerror}", flush=True
        )  # The agent's tools will report this error too.
