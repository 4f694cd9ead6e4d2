"""Services that kill and resume agents, and cancel turns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.core.errors import AgentNotFoundError, ConfigError, StoreError
from orch_protocol.core.messages import Usage
from orch_protocol.services.agents.lifecycle import CANCEL_TURN, KILL, RESUME, CancelTurn, Kill, Killed, Resume
from orch_protocol.services.agents.status import AgentRow
from orch_worker.backends.prices import check_priced

from ...policy.caller import Caller
from ...supervisor.recovery.crash_recovery import recover_query, usage_of_pending
from ...tree.agents.state import AgentRecord, TreeState
from ...tree.interface import events
from ...tree.interface.topics import ExitTopic
from ...tree.journal.entries import CredentialsSet
from ...tree.rules.admission import not_persisted_error
from ..archives.recall import find_holder
from ..checks.reach import find_agent
from ..dispatch.handlers import handles
from .status import row
from .worktrees import in_restored_worktree, remove_worktrees

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["cancel", "kill", "kill_agents", "resume"]

EXIT_TIMEOUT_SECONDS = 5.0


@handles(KILL)
async def kill(root: Supervisor, caller: Caller, params: Kill) -> Killed:
    """End agents and all their descendants, and wait until their processes have ended. Transcripts are kept.

    If the caller stops waiting, the kill is completed. If the kill cannot be recorded, the agents are killed
    nevertheless and StoreError is raised.
    """
    nodes = root.tree.agents
    if params.all and params.refs:
        raise ConfigError("pass either agents or all, not both")
    if not params.all and not params.refs:
        raise ConfigError("no agents to kill: pass agents or all")
    unasked: list[str] = []
    if params.all:
        candidates = nodes if caller.agent_id is None else nodes.subtree(caller.agent_id)[:-1]
        targets = [node for node in candidates if node.status != "killed"]
    else:
        targets = []
        for ref in params.refs:
            try:
                targets.append(find_agent(root, caller, ref, *KILL.fields.refs["refs"]))
            except AgentNotFoundError:
                if not (holder := await find_holder(root, caller, ref)):
                    raise
                unasked.append(holder)  # a holder without an agent record has no process
    ids = tuple(node.spec.id for node in targets)
    if params.dry_run:
        ids_to_kill = [node.spec.id for id in ids for node in nodes.subtree(id) if node.status != "killed"]
        return _killed(nodes, tuple(dict.fromkeys(ids_to_kill)), unasked)
    agent = caller.find_agent(nodes)
    initiator = "the user" if agent is None else f"agent {agent.spec.name!r}"
    asked = [node.spec.id for node in targets if node.is_holder]
    killed = await root.steps.run(kill_agents(root, ids, initiator)) if ids or params.all else ()
    return _killed(nodes, killed, [*unasked, *asked])


def _killed(nodes: TreeState, ids: tuple[str, ...], holders: Iterable[str]) -> Killed:
    return Killed(ids, tuple(dict.fromkeys([*holders, *(id for id in ids if nodes[id].is_holder)])))


async def kill_agents(root: Supervisor, ids: tuple[str, ...], initiator: str) -> tuple[str, ...]:
    """Kill the agents `ids` and their descendants. Return the ids of all killed agents. Raises StoreError."""
    nodes = root.tree.agents
    processes = [(node.spec.id, node.incarnation) for id in ids for node in nodes.subtree(id) if node.running]
    exits = [root.waiters.watch(ExitTopic(id, incarnation)) for id, incarnation in dict.fromkeys(processes)]
    try:
        used = usage_of_pending(node for id in ids for node in nodes.subtree(id))
        killed: tuple[str, ...] = root.handle(events.KillRequested(ids, initiator, used))
        if exits:
            await asyncio.wait(exits, timeout=EXIT_TIMEOUT_SECONDS)
    finally:
        for watcher in exits:
            watcher.cancel()
    for node in (nodes[id] for id in killed):
        if not node.spec.persist:
            root.ephemeral_sessions.drop(Path(node.spec.folder))
    await remove_worktrees(root, [nodes[id].spec for id in killed])
    try:
        root.flush_journal()
    except StoreError as error:
        raise StoreError(f"killed {', '.join(killed) or 'no agent'}, but the kill was not recorded: {error}") from error
    return killed


@handles(RESUME)
async def resume(root: Supervisor, caller: Caller, params: Resume) -> AgentRow:
    """Let a killed or failed agent answer queries again. The agent's next query starts a process.

    If the agent already had a limit of the same kind, a changed limit takes effect at once. Otherwise the limit takes
    effect with the agent's next query.
    """
    node = find_agent(root, caller, params.ref, "resume")
    if node.status == "killed" and not node.spec.persist:
        raise not_persisted_error(node)
    if params.all and not params.credentials:
        raise ConfigError("--all requires --credentials: orch resume REF --credentials --all")
    if params.credentials:
        _give_credentials(root, node, everywhere=params.all)
    if params.budget.max_cost_usd:
        check_priced(node.spec.backend)
    resumed = events.ResumeRequested(node.spec.id, params.budget, params.ends_with_connection)
    await in_restored_worktree(root, node, lambda: root.handle(resumed))
    root.budgets_changed()
    return await row(root, node)


def _give_credentials(root: Supervisor, node: AgentRecord, *, everywhere: bool) -> None:
    """Give the agent the caller's credentials.

    With `everywhere`, also change all agents that share the old credentials of this agent. The new server address also
    applies to descendants without credentials of their own. Raises ConfigError.
    """
    nodes = root.tree.agents
    sharing = [other for other in nodes if root.credentials.same(node, other)] if everywhere else []
    recipients = [node, *(other for other in sharing if other is not node)]
    for each, record in [(each, root.credentials.replacement(each)) for each in recipients]:
        root.record(CredentialsSet(at=root.clock(), id=each.spec.id, credentials=record))
    for each in recipients:
        for descendant in nodes.subtree(each.spec.id):
            address = root.credentials.address(descendant.spec.backend.provider, descendant.spec.id)
            if address and address != descendant.spec.backend.options.get("base_url"):
                root.record(CredentialsSet(at=root.clock(), id=descendant.spec.id, base_url=address))
    root.launch_waiting()


@handles(CANCEL_TURN)
async def cancel(root: Supervisor, caller: Caller, params: CancelTurn) -> AgentRow:
    """End an agent's turn.

    The turn's query ends with stop reason `cancelled`. With `hard`, the query of this turn fails instead.
    """
    node = find_agent(root, caller, params.ref, "cancel")
    root.handle(
        events.CancelRequested(node.spec.id, params.hard, recover_query(node).usage if params.hard else Usage())
    )
    return await row(root, node)
