"""The command `orch workspace` lists, shows, pins and removes objects in the workspace of an agent."""

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
    parser.add_argument("--about", metavar="TEXT", help="sort by relevance to this text")


def _load_workspace(arguments: Namespace, about: str | None = None) -> dict[str, Any]:
    workspace: dict[str, Any] = Connection(run=arguments.run).call("workspace", {"ref": arguments.key, "about": about})
    return workspace


def _list(arguments: Namespace) -> int:
    workspace = _load_workspace(arguments, arguments.about)
    command.print_result(arguments, workspace, table(workspace))
    if not workspace["artifacts"] and not arguments.json:
        message = "the workspace is empty" if workspace["enabled"] else "no workspace: set workspace.enabled to get one"
        print(f"orch: {message}", file=sys.stderr)
    return 0


def _names(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("names", metavar="NAME", nargs="+", help="name of the object, or its part after the colon")


def _show(arguments: Namespace) -> int:
    artifacts = _load_workspace(arguments)["artifacts"]
    chosen = [_find_artifact(artifacts, name) for name in arguments.names]
    command.print_result(arguments, chosen, "\n\n".join(map(page, chosen)))
    return 0


def _find_artifact(artifacts: list[dict[str, Any]], name: str) -> dict[str, Any]:
    found = [each for each in artifacts if each["name"] == name]
    found = found or [each for each in artifacts if each["name"].partition(":")[2] == name]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(each["name"] for each in found)
        raise CommandError("AmbiguousRefError", f"{name[:80]!r} may be any of {names}: write the whole name", 2)
    raise CommandError(
        "EntryNotFoundError", f"there is no {name[:80]!r} in it; `orch workspace list` shows what there is", 3
    )


def _prune_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="objects to remove (default: unused ones and those above the limit)"
    )
    parser.add_argument(
        "--turns", type=command.positive_int, metavar="N", help="remove objects that were not used for N turns"
    )
    parser.add_argument("--bytes", type=command.count, metavar="N", help="remove the largest until N bytes remain")


def _prune(arguments: Namespace) -> int:
    change = {
        "ref": arguments.key,
        "drop": arguments.names,
        "prune": not arguments.names,
        "turns": arguments.turns,
        "bytes": arguments.bytes,
    }
    changed = Connection(run=arguments.run).call("change_workspace", change)
    command.print_result(arguments, changed, "\n".join(map(terminal.safe, changed["dropped"])))
    return 0


ACTIONS = {
    "list": (
        "list the objects of an agent",
        CliCommand("List the objects in an agent's workspace.", "orch workspace list latest", _about_arguments, _list),
    ),
    "show": (
        "show objects",
        CliCommand("Show objects.", "orch workspace show latest src/pump.py", _names, _show),
    ),
    "prune": (
        "remove unused or named objects from the list",
        CliCommand(
            "Remove objects from the list and print their names. Files and values themselves stay.",
            "orch workspace prune latest --turns 10",
            _prune_arguments,
            _prune,
        ),
    ),
}
VERBS = {
    "workspace": CommandGroup(
        "The workspace of an agent: files, values and results it worked with.",
        "orch workspace list latest",
        ACTIONS | service_verbs.actions("workspace"),
    )
}
