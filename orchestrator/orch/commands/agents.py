"""Commands about agents: those below a session, and others."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from orch_protocol.agent.models import THINKING, RecordModel
from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import ConfigError, QueryTimeoutError
from orch_protocol.resources.slash_commands import Effect
from orch_protocol.services.approvals import LIST_PERMISSIONS, REVOKE_PERMISSIONS
from orch_protocol.services.budgets import CHANGE_BUDGET
from orch_protocol.services.requests import (
    CANCEL_TURN,
    COLLECT,
    LIST_AGENTS,
    QUERY,
    RESUME,
    SHOW_STATE,
    SPAWN,
    SUBMIT,
)
from orch_protocol.services.resources import CHANGE_WORKSPACE, SHOW_PROMPT, SHOW_WORKSPACE
from orch_protocol.services.sessions import CHANGE_SESSION
from orch_protocol.services.steering_queue import SHOW_QUEUE
from orch_worker.agent.model_selection import model_of

from ..policy.caller import USER, AgentCaller
from ..render import terminal
from ..render.approvals import permission_lines
from ..render.resources import models as model_rows
from ..render.resources import prompts as prompt_rows
from ..render.workspace import table
from ..services.models.model_selection import announced_model
from .registry import CommandResult, SessionContext, command, flag, option, positional, remainder

__all__ = ["COMMANDS", "LOOKING_COMMANDS"]


GROUP: Final = "agents"
AGENT: Final = positional("id", "agent", required=True)


@command("agents", "agents and what they do, children below their parents", flag("all"), group=GROUP, aliases=("ps",))
async def agents(here: SessionContext) -> CommandResult:
    rows = await here.ask(LIST_AGENTS, all=here.get("all") is not None)
    return CommandResult(terminal.agent_tree(rows), rows)


@command(
    "spawn",
    "start an agent, below this one if it may have subagents; it is asked its task at once",
    remainder("task", required=True),
    option("model", "model"),
    option("preset"),
    option("tools", "tools"),
    option("name"),
    flag("idle"),
    group=GROUP,
)
async def spawn(here: SessionContext) -> CommandResult:
    tools = here.get("tools")
    asked: dict[str, Any] = {name: here.get(name) for name in ("task", "model", "preset", "name") if here.get(name)}
    if tools is not None:
        asked["tools"] = tools.replace(",", " ").split()
    # An agent that may not spawn has no subagents: the new one belongs to the user.
    below = "spawn_subagent" in here.spec.active
    spawned = await here.ask(
        SPAWN, by=AgentCaller(here.id) if below else USER, **(asked if below else _as_session(here.spec) | asked)
    )
    doing = "waits to be asked"
    if here.get("idle") is None:
        await here.ask(SUBMIT, ref=spawned["id"], prompt=here.said["task"])
        doing = f"is at work; /collect {spawned['seq']} takes its answer"
    return CommandResult(f"agent {spawned['seq']} ({spawned['id']}, {terminal.safe(spawned['name'])}) {doing}", spawned)


def _as_session(spec: AgentSpec) -> dict[str, Any]:
    """Return what an agent that the user spawns in a session has in common with the session's agent."""
    like: dict[str, Any] = {"cwd": spec.cwd, "env": spec.env, "umask": spec.umask}
    like["policy"] = msgspec.to_builtins(spec.policy)
    if spec.backend.provider != "scripted":
        like |= {"model": model_of(spec.backend), "usual_thinking": spec.backend.thinking or None}
    return like


@command("ask", "ask another agent and wait for its answer", AGENT, remainder("prompt", required=True), group=GROUP)
async def ask(here: SessionContext) -> CommandResult:
    reply = await here.ask(QUERY, ref=here.said["id"], prompt=here.said["prompt"])
    return CommandResult(terminal.safe(reply["text"]), reply)


