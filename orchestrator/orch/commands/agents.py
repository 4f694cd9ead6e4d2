"""Slash commands that work with other agents, and slash commands that show the session's agent."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import msgspec

from orch_protocol.agent.models import THINKING, RecordModel
from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import ConfigError, QueryTimeoutError, ToolNotGrantedError
from orch_protocol.resources.slash_commands import Effect
from orch_protocol.services.agents.lifecycle import CANCEL_TURN, RESUME
from orch_protocol.services.agents.query import COLLECT, QUERY, SUBMIT
from orch_protocol.services.agents.spawn import SPAWN
from orch_protocol.services.agents.status import LIST_AGENTS, SHOW_STATE
from orch_protocol.services.agents.steering import SHOW_QUEUE
from orch_protocol.services.policy.approvals import LIST_PERMISSIONS, REVOKE_PERMISSIONS
from orch_protocol.services.policy.budgets import CHANGE_BUDGET
from orch_protocol.services.resources.prompts import SHOW_PROMPT
from orch_protocol.services.resources.workspace import CHANGE_WORKSPACE, SHOW_WORKSPACE
from orch_protocol.services.sessions.sessions import CHANGE_SESSION
from orch_worker.agent.model_selection import model_of

from ..policy.caller import USER, AgentCaller
from ..render import terminal
from ..render.approvals import permission_lines
from ..render.columns import DEFAULT_WIDTH
from ..render.resources import models as model_rows
from ..render.resources import prompts as prompt_rows
from ..render.workspace import table
from ..services.models.model_selection import effective_thinking
from .registry import CommandResult, SessionContext, command, flag, option, positional, remainder

__all__ = ["AGENT_INFO_COMMANDS", "COMMANDS"]


GROUP: Final = "agents"
AGENT: Final = positional("id", "agent", required=True)


@command(
    "agents", "list agents and their states, subagents below their parents", flag("all"), group=GROUP, aliases=("ps",)
)
async def agents(ctx: SessionContext) -> CommandResult:
    rows = await ctx.ask(LIST_AGENTS, all=ctx.get("all") is not None)
    return CommandResult(terminal.agent_tree(rows, width=DEFAULT_WIDTH), rows)


@command(
    "spawn",
    "start an agent (a subagent, if this agent may start it) and query it with its task",
    remainder("task", required=True),
    option("model", "model"),
    option("preset"),
    option("tools", "tools"),
    option("name"),
    flag("idle"),
    group=GROUP,
)
async def spawn(ctx: SessionContext) -> CommandResult:
    tools = ctx.get("tools")
    fields: dict[str, Any] = {name: ctx.get(name) for name in ("task", "model", "preset", "name") if ctx.get(name)}
    if tools is not None:
        fields["tools"] = tools.replace(",", " ").split()
    spawned = None
    if "spawn_subagent" in ctx.spec.active:
        # The agent may not spawn one with this model or these tools. The user may.
        with contextlib.suppress(ConfigError, ToolNotGrantedError):
            spawned = await ctx.ask(SPAWN, caller=AgentCaller(ctx.id), **fields)
    if spawned is None:
        spawned = await ctx.ask(SPAWN, caller=USER, **(_session_settings(ctx.spec) | fields))
    state_text = "is idle"
    if ctx.get("idle") is None:
        await ctx.ask(SUBMIT, ref=spawned["id"], prompt=ctx.arguments["task"])
        state_text = f"is at work; /collect {spawned['seq']} takes its answer"
    return CommandResult(
        f"agent {spawned['seq']} ({spawned['id']}, {terminal.safe(spawned['name'])}) {state_text}", spawned
    )


def _session_settings(spec: AgentSpec) -> dict[str, Any]:
    """Return settings of the session's agent. An agent spawned by the user gets the same settings."""
    settings: dict[str, Any] = {"cwd": spec.cwd, "env": spec.env, "umask": spec.umask}
    settings["policy"] = msgspec.to_builtins(spec.policy)
    if spec.backend.provider != "scripted":
        settings |= {"model": model_of(spec.backend), "usual_thinking": spec.backend.thinking or None}
    return settings


@command("ask", "query another agent and wait for its answer", AGENT, remainder("prompt", required=True), group=GROUP)
async def ask(ctx: SessionContext) -> CommandResult:
    reply = await ctx.ask(QUERY, ref=ctx.arguments["id"], prompt=ctx.arguments["prompt"])
    return CommandResult(terminal.safe(reply["text"]), reply)


