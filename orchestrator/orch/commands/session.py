"""Commands about the session itself: where the conversation is, where it was, and what of it is archived."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.core.errors import ConfigError
from orch_protocol.resources.slash_commands import Effect
from orch_protocol.services.recall import LIST_ARCHIVES, READ_ARCHIVE, SEARCH_ARCHIVE
from orch_protocol.services.requests import KILL, LIST_AGENTS, SHOW_AGENT
from orch_protocol.services.sessions import CHANGE_SESSION, COMPACT_SESSION, FORK_SESSION, SET_PLAN_MODE, SHOW_SESSION
from orch_worker.session.transcript import NAME
from orch_worker.tools.python import namespace

from ..render import archives as archive_rows
from ..render import audit as audit_rows
from ..render import sessions as session_rows
from ..render import terminal
from ..sessions.audit import AuditRow, audit
from .registry import CommandResult, SessionContext, command, flag, option, positional, remainder
from .user_actions import use_tool

__all__ = ["SESSIONS_COMMANDS", "TALKING_COMMANDS"]


SESSIONS_GROUP: Final = "session"
ENTRY: Final = positional("entry", "entry", required=True)
TRACED: Final = 20


@command("sessions", "conversations, the latest first", flag("all"), group=SESSIONS_GROUP)
async def sessions(here: SessionContext) -> CommandResult:
    rows = session_rows.latest(await here.ask(LIST_AGENTS, all=here.get("all") is not None))
    return CommandResult(session_rows.table(rows), rows)


@command("tree", "everything that was said, branch by branch", flag("all"), group=SESSIONS_GROUP)
async def tree(here: SessionContext) -> CommandResult:
    shown = await here.ask(SHOW_SESSION, ref=here.id)
    return CommandResult("\n".join(session_rows.tree_lines(shown["entries"], every=here.get("all") is not None)), shown)


@command("session", "this session: its branches, labels, and what was said last", group=SESSIONS_GROUP)
async def session(here: SessionContext) -> CommandResult:
    shown = await here.ask(SHOW_SESSION, ref=here.id, most=session_rows.LAST)
    return CommandResult(session_rows.page(shown), shown)


@command(
    "branch",
    "go back before a question, which is there to be asked in other words",
    ENTRY,
    option("summary"),
    flag("summarize"),
    group=SESSIONS_GROUP,
)
async def branch(here: SessionContext) -> CommandResult:
    to, summary, summarize = here.said["entry"], here.get("summary"), here.get("summarize") is not None
    move = {"type": "move", "to": to, "summary": summary, "summarize": summarize}
    changed = await here.ask(CHANGE_SESSION, ref=here.id, change=move, ask_anew=True)
    asked = changed["text"]
    return CommandResult("the conversation goes on there", changed, Effect("edit", text=asked) if asked else None)


@command(
    "fork",
    "another agent with a copy of this conversation, to which you talk from now on",
    positional("entry", "entry"),
    option("name"),
    option("model", "model"),
    flag("stay"),
    group=SESSIONS_GROUP,
    moves=True,
)
async def fork(here: SessionContext) -> CommandResult:
    entry, name, model = here.get("entry"), here.get("name"), here.get("model")
    forked = await here.ask(FORK_SESSION, ref=here.id, at=entry, name=name, model=model)
    effect = Effect("switch", forked["id"]) if here.get("stay") is None else None
    return CommandResult(f"agent {forked['seq']} ({forked['id']}) has a copy", forked, effect)


@command(
    "audit",
    "the last events of the session, from its file; N: how many (20)",
    positional("n", "number"),
    group=SESSIONS_GROUP,
)
async def audit_session(here: SessionContext) -> CommandResult:
    most = int(here.get("n") or TRACED)
    rows = await here.root.disk.do(_audited, Path(here.spec.folder) / NAME, most)
    return CommandResult(audit_rows.table(rows), msgspec.to_builtins(rows))


def _audited(file: Path, most: int) -> list[AuditRow]:
    return list(deque(audit(file), maxlen=most))


@command(
    "archive",
    "what this agent has archived; with an id, entries of one exactly as they were",
    positional("id", "archive"),
    positional("entries"),
    group=SESSIONS_GROUP,
)
async def archive(here: SessionContext) -> CommandResult:
    if (id := here.get("id")) is None:
        rows = await here.ask(LIST_ARCHIVES, ref=here.id)
        return CommandResult(archive_rows.table(rows) if rows else "nothing is archived", rows)
    first, last = archive_rows.entry_range(here.get("entries") or "1-")
    entries = archive_rows.numbered_entries(await here.ask(READ_ARCHIVE, id=id, first=first, last=last), id, first)
    return CommandResult(archive_rows.pages(entries), entries)


@command(
    "recall",
    "places in this agent's archives where something stands",
    remainder("query", required=True),
    group=SESSIONS_GROUP,
)
async def recall(here: SessionContext) -> CommandResult:
    hits = await here.ask(SEARCH_ARCHIVE, query=here.said["query"], ref=here.id)
    return CommandResult(archive_rows.search_hits(hits) if hits else "nothing in the archives resembles that", hits)


SESSIONS_COMMANDS: Final = (
    *(sessions, session, tree, branch, fork, audit_session),
    *(archive, recall),
)


# --- Commands about the conversation ---

TALKING_GROUP: Final = "conversation"
LOOKED_AT: Final = 400
"""Messages of the conversation in which results of tools are looked for."""
KEPT_OUTPUTS: Final = 20
MOST_REVIEWED: Final = 60_000
REVIEW: Final = (
    "Review these changes: what is wrong, what is missing, what could be simpler. Name files and lines; say it in "
    "order of weight, and say so if there is nothing to say."
)


@command("quit", "leave", group=TALKING_GROUP, aliases=("exit", "q"))
async def quit(here: SessionContext) -> CommandResult:  # noqa: ARG001
    return CommandResult(effect=Effect("quit"))


@command(
    "new",
    "begin the conversation anew, and end this agent's subagents; what was said stays on its own branch",
    group=TALKING_GROUP,
    aliases=("clear", "reset"),
)
async def new(here: SessionContext) -> CommandResult:
    changed = await here.ask(CHANGE_SESSION, ref=here.id, change={"type": "move", "to": None})
    rows = await here.ask(LIST_AGENTS)
    below = [row["id"] for row in rows if row["parent_id"] == here.id]
    killed = (await here.ask(KILL, refs=below))["ids"] if below else []
    told = f"; ended {', '.join(killed)}" if killed else ""
    return CommandResult(f"the conversation begins anew{told}", changed | {"killed": killed})


@command(
    "compact",
    "let what was said first give way to a summary now; whoever writes it is told the instructions",
    remainder("instructions"),
    group=TALKING_GROUP,
    aliases=("flush",),
)
async def compact(here: SessionContext) -> CommandResult:
    done = await here.ask(COMPACT_SESSION, ref=here.id, instructions=here.get("instructions") or "")
    return CommandResult(session_rows.compaction(done), done)


@command(
    "plan",
    "go on in plan mode: nothing is written or run before a plan is approved; --off: go on without; --drop: also if "
    "what its Python has bound is lost by that",
    flag("off"),
    flag("drop"),
    remainder("task"),
    group=TALKING_GROUP,
)
async def plan(here: SessionContext) -> CommandResult:
    on, was, task = here.get("off") is None, here.spec.plan, here.get("task")
    process = here.root.workers.peer(here.id) if on != was and here.get("drop") is None else None
    if process and (
        names := await here.root.disk.do(namespace.names_before_restart, Path(here.spec.folder), process.since)
    ):
        lost = f"its process would end, and with it what its Python bound last: {namespace.first_names(names)}"
        how = "/plan --drop" if on else "/plan --off --drop"
        return CommandResult(f"{lost}. {how} goes on without that; what is under a handle is kept", is_error=True)
    row = await here.ask(SET_PLAN_MODE, ref=here.id, on=on)
    mode = "in plan mode" if on else "not in plan mode"
    told = f"it is {mode} already" if on == was else f"it is {mode} from now on"
    return CommandResult(told, row, Effect("ask", text=task) if task else None)


@command(
    "tasks",
    "what the agent means to do; clear: no more of it",
    positional("what", "choice", "clear"),
    group=TALKING_GROUP,
)
async def tasks(here: SessionContext) -> CommandResult:
    if here.get("what") == "clear":
        changed = await here.ask(CHANGE_SESSION, ref=here.id, change={"type": "tasks"})
        return CommandResult("no tasks any more", changed)
    shown = await here.ask(SHOW_AGENT, ref=here.id, messages=0)
    return CommandResult("\n".join(terminal.task_lines(shown["tasks"])) or "no tasks", shown["tasks"])


@command("last", "the last result of a tool, or the last N, whole", positional("n", "number"), group=TALKING_GROUP)
async def last(here: SessionContext) -> CommandResult:
    outputs = await _outputs(here, int(here.get("n") or 1))
    pages = [f"[{each['n']}] {each['tool']}{_failed(each)}\n{each['text']}" for each in outputs]
    return CommandResult("\n\n".join(pages) or "no tool has returned anything yet", outputs)


@command("outputs", "the last results of tools, each with its beginning", group=TALKING_GROUP)
async def outputs(here: SessionContext) -> CommandResult:
    found = await _outputs(here, KEPT_OUTPUTS)
    rows = [
        [str(each["n"]), each["tool"] + _failed(each), f"{len(each['text']):,}", terminal.truncate_line(each["text"])]
        for each in found
    ]
    table = terminal.format_columns([["#", "TOOL", "CHARACTERS", ""], *rows], frozenset({0, 2}))
    return CommandResult(table if rows else "no tool has returned anything yet", found)


def _failed(output: dict[str, Any]) -> str:
    return ", an error" if output["is_error"] else ""


async def _outputs(here: SessionContext, most: int) -> list[dict[str, Any]]:
    """Return the last results of tools, the latest last; the latest is number 1."""
    shown = await here.ask(SHOW_AGENT, ref=here.id, messages=LOOKED_AT)
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


@command("copy", "put the last answer on the clipboard", group=TALKING_GROUP)
async def copy(here: SessionContext) -> CommandResult:
    shown = await here.ask(SHOW_AGENT, ref=here.id, messages=0)
    if shown["reply"] is None:
        raise ConfigError("/copy: there is no answer yet")
    text = shown["reply"]["text"]
    return CommandResult(f"{len(text):,} characters", {"text": text}, Effect("copy", text=text))


@command("paste", "take many lines as one prompt, up to a line /end", remainder("text"), group=TALKING_GROUP)
async def paste(here: SessionContext) -> CommandResult:
    return CommandResult(effect=Effect("paste", text=here.get("text") or ""))


@command(
    "diff",
    "what has changed in the agent's folder since a commit, HEAD unless named",
    positional("ref"),
    group=TALKING_GROUP,
)
async def diff(here: SessionContext) -> CommandResult:
    text = await _diff(here)
    return CommandResult(text or "no changes", {"diff": text})


@command(
    "review",
    "let the agent review what has changed since a commit, HEAD unless named",
    positional("ref"),
    group=TALKING_GROUP,
)
async def review(here: SessionContext) -> CommandResult:
    text = await _diff(here)
    if not text:
        return CommandResult("no changes", {"diff": ""})
    cut = text[:MOST_REVIEWED]
    more = f"\n[{len(text) - len(cut):,} more characters]" if len(text) > len(cut) else ""
    return CommandResult("", {"diff": text}, Effect("ask", text=f"{REVIEW}\n\n```diff\n{cut}{more}\n```"))


async def _diff(here: SessionContext) -> str:
    ran = await use_tool(here, "git_diff", {"ref": here.get("ref") or "HEAD"})
    if ran.is_error:
        raise ConfigError(f"/diff: {ran.text}")
    return "" if ran.text.startswith("No ") else ran.text


TALKING_COMMANDS: Final = (quit, new, compact, plan, tasks, last, outputs, copy, paste, diff, review)
