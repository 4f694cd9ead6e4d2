"""Slash commands about the session's tree, branches, archives and conversation."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.images import part_text
from orch_protocol.resources.slash_commands import Effect
from orch_protocol.services.agents.lifecycle import KILL
from orch_protocol.services.agents.status import LIST_AGENTS, SHOW_AGENT
from orch_protocol.services.archives.recall import LIST_ARCHIVES, READ_ARCHIVE, SEARCH_ARCHIVE
from orch_protocol.services.sessions.compaction import COMPACT_SESSION
from orch_protocol.services.sessions.fork import FORK_SESSION
from orch_protocol.services.sessions.plan_mode import SET_PLAN_MODE
from orch_protocol.services.sessions.sessions import CHANGE_SESSION, SHOW_SESSION
from orch_worker.session.session_reader import NAME
from orch_worker.tools.python import namespace

from ..render import archives as archive_rows
from ..render import audit as audit_rows
from ..render import sessions as session_rows
from ..render import terminal
from ..render.columns import format_columns
from ..sessions.audit import AuditRow, audit
from .registry import CommandResult, SessionContext, command, flag, option, positional, remainder
from .user_actions import use_tool

__all__ = ["CONVERSATION_COMMANDS", "SESSIONS_COMMANDS"]


SESSIONS_GROUP: Final = "session"
ENTRY: Final = positional("entry", "entry", required=True)
DEFAULT_EVENTS: Final = 20


@command("sessions", "list sessions, most recent first", flag("all"), group=SESSIONS_GROUP)
async def sessions(ctx: SessionContext) -> CommandResult:
    rows = session_rows.latest(await ctx.ask(LIST_AGENTS, all=ctx.get("all") is not None))
    return CommandResult(session_rows.table(rows), rows)


@command("tree", "draw the session as a tree", flag("all"), group=SESSIONS_GROUP)
async def tree(ctx: SessionContext) -> CommandResult:
    shown = await ctx.ask(SHOW_SESSION, ref=ctx.id)
    return CommandResult("\n".join(session_rows.tree_lines(shown["entries"], every=ctx.get("all") is not None)), shown)


@command("session", "show this session: branches, labels, last messages", group=SESSIONS_GROUP)
async def session(ctx: SessionContext) -> CommandResult:
    shown = await ctx.ask(SHOW_SESSION, ref=ctx.id, limit=session_rows.LAST)
    return CommandResult(session_rows.page(shown), shown)


@command(
    "branch",
    "go back before a prompt and edit it",
    ENTRY,
    option("summary"),
    flag("summarize"),
    group=SESSIONS_GROUP,
)
async def branch(ctx: SessionContext) -> CommandResult:
    entry, summary, summarize = ctx.arguments["entry"], ctx.get("summary"), ctx.get("summarize") is not None
    move = {"type": "move", "to": entry, "summary": summary, "summarize": summarize}
    changed = await ctx.ask(CHANGE_SESSION, ref=ctx.id, change=move, ask_anew=True)
    prompt = changed["text"]
    return CommandResult("the conversation continues there", changed, Effect("edit", text=prompt) if prompt else None)


@command(
    "fork",
    "copy this session to a new agent and switch to it",
    positional("entry", "entry"),
    option("name"),
    option("model", "model"),
    flag("stay"),
    group=SESSIONS_GROUP,
    moves=True,
)
async def fork(ctx: SessionContext) -> CommandResult:
    entry, name, model = ctx.get("entry"), ctx.get("name"), ctx.get("model")
    forked = await ctx.ask(FORK_SESSION, ref=ctx.id, at=entry, name=name, model=model)
    effect = Effect("switch", forked["id"]) if ctx.get("stay") is None else None
    return CommandResult(f"agent {forked['seq']} ({forked['id']}) has a copy", forked, effect)


@command(
    "audit",
    "show the last N events of the session file (20)",
    positional("n", "number"),
    group=SESSIONS_GROUP,
)
async def audit_session(ctx: SessionContext) -> CommandResult:
    limit = int(ctx.get("n") or DEFAULT_EVENTS)
    rows = await ctx.root.disk.do(_read_audit, Path(ctx.spec.folder) / NAME, limit)
    return CommandResult(audit_rows.table(rows), msgspec.to_builtins(rows))


def _read_audit(file: Path, limit: int) -> list[AuditRow]:
    return list(deque(audit(file), maxlen=limit))


@command(
    "archive",
    "list the archives of this agent; with an id: print entries unchanged",
    positional("id", "archive"),
    positional("entries"),
    group=SESSIONS_GROUP,
)
async def archive(ctx: SessionContext) -> CommandResult:
    if (id := ctx.get("id")) is None:
        rows = await ctx.ask(LIST_ARCHIVES, ref=ctx.id)
        return CommandResult(archive_rows.table(rows) if rows else "no archives", rows)
    first, last = archive_rows.entry_range(ctx.get("entries") or "1-")
    entries = archive_rows.numbered_entries(await ctx.ask(READ_ARCHIVE, id=id, first=first, last=last), id, first)
    return CommandResult(archive_rows.pages(entries), entries)


@command(
    "recall",
    "search the archives of this agent",
    remainder("query", required=True),
    group=SESSIONS_GROUP,
)
async def recall(ctx: SessionContext) -> CommandResult:
    hits = await ctx.ask(SEARCH_ARCHIVE, query=ctx.arguments["query"], ref=ctx.id)
    return CommandResult(archive_rows.search_hits(hits) if hits else "no match in the archives", hits)


SESSIONS_COMMANDS: Final = (
    *(sessions, session, tree, branch, fork, audit_session),
    *(archive, recall),
)


# --- Commands about the conversation ---

CONVERSATION_GROUP: Final = "conversation"
SEARCHED_MESSAGES: Final = 400
"""The number of recent messages that are searched for tool results."""
MAX_OUTPUTS: Final = 20
MAX_REVIEW_CHARS: Final = 60_000
REVIEW: Final = (
    "Review these changes. Report what is wrong, what is missing, and what could be simpler. Name files and lines, "
    "most important first. If there is nothing to report, state that."
)


@command("quit", "leave", group=CONVERSATION_GROUP, aliases=("exit", "q"))
async def quit(ctx: SessionContext) -> CommandResult:  # noqa: ARG001
    return CommandResult(effect=Effect("quit"))


@command(
    "new",
    "start a new conversation and end the subagents; the old one stays on its own branch",
    group=CONVERSATION_GROUP,
    aliases=("clear", "reset"),
)
async def new(ctx: SessionContext) -> CommandResult:
    changed = await ctx.ask(CHANGE_SESSION, ref=ctx.id, change={"type": "move", "to": None})
    rows = await ctx.ask(LIST_AGENTS)
    child_ids = [row["id"] for row in rows if row["parent_id"] == ctx.id]
    killed = (await ctx.ask(KILL, refs=child_ids))["ids"] if child_ids else []
    suffix = f"; ended {', '.join(killed)}" if killed else ""
    return CommandResult(f"new conversation started{suffix}", changed | {"killed": killed})


@command(
    "compact",
    "replace older messages by a summary now; the instructions go to its author",
    remainder("instructions"),
    group=CONVERSATION_GROUP,
    aliases=("flush",),
)
async def compact(ctx: SessionContext) -> CommandResult:
    result = await ctx.ask(COMPACT_SESSION, ref=ctx.id, instructions=ctx.get("instructions") or "")
    return CommandResult(session_rows.compaction(result), result)


@command(
    "plan",
    "switch plan mode on: read-only tools until a plan is approved; --off: switch it off; --drop: even if "
    "Python variables are lost",
    flag("off"),
    flag("drop"),
    remainder("task"),
    group=CONVERSATION_GROUP,
)
async def plan(ctx: SessionContext) -> CommandResult:
    on, was_on, task = ctx.get("off") is None, ctx.spec.plan, ctx.get("task")
    process = ctx.root.workers.peer(ctx.id) if on != was_on and ctx.get("drop") is None else None
    if process and (
        names := await ctx.root.disk.do(namespace.names_before_restart, Path(ctx.spec.folder), process.since)
    ):
        message = (
            f"the agent's process would end, and these Python variables would be lost: {namespace.first_names(names)}"
        )
        hint = "/plan --drop" if on else "/plan --off --drop"
        return CommandResult(f"{message}. Use {hint} to continue; values under handles are kept", is_error=True)
    row = await ctx.ask(SET_PLAN_MODE, ref=ctx.id, on=on)
    mode = "on" if on else "off"
    text = f"plan mode is already {mode}" if on == was_on else f"plan mode is now {mode}"
    return CommandResult(text, row, Effect("ask", text=task) if task else None)


@command(
    "tasks",
    "show the agent's task list; 'clear' empties it",
    positional("what", "choice", "clear"),
    group=CONVERSATION_GROUP,
)
async def tasks(ctx: SessionContext) -> CommandResult:
    if ctx.get("what") == "clear":
        changed = await ctx.ask(CHANGE_SESSION, ref=ctx.id, change={"type": "tasks"})
        return CommandResult("task list is empty", changed)
    shown = await ctx.ask(SHOW_AGENT, ref=ctx.id, messages=0)
    return CommandResult("\n".join(terminal.task_lines(shown["tasks"])) or "no tasks", shown["tasks"])


@command(
    "last", "print the last tool result, or the last N, in full", positional("n", "number"), group=CONVERSATION_GROUP
)
async def last(ctx: SessionContext) -> CommandResult:
    outputs = await _outputs(ctx, int(ctx.get("n") or 1))
    pages = [f"[{each['n']}] {each['tool']}{_failed(each)}\n{each['text']}" for each in outputs]
    return CommandResult("\n\n".join(pages) or "no tool results yet", outputs)


@command("outputs", "list the last tool results, each with its first lines", group=CONVERSATION_GROUP)
async def outputs(ctx: SessionContext) -> CommandResult:
    found = await _outputs(ctx, MAX_OUTPUTS)
    rows = [
        [str(each["n"]), each["tool"] + _failed(each), f"{len(each['text']):,}", terminal.truncate_line(each["text"])]
        for each in found
    ]
    table = format_columns([["#", "TOOL", "CHARACTERS", ""], *rows], frozenset({0, 2}))
    return CommandResult(table if rows else "no tool results yet", found)


def _failed(output: dict[str, Any]) -> str:
    return ", an error" if output["is_error"] else ""


async def _outputs(ctx: SessionContext, limit: int) -> list[dict[str, Any]]:
    """Return the last tool results, oldest first; the latest has number 1."""
    shown = await ctx.ask(SHOW_AGENT, ref=ctx.id, messages=SEARCHED_MESSAGES)
    names: dict[str, str] = {}
    found: list[dict[str, Any]] = []
    for message in shown["messages"]:
        for block in message["content"]:
            if block["type"] == "tool_use":
                names[block["id"]] = block["name"]
            elif block["type"] == "tool_result":
                text = "\n".join(map(part_text, block["content"]))
                tool = names.get(block["tool_use_id"], "?")
                found.append({"tool": tool, "text": text, "is_error": bool(block.get("is_error"))})
    latest = found[max(0, len(found) - limit) :]
    return [{"n": len(latest) - index, **each} for index, each in enumerate(latest)]


@command("copy", "copy the last answer to the clipboard", group=CONVERSATION_GROUP)
async def copy(ctx: SessionContext) -> CommandResult:
    shown = await ctx.ask(SHOW_AGENT, ref=ctx.id, messages=0)
    if shown["reply"] is None:
        raise ConfigError("/copy: no answer yet")
    text = shown["reply"]["text"]
    return CommandResult(f"{len(text):,} characters", {"text": text}, Effect("copy", text=text))


@command(
    "paste", "enter a prompt of several lines; end it with a line /end", remainder("text"), group=CONVERSATION_GROUP
)
async def paste(ctx: SessionContext) -> CommandResult:
    return CommandResult(effect=Effect("paste", text=ctx.get("text") or ""))


@command(
    "diff",
    "show changes in the agent's folder since a commit (default: HEAD)",
    positional("ref"),
    group=CONVERSATION_GROUP,
)
async def diff(ctx: SessionContext) -> CommandResult:
    text = await _diff(ctx)
    return CommandResult(text or "no changes", {"diff": text})


@command(
    "review",
    "ask the agent to review changes since a commit (default: HEAD)",
    positional("ref"),
    group=CONVERSATION_GROUP,
)
async def review(ctx: SessionContext) -> CommandResult:
    text = await _diff(ctx)
    if not text:
        return CommandResult("no changes", {"diff": ""})
    shortened = text[:MAX_REVIEW_CHARS]
    suffix = f"\n[{len(text) - len(shortened):,} more characters]" if len(text) > len(shortened) else ""
    return CommandResult("", {"diff": text}, Effect("ask", text=f"{REVIEW}\n\n```diff\n{shortened}{suffix}\n```"))


async def _diff(ctx: SessionContext) -> str:
    result = await use_tool(ctx, "git_diff", {"ref": ctx.get("ref") or "HEAD"})
    if result.is_error:
        raise ConfigError(f"/diff: {result.text}")
    return "" if result.text.startswith("No ") else result.text


CONVERSATION_COMMANDS: Final = (quit, new, compact, plan, tasks, last, outputs, copy, paste, diff, review)