@command(
    "queue",
    "query another agent without waiting; without arguments: show messages not yet delivered",
    positional("id", "agent"),
    remainder("prompt"),
    group=GROUP,
)
async def queue(ctx: SessionContext) -> CommandResult:
    id, prompt = ctx.get("id") or ctx.id, ctx.get("prompt")
    if prompt is not None:
        submitted = await ctx.ask(SUBMIT, ref=id, prompt=prompt)
        return CommandResult(f"asked; /collect {terminal.safe(id)} takes the answer", submitted)
    shown = await ctx.ask(SHOW_QUEUE, ref=id)
    lines = [f"{each['id']}  {terminal.truncate_line(each['text'])}" for each in shown["waiting"]]
    return CommandResult("\n".join(lines) or "the queue is empty", shown)


@command("collect", "print the answer to a query sent with /queue", AGENT, group=GROUP)
async def collect(ctx: SessionContext) -> CommandResult:
    try:
        reply = await ctx.ask(COLLECT, ref=ctx.arguments["id"], timeout=0.0)
    except QueryTimeoutError:
        return CommandResult("it is still running", None)
    return CommandResult(terminal.safe(reply["text"]), reply)


@command("resume", "make a killed or failed agent usable again", AGENT, group=GROUP)
async def resume(ctx: SessionContext) -> CommandResult:
    row = await ctx.ask(RESUME, ref=ctx.arguments["id"])
    return CommandResult(f"{row['id']} can be queried again", row)


@command("switch", "switch the chat to another agent", AGENT, group=GROUP, aliases=("use",), moves=True)
async def switch(ctx: SessionContext) -> CommandResult:
    row = await ctx.ask(SHOW_STATE, ref=ctx.arguments["id"])
    text = f"talking to {terminal.safe(row['name'])} ({row['id']})"
    return CommandResult(text, row, Effect("switch", row["id"]))


@command("cancel", "cancel the running turn of an agent (default: this one)", positional("id", "agent"), group=GROUP)
async def cancel(ctx: SessionContext) -> CommandResult:
    row = await ctx.ask(CANCEL_TURN, ref=ctx.get("id") or ctx.id)
    return CommandResult("the agent ends its turn", row)


COMMANDS: Final = (agents, spawn, ask, queue, collect, resume, switch, cancel)


# --- Commands that show the agent and its resources ---

INFO_GROUP: Final = "agent"


@command("status", "show the agent: model, tools, state, usage", group=INFO_GROUP, aliases=("state",))
async def status(ctx: SessionContext) -> CommandResult:
    row = await ctx.ask(SHOW_STATE, ref=ctx.id)
    return CommandResult(terminal.agent_page({"agent": row, "messages": []}), row)


@command(
    "context",
    "show how full the context window is, and the parts of the next request",
    group=INFO_GROUP,
)
async def context(ctx: SessionContext) -> CommandResult:
    row = await ctx.ask(SHOW_STATE, ref=ctx.id)
    prompt = await ctx.ask(SHOW_PROMPT, ref=ctx.id)
    data = {"context_tokens": row["context_tokens"], "context_limit": row["context_limit"], "parts": prompt["parts"]}
    return CommandResult(f"{terminal.fullness(row)}\n\n{prompt_rows.table(prompt)}", data)


@command("prompt", "show the system prompt of the next request, part by part", group=INFO_GROUP)
async def prompt(ctx: SessionContext) -> CommandResult:
    shown = await ctx.ask(SHOW_PROMPT, ref=ctx.id)
    return CommandResult(prompt_rows.page(shown), shown)


@command(
    "workspace",
    "list the objects in the workspace; pin, unpin or drop NAME; TEXT sorts by relevance",
    positional("what", "choice", "pin", "unpin", "drop", "about"),
    remainder("name"),
    group=INFO_GROUP,
)
async def workspace(ctx: SessionContext) -> CommandResult:
    what, name = ctx.get("what"), ctx.get("name")
    if what is None or what == "about":
        shown = await ctx.ask(SHOW_WORKSPACE, ref=ctx.id, about=name)
        empty_text = "the workspace is empty" if shown["enabled"] else "workspace.enabled lets agents keep track of it"
        return CommandResult(table(shown) or empty_text, shown)
    if not name:
        raise ConfigError(f"/workspace {what}: pass the name of an object")
    change: dict[str, Any] = {what: [name]}
    result = await ctx.ask(CHANGE_WORKSPACE, ref=ctx.id, **change)
    past_tense = {"pin": "pinned", "unpin": "unpinned", "drop": "dropped"}[what]
    return CommandResult(f"{past_tense}: {', '.join(map(terminal.safe, result[past_tense]))}", result)


