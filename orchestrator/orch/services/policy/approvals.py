"""Services for the program's policy function, approval requests, answers and permissions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from orch_protocol.core.ids import new_id
from orch_protocol.policy.approval import Permission, Question, digest_of
from orch_protocol.policy.policy import EXIT_PLAN, TASK_CREATE, PolicyCall, Verdict
from orch_protocol.services.policy.approvals import (
    ANSWER_APPROVAL,
    EVALUATE_POLICY,
    LIST_PERMISSIONS,
    REQUEST_APPROVAL,
    REVOKE_PERMISSIONS,
    AnswerQuestion,
    AnswerResult,
    ApprovalDecision,
    ApproveCall,
    ListPermissions,
    Revoke,
)

from ...policy.approvals import NO_APPROVER
from ...policy.caller import Caller
from ...tree.agents.state import AgentRecord
from ...tree.interface import events
from ..checks.taint import labels_of
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["answer", "approve", "evaluate_policy", "lineage_of", "permissions", "revoke"]

COMMAND_ARGUMENTS: Final = ("command", "code", "plan")
"""The arguments that best describe a call, in addition to its path."""


@handles(EVALUATE_POLICY)
async def evaluate_policy(root: Supervisor, caller: Caller, params: PolicyCall) -> Verdict:
    """Return the verdict of the program's policy function on a call.

    If there is no policy function, the call is denied.
    """
    agent = caller.require_agent(root.tree.agents)
    spec = agent.spec
    if root.approvals.policy_callback is None:
        return Verdict(
            "deny", "any", "the program that spawned the agent had a policy function, but this program has none"
        )
    marks = await labels_of(agent)
    call = replace(params, agent_id=spec.id, depth=spec.depth, folder=spec.cwd, marks=marks)
    return await root.approvals.policy_callback.evaluate(call, spec.policy.rules)


@handles(REQUEST_APPROVAL)
async def approve(root: Supervisor, caller: Caller, params: ApproveCall) -> ApprovalDecision:
    """Ask an available approver whether the calling agent may run a tool call. A denial is a result, not an error.

    If a plan is approved, the agent's plan mode ends. Raises StoreError if the end of plan mode cannot be recorded.
    """
    node = caller.require_agent(root.tree.agents)
    lineage = lineage_of(root, node)
    digest = digest_of(params.tool, params.input, (*params.paths, *params.credentials))
    if params.tool == EXIT_PLAN and (plan_denial := _plan_denial(lineage)):
        return ApprovalDecision(False, digest, plan_denial)
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
        folder=_real_path(node.spec.cwd),
        digest=digest,
        local=params.local,
        tainted=params.tainted,
        seconds=seconds,
        credentials=params.credentials,
    ).with_lines()
    # The client that waits for the topmost query is asked, because it waits for the whole subtree. Without such a
    # client, a watcher is asked.
    query_ids = [each.pending.query_id for each in reversed(lineage) if each.pending is not None]
    agent_ids = [each.spec.id for each in reversed(lineage)]
    attended_id = next((id for id in (*query_ids, *agent_ids) if root.approvals.has_client(id)), None)
    denial = await root.approvals.ask(question, lineage[-1].spec.id, attended_id, seconds)
    if denial == NO_APPROVER:
        root.approvals.count_denied(query_ids)
    # If plan mode has already ended, the process did not receive the earlier approval. It receives this approval.
    if params.tool == EXIT_PLAN and not denial and node.spec.plan:
        root.handle(events.ApprovePlan(node.spec.id))
    return ApprovalDecision(not denial, digest, denial)


def _plan_denial(lineage: Sequence[AgentRecord]) -> str:
    """Return why the plan of the first agent in `lineage` cannot be approved, or "" if the plan can be approved.

    An agent may not leave plan mode while one of its ancestors is in plan mode.
    """
    ancestor = next((node.spec.name for node in lineage[1:] if node.spec.plan), "")
    return f"agent {ancestor!r} above you is still in plan mode: return your plan as your answer" if ancestor else ""


@handles(ANSWER_APPROVAL)
async def answer(root: Supervisor, _: Caller, params: AnswerQuestion) -> AnswerResult:
    """Answer a question. The first answer counts."""
    return root.approvals.answer(params)


@handles(LIST_PERMISSIONS)
async def permissions(root: Supervisor, _: Caller, params: ListPermissions) -> list[Permission]:
    """Return the valid permissions of this root's sessions and of projects."""
    nodes = root.tree.agents
    return [
        each
        for each in root.approvals.permissions(params.folder)
        if (node := nodes.get(each.agent_id)) is None or node.status != "killed"
    ]


@handles(REVOKE_PERMISSIONS)
async def revoke(root: Supervisor, _: Caller, params: Revoke) -> list[Permission]:
    """Revoke permissions and return them.

    Tool calls that a revoked permission covered need approval again. Raises ConfigError, EntryNotFoundError,
    StoreError.
    """
    return root.approvals.revoke(None if params.all else params.ids, params.folder)


def lineage_of(root: Supervisor, node: AgentRecord) -> list[AgentRecord]:
    """Return the agent and its ancestors. The last one is the agent that the user spawned."""
    lineage = [node]
    while (parent := root.tree.agents.get(lineage[-1].spec.parent_id)) is not None:
        lineage.append(parent)
    return lineage


def _real_path(path: str) -> str:
    return os.path.realpath(path)


def _subject(params: ApproveCall, cwd: str) -> str:
    if params.tool == TASK_CREATE:
        return "\n".join(map(str, params.input.get("tasks", ())))
    for name in COMMAND_ARGUMENTS:
        if isinstance(subject := params.input.get(name), str):
            return subject
    path = params.input.get("path")
    if isinstance(path, str) and "\0" not in path:
        return _real_path(os.path.join(cwd, path))
    return msgspec.json.encode(params.input).decode()
