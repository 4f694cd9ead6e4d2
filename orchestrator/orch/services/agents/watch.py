"""Service that watches an agent. Watchers get the agent's turns and approval questions for queries of all clients."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.ids import new_id
from orch_protocol.services.agents.watch import WATCH, WatchAgent
from orch_protocol.services.service import Empty
from orch_protocol.wire.watch_events import QuestionClosed, RecentMessages
from orch_protocol.wire.worker_messages import EmptyBody
from orch_worker.session.session_reader import read_session

from ...policy.caller import Caller
from ..archives.recall import find_agent_or_holder
from ..dispatch.handlers import handles_streaming

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor
    from ...supervisor.watchers import Watcher
    from ...tree.agents.state import AgentRecord

__all__ = ["watch"]


@handles_streaming(WATCH)
async def watch(root: Supervisor, caller: Caller, params: WatchAgent, watcher: Watcher | None = None) -> Empty:
    """Send the events of an agent's turns to `watcher` until the call is canceled.

    If the watcher disconnects, its open questions wait for another watcher until their timeout. Raises ConfigError if
    no watcher was passed.
    """
    node = await find_agent_or_holder(root, caller, params.ref, "watch", "control")
    if watcher is None:
        raise ConfigError(f"cannot watch agent {node.spec.name!r}: this connection has no event receiver")
    id, key = node.spec.id, new_id()
    if params.messages > 0:
        watcher(await _recent_messages(root, node, params.messages))
    query_id = root.watchers.join_turn(node, watcher)
    if query_id is not None and (peer := root.workers.peer(id)) is not None:
        peer.send("watch", EmptyBody(), query_id)
    root.watchers.watch_agent(key, id, watcher)
    if params.progress:
        root.watchers.watch_branch(key, id, watcher)
    if params.approve:
        root.approvals.register_client(id, watcher, lambda question: watcher(QuestionClosed(question)))
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        root.watchers.stop_watching_agent(key)
        root.watchers.stop_watching_branch(key)
        if params.approve:
            root.approvals.unregister_client(id, watcher, will_reconnect=True)
    return Empty()


async def _recent_messages(root: Supervisor, node: AgentRecord, limit: int) -> RecentMessages:
    """Return the last `limit` messages before the agent's current turn.

    If no turn runs, return the last `limit` messages.
    """
    while True:
        turn, query_count = node.pending, node.queries
        session = await root.disk.do(read_session, Path(node.spec.folder))
        node = root.tree.agents[node.spec.id]
        if (turn.query_id if turn else None, query_count) == (
            node.pending.query_id if node.pending else None,
            node.queries,
        ):
            break
    messages = session.messages if turn is None else session.messages_before(turn.query_id)
    return RecentMessages(messages[-limit:], max(0, len(messages) - limit))