@command("tools", "list the tools of the agent", group=INFO_GROUP)
async def tools(ctx: SessionContext) -> CommandResult:
    row = await ctx.ask(SHOW_STATE, ref=ctx.id)
    data = {"preset": row["preset"], "tools": row["tools"]}
    return CommandResult("\n".join(row["tools"]) or "no tools", data)


@command(
    "usage",
    "show usage and budgets of this agent with its subagents, and of all agents",
    group=INFO_GROUP,
    aliases=("cost",),
)
async def usage(ctx: SessionContext) -> CommandResult:
    row = await ctx.ask(SHOW_STATE, ref=ctx.id)
    shown = await ctx.ask(CHANGE_BUDGET)
    own_text = terminal.budget({"spent": row["spent"], "budget": row["budget"], "configured": row["budget"]})
    data = {"agent": {"spent": row["spent"], "budget": row["budget"]}, "all": shown}
    return CommandResult(f"this agent and its subagents:\n{own_text}\n\nall agents:\n{terminal.budget(shown)}", data)


@command(
    "permissions",
    "list approvals saved for the agent's folder; revoke ID removes one",
    positional("what", "choice", "revoke"),
    positional("permission"),
    group=INFO_GROUP,
)
async def permissions(ctx: SessionContext) -> CommandResult:
    if ctx.get("what") is None:
        found = await ctx.ask(LIST_PERMISSIONS, folder=ctx.spec.cwd)
        return CommandResult(permission_lines(found) or "no saved approvals", found)
    if (id := ctx.get("permission")) is None:
        raise ConfigError("/permissions revoke: pass the id of a permission")
    revoked = await ctx.ask(REVOKE_PERMISSIONS, ids=[id])
    return CommandResult(f"revoked: {permission_lines(revoked)}", revoked)


def _effective_thinking(ctx: SessionContext) -> str:
    """Return the reasoning effort that is sent to the model. Return "" if none is sent."""
    return effective_thinking(RecordModel(ctx.spec.backend, ""), required=False) or ""


@command(
    "model",
    "show or change the model; a new model continues this conversation",
    positional("name", "model"),
    group=INFO_GROUP,
)
async def model(ctx: SessionContext) -> CommandResult:
    if (name := ctx.get("name")) is None:
        found = {"model": (await ctx.ask(SHOW_STATE, ref=ctx.id))["model"], "thinking": _effective_thinking(ctx)}
        return CommandResult(" ".join(filter(None, map(terminal.safe, found.values()))), found)
    changed = await ctx.ask(CHANGE_SESSION, ref=ctx.id, change={"type": "model", "model": name})
    return CommandResult(f"this conversation continues with {terminal.safe(changed['model'])}", changed)


@command(
    "thinking",
    "show or set the reasoning effort; falls back to the nearest supported level",
    positional("level", "choice", *THINKING),
    group=INFO_GROUP,
)
async def thinking(ctx: SessionContext) -> CommandResult:
    if (level := ctx.get("level")) is None:
        return CommandResult(_effective_thinking(ctx) or "model default", _effective_thinking(ctx))
    changed = await ctx.ask(CHANGE_SESSION, ref=ctx.id, change={"type": "thinking", "level": level})
    return CommandResult(f"{terminal.safe(changed['model'])} thinks: {changed['thinking']}", changed)


@command("models", "list models that are usable here", group=INFO_GROUP, aliases=("provider",))
async def models(ctx: SessionContext) -> CommandResult:
    usable = await ctx.root.catalog_for(ctx.id).usable_models(None)
    rows = [model_rows.data(row) for row in usable]
    return CommandResult(model_rows.table(usable), rows)


AGENT_INFO_COMMANDS: Final = (
    status,
    context,
    prompt,
    workspace,
    tools,
    usage,
    permissions,
    model,
    thinking,
    models,
)
