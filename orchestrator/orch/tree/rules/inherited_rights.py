"""Tool rights of agents.

An agent may use only tools that its parent may use and that were granted to the agent at the spawn. Later changes only
revoke tools. There is one exception: the tools for an agent's own archive, and the tool that leaves plan mode, belong
to the agent. An ancestor neither grants nor revokes these tools.
"""

from __future__ import annotations

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.policy.policy import EXIT_PLAN
from orch_protocol.wire.worker_messages import WithdrawTools
from orch_worker.tools.dispatch.presets import RECALL

from ..agents.state import AgentRecord, TreeState
from ..interface import events
from ..interface.instructions import Decision, Instruction, Send
from ..journal.entries import Entry, ToolsRevoked

__all__ = ["initial_frames", "own_rights", "revoke_tools"]


def own_rights(spec: AgentSpec) -> frozenset[str]:
    """Return the tools that the agent may use even if its parent may not."""
    own = set(RECALL) if spec.archival is not None or spec.archives else set()
    if spec.recall_only:
        own.add("query_subagent")
    if spec.plan:
        own.add(EXIT_PLAN)
    return frozenset(own)


def revoke_tools(agents: TreeState, event: events.RevokeTools, now: float) -> Decision:
    """Restrict the agent to the tools in `event.keep`. Restrict each descendant to the tools of its parent."""
    entries: list[Entry] = []
    instructions: list[Instruction] = []
    remaining_tools: dict[str | None, frozenset[str]] = {}
    for agent in reversed(agents.subtree(event.id)):  # parents come before their children
        spec = agent.spec
        allowed = remaining_tools[spec.parent_id] if spec.id != event.id else frozenset(event.keep)
        revoked = tuple(name for name in spec.grant if not _may_keep(spec, name, allowed))
        remaining_tools[spec.id] = frozenset(spec.grant) - frozenset(revoked)
        if revoked != spec.withdrawn:
            entries.append(ToolsRevoked(at=now, id=spec.id, withdrawn=revoked))
            if agent.status in ("idle", "busy"):
                instructions.append(_revoke_frame(spec.id, revoked))
    return Decision(entries, instructions)


def initial_frames(agent: AgentRecord) -> list[Instruction]:
    """Return the frame that tells a new process which tools were revoked.

    The spec that the process got may be older than the revocation.
    """
    return [_revoke_frame(agent.spec.id, agent.spec.withdrawn)] if agent.spec.withdrawn else []


def _may_keep(spec: AgentSpec, name: str, allowed: frozenset[str]) -> bool:
    return name not in spec.withdrawn and (name in allowed or name in own_rights(spec))


def _revoke_frame(id: str, withdrawn: tuple[str, ...]) -> Send:
    return Send(id, "", "revoke_tools", WithdrawTools(withdrawn))
