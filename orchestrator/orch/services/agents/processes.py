"""What a service asks of an agent's process, and the process may not live to answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from orch_protocol.core.errors import AgentDiedError, QueryTimeoutError

from ...tree.agents.state import AgentRecord
from ...tree.journal import events
from ...tree.journal.events import BOOT_SECONDS

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["request_worker", "start_process"]

TRIES: Final = 5


async def request_worker(
    root: Supervisor, node: AgentRecord, kind: str, body: Struct, id: str, answer: str, seconds: float
) -> Any | None:
    """Send the agent's process a frame `kind` named `id`, and return the body of its `answer`; None when it is gone
    before it says anything. Raises QueryTimeoutError, and the error that the answer is."""
    said = root.waiters.watch(f"{answer}:{node.spec.id}:{id}")
    end = root.waiters.watch(f"gone:{node.spec.id}:{node.incarnation}")
    try:
        if (peer := root.workers.peer(node.spec.id)) is not None:
            peer.send(kind, body, id)
        await asyncio.wait([said, end], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if said.done():
            return said.result()
        if end.done():
            return None
        raise QueryTimeoutError(f"the process of agent {node.spec.name!r} did not answer within {seconds:g} s")
    finally:
        said.cancel()
        end.cancel()


async def start_process(root: Supervisor, node: AgentRecord) -> None:
    """Return when the agent's process is up, started for it if it had none. Raises OrchError when none comes up."""
    id = node.spec.id
    for _ in range(TRIES):  # one that has just been killed may hold the folder a moment longer than it lives
        root.handle(events.StartWorker(id))
        if node.running and node.status != "starting" and not node.stopping:
            return
        topics = (f"up:{id}", f"gone:{id}:{node.incarnation}")
        waiting = [root.waiters.watch(topic) for topic in topics]
        try:
            await asyncio.wait(waiting, timeout=BOOT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
    raise AgentDiedError(f"no process of agent {node.spec.name!r} ({id}) came up")