@command(
    "queue",
    "ask another agent without waiting; alone: what this one has not heard yet",
    positional("id", "agent"),
    remainder("prompt"),
    group=GROUP,
)
async def queue(here: SessionContext) -> CommandResult:
    id, prompt = here.get("id") or here.id, here.get("prompt")
    if prompt is not None:
        submitted = await here.ask(SUBMIT, ref=id, prompt=prompt)
        return CommandResult(f"asked; /collect {terminal.safe(id)} takes the answer", submitted)
    shown = await here.ask(SHOW_QUEUE, ref=id)
    lines = [f"{each['id']}  {terminal.truncate_line(each['text'])}" for each in shown["waiting"]]
    return CommandResult("\n".join(lines) or "nothing waits to be heard", shown)


@command("collect", "take the answer of an agent that was asked without waiting", AGENT, group=GROUP)
async def collect(here: SessionContext) -> CommandResult:
    try:
        reply = await here.ask(COLLECT, ref=here.said["id"], timeout=0.0)
    except QueryTimeoutError:
        return CommandResult("it is still at work", None)
    return CommandResult(terminal.safe(reply["text"]), reply)


@command("resume", "let an agent that was killed, or has failed, answer again", AGENT, group=GROUP)
async def resume(here: SessionContext) -> CommandResult:
    row = await here.ask(RESUME, ref=here.said["id"])
    return CommandResult(f"{row['id']} answers again", row)


@command("switch", "talk to another agent from now on", AGENT, group=GROUP, aliases=("use",), moves=True)
async def switch(here: SessionContext) -> CommandResult:
    row = await here.ask(SHOW_STATE, ref=here.said["id"])
    told = f"talking to {terminal.safe(row['name'])} ({row['id']})"
    return CommandResult(told, row, Effect("switch", row["id"]))


@command("cancel", "end what an agent does just now, this one unless named", positional("id", "agent"), group=GROUP)
async def cancel(here: SessionContext) -> CommandResult:
    row = await here.ask(CANCEL_TURN, ref=here.get("id") or here.id)
    return CommandResult("it ends its turn", row)


COMMANDS: Final = (agents, spawn, ask, queue, collect, resume, switch, cancel)


# --- Commands that look at the agent and at what it works with ---

LOOKING_GROUP: Final = "agent"


@command("status", "what the agent is, does, and has used", group=LOOKING_GROUP, aliases=("state",))
async def status(here: SessionContext) -> CommandResult:
    row = await here.ask(SHOW_STATE, ref=here.id)
    return CommandResult(terminal.agent_page({"agent": row, "messages": []}), row)


@command(
    "context",
    "how full the model's window is, and what the next request says besides the conversation",
    group=LOOKING_GROUP,
)
async def context(here: SessionContext) -> CommandResult:
    row = await here.ask(SHOW_STATE, ref=here.id)
    prompt = await here.ask(SHOW_PROMPT, ref=here.id)
    data = {"context_tokens": row["context_tokens"], "context_limit": row["context_limit"], "parts": prompt["parts"]}
    return CommandResult(f"{terminal.fullness(row)}\n\n{prompt_rows.table(prompt)}", data)


@command("prompt", "what the next request says besides the conversation, part by part", group=LOOKING_GROUP)
async def prompt(here: SessionContext) -> CommandResult:
    shown = await here.ask(SHOW_PROMPT, ref=here.id)
    return CommandResult(prompt_rows.page(shown), shown)


@command(
    "workspace",
    "what the agent has at hand, and from where; pin NAME, unpin NAME, drop NAME, or those first that are about TEXT",
    positional("what", "choice", "pin", "unpin", "drop", "about"),
    remainder("name"),
    group=LOOKING_GROUP,
)
async def workspace(here: SessionContext) -> CommandResult:
    what, said = here.get("what"), here.get("name")
    if what is None or what == "about":
        shown = await here.ask(SHOW_WORKSPACE, ref=here.id, about=said)
        nothing = "nothing is at hand yet" if shown["enabled"] else "workspace.enabled lets agents keep track of it"
        return CommandResult(table(shown) or nothing, shown)
    if not said:
        raise ConfigError(f"/workspace {what}: say the name of an object")
    change: dict[str, Any] = {what: [said]}
    arranged = await here.ask(CHANGE_WORKSPACE, ref=here.id, **change)
    done = {"pin": "pinned", "unpin": "unpinned", "drop": "dropped"}[what]
    return CommandResult(f"{done}: {', '.join(map(terminal.safe, arranged[done]))}", arranged)


