"""Approval: what the program says of a call, an agent's question on its way to who may answer it, and the answer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from orch_protocol.core.ids import new_id
from orch_protocol.policy.approval import (
    AnswerQuestion,
    AnswerResult,
    ApprovalDecision,
    ApproveCall,
    ListPermissions,
    Permission,
    Question,
    Revoke,
    digest_of,
)
from orch_protocol.policy.policy import EXIT_PLAN, TASK_CREATE, PolicyCall, Verdict
from orch_protocol.services.approvals import (
    ANSWER_APPROVAL,
    EVALUATE_POLICY,
    LIST_PERMISSIONS,
    REQUEST_APPROVAL,
    REVOKE_PERMISSIONS,
)

from ...policy.approvals import NOBODY_TO_ASK
from ...policy.caller import Caller
from ...tree.agents.state import AgentRecord
from ...tree.journal import events
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["answer", "approve", "evaluate_policy", "lineage_of", "permissions", "revoke"]

COMMANDS: Final = ("command", "code", "plan")
"""The arguments that say best what a call is about, but for a path."""


@handles(EVALUATE_POLICY)
async def evaluate_policy(root: Supervisor, caller: Caller, params: PolicyCall) -> Verdict:
    """Return what the program's policy function says of the calling agent's call; without one it is denied."""
    spec = caller.require_agent(root.tree.agents).spec
    if root.approvals.opinion is None:
        return Verdict(
            "deny", "any", "the program that the agent was spawned by had a policy function, this one has none"
        )
    call = replace(params, agent_id=spec.id, depth=spec.depth, folder=spec.cwd)
    return await root.approvals.opinion.of(call, spec.policy.rules)


@handles(REQUEST_APPROVAL)
async def approve(root: Supervisor, caller: Caller, params: ApproveCall) -> ApprovalDecision:
    """Ask whoever is there whether the calling agent may run a call. Never raises for a no.

    A plan that is approved ends the agent's plan mode. Raises StoreError when that cannot be recorded.
    """
    node = caller.require_agent(root.tree.agents)
    lineage = lineage_of(root, node)
    digest = digest_of(params.tool, params.input, params.paths)
    if params.tool == EXIT_PLAN and (no := _no_plan(lineage)):
        return ApprovalDecision(False, digest, no)
    seconds = min(params.seconds, node.spec.policy.rules.approval_seconds)
    question = Question(
        id=new_id(),
        agent_id=node.spec.id,
        agent=node.spec.name,
        task=node.spec.task,
        depth=node.spec.depth,
        tool=params.tool,
        subject=_subject(params, node.spec.cwd),
        input=params.input,
        paths=params.paths,
        reason=params.reason,
        folder=_real(node.spec.cwd),
        digest=digest,
        local=params.local,
        tainted=params.tainted,
        seconds=seconds,
    ).with_lines()
    # The highest one: what is asked below is asked where the whole tree's answer is waited for, or else watched.
    asked_for = [each.pending.query_id for each in reversed(lineage) if each.pending is not None]
    watched = [each.spec.id for each in reversed(lineage)]
    about = next((id for id in (*asked_for, *watched) if root.approvals.attended(id)), None)
    by_pattern = params.tool != EXIT_PLAN and root.approvals.by_pattern(question, lineage[-1].spec.id)
    refused = await root.approvals.ask(question, lineage[-1].spec.id, about, seconds)
    if refused == NOBODY_TO_ASK:
        root.approvals.count_denied(asked_for)
    # Without plan mode on record its process has not heard of a yes before this one: this one it may hear.
    if params.tool == EXIT_PLAN and not refused and node.spec.plan:
        root.handle(events.ApprovePlan(node.spec.id))
    return ApprovalDecision(not refused, digest, refused, by_pattern)


def _no_plan(lineage: Sequence[AgentRecord]) -> str:
    """Return why the first of `lineage` cannot have a plan approved, "" when it can: nobody may do more than those
    above it."""
    above = next((node.spec.name for node in lineage[1:] if node.spec.plan), "")
    return f"agent {above!r} above you is in plan mode still: give your plan as your answer" if above else ""


@handles(ANSWER_APPROVAL)
async def answer(root: Supervisor, _: Caller, params: AnswerQuestion) -> AnswerResult:
    """Answer a question. The first answer counts."""
    return root.approvals.answer(params)


@handles(LIST_PERMISSIONS)
async def permissions(root: Supervisor, _: Caller, params: ListPermissions) -> list[Permission]:
    """Return what was approved for later and still holds, of this root's sessions and of projects."""
    nodes = root.tree.agents
    return [
        each
        for each in root.approvals.permissions(params.folder)
        if (node := nodes.get(each.agent_id)) is None or node.status != "killed"
    ]


@handles(REVOKE_PERMISSIONS)
async def revoke(root: Supervisor, _: Caller, params: Revoke) -> list[Permission]:
    """Take permissions back and return them; the next call is asked about anew. Raises ConfigError, StoreError."""
    return root.approvals.revoke(None if params.all else params.ids, params.folder)


def lineage_of(root: Supervisor, node: AgentRecord) -> list[AgentRecord]:
    """Return the agent and those above it, up to the one that the user spawned."""
    found = [node]
    while (above := root.tree.agents.get(found[-1].spec.parent_id)) is not None:
        found.append(above)
    return found


def _real(path: str) -> str:
    return os.path.realpath(path)


def _subject(params: ApproveCall, cwd: str) -> str:
    if params.tool == TASK_CREATE:
        return "\n".join(map(str, params.input.get("tasks", ())))
    for name in COMMANDS:
        if isinstance(said := params.input.get(name), str):
            return said
    path = params.input.get("path")
    if isinstance(path, str) and "\0" not in path:
        return _real(os.path.join(cwd, path))
    return msgspec.json.encode(params.input).decode()
