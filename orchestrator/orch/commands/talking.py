"""Commands about the conversation: begin anew, plan, look at what tools returned, take texts along."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from orch_protocol.errors import ConfigError
from orch_protocol.slash import Effect
from orch_worker.tools import past_names

from ..cli import render, session_tree
from .deeds import use_tool
from .registry import Here, Said, command, flag, given, rest

__all__ = ["COMMANDS"]

GROUP: Final = "conversation"
LOOKED_AT: Final = 400
"""Messages of the conversation in which results of tools are looked for."""
KEPT_OUTPUTS: Final = 20
MOST_REVIEWED: Final = 60_000
REVIEW: Final = (
    "Review these changes: what is wrong, what is missing, what could be simpler. Name files and lines; say it in "
    "order of weight, and say so if there is nothing to say."
)


@command("quit", "leave", group=GROUP, aliases=("exit", "q"))
async def quit(here: Here) -> Said:  # noqa: ARG001
    return Said(effect=Effect("quit"))


@command(
    "new",
    "begin the conversation anew, and end this agent's subagents; what was said stays on its own branch",
    group=GROUP,
    aliases=("clear", "reset"),
)
async def new(here: Here) -> Said:
    changed = await here.ask("change_session", ref=here.id, change={"type": "move", "to": None})
    rows = await here.ask("list")
    below = [row["id"] for row in rows if row["parent_id"] == here.id]
    killed = (await here.ask("kill", refs=below))["ids"] if below else []
    told = f"; ended {', '.join(killed)}" if killed else ""
    return Said(f"the conversation begins anew{told}", changed | {"killed": killed})


@command(
    "compact",
    "let what was said first give way to a summary now; whoever writes it is told the instructions",
    rest("instructions"),
    group=GROUP,
    aliases=("flush",),
)
async def compact(here: Here) -> Said:
    done = await here.ask("compact", ref=here.id, instructions=here.get("instructions") or "")
    return Said(session_tree.condensed(done), done)


@command(
    "plan",
    "go on in plan mode: nothing is written or run before a plan is approved; --off: go on without; --drop: also if "
    "what its Python has bound is lost by that",
    flag("off"),
    flag("drop"),
    rest("task"),
    group=GROUP,
)
async def plan(here: Here) -> Said:
    on, was, task = here.get("off") is None, here.spec.plan, here.get("task")
    process = here.root.workers.peer(here.id) if on != was and here.get("drop") is None else None
    if process and (names := await here.root.disk.do(past_names.bound, Path(here.spec.folder), process.since)):
        lost = f"its process would end, and with it what its Python bound last: {past_names.listed(names)}"
        how = "/plan --drop" if on else "/plan --off --drop"
        return Said(f"{lost}. {how} goes on without that; what is under a handle is kept", is_error=True)
    row = await here.ask("set_planning", ref=here.id, on=on)
    mode = "in plan mode" if on else "not in plan mode"
    told = f"it is {mode} already" if on == was else f"it is {mode} from now on"
    return Said(told, row, Effect("ask", text=task) if task else None)


@command("tasks", "what the agent means to do; clear: no more of it", given("what", "choice", "clear"), group=GROUP)
async def tasks(here: Here) -> Said:
    if here.get("what") == "clear":
        changed = await here.ask("change_session", ref=here.id, change={"type": "tasks"})
        return Said("no tasks any more", changed)
    shown = await here.ask("show", ref=here.id, messages=0)
    return Said("\n".join(render.listed(shown["tasks"])) or "no tasks", shown["tasks"])


@command("last", "the last result of a tool, or the last N, whole", given("n", "number"), group=GROUP)
async def last(here: Here) -> Said:
    outputs = await _outputs(here, int(here.get("n") or 1))
    pages = [f"[{each['n']}] {each['tool']}{_failed(each)}\n{each['text']}" for each in outputs]
    return Said("\n\n".join(pages) or "no tool has returned anything yet", outputs)


@command("outputs", "the last results of tools, each with its beginning", group=GROUP)
async def outputs(here: Here) -> Said:
    found = await _outputs(here, KEPT_OUTPUTS)
    rows = [
        [str(each["n"]), each["tool"] + _failed(each), f"{len(each['text']):,}", render.line(each["text"])]
        for each in found
    ]
    table = render.columns([["#", "TOOL", "CHARACTERS", ""], *rows], frozenset({0, 2}))
    return Said(table if rows else "no tool has returned anything yet", found)


def _failed(output: dict[str, Any]) -> str:
    return ", an error" if output["is_error"] else ""


async def _outputs(here: Here, most: int) -> list[dict[str, Any]]:
    """Return the last results of tools, the latest last; the latest is number 1."""
    shown = await here.ask("show", ref=here.id, messages=LOOKED_AT)
    names: dict[str, str] = {}
    found: list[dict[str, Any]] = []
    for message in shown["messages"]:
        for block in message["content"]:
            if block["type"] == "tool_use":
                names[block["id"]] = block["name"]
            elif block["type"] == "tool_result":
                text = "\n".join(part.get("text", "(image)") for part in block["content"])
                tool = names.get(block["tool_use_id"], "?")
                found.append({"tool": tool, "text": text, "is_error": bool(block.get("is_error"))})
    kept = found[max(0, len(found) - most) :]
    return [{"n": len(kept) - place, **each} for place, each in enumerate(kept)]


@command("copy", "put the last answer on the clipboard", group=GROUP)
async def copy(here: Here) -> Said:
    shown = await here.ask("show", ref=here.id, messages=0)
    if shown["reply"] is None:
        raise ConfigError("/copy: there is no answer yet")
    text = shown["reply"]["text"]
    return Said(f"{len(text):,} characters", {"text": text}, Effect("copy", text=text))


@command("paste", "take many lines as one prompt, up to a line /end", rest("text"), group=GROUP)
async def paste(here: Here) -> Said:
    return Said(effect=Effect("paste", text=here.get("text") or ""))


@command("diff", "what has changed in the agent's folder since a commit, HEAD unless named", given("ref"), group=GROUP)
async def diff(here: Here) -> Said:
    text = await _diff(here)
    return Said(text or "no changes", {"diff": text})


@command("review", "let the agent review what has changed since a commit, HEAD unless named", given("ref"), group=GROUP)
async def review(here: Here) -> Said:
    text = await _diff(here)
    if not text:
        return Said("no changes", {"diff": ""})
    cut = text[:MOST_REVIEWED]
    more = f"\n[{len(text) - len(cut):,} more characters]" if len(text) > len(cut) else ""
    return Said("", {"diff": text}, Effect("ask", text=f"{REVIEW}\n\n```diff\n{cut}{more}\n```"))


async def _diff(here: Here) -> str:
    ran = await use_tool(here, "git_diff", {"ref": here.get("ref") or "HEAD"})
    if ran.is_error:
        raise ConfigError(f"/diff: {ran.text}")
    return "" if ran.text.startswith("No ") else ran.text


COMMANDS: Final = (quit, new, compact, plan, tasks, last, outputs, copy, paste, diff, review)
