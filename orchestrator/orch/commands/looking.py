"""Commands that look at the agent and at what it works with."""

from __future__ import annotations

from typing import Any, Final

from orch_protocol.errors import ConfigError
from orch_protocol.models import THINKING, Answers

from ..cli import prompts, render
from ..cli.admin import permitted
from ..cli.workspace import listed
from ..services.choosing import told
from .registry import Here, Said, command, given, rest

__all__ = ["COMMANDS"]

GROUP: Final = "agent"


@command("status", "what the agent is, does, and has used", group=GROUP, aliases=("state",))
async def status(here: Here) -> Said:
    row = await here.ask("state", ref=here.id)
    return Said(render.agent({"agent": row, "messages": []}), row)


@command(
    "context", "how full the model's window is, and what the next request says besides the conversation", group=GROUP
)
async def context(here: Here) -> Said:
    row = await here.ask("state", ref=here.id)
    prompt = await here.ask("prompt", ref=here.id)
    data = {"context_tokens": row["context_tokens"], "context_limit": row["context_limit"], "parts": prompt["parts"]}
    return Said(f"{render.fullness(row)}\n\n{prompts.table(prompt)}", data)


@command("prompt", "what the next request says besides the conversation, part by part", group=GROUP)
async def prompt(here: Here) -> Said:
    shown = await here.ask("prompt", ref=here.id)
    return Said(prompts.page(shown), shown)


@command(
    "workspace",
    "what the agent has at hand, and from where; pin NAME, unpin NAME, drop NAME, or those first that are about TEXT",
    given("what", "choice", "pin", "unpin", "drop", "about"),
    rest("name"),
    group=GROUP,
)
async def workspace(here: Here) -> Said:
    what, said = here.get("what"), here.get("name")
    if what is None or what == "about":
        shown = await here.ask("workspace", ref=here.id, about=said)
        nothing = "nothing is at hand yet" if shown["enabled"] else "workspace.enabled lets agents keep track of it"
        return Said(listed(shown) or nothing, shown)
    if not said:
        raise ConfigError(f"/workspace {what}: say the name of an object")
    change: dict[str, Any] = {what: [said]}
    arranged = await here.ask("arrange_workspace", ref=here.id, **change)
    done = {"pin": "pinned", "unpin": "unpinned", "drop": "dropped"}[what]
    return Said(f"{done}: {', '.join(map(render.safe, arranged[done]))}", arranged)


@command("tools", "the tools that the agent may use", group=GROUP)
async def tools(here: Here) -> Said:
    row = await here.ask("state", ref=here.id)
    data = {"preset": row["preset"], "tools": row["tools"]}
    return Said("\n".join(row["tools"]) or "no tools", data)


@command(
    "narrow", "let the agent keep these of its tools only, for good", rest("tools", "tools", required=True), group=GROUP
)
async def narrow(here: Here) -> Said:
    row = await here.ask("narrow", ref=here.id, tools=here.said["tools"].replace(",", " ").split())
    return Said(" ".join(row["tools"]), {"tools": row["tools"]})


@command(
    "spent",
    "what the agent and its subagents used, and all together, of how much",
    group=GROUP,
    aliases=("cost", "usage"),
)
async def spent(here: Here) -> Said:
    row = await here.ask("state", ref=here.id)
    shown = await here.ask("budget")
    own = render.budget({"spent": row["spent"], "budget": row["budget"], "configured": row["budget"]})
    data = {"agent": {"spent": row["spent"], "budget": row["budget"]}, "all": shown}
    return Said(f"this agent and its subagents:\n{own}\n\nall agents:\n{render.budget(shown)}", data)


@command(
    "permissions",
    "what was approved for later in the agent's folder; revoke ID takes it back",
    given("what", "choice", "revoke"),
    given("permission"),
    group=GROUP,
)
async def permissions(here: Here) -> Said:
    if here.get("what") is None:
        found = await here.ask("permissions", folder=here.spec.cwd)
        return Said(permitted(found) or "nothing was approved for later", found)
    if (id := here.get("permission")) is None:
        raise ConfigError("/permissions revoke: say which one, by its id")
    revoked = await here.ask("revoke", ids=[id])
    return Said(f"revoked: {permitted(revoked)}", revoked)


def _thinks(here: Here) -> str:
    """Return how much the model is really told to think, "" where it is told nothing."""
    return told(Answers(here.spec.backend, ""), wanted=False) or ""


@command(
    "model",
    "which model answers, and how much it thinks; with a name that one goes on with this conversation",
    given("name", "model"),
    group=GROUP,
)
async def model(here: Here) -> Said:
    if (name := here.get("name")) is None:
        found = {"model": (await here.ask("state", ref=here.id))["model"], "thinking": _thinks(here)}
        return Said(" ".join(filter(None, map(render.safe, found.values()))), found)
    changed = await here.ask("change_session", ref=here.id, change={"type": "model", "model": name})
    return Said(f"{render.safe(changed['model'])} goes on with this conversation", changed)


@command(
    "thinking",
    "how much the model is to think from here on: the level, or the next one that it has",
    given("level", "choice", *THINKING),
    group=GROUP,
)
async def thinking(here: Here) -> Said:
    if (level := here.get("level")) is None:
        return Said(_thinks(here) or "as the model does by itself", _thinks(here))
    changed = await here.ask("change_session", ref=here.id, change={"type": "thinking", "level": level})
    return Said(f"{render.safe(changed['model'])} thinks: {changed['thinking']}", changed)


@command("models", "the models that can be asked here", group=GROUP, aliases=("provider",))
async def models(here: Here) -> Said:
    from ..cli import models as verb

    reachable = await here.root.catalog.reachable(None)
    rows = [verb.data(row) for row in reachable]
    return Said(verb.table(reachable), rows)


COMMANDS: Final = (status, context, prompt, workspace, tools, narrow, spent, permissions, model, thinking, models)
