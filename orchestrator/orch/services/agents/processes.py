"""Starts a worker for a service, and sends a request to the worker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from orch_protocol.core.errors import AgentDiedError, QueryTimeoutError

from ...tree.agents.state import AgentRecord
from ...tree.interface import events
from ...tree.interface.events import BOOT_SECONDS
from ...tree.interface.topics import ExitTopic, ReadyTopic, WorkerReplyTopic

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["request_worker", "start_process"]

MAX_STARTS: Final = 5


async def request_worker(
    root: Supervisor, node: AgentRecord, frame_type: str, body: Struct, id: str, reply_type: str, timeout: float
) -> Any | None:
    """Send a frame of the type `frame_type` to the agent's process, and return the body of the reply.

    The reply is a frame of the type `reply_type` with the same id. Returns None if the process ends before it replies.
    Raises QueryTimeoutError, and the error that the reply contains.
    """
    reply = root.waiters.watch(WorkerReplyTopic(reply_type, node.spec.id, id))
    exited = root.waiters.watch(ExitTopic(node.spec.id, node.incarnation))
    try:
        if (peer := root.workers.peer(node.spec.id)) is not None:
            peer.send(frame_type, body, id)
        await asyncio.wait([reply, exited], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if reply.done():
            return reply.result()
        if exited.done():
            return None
        raise QueryTimeoutError(f"the process of agent {node.spec.name!r} did not answer within {timeout:g} s")
    finally:
        reply.cancel()
        exited.cancel()


async def start_process(root: Supervisor, node: AgentRecord) -> None:
    """Wait until the agent's process is ready.

    Start a process if none exists. Raises OrchError if the process does not start.
    """
    id = node.spec.id
    for _ in range(MAX_STARTS):  # a killed process may keep the folder's lock for a moment
        root.handle(events.StartWorker(id))
        if node.running and node.status != "starting" and not node.stopping:
            return
        topics = (ReadyTopic(id), ExitTopic(id, node.incarnation))
        watchers = [root.waiters.watch(topic) for topic in topics]
        try:
            await asyncio.wait(watchers, timeout=BOOT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in watchers:
                each.cancel()
    raise AgentDiedError(f"no process of agent {node.spec.name!r} ({id}) could be started")