@command("tools", "the tools that the agent may use", group=LOOKING_GROUP)
async def tools(here: SessionContext) -> CommandResult:
    row = await here.ask(SHOW_STATE, ref=here.id)
    data = {"preset": row["preset"], "tools": row["tools"]}
    return CommandResult("\n".join(row["tools"]) or "no tools", data)


@command(
    "usage",
    "what the agent and its subagents used, and all agents together, and the budgets",
    group=LOOKING_GROUP,
    aliases=("cost",),
)
async def usage(here: SessionContext) -> CommandResult:
    row = await here.ask(SHOW_STATE, ref=here.id)
    shown = await here.ask(CHANGE_BUDGET)
    own = terminal.budget({"spent": row["spent"], "budget": row["budget"], "configured": row["budget"]})
    data = {"agent": {"spent": row["spent"], "budget": row["budget"]}, "all": shown}
    return CommandResult(f"this agent and its subagents:\n{own}\n\nall agents:\n{terminal.budget(shown)}", data)


@command(
    "permissions",
    "what was approved for later in the agent's folder; revoke ID takes it back",
    positional("what", "choice", "revoke"),
    positional("permission"),
    group=LOOKING_GROUP,
)
async def permissions(here: SessionContext) -> CommandResult:
    if here.get("what") is None:
        found = await here.ask(LIST_PERMISSIONS, folder=here.spec.cwd)
        return CommandResult(permission_lines(found) or "nothing was approved for later", found)
    if (id := here.get("permission")) is None:
        raise ConfigError("/permissions revoke: say which one, by its id")
    revoked = await here.ask(REVOKE_PERMISSIONS, ids=[id])
    return CommandResult(f"revoked: {permission_lines(revoked)}", revoked)


def _thinks(here: SessionContext) -> str:
    """Return how much the model is really told to think, "" where it is told nothing."""
    return announced_model(RecordModel(here.spec.backend, ""), wanted=False) or ""


@command(
    "model",
    "which model answers, and how much it thinks; with a name that one goes on with this conversation",
    positional("name", "model"),
    group=LOOKING_GROUP,
)
async def model(here: SessionContext) -> CommandResult:
    if (name := here.get("name")) is None:
        found = {"model": (await here.ask(SHOW_STATE, ref=here.id))["model"], "thinking": _thinks(here)}
        return CommandResult(" ".join(filter(None, map(terminal.safe, found.values()))), found)
    changed = await here.ask(CHANGE_SESSION, ref=here.id, change={"type": "model", "model": name})
    return CommandResult(f"{terminal.safe(changed['model'])} goes on with this conversation", changed)


@command(
    "thinking",
    "how much the model is to think from here on: the level, or the next one that it has",
    positional("level", "choice", *THINKING),
    group=LOOKING_GROUP,
)
async def thinking(here: SessionContext) -> CommandResult:
    if (level := here.get("level")) is None:
        return CommandResult(_thinks(here) or "as the model does by itself", _thinks(here))
    changed = await here.ask(CHANGE_SESSION, ref=here.id, change={"type": "thinking", "level": level})
    return CommandResult(f"{terminal.safe(changed['model'])} thinks: {changed['thinking']}", changed)


@command("models", "the models that can be asked here", group=LOOKING_GROUP, aliases=("provider",))
async def models(here: SessionContext) -> CommandResult:
    reachable = await here.root.catalog_for(here.id).reachable(None)
    rows = [model_rows.data(row) for row in reachable]
    return CommandResult(model_rows.table(reachable), rows)


LOOKING_COMMANDS: Final = (
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
