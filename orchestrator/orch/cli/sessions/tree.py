"""`orch session list`, `show`, `tree`, `checkout`, `branch`, `label`, `title`, `model`, `thinking`, `compact`, `fork`:
conversations as trees."""

from __future__ import annotations

import sys

from ...daemon.client import Connection
from ...render import terminal
from .. import command
from ..command import Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["ACTIONS", "LAST", "drawn", "key_argument", "latest", "listing", "page"]

BY = {"model": "a model's summary", "hook": "a hook's summary", "extract": "what was asked and answered"}
HEAD = ("SEQ", "ID", "NAME", "STATUS", "ACTIVE", "QUERIES", "TITLE OR TASK")
RIGHT = frozenset({0, 4, 5})
BRANCHES = ("", "END", "FROM", "ENTRIES", "SAID", "")
LAST = 20
SAID = frozenset({"message", "custom_message", "branch_summary", "compaction", "lost"})
"""Entries in which something was said; the others are shown with --all."""


def key_argument(parser: ArgumentParser) -> None:
    """Let the command take a session."""
    parser.add_argument("key", metavar="KEY", help="number, id, beginning of an id, or name of an agent; or latest")


def _entry(parser: ArgumentParser, what: str) -> None:
    parser.add_argument("entry", metavar="ENTRY", help=f"{what}: id, beginning of an id, or label; root: the beginning")


def _session(arguments: Namespace, most: int | None) -> dict[str, Any]:
    shown: dict[str, Any] = Connection().call("session", {"ref": arguments.key, "most": most})
    return shown


def _change(arguments: Namespace, change: dict[str, Any], *, ask_anew: bool = False) -> dict[str, Any]:
    asked = {"ref": arguments.key, "change": change, "ask_anew": ask_anew}
    changed: dict[str, Any] = Connection().call("change_session", asked)
    return changed


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="those of killed agents too")
    parser.add_argument("--runs", action="store_true", help="with --json: those of programs too, as the table has them")


def _list(arguments: Namespace) -> int:
    rows = latest(Connection().call("list", {"all": arguments.all, "runs": arguments.runs or not arguments.json}))
    command.say(arguments, rows, listing(command.without_deleted(rows)) if rows else "")
    if not rows and not arguments.json:
        print("orch: there is no session yet; orch spawn TASK begins one", file=sys.stderr)
    return 0


