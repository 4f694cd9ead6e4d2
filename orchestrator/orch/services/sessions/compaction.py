"""Letting the beginning of a conversation give way to a summary because somebody asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orch_protocol.core.errors import AgentDiedError
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Usage
from orch_protocol.core.text import scrub
from orch_protocol.services.sessions import COMPACT_SESSION
from orch_protocol.session.tree import CompactionDone, CompactRequest, CompactResult, CompactSession

from ...policy.caller import Caller
from ...tree.journal import events
from ..agents.processes import request_worker, start_process
from ..dispatch.handlers import handles
from .sessions import check_idle, session_of

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["compact"]

COMPACT_SECONDS: Final = 100.0
"""So long is the agent's process waited for, besides what its model may take by the rules."""


@handles(COMPACT_SESSION)
async def compact(root: Supervisor, caller: Caller, params: CompactSession) -> CompactionDone:
    """Compact the conversation of an agent between turns; it gets a process for that if it has none.

    Raises AgentBusyError while a turn runs, ConfigError when nothing can go or a hook forbids it, AgentGoneError for an
    agent that was killed, AgentDiedError when its process ends meanwhile: then the conversation is what it was.
    """
    node = session_of(root, caller, params.ref, "compact conversations of")
    check_idle(node)
    await start_process(root, node)
    check_idle(node)
    id, rules = node.spec.id, node.spec.compaction
    asked = CompactRequest(scrub(params.instructions), root.hooks.rows, root.budgets.kinds_for(id))
    seconds = COMPACT_SECONDS + (rules.seconds if rules is not None else 0.0)
    answer: CompactResult | None = await request_worker(root, node, "compact", asked, new_id(), "compacted", seconds)
    if answer is None or answer.done is None:
        raise AgentDiedError(
            f"the process of agent {node.spec.name!r} ({id}) ended before the conversation was compacted: ask again"
        )
    done = answer.done
    if done.usage != Usage():
        root.handle(events.RecordUsage(id, done.usage))
    root.handle(events.RecordArchives(id, (), done.tokens_after))
    return done
