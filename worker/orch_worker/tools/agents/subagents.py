"""Tools for subagents. The tools call services of the root. Each result is short text or compact JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.core.errors import BudgetExceededError, ConcurrencyLimitError, DepthCapError, QueryTimeoutError
from orch_protocol.core.messages import Reply
from orch_protocol.core.taint import inherited_labels
from orch_protocol.policy.budget import Budget
from orch_protocol.services.agents.lifecycle import KILL, Kill
from orch_protocol.services.agents.query import COLLECT, QUERY, SUBMIT, WAIT, Collect, QueryAgent, Wait
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orch_protocol.services.agents.status import LIST_AGENTS, ListAgents
from orch_protocol.services.service import Service

from ..api.base import ToolContext, ToolError, ToolOutput, tool
from ..dispatch.error_text import error_for_model

__all__ = [
    "collect_subagent",
    "kill_subagent",
    "list_subagents",
    "query_subagent",
    "spawn_subagent",
    "wait_subagents",
]

COLLECT_SECONDS: Final = 60.0
MARGIN_SECONDS: Final = 2.0
MAX_TASK_SHOWN: Final = 80
MAX_HOLDERS_SHOWN: Final = 4
EMPTY_REPLY: Final = "(It said nothing.)"


P = TypeVar("P", bound=Struct)
R = TypeVar("R")


@tool
async def spawn_subagent(
    context: ToolContext,
    task: str,
    preset: Literal["minimal", "investigate", "work"] | None = None,
    tools: tuple[str, ...] | None = None,
    query: str | None = None,
    max_cost: float | None = None,
    max_tokens: int | None = None,
    skills: tuple[str, ...] | None = None,
    archives: tuple[str, ...] = (),
    name: str | None = None,
    model: str | None = None,
    agent: str | None = None,
    isolation: Literal["worktree"] | None = None,
) -> ToolOutput:
    """Start a subagent: a separate agent with a task, its own context and a fixed set of tools.

    Its tools and rights are fixed when it starts and cannot be extended later: choose all it needs now.

    Args:
        task: What the subagent is for. It sees nothing of this conversation, so include all it needs.
        preset: A named set of tools. minimal: list, search and read files. investigate: also git, web and large values,
            read-only. work: also change files, run commands and Python.
        tools: Names of tools: instead of the default preset, or in addition to the preset that you name. You can grant
            only tools that you have.
        query: A first question. The call waits for the answer and returns it.
        max_cost: Maximum cost in US dollars, including its own subagents.
        max_tokens: Maximum number of tokens, including its own subagents.
        skills: Names of your skills that it gets. Default: all of them.
        archives: Ids of archived turns that you can read. The subagent can search, read and query them too.
        name: A name for the subagent, which the other tools accept instead of its id.
        model: Its model, as provider:name. Default: your model, or the model of the agent type. Other models must be
            allowed by the configuration; a smaller model is cheaper for simple tasks.
        isolation: "worktree" lets it work in a git worktree on a branch of its own, separate from your files.
        agent: An agent type: a role with its own prompt, tools and model. If you name a preset or tools too, they limit
            its tools.
    """
    budget = Budget(max_cost_usd=max_cost, max_tokens=max_tokens)
    request = Spawn(
        task,
        preset=preset,
        tools=tools,
        model=model,
        name=name,
        budget=budget,
        skills=skills,
        archives=archives,
        agent=agent,
        isolation=isolation,
    )
    spawned = await _call_when_free(context, SPAWN, request)
    note = {"note": spawned.note} if spawned.note else {}
    created = _json({"id": spawned.id, "seq": spawned.seq, "name": spawned.name} | note)
    if query is None:
        return ToolOutput(created)
    answer = await _answer_output(context, QueryAgent(spawned.id, query))
    return replace(answer, text=f"{created}\n{answer.text}")


@tool
async def query_subagent(
    context: ToolContext,
    id: str | int,
    prompt: str,
    wait: bool = True,
    wake: Literal["any", "all"] | int | None = None,
    return_name: str | None = None,
) -> ToolOutput:
    """Ask a subagent a question. It remembers earlier questions.

    Args:
        id: The subagent's id, number or name.
        prompt: The question.
        wait: False returns immediately; collect_subagent returns the answer later.
        wake: Returns immediately too. You get a message when any, all, or this number of the subagents asked with
            wake are done.
        return_name: A variable that its run_python has bound when it answers, or one of its handles. You get the
            complete value under a handle of your own.
    """
    if wait and wake is None:
        return await _answer_output(context, QueryAgent(str(id), prompt), return_name)
    submitted = await _call_when_free(context, SUBMIT, QueryAgent(str(id), prompt, wake=wake))
    return ToolOutput(f"Subagent {submitted.id} is at work: take its answer with collect_subagent.")


@tool
async def collect_subagent(
    context: ToolContext,
    id: str | int,
    wait: bool = True,
    return_name: str | None = None,
    again: bool = False,
    timeout: float = COLLECT_SECONDS,
) -> ToolOutput:
    """Return the answer of a subagent that was asked without waiting. An answer can be collected once.

    Args:
        id: The subagent's id, number or name.
        wait: Whether to wait if there is no answer yet.
        return_name: One of its variables or handles, as for query_subagent. You get the value under a handle of your
            own.
        again: True returns the last collected answer again.
        timeout: Maximum number of seconds to wait.
    """
    return await _answer_output(context, Collect(str(id), max(timeout, 0.0) if wait else 0.0, again), return_name)


@tool
async def wait_subagents(
    context: ToolContext, ids: tuple[str | int, ...], mode: Literal["any", "all"] | int = "all"
) -> str:
    """Wait until subagents have answered. Use collect_subagent to get the answers.

    Args:
        ids: The subagents.
        mode: all, any, or the number of subagents to wait for.
    """
    seconds = _wait_seconds(context)
    try:
        result = await _call_root(context, WAIT, Wait(tuple(map(str, ids)), mode, seconds))
    except QueryTimeoutError:
        return f"Not yet: they work on after {seconds:g} s. Wait again, or do something else first."
    return _json({"done": result.done, "pending": result.pending})


@tool
async def list_subagents(context: ToolContext) -> str:
    """List the agents that you can query: id, name, relation, status, task. Archived turns are counted in one line.

    The relation is own (you started it), below (one of your subagents started it) or peer (the user named it).
    """
    found = await _call_root(context, LIST_AGENTS, ListAgents(all=True))
    rows = [row for row in found if row.kind != "holder" and row.status != "killed"]
    holders = [row for row in found if row.kind == "holder" and row.parent_id == context.agent_id and not row.deleted]
    parents = {row.id: row.parent_id for row in rows}
    lines = [
        _json(
            {
                "id": row.id,
                "name": row.name,
                "relation": _relation(row.id, parents, context.agent_id),
                "status": row.status,
                "task": row.task[:MAX_TASK_SHOWN],
            }
        )
        for row in rows
    ]
    if holders:
        latest = ", ".join(row.id for row in holders[-MAX_HOLDERS_SHOWN:])
        count = f"{len(holders)} holder{'s' if len(holders) > 1 else ''}"
        lines.append(f"{count} of archived turns (latest: {latest}): query_subagent asks one by its id")
    return "\n".join(lines) or "There are no subagents."


@tool
async def kill_subagent(context: ToolContext, id: str | int) -> str:
    """End a subagent and all agents below it. Its files are kept, but it cannot answer any more.

    For a holder of an archived turn, this ends a running process. The archive stays, and the next query is answered.

    Args:
        id: The subagent's id, number or name.
    """
    killed = await _call_root(context, KILL, Kill((str(id),)))
    agents = [each for each in killed.ids if each not in killed.holders]
    lines = [f"Killed: {', '.join(agents) or 'none'}."] if agents or not killed.holders else []
    lines += [
        f"{holder} holds an archive, which stays: search_archive and read_archive find it, and query_subagent asks it. "
        f"{'Its process was ended.' if holder in killed.ids else 'It had no process.'}"
        for holder in killed.holders
    ]
    return "\n".join(lines)


def _relation(id: str, parents: Mapping[str, str | None], caller: str) -> Literal["own", "below", "peer"]:
    """Return the relation of the agent `id` to `caller`. `parents` maps the listed agents to their parents."""
    if parents[id] == caller:
        return "own"
    ancestor: str | None = id
    while ancestor is not None and ancestor in parents:
        ancestor = parents[ancestor]
    return "below" if ancestor == caller else "peer"


async def _answer_output(
    context: ToolContext, request: QueryAgent | Collect, return_name: str | None = None
) -> ToolOutput:
    """Return the reply to `request`, or a text that reports that there is no reply yet."""
    seconds = _wait_seconds(context)
    if request.timeout is not None:
        seconds = min(seconds, request.timeout)
    reply: Reply | None
    try:
        if isinstance(request, QueryAgent):
            reply = await _call_root(context, QUERY, replace(request, timeout=seconds))
        else:
            reply = await _call_root(context, COLLECT, replace(request, timeout=seconds))
    except QueryTimeoutError:
        reply = None
    if reply is None:
        return ToolOutput(
            f"No answer yet: subagent {request.ref} works on. Take its answer later with collect_subagent."
        )
    warning = f"; {reply.warning}" if reply.warning else ""
    reply_text = reply.text if reply.text.strip() else EMPTY_REPLY
    text = f"Subagent {reply.id} ({reply.stop_reason}, {reply.tool_calls} tool calls{warning}):\n\n{reply_text}"
    if reply.whole:
        from ..values.values import store_full_reply  # This module is needed only for replies that were cut.

        text = f"{text}\n\n{await store_full_reply(context, reply)}"
    if reply.worktree:
        text = f"{text}\n\n{reply.worktree.render()}\nThe user can merge: orch merge {reply.id}"
    if return_name is not None:
        from ..values.values import adopt_value  # This module is needed only if return_name is given.

        text = f"{text}\n\n{await adopt_value(context, reply.id, return_name, local=reply.local)}"
    return ToolOutput(text, local=reply.local, marks=inherited_labels(reply.marks, reply.id))


async def _call_when_free(context: ToolContext, service: Service[P, R], params: P) -> R:
    """Call a service that waits for a place if too many agents are at work."""
    try:
        return await _call_root(context, service, params)
    except QueryTimeoutError as error:
        raise ToolError(
            f"No process was free for the subagent within {context.seconds:g} s, because other agents are at work. "
            "Wait for your subagents with wait_subagents, or do the work yourself."
        ) from error


async def _call_root(context: ToolContext, service: Service[P, R], params: P) -> R:
    try:
        return await context.call_root(service, params, context.seconds)
    except (BudgetExceededError, ConcurrencyLimitError, DepthCapError) as error:
        text = error_for_model(str(error))
        advice = "" if "blocked" in text else ". Do not try again: report that you are blocked"
        raise ToolError(f"{text}{advice}.") from error


def _wait_seconds(context: ToolContext) -> float:
    # The result is shorter than the timeout of the call, so that the text "no answer yet" can still be returned.
    return max(context.seconds - MARGIN_SECONDS, context.seconds / 2)


def _json(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
