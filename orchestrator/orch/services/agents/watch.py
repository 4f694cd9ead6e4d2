"""Watching an agent: its turns as they happen, whoever asks it, and what needs approval meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.ids import new_id
from orch_protocol.services.resources import WATCH
from orch_protocol.services.service import Empty
from orch_protocol.wire.watch_events import QuestionClosed, RecentMessages, WatchAgent
from orch_protocol.wire.worker_messages import EmptyBody
from orch_worker.session.transcript import read_session

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
    """Tell `watcher` of the turns of an agent until this is cancelled. Raises ConfigError when nobody is to be told.

    What was asked of a watcher that goes waits, for as long as questions do, for the next one.
    """
    node = await find_agent_or_holder(root, caller, params.ref, "watch", "control")
    if watcher is None:
        raise ConfigError(f"cannot watch agent {node.spec.name!r}: this connection has no event receiver")
    id, key = node.spec.id, new_id()
    if params.messages > 0:
        watcher(await _spoken(root, node, params.messages))
    query_id = root.watchers.meet(node, watcher)
    if query_id is not None and (peer := root.workers.peer(id)) is not None:
        peer.send("watch", EmptyBody(), query_id)
    root.watchers.accompany(key, id, watcher)
    if params.progress:
        root.watchers.follow(key, id, watcher)
    if params.approve:
        root.approvals.attend(id, watcher, lambda question: watcher(QuestionClosed(question)))
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        root.watchers.stop_accompanying(key)
        root.watchers.unfollow(key)
        if params.approve:
            root.approvals.leave(id, watcher, returns=True)
    return Empty()


async def _spoken(root: Supervisor, node: AgentRecord, most: int) -> RecentMessages:
    """Return what was said before the turn that the agent is in as this returns."""
    while True:
        turn, asked = node.pending, node.queries
        session = await root.disk.do(read_session, Path(node.spec.folder))
        node = root.tree.agents[node.spec.id]
        if (turn.query_id if turn else None, asked) == (node.pending.query_id if node.pending else None, node.queries):
            break
    said = session.messages if turn is None else session.messages_before(turn.query_id)
    return RecentMessages(said[-most:], max(0, len(said) - most))
