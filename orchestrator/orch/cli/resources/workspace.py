"""`orch workspace`: list, show, pin and drop the artifacts of an agent."""

from __future__ import annotations

import sys

from ...client.connection import Connection
from ...client.failure import CommandError
from ...render import terminal
from ...render.workspace import page, table
from .. import command, service_verbs
from ..command import CliCommand, CommandGroup, key_argument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["VERBS"]


def _about_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("--about", metavar="TEXT", help="those first that say most about this")


def _asked(arguments: Namespace, about: str | None = None) -> dict[str, Any]:
    shown: dict[str, Any] = Connection().call("workspace", {"ref": arguments.key, "about": about})
    return shown


def _list(arguments: Namespace) -> int:
    shown = _asked(arguments, arguments.about)
    command.print_result(arguments, shown, table(shown))
    if not shown["artifacts"] and not arguments.json:
        why = "nothing yet" if shown["enabled"] else "nothing: workspace.enabled lets agents keep track of it"
        print(f"orch: it has {why}", file=sys.stderr)
    return 0


def _names(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("names", metavar="NAME", nargs="+", help="its name, or what stands in it behind the colon")


def _show(arguments: Namespace) -> int:
    there = _asked(arguments)["artifacts"]
    chosen = [_chosen(there, name) for name in arguments.names]
    command.print_result(arguments, chosen, "\n\n".join(map(page, chosen)))
    return 0


def _chosen(there: list[dict[str, Any]], name: str) -> dict[str, Any]:
    found = [each for each in there if each["name"] == name]
    found = found or [each for each in there if each["name"].partition(":")[2] == name]
    if len(found) == 1:
        return found[0]
    if found:
        which = ", ".join(each["name"] for each in found)
        raise CommandError("AmbiguousRefError", f"{name[:80]!r} may be any of {which}: write the whole name", 2)
    raise CommandError(
        "EntryNotFoundError", f"there is no {name[:80]!r} in it; `orch workspace list` shows what there is", 3
    )


def _prune_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("names", metavar="NAME", nargs="*", help="what to forget; none: what is out of use or too much")
    parser.add_argument("--turns", type=command.positive_int, metavar="N", help="what was not used for so many turns")
    parser.add_argument("--bytes", type=command.count, metavar="N", help="the largest, until all together have so many")


def _prune(arguments: Namespace) -> int:
    change = {
        "ref": arguments.key,
        "drop": arguments.names,
        "prune": not arguments.names,
        "turns": arguments.turns,
        "bytes": arguments.bytes,
    }
    changed = Connection().call("change_workspace", change)
    command.print_result(arguments, changed, "\n".join(map(terminal.safe, changed["dropped"])))
    return 0


ACTIONS = {
    "list": (
        "what there is, with where it is from",
        CliCommand("List what an agent has at hand.", "orch workspace list latest", _about_arguments, _list),
    ),
    "show": (
        "one object with all that is known of it",
        CliCommand("Show objects.", "orch workspace show latest src/pump.py", _names, _show),
    ),
    "prune": (
        "forget what is out of use, or what is named",
        CliCommand(
            "Forget objects, and print their names. What they stand for stays.",
            "orch workspace prune latest --turns 10",
            _prune_arguments,
            _prune,
        ),
    ),
}
VERBS = {
    "workspace": CommandGroup(
        "What an agent has at hand.", "orch workspace list latest", ACTIONS | service_verbs.actions("workspace")
    )
}
