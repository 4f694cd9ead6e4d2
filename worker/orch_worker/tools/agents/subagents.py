"""Agents of an agent: thin wrappers over the root's services. Each answer is short text or compact JSON."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.core.errors import BudgetExceededError, ConcurrencyLimitError, DepthCapError, QueryTimeoutError
from orch_protocol.core.messages import Reply
from orch_protocol.core.taint import inherited_labels
from orch_protocol.policy.budget import Budget
from orch_protocol.services.requests import (
    COLLECT,
    KILL,
    LIST_AGENTS,
    QUERY,
    SPAWN,
    SUBMIT,
    WAIT,
    Collect,
    Kill,
    ListAgents,
    QueryAgent,
    Spawn,
    Wait,
)
from orch_protocol.services.service import Service

from ..api.base import ToolContext, ToolError, ToolOutput, tool

__all__ = [
    "collect_subagent",
    "kill_subagent",
    "list_subagents",
    "query_subagent",
    "spawn_subagent",
    "wait_subagents",
]

MARGIN_SECONDS: Final = 2.0
MAX_TASK_SHOWN: Final = 80
NOTHING_SAID: Final = "(It said nothing.)"


P = TypeVar("P", bound=Struct)
R = TypeVar("R")


@tool(category="agents")
async def spawn_subagent(
    context: ToolContext,
    task: str,
    preset: str | None = None,
    tools: tuple[str, ...] | None = None,
    query: str | None = None,
    max_cost: float | None = None,
    max_tokens: int | None = None,
    skills: tuple[str, ...] | None = None,
    archives: tuple[str, ...] = (),
) -> ToolOutput:
    """Start a subagent: an agent of its own with a task, its own context and a fixed set of tools.

    Args:
        task: What it is for; it sees nothing of this conversation, so say all it needs.
        preset: A named set of tools.
        tools: Names of tools, instead of a preset; at most the ones you hold yourself.
        query: A first question; the answer is waited for and returned.
        max_cost: The most that it may spend, in US dollars, with subagents of its own.
        max_tokens: The most tokens that it and they may use.
        skills: Names of the skills it has, of yours; all of them unless named.
        archives: Ids of archived turns that you can read; it may search, read and ask them too.
    """
    budget = Budget(max_cost_usd=max_cost, max_tokens=max_tokens)
    asked = Spawn(task, preset=preset, tools=tools, budget=budget, marks=context.told, skills=skills, archives=archives)
    spawned = await _ask(context, SPAWN, asked)
    line = _json({"id": spawned.id, "seq": spawned.seq, "name": spawned.name})
    if query is None:
        return ToolOutput(line)
    answer = await _answer(context, QueryAgent(spawned.id, query, marks=context.told))
    return replace(answer, text=f"{line}\n{answer.text}")


@tool(category="agents")
async def query_subagent(
    context: ToolContext,
    id: str | int,
    prompt: str,
    wait: bool = True,
    wake: Literal["any", "all"] | int | None = None,
    return_name: str | None = None,
) -> ToolOutput:
    """Ask a subagent. It remembers what it was asked before.

    Args:
        id: The subagent's id, number or name.
        prompt: The question.
        wait: False returns at once; the answer is then taken with collect_subagent.
        wake: Returns at once too; a message tells you when any, all, or so many of the subagents asked like this are
            done.
        return_name: A name that its run_python has bound when it answers, or a handle of it: that value becomes a
            handle of yours, whole, without passing through anybody's words.
    """
    if wait and wake is None:
        return await _answer(context, QueryAgent(str(id), prompt, marks=context.told), return_name)
    submitted = await _ask(context, SUBMIT, QueryAgent(str(id), prompt, wake=wake, marks=context.told))
    return ToolOutput(f"Subagent {submitted.id} is at work: take its answer with collect_subagent.")


@tool(category="agents")
async def collect_subagent(
    context: ToolContext, id: str | int, wait: bool = True, return_name: str | None = None, again: bool = False
) -> ToolOutput:
    """Take the answer of a subagent that was asked without waiting. An answer can be taken once.

    Args:
        id: The subagent's id, number or name.
        wait: Whether to wait for an answer that is not there yet.
        return_name: A name or handle of its, as for query_subagent: that value becomes a handle of yours.
        again: True returns the answer that was taken last once more.
    """
    return await _answer(context, Collect(str(id), None if wait else 0.0, again), return_name)


@tool(category="agents")
async def wait_subagents(
    context: ToolContext, ids: tuple[str | int, ...], mode: Literal["any", "all"] | int = "all"
) -> str:
    """Wait until subagents have answered; the answers are then taken with collect_subagent.

    Args:
        ids: The subagents.
        mode: all, any, or how many of them to wait for.
    """
    seconds = _patience(context)
    try:
        waited = await _ask(context, WAIT, Wait(tuple(map(str, ids)), mode, seconds))
    except QueryTimeoutError:
        return f"Not yet: they work on after {seconds:g} s. Wait again, or do something else first."
    return _json({"done": waited.done, "pending": waited.pending})


@tool(category="agents")
async def list_subagents(context: ToolContext) -> str:
    """List the agents you can ask: id, name, status, task."""
    rows = await _ask(context, LIST_AGENTS, ListAgents())
    return "\n".join(
        _json({"id": row.id, "name": row.name, "status": row.status, "task": row.task[:MAX_TASK_SHOWN]}) for row in rows
    ) or ("There are no subagents.")


@tool(category="agents")
async def kill_subagent(context: ToolContext, id: str | int) -> str:
    """End a subagent and every agent below it. What it wrote is kept; it answers no more.

    Args:
        id: The subagent's id, number or name.
    """
    killed = await _ask(context, KILL, Kill((str(id),)))
    return f"Killed: {', '.join(killed.ids) or 'none'}."


async def _answer(context: ToolContext, asked: QueryAgent | Collect, return_name: str | None = None) -> ToolOutput:
    """Return the reply to what is `asked`; that it is not there yet is an answer too."""
    seconds = _patience(context)
    if asked.timeout is not None:
        seconds = min(seconds, asked.timeout)
    reply: Reply | None
    try:
        if isinstance(asked, QueryAgent):
            reply = await _ask(context, QUERY, replace(asked, timeout=seconds))
        else:
            reply = await _ask(context, COLLECT, replace(asked, timeout=seconds))
    except QueryTimeoutError:
        reply = None
    if reply is None:
        return ToolOutput(f"No answer yet: subagent {asked.ref} works on. Take its answer later with collect_subagent.")
    warning = f"; {reply.warning}" if reply.warning else ""
    said = reply.text if reply.text.strip() else NOTHING_SAID
    text = f"Subagent {reply.id} ({reply.stop_reason}, {reply.tool_calls} tool calls{warning}):\n\n{said}"
    if reply.whole:
        from ..values.values import all_of  # where there is more than can be shown

        text = f"{text}\n\n{await all_of(context, reply)}"
    if return_name is not None:
        from ..values.values import adopt_value  # by those who ask for a value

        text = f"{text}\n\n{await adopt_value(context, reply.id, return_name, local=reply.local)}"
    return ToolOutput(text, local=reply.local, marks=inherited_labels(reply.marks, reply.id))


async def _ask(context: ToolContext, service: Service[P, R], params: P) -> R:
    try:
        return await context.call_root(service, params, context.seconds)
    except (BudgetExceededError, ConcurrencyLimitError, DepthCapError) as error:
        advice = "" if "blocked" in str(error) else ". Do not try again: report that you are blocked"
        raise ToolError(f"{error}{advice}.") from error


def _patience(context: ToolContext) -> float:
    # Shorter than the call's own deadline: the answer "not yet" must still get through.
    return max(context.seconds - MARGIN_SECONDS, context.seconds / 2)


def _json(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
