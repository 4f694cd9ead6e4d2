"""Commands about the session itself: where the conversation is, where it was, and what of it is archived."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.slash import Effect
from orch_worker.transcript import NAME

from ..audit import Audited, audit
from ..cli import archive as archives
from ..cli import session_audit, session_tree
from .registry import Here, Said, command, flag, given, option, rest

__all__ = ["COMMANDS"]

GROUP: Final = "session"
ENTRY: Final = given("entry", "entry", required=True)
TRACED: Final = 20


@command("sessions", "conversations, the latest first", flag("all"), group=GROUP)
async def sessions(here: Here) -> Said:
    rows = session_tree.latest(await here.ask("list", all=here.get("all") is not None))
    return Said(session_tree.listing(rows), rows)


@command("tree", "everything that was said, branch by branch", flag("all"), group=GROUP)
async def tree(here: Here) -> Said:
    shown = await here.ask("session", ref=here.id)
    return Said("\n".join(session_tree.drawn(shown["entries"], every=here.get("all") is not None)), shown)


@command("session", "this session: its branches, labels, and what was said last", group=GROUP)
async def session(here: Here) -> Said:
    shown = await here.ask("session", ref=here.id, most=session_tree.LAST)
    return Said(session_tree.page(shown), shown)


@command(
    "checkout",
    "let the conversation go on behind an entry; what was said since stays on its own branch",
    ENTRY,
    option("summary"),
    flag("summarise"),
    group=GROUP,
)
async def checkout(here: Here) -> Said:
    changed = await _move(here, ask_anew=False)
    return Said("the conversation goes on there", changed)


@command(
    "branch",
    "go back before a question, which is there to be asked in other words",
    ENTRY,
    option("summary"),
    flag("summarise"),
    group=GROUP,
)
async def branch(here: Here) -> Said:
    changed = await _move(here, ask_anew=True)
    asked = changed["text"]
    return Said("the conversation goes on there", changed, Effect("edit", text=asked) if asked else None)


async def _move(here: Here, *, ask_anew: bool) -> dict[str, Any]:
    to = here.said["entry"]
    move = {"type": "move", "to": to, "summary": here.get("summary"), "summarise": here.get("summarise") is not None}
    changed: dict[str, Any] = await here.ask("change_session", ref=here.id, change=move, ask_anew=ask_anew)
    return changed


@command(
    "fork",
    "another agent with a copy of this conversation, to which you talk from now on",
    given("entry", "entry"),
    option("name"),
    option("model", "model"),
    flag("stay"),
    group=GROUP,
    moves=True,
)
async def fork(here: Here) -> Said:
    entry, name, model = here.get("entry"), here.get("name"), here.get("model")
    forked = await here.ask("fork", ref=here.id, at=entry, name=name, model=model)
    effect = Effect("switch", forked["id"]) if here.get("stay") is None else None
    return Said(f"agent {forked['seq']} ({forked['id']}) has a copy", forked, effect)


@command("label", "name an entry, or take its name away", ENTRY, rest("label"), group=GROUP)
async def label(here: Here) -> Said:
    change = {"type": "label", "target": here.said["entry"], "label": here.get("label")}
    changed = await here.ask("change_session", ref=here.id, change=change)
    return Said("labelled" if here.get("label") else "it has no label any more", changed)


@command("title", "name this session, or take its name away", rest("title"), group=GROUP)
async def title(here: Here) -> Said:
    changed = await here.ask("change_session", ref=here.id, change={"type": "name", "name": here.get("title")})
    return Said("named" if here.get("title") else "it has no name any more", changed)


@command("trace", "what happened last, as the chain of the session's file has it", given("n", "number"), group=GROUP)
async def trace(here: Here) -> Said:
    most = int(here.get("n") or TRACED)
    rows = await here.root.disk.do(_audited, Path(here.spec.folder) / NAME, most)
    return Said(session_audit.table(rows), msgspec.to_builtins(rows))


def _audited(file: Path, most: int) -> list[Audited]:
    return list(deque(audit(file), maxlen=most))


@command(
    "archive",
    "what this agent has archived; with an id, entries of one exactly as they were",
    given("id", "archive"),
    given("entries"),
    group=GROUP,
)
async def archive(here: Here) -> Said:
    if (id := here.get("id")) is None:
        rows = await here.ask("archives", ref=here.id)
        return Said(archives.table(rows) if rows else "nothing is archived", rows)
    first, last = archives.entry_range(here.get("entries") or "1-")
    entries = archives.numbered(await here.ask("read_archive", id=id, first=first, last=last), id, first)
    return Said(archives.pages(entries), entries)


@command("recall", "places in this agent's archives where something stands", rest("query", required=True), group=GROUP)
async def recall(here: Here) -> Said:
    hits = await here.ask("search_archive", query=here.said["query"], ref=here.id)
    return Said(archives.places(hits) if hits else "nothing in the archives resembles that", hits)


COMMANDS: Final = (
    *(sessions, session, tree, checkout, branch, fork, label, title, trace),
    *(archive, recall),
)
