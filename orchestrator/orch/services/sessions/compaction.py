"""Service that compacts a conversation on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orch_protocol.core.errors import AgentDiedError
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Usage
from orch_protocol.core.text import scrub
from orch_protocol.services.sessions.compaction import COMPACT_SESSION, CompactSession
from orch_protocol.session.tree import CompactionDone, CompactRequest, CompactResult

from ...policy.caller import Caller
from ...tree.interface import events
from ..agents.processes import request_worker, start_process
from ..dispatch.handlers import handles
from .sessions import check_idle, session_of

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["compact"]

COMPACT_SECONDS: Final = 100.0
"""Timeout for the agent's process in seconds. The time limit of the agent's model is added to this timeout."""


@handles(COMPACT_SESSION)
async def compact(root: Supervisor, caller: Caller, params: CompactSession) -> CompactionDone:
    """Compact the conversation of an agent between turns. If the agent has no process, start a process.

    Raises AgentBusyError while a turn runs. Raises ConfigError if nothing can be compacted or a hook prevents the
    compaction. Raises AgentGoneError for a killed agent. Raises AgentDiedError if the process ends too early; the
    conversation is then unchanged.
    """
    node = session_of(root, caller, params.ref, "compact conversations of")
    check_idle(node)
    await start_process(root, node)
    check_idle(node)
    id, rules = node.spec.id, node.spec.compaction
    request = CompactRequest(scrub(params.instructions), root.hooks.rows, root.budgets.kinds_for(id))
    seconds = COMPACT_SECONDS + (rules.seconds if rules is not None else 0.0)
    reply: CompactResult | None = await request_worker(root, node, "compact", request, new_id(), "compacted", seconds)
    if reply is None or reply.done is None:
        raise AgentDiedError(
            f"the process of agent {node.spec.name!r} ({id}) ended before the conversation was compacted: retry"
        )
    result = reply.done
    if result.usage != Usage():
        root.handle(events.RecordUsage(id, result.usage))
    root.handle(events.RecordArchives(id, (), result.tokens_after))
    return result