def latest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the agents that have a session, those that were active last first."""
    return sorted((row for row in rows if row["kind"] != "holder"), key=lambda row: row["last_activity"], reverse=True)


def listing(rows: list[dict[str, Any]]) -> str:
    """Return sessions as a table, one a line."""
    runs = any(row.get("run") for row in rows)
    cells = [
        [
            *("-" if row.get("run") else str(row["seq"]), row["id"]),
            *((terminal.line(row.get("run", ""), 24),) if runs else ()),
            *(terminal.line(row["name"], 24), terminal.status(row)),
            *(terminal.age(row["last_activity"] or row["created_at"]), str(row["queries"])),
            terminal.line(row["title"] or row["task"]),
        ]
        for row in rows
    ]
    head = [*HEAD[:2], *(("RUN",) if runs else ()), *HEAD[2:]]
    return terminal.columns([head, *cells], frozenset(at + runs if at > 1 else at for at in RIGHT))


def _show(arguments: Namespace) -> int:
    shown = _session(arguments, None if arguments.json else LAST)
    command.say(arguments, shown, "" if arguments.json else page(shown))
    return 0


def page(shown: dict[str, Any], now: float | None = None) -> str:
    """Return a session as a page: what it is, its branches, and what was said last."""
    facts = {
        "session": f"{shown['id']} ({terminal.line(shown['name'], 24)})",
        "title": terminal.line(shown["title"]),
        "folder": terminal.safe(shown["folder"]),
        "copy of": terminal.safe(shown["parent_session"] or ""),
        "model": terminal.safe(shown["model"]),
        "thinking": terminal.safe(shown["thinking"]),
        "entries": str(shown["count"]),
        "leaf": shown["leaf"] or "",
        "labels": ", ".join(f"{terminal.line(label)} {id}" for id, label in shown["labels"].items()),
    }
    lines = [f"{name:9} {value}" for name, value in facts.items() if value]
    if len(shown["branches"]) > 1:
        rows = [
            [
                *("*" if branch["current"] else "", branch["id"] or "root", branch["from_id"] or ""),
                *(str(branch["entries"]), terminal.age(branch["timestamp"], now) if branch["timestamp"] else ""),
                terminal.line(branch["head"]),
            ]
            for branch in shown["branches"]
        ]
        lines += ["", terminal.columns([list(BRANCHES), *rows], frozenset({3, 4}))]
    if shown["entries"]:
        lines += ["", *map(_row, shown["entries"])]
    return "\n".join(lines)


def _tree_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("--all", action="store_true", help="every entry, not only those in which something was said")


def _tree(arguments: Namespace) -> int:
    shown = _session(arguments, None)
    command.say(arguments, shown, "" if arguments.json else "\n".join(drawn(shown["entries"], every=arguments.all)))
    return 0


def drawn(rows: list[dict[str, Any]], *, every: bool = False) -> list[str]:
    """Return the tree of `rows`, a line an entry: a branch stands further in, the way that was taken straight on.

    Nothing recurses: a session is as deep as it is long.
    """
    shown = {row["id"]: row for row in rows if every or row["type"] in SAID}
    above: dict[str, str | None] = {}
    children: dict[str | None, list[dict[str, Any]]] = {}
    for row in rows:
        parent = row["parent_id"]
        parent = parent if parent in shown else above.get(parent)
        above[row["id"]] = parent
        if row["id"] in shown:
            children.setdefault(parent, []).append(row)
    here = next((row["id"] for row in reversed(rows) if row["on_path"] and row["id"] in shown), None)
    lines: list[str] = []
    waiting = [(row, depth) for row, depth in _below(children.get(None, []), 0)]
    while waiting:
        row, depth = waiting.pop()
        lines.append(f"{'  ' * depth}{_row(row)}{'  <- here' if row['id'] == here else ''}")
        waiting += _below(children.get(row["id"], []), depth)
    return lines


def _below(rows: list[dict[str, Any]], depth: int) -> list[tuple[dict[str, Any], int]]:
    """Return what follows an entry, the last to be drawn first: the way that was taken, or the latest one."""
    straight = next((row for row in rows if row["on_path"]), rows[-1] if rows else None)
    aside = [(row, depth + 1) for row in rows if row is not straight]
    return [*([(straight, depth)] if straight is not None else []), *reversed(aside)]


def _row(row: dict[str, Any]) -> str:
    who = row["role"] or row["type"]
    label = f"  [{terminal.line(row['label'])}]" if row["label"] else ""
    mark = "*" if row["on_path"] else " "
    return f"{mark} {row['id']} {terminal.safe(who)}: {terminal.line(row['head'])}{label}".rstrip()


def _checkout_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    _entry(parser, "where the conversation is to go on")
    _summary(parser)


def _summary(parser: ArgumentParser) -> None:
    parser.add_argument("--summary", metavar="TEXT", help="what the model is told of what it leaves; - is stdin")
    parser.add_argument("--summarise", action="store_true", help="let its model write that, if it has one")


def _checkout(arguments: Namespace) -> int:
    return _move(arguments, ask_anew=False)


def _branch(arguments: Namespace) -> int:
    return _move(arguments, ask_anew=True)


def _move(arguments: Namespace, *, ask_anew: bool) -> int:
    summary = command.text(arguments.summary) if arguments.summary is not None else None
    move = {"type": "move", "to": arguments.entry, "summary": summary, "summarise": arguments.summarise}
    changed = _change(arguments, move, ask_anew=ask_anew)
    command.say(arguments, changed, terminal.shown(changed["text"] or "") if ask_anew else "")
    return 0


def _label_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    _entry(parser, "what is to be called that")
    parser.add_argument("label", metavar="LABEL", nargs="?", help="its name; without one it has none any more")


def _label(arguments: Namespace) -> int:
    changed = _change(arguments, {"type": "label", "target": arguments.entry, "label": arguments.label})
    command.say(arguments, changed, "")
    return 0


def _title_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("title", metavar="TITLE", nargs="?", help="its name; without one it has none any more")


def _title(arguments: Namespace) -> int:
    command.say(arguments, _change(arguments, {"type": "name", "name": arguments.title}), "")
    return 0


def _model_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("model", metavar="MODEL", help="PROVIDER:MODEL, or local; orch models lists them")


def _model(arguments: Namespace) -> int:
    changed = _change(arguments, {"type": "model", "model": arguments.model})
    command.say(arguments, changed, terminal.safe(changed["model"]))
    return 0


def _thinking_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("level", metavar="LEVEL", help="off, minimal, low, medium, high, xhigh or max")


def _thinking(arguments: Namespace) -> int:
    changed = _change(arguments, {"type": "thinking", "level": arguments.level})
    command.say(arguments, changed, changed["thinking"])
    return 0


def _compact_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("--instructions", metavar="TEXT", default="", help="what its writer is told; - is stdin")


def _compact(arguments: Namespace) -> int:
    asked = {"ref": arguments.key, "instructions": command.text(arguments.instructions)}
    done = Connection().call("compact", asked)
    command.say(arguments, done, "" if arguments.json else condensed(done))
    return 0


def condensed(done: dict[str, Any]) -> str:
    """Return what a compaction did, as a line."""
    before, after = done["tokens_before"], done["tokens_after"]
    gone = terminal.counted(done["messages"], "message")
    return f"{before:,} tokens are {after:,} now: {BY[done['writer']]} stands in place of {gone} ({done['entry']})"


def _fork_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument(
        "entry", metavar="ENTRY", nargs="?", help="what the copy ends with (the end): id, beginning of one, or label"
    )
    parser.add_argument("--name", action=command.Once, help="a name for the other agent")
    parser.add_argument("--model", action=command.Once, metavar="MODEL", help="another model that is to answer")


def _fork(arguments: Namespace) -> int:
    asked = {"ref": arguments.key, "at": arguments.entry, "name": arguments.name, "model": arguments.model}
    forked = Connection().call("fork", asked)
    command.say(arguments, forked, forked["id"])
    return 0


ACTIONS = {
    "list": (
        "sessions, those that were active last first",
        Verb("List sessions: one an agent, the latest first.", "orch session list", _list_arguments, _list),
    ),
    "show": (
        "one session: where it is, its branches, what was said last",
        Verb(
            "Show a session. With --json all of its entries, each with its head.",
            "orch session show latest",
            key_argument,
            _show,
        ),
    ),
    "tree": (
        "everything that was said, branch by branch",
        Verb(
            "Draw the tree of a session; * is what the conversation has now.",
            "orch session tree reader",
            _tree_arguments,
            _tree,
        ),
    ),
    "checkout": (
        "let a conversation go on behind an entry it had",
        Verb(
            "Let a conversation go on behind an entry. What was said since stays, on a branch of its own.",
            "orch session checkout reader 1f22a6cc",
            _checkout_arguments,
            _checkout,
        ),
    ),
    "branch": (
        "the same, but before a question, which is printed",
        Verb(
            "Go back before a question and print it, to be asked in other words; behind any other entry as checkout.",
            "orch session branch reader 1f22a6cc",
            _checkout_arguments,
            _branch,
        ),
    ),
    "label": (
        "name an entry, so that it is found again",
        Verb(
            "Give an entry a name, or take it away.",
            "orch session label reader 1f22a6cc start",
            _label_arguments,
            _label,
        ),
    ),
    "title": (
        "name a session",
        Verb("Give a session a name, or take it away.", "orch session title reader pumps", _title_arguments, _title),
    ),
    "model": (
        "let another model go on with a conversation",
        Verb(
            "Let another model answer from here on, between turns, and print it. Going back before here undoes that.",
            "orch session model reader local",
            _model_arguments,
            _model,
        ),
    ),
    "thinking": (
        "let the model of a conversation think more, or less",
        Verb(
            "Let the model think so much from here on; print the level that it is told, which is the next that it has.",
            "orch session thinking reader high",
            _thinking_arguments,
            _thinking,
        ),
    ),
    "compact": (
        "let what was said first give way to a summary",
        Verb(
            "Compact a conversation between turns: a summary takes the place of all but the last ones.",
            "orch session compact reader --instructions 'Keep every figure.'",
            _compact_arguments,
            _compact,
        ),
    ),
    "fork": (
        "another agent with a copy of a conversation",
        Verb(
            "Make another agent whose session is a copy of one path, archives included, and print its id.",
            "orch session fork reader 1f22a6cc --name second",
            _fork_arguments,
            _fork,
        ),
    ),
}
