"""Commands about agents: those below a session, and others."""

from __future__ import annotations

from typing import Any, Final

from orch_protocol.errors import QueryTimeoutError
from orch_protocol.slash import Effect

from ..cli import render
from .registry import Here, Said, command, flag, given, option, rest

__all__ = ["COMMANDS"]

GROUP: Final = "agents"
AGENT: Final = given("id", "agent", required=True)


@command("agents", "agents and what they do, children below their parents", flag("all"), group=GROUP, aliases=("ps",))
async def agents(here: Here) -> Said:
    rows = await here.ask("list", all=here.get("all") is not None)
    return Said(render.tree(rows), rows)


@command(
    "spawn",
    "start an agent, below this one if it may have subagents; it is asked its task at once",
    rest("task", required=True),
    option("model", "model"),
    option("preset"),
    option("tools", "tools"),
    option("name"),
    flag("idle"),
    group=GROUP,
)
async def spawn(here: Here) -> Said:
    tools = here.get("tools")
    asked: dict[str, Any] = {name: here.get(name) for name in ("task", "model", "preset", "name") if here.get(name)}
    if tools is not None:
        asked["tools"] = tools.replace(",", " ").split()
    # One that may not spawn has no subagents; the person that asks for it has agents of his own.
    below = here.id if "spawn_subagent" in here.spec.active else None
    spawned = await here.ask("spawn", by=below, **asked, **({} if below else {"cwd": here.spec.cwd}))
    doing = "waits to be asked"
    if here.get("idle") is None:
        await here.ask("submit", ref=spawned["id"], prompt=here.said["task"])
        doing = f"is at work; /collect {spawned['seq']} takes its answer"
    return Said(f"agent {spawned['seq']} ({spawned['id']}, {render.safe(spawned['name'])}) {doing}", spawned)


@command("ask", "ask another agent and wait for its answer", AGENT, rest("prompt", required=True), group=GROUP)
async def ask(here: Here) -> Said:
    reply = await here.ask("query", ref=here.said["id"], prompt=here.said["prompt"])
    return Said(render.safe(reply["text"]), reply)


@command(
    "queue",
    "ask another agent without waiting; alone: what this one has not heard yet",
    given("id", "agent"),
    rest("prompt"),
    group=GROUP,
)
async def queue(here: Here) -> Said:
    id, prompt = here.get("id") or here.id, here.get("prompt")
    if prompt is not None:
        submitted = await here.ask("submit", ref=id, prompt=prompt)
        return Said(f"asked; /collect {render.safe(id)} takes the answer", submitted)
    shown = await here.ask("queue", ref=id)
    lines = [f"{each['id']}  {render.line(each['text'])}" for each in shown["waiting"]]
    return Said("\n".join(lines) or "nothing waits to be heard", shown)


@command("collect", "take the answer of an agent that was asked without waiting", AGENT, group=GROUP)
async def collect(here: Here) -> Said:
    try:
        reply = await here.ask("collect", ref=here.said["id"], timeout=0.0)
    except QueryTimeoutError:
        return Said("it is still at work", None)
    return Said(render.safe(reply["text"]), reply)


@command("kill", "end an agent and everything below it; its transcript stays", AGENT, group=GROUP)
async def kill(here: Here) -> Said:
    killed = await here.ask("kill", refs=[here.said["id"]])
    return Said(f"ended: {', '.join(killed['ids'])}", killed)


@command("resume", "let an agent that was killed, or has failed, answer again", AGENT, group=GROUP)
async def resume(here: Here) -> Said:
    row = await here.ask("resume", ref=here.said["id"])
    return Said(f"{row['id']} answers again", row)


@command("switch", "talk to another agent from now on", AGENT, group=GROUP, aliases=("use",), moves=True)
async def switch(here: Here) -> Said:
    row = await here.ask("state", ref=here.said["id"])
    told = f"talking to {render.safe(row['name'])} ({row['id']})"
    return Said(told, row, Effect("switch", row["id"]))


@command("steer", "say something to an agent that works", AGENT, rest("text", required=True), group=GROUP)
async def steer(here: Here) -> Said:
    said = await here.ask("steer", ref=here.said["id"], text=here.said["text"])
    return Said("said", said)


@command("cancel", "end what an agent does just now, this one unless named", given("id", "agent"), group=GROUP)
async def cancel(here: Here) -> Said:
    row = await here.ask("cancel", ref=here.get("id") or here.id)
    return Said("it ends its turn", row)


COMMANDS: Final = (agents, spawn, ask, queue, collect, kill, resume, switch, steer, cancel)
