"""Killing agents, and taking it back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.core.errors import ConfigError, StoreError
from orch_protocol.services.requests import KILL, RESUME, AgentRow, Kill, Killed, Resume
from orch_worker.backends.cost_estimate import check_priced

from ...policy.caller import Caller
from ...supervisor.recovery.crash_recovery import used_by
from ...tree.agents.state import AgentRecord
from ...tree.journal import events
from ...tree.journal.entries import CredentialsSet
from ...tree.rules.admission import not_persisted_error
from ..checks.reach import find_agent
from ..dispatch.handlers import handles
from .status import row

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["kill", "resume"]

GONE_SECONDS = 5.0


@handles(KILL)
async def kill(root: Supervisor, caller: Caller, params: Kill) -> Killed:
    """End agents with everything below them and wait until their processes are gone. Transcripts stay.

    Raises StoreError when that could not be recorded; they are killed all the same.
    """
    nodes = root.tree.agents
    if params.all and params.refs:
        raise ConfigError("pass either agents or all, not both")
    if not params.all and not params.refs:
        raise ConfigError("no agents to kill: pass agents or all")
    if params.all:
        below = nodes if caller.agent_id is None else nodes.subtree(caller.agent_id)[:-1]
        targets = [node for node in below if node.status != "killed"]
    else:
        targets = [find_agent(root, caller, ref, "kill") for ref in params.refs]
    ids = tuple(node.spec.id for node in targets)
    if params.dry_run:
        doomed = [node.spec.id for id in ids for node in nodes.subtree(id) if node.status != "killed"]
        return Killed(tuple(dict.fromkeys(doomed)))
    processes = [(node.spec.id, node.incarnation) for id in ids for node in nodes.subtree(id) if node.running]
    gone = [root.waiters.watch(f"gone:{id}:{incarnation}") for id, incarnation in dict.fromkeys(processes)]
    agent = caller.find_agent(nodes)
    by = "the user" if agent is None else f"agent {agent.spec.name!r}"
    try:
        used = used_by(node for id in ids for node in nodes.subtree(id))
        killed: tuple[str, ...] = root.handle(events.KillRequested(ids, by, used))
        if gone:
            await asyncio.wait(gone, timeout=GONE_SECONDS)
    finally:
        for watcher in gone:
            watcher.cancel()
    for node in (nodes[id] for id in killed):
        if not node.spec.persist:
            root.fleeting.drop(Path(node.spec.folder))
    try:
        root.write_down()
    except StoreError as error:
        raise StoreError(f"killed {', '.join(killed) or 'nobody'}, which is not on record: {error}") from error
    return Killed(killed)


@handles(RESUME)
async def resume(root: Supervisor, caller: Caller, params: Resume) -> AgentRow:
    """Let a killed or failed agent answer again; its next query starts a process.

    It goes by limits that are set with it at once where it had some of that kind, else from its next query on.
    """
    node = find_agent(root, caller, params.ref, "resume")
    if node.status == "killed" and not node.spec.persist:
        raise not_persisted_error(node)
    if params.all and not params.credentials:
        raise ConfigError("all goes with credentials: orch resume REF --credentials --all")
    if params.credentials:
        _give_credentials(root, node, everywhere=params.all)
    if params.budget.max_cost_usd:
        check_priced(node.spec.backend)
    root.handle(events.ResumeRequested(node.spec.id, params.budget))
    root.budgets_changed()
    return row(root, node)


def _give_credentials(root: Supervisor, node: AgentRecord, *, everywhere: bool) -> None:
    """Let the agent, with `everywhere` every agent with the same credentials, use those of the caller from now on.

    Agents below that have none of their own move to the new address with it. Raises ConfigError.
    """
    nodes = root.tree.agents
    same = [other for other in nodes if root.credentials.same(node, other)] if everywhere else []
    given = [node, *(other for other in same if other is not node)]
    for each, record in [(each, root.credentials.replacement(each)) for each in given]:
        root.note(CredentialsSet(at=root.clock(), id=each.spec.id, credentials=record))
    for each in given:
        for below in nodes.subtree(each.spec.id):
            address = root.credentials.address(below.spec.backend.provider, below.spec.id)
            if address and address != below.spec.backend.options.get("base_url"):
                root.note(CredentialsSet(at=root.clock(), id=below.spec.id, base_url=address))
    root.credentials_offered()
