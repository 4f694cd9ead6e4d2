"""What agents may use, and that it only becomes less: at most what their parents may, and what they were granted.

Pure. There is one exception: what an agent does with its own archive, and the way out of its own plan mode, are rights
of its own, which nobody above it grants or takes.
"""

from __future__ import annotations

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.policy.policy import EXIT_PLAN
from orch_protocol.wire.worker_messages import WithdrawTools
from orch_worker.tools.dispatch.presets import RECALL

from ..agents.state import AgentRecord, TreeState
from ..journal import events
from ..journal.entries import Entry, ToolsRevoked
from ..journal.events import Decision, Instruction, Send

__all__ = ["own_rights", "reminder", "revoke_tools"]


def own_rights(spec: AgentSpec) -> frozenset[str]:
    """Return the tools that are the agent's by itself, whatever its parent holds."""
    own = set(RECALL) if spec.archival is not None or spec.archives else set()
    if spec.recall_only:
        own.add("query_subagent")
    if spec.plan:
        own.add(EXIT_PLAN)
    return frozenset(own)


def revoke_tools(nodes: TreeState, event: events.RevokeTools, now: float) -> Decision:
    """Let the agent keep no more than `event.keep`, and everybody below it no more than its parent keeps."""
    entries: list[Entry] = []
    instructions: list[Instruction] = []
    kept: dict[str | None, frozenset[str]] = {}
    for node in reversed(nodes.subtree(event.id)):  # parents come before their children
        spec = node.spec
        ceiling = kept[spec.parent_id] if spec.id != event.id else frozenset(event.keep)
        gone = tuple(name for name in spec.grant if not _stays(spec, name, ceiling))
        kept[spec.id] = frozenset(spec.grant) - frozenset(gone)
        if gone != spec.withdrawn:
            entries.append(ToolsRevoked(at=now, id=spec.id, withdrawn=gone))
            if node.status in ("idle", "busy"):
                instructions.append(_revoke_frame(spec.id, gone))
    return Decision(entries, instructions)


def reminder(node: AgentRecord) -> list[Instruction]:
    """Return what a process that has just come up is told, which may have been described before the last narrowing."""
    return [_revoke_frame(node.spec.id, node.spec.withdrawn)] if node.spec.withdrawn else []


def _stays(spec: AgentSpec, name: str, ceiling: frozenset[str]) -> bool:
    return name not in spec.withdrawn and (name in ceiling or name in own_rights(spec))


def _revoke_frame(id: str, withdrawn: tuple[str, ...]) -> Send:
    return Send(id, "", "revoke_tools", WithdrawTools(withdrawn))
