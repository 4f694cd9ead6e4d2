"""`orch workspace list`, `show`, `pin`, `unpin`, `prune`: what an agent has at hand."""

from __future__ import annotations

import sys

from ...daemon.client import Connection
from ...daemon.failure import Failure
from ...render import terminal
from .. import command
from ..command import Group, Verb
from ..sessions.tree import key_argument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["VERBS", "listed", "page"]

HEAD = ("NAME", "KIND", "SIZE", "TURN", "FROM", "STATE", "SUMMARY")
RIGHT = frozenset({2, 3})
NAME, FROM, SUMMARY = 48, 40, 60


def _about_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("--about", metavar="TEXT", help="those first that say most about this")


def _asked(arguments: Namespace, about: str | None = None) -> dict[str, Any]:
    shown: dict[str, Any] = Connection().call("workspace", {"ref": arguments.key, "about": about})
    return shown


def _list(arguments: Namespace) -> int:
    shown = _asked(arguments, arguments.about)
    command.say(arguments, shown, listed(shown))
    if not shown["artifacts"] and not arguments.json:
        why = "nothing yet" if shown["enabled"] else "nothing: workspace.enabled lets agents keep track of it"
        print(f"orch: it has {why}", file=sys.stderr)
    return 0


def listed(shown: dict[str, Any]) -> str:
    """Return what an agent has at hand as a table, "" when that is nothing."""
    rows = [_cells(each) for each in shown["artifacts"]]
    return f"{terminal.columns([list(HEAD), *rows], RIGHT)}\n{shown['digest']}" if rows else ""


def _cells(artifact: dict[str, Any]) -> list[str]:
    return [
        *(terminal.line(artifact["name"], NAME), terminal.line(artifact["kind"], 20), _size(artifact.get("size", 0))),
        *(str(artifact.get("turn", "")), terminal.line(", ".join(_made_from(artifact)), FROM)),
        ", ".join([*(["pinned"] if artifact.get("pinned") else []), *(["STALE"] if artifact.get("stale") else [])]),
        terminal.line(artifact.get("summary", ""), SUMMARY),
    ]


def _made_from(artifact: dict[str, Any]) -> list[str]:
    files = [each["path"] for each in artifact.get("files", ())]
    return [*artifact.get("deps", ()), *(path for path in files if not artifact["name"].endswith(path))]


def _size(size: int) -> str:
    for unit, factor in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f}{unit}"
    return str(size) if size else ""


def _names(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("names", metavar="NAME", nargs="+", help="its name, or what stands in it behind the colon")


def _show(arguments: Namespace) -> int:
    there = _asked(arguments)["artifacts"]
    chosen = [_chosen(there, name) for name in arguments.names]
    command.say(arguments, chosen, "\n\n".join(map(page, chosen)))
    return 0


def _chosen(there: list[dict[str, Any]], name: str) -> dict[str, Any]:
    found = [each for each in there if each["name"] == name]
    found = found or [each for each in there if each["name"].partition(":")[2] == name]
    if len(found) == 1:
        return found[0]
    if found:
        which = ", ".join(each["name"] for each in found)
        raise Failure("AmbiguousRefError", f"{name[:80]!r} may be any of {which}: write the whole name", 2)
    raise Failure(
        "EntryNotFoundError", f"there is no {name[:80]!r} in it; `orch workspace list` shows what there is", 3
    )


def page(artifact: dict[str, Any]) -> str:
    """Return an artifact as a page: what it is, where it is from, whether that holds."""
    arguments = ", ".join(f"{name}={value}" for name, value in artifact.get("arguments", {}).items())
    call = f"{artifact['tool']}({arguments})" if artifact.get("tool") else ""
    facts = {
        "kind": artifact["kind"],
        "bytes": f"{artifact['size']:,}" if artifact.get("size") else "",
        "made": f"in turn {artifact.get('turn', 0)}, {artifact.get('at', '')}",
        "used": f"in turn {artifact.get('used', 0)}",
        "by": call,
        "call": artifact.get("call", ""),
        "query": artifact.get("query", ""),
        "from": ", ".join(_made_from(artifact)),
        "files": ", ".join(each["path"] for each in artifact.get("files", ())),
        "whole in": artifact.get("handle", ""),
        "stale": artifact.get("stale", ""),
        "pinned": "yes" if artifact.get("pinned") else "",
        "text": "others wrote it" if artifact.get("untrusted") else "",
    }
    lines = [f"  {name + ':':10}{terminal.line(value, 300)}" for name, value in facts.items() if value]
    return "\n".join([terminal.line(artifact["name"], 300), *lines, "", terminal.safe(artifact.get("summary", ""))])


def _arrange(arguments: Namespace, **change: Any) -> dict[str, Any]:
    asked = {"ref": arguments.key} | change
    arranged: dict[str, Any] = Connection().call("arrange_workspace", asked)
    return arranged


def _pin(arguments: Namespace) -> int:
    arranged = _arrange(arguments, pin=arguments.names)
    command.say(arguments, arranged, "\n".join(map(terminal.safe, arranged["pinned"])))
    return 0


def _unpin(arguments: Namespace) -> int:
    arranged = _arrange(arguments, unpin=arguments.names)
    command.say(arguments, arranged, "\n".join(map(terminal.safe, arranged["unpinned"])))
    return 0


def _prune_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("names", metavar="NAME", nargs="*", help="what to forget; none: what is out of use or too much")
    parser.add_argument("--turns", type=command.number, metavar="N", help="what was not used for so many turns")
    parser.add_argument("--bytes", type=command.count, metavar="N", help="the largest, until all together have so many")


def _prune(arguments: Namespace) -> int:
    arranged = _arrange(
        arguments,
        drop=arguments.names,
        prune=not arguments.names,
        turns=arguments.turns,
        bytes=arguments.bytes,
    )
    command.say(arguments, arranged, "\n".join(map(terminal.safe, arranged["dropped"])))
    return 0


ACTIONS = {
    "list": (
        "what there is, with where it is from",
        Verb("List what an agent has at hand.", "orch workspace list latest", _about_arguments, _list),
    ),
    "show": (
        "one object with all that is known of it",
        Verb("Show objects.", "orch workspace show latest src/pump.py", _names, _show),
    ),
    "pin": (
        "let it be told of first, and never forgotten",
        Verb("Pin objects, and print their names.", "orch workspace pin latest value:frame", _names, _pin),
    ),
    "unpin": (
        "let it be like others again",
        Verb("Unpin objects, and print their names.", "orch workspace unpin latest value:frame", _names, _unpin),
    ),
    "prune": (
        "forget what is out of use, or what is named",
        Verb(
            "Forget objects, and print their names. What they stand for stays.",
            "orch workspace prune latest --turns 10",
            _prune_arguments,
            _prune,
        ),
    ),
}
VERBS = {"workspace": Group("What an agent has at hand.", "orch workspace list latest", ACTIONS)}
