"""`orch extensions`: which there are, what they may do and bring, trusting a project's, switching them off and on."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, Final

from orch_protocol.core.errors import ConfigError
from orch_protocol.resources.slash_commands import BUILT_IN, CommandCatalog
from orch_worker.extensions.loader import load

from ...client.connection import Connection, replace_invalid_utf8
from ...client.failure import CommandError
from ...config import config, paths
from ...render import terminal
from ...render.resources.extensions import described, page, table
from ...resources.extensions import FOLDER, FoundExtension, disable, enable, extension_specs, find, trust, untrust
from .. import command
from ..command import CliCommand, CommandGroup

__all__ = ["VERBS"]

NOT_FOUND: Final = 3


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=".", help="a project's folder (this one)")


def _list(arguments: Namespace) -> int:
    home = paths.home(os.environ)
    rows = [_row(each, home) for each in _there(Path(arguments.folder).absolute())]
    for row in rows:
        if row["why_off"]:
            print(
                f"orch: {terminal.truncate_line(row['name'], 64)} is off: "
                f"{terminal.truncate_line(row['why_off'], 400)}",
                file=sys.stderr,
            )
    command.print_result(arguments, rows, table(rows) if rows else "no extensions: see docs/extensions.md")
    return 0


def _there(folder: Path) -> list[FoundExtension]:
    loaded = config.load(folder, os.environ)
    for note in loaded.notes:
        print(f"orch: {note}", file=sys.stderr)
    return find(folder, paths.home(os.environ), loaded.config.extensions.load)


def _row(found: FoundExtension, home: Path) -> dict[str, Any]:
    """Return what there is to say of an extension: one that is on is loaded, and brings what it registers."""
    row = described(found)
    for spec in extension_specs([found], home):
        try:
            brought = load(spec)
        except ConfigError as error:
            return row | {"on": False, "why_off": str(error)}
        row["hooks"] = [hook.row.name for hook in brought.hooks]
        row["tools"] = [tool.name for tool in brought.tools]
        row["prompts"] = [f"{found.name}:{name}" for name in brought.prompts]
        from ...commands.catalogs import extension_only_catalog  # with all that commands look at

        catalog = extension_only_catalog(CommandCatalog(tuple(each.row for each in brought.commands)), [spec.manifest])
        row["commands"] = [each.usage for each in catalog.commands if each.source != BUILT_IN]
        row["notes"] = list(catalog.notes)
    return row


def _show(arguments: Namespace) -> int:
    name, home = replace_invalid_utf8(arguments.name), paths.home(os.environ)
    found = [each for each in _there(Path.cwd()) if each.name == name]
    if not found:
        raise CommandError(
            "ExtensionNotFoundError", f"there is no extension {name!r}; see: orch extensions list", NOT_FOUND
        )
    row = _row(found[0], home)
    command.print_result(arguments, row, page(row))
    return 0


def _name_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the extension, as orch extensions list names it")


def _project_arguments(parser: ArgumentParser) -> None:
    _name_arguments(parser)
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=".", help="a project's folder (this one)")


def _of_project(arguments: Namespace) -> Path:
    name, folder = replace_invalid_utf8(arguments.name), Path(arguments.folder).absolute()
    place: Path = folder / ".orch" / FOLDER / name
    if os.path.sep in name or not place.is_dir():
        raise CommandError(
            "ExtensionNotFoundError", f"there is no extension {name!r} in {folder}/.orch/{FOLDER}", NOT_FOUND
        )
    return place


def _trust(arguments: Namespace) -> int:
    place = _of_project(arguments)
    manifest = trust(place, paths.home(os.environ))
    _tell()
    command.print_result(
        arguments, {"trusted": str(place)}, f"trusted as it is now: {manifest.name} in {terminal.safe(str(place))}"
    )
    return 0


def _untrust(arguments: Namespace) -> int:
    place = _of_project(arguments)
    was = untrust(place, paths.home(os.environ))
    _tell()
    said = "no longer trusted" if was else "was not trusted"
    command.print_result(arguments, {"untrusted": was}, f"{said}: {terminal.safe(str(place))}")
    return 0


def _disable(arguments: Namespace) -> int:
    return _switch(arguments, on=False)


def _enable(arguments: Namespace) -> int:
    return _switch(arguments, on=True)


def _switch(arguments: Namespace, *, on: bool) -> int:
    name, home = replace_invalid_utf8(arguments.name), paths.home(os.environ)
    known = [each.name for each in _there(Path.cwd())]
    if not on and name not in known:
        there = ", ".join(known) or "none"
        raise CommandError("ExtensionNotFoundError", f"there is no extension {name!r}; there are: {there}", NOT_FOUND)
    changed = (enable if on else disable)(name, home)
    _tell()
    command.print_switched(arguments, name, "for agents spawned from now on", on=on, changed=changed)
    return 0


def _tell() -> None:
    """Let a daemon that runs look again at what can be executed in sessions."""
    try:
        Connection(start=None).call("refresh_catalogs")
    except CommandError:
        pass  # none runs, or it is leaving; whoever looks next sees what is there


VERBS = {
    "extensions": CommandGroup(
        "Extensions: folders that bring hooks and tools, and may do no more than they say.",
        "orch extensions list",
        {
            "list": (
                "those there are for a folder, what they may do and bring",
                CliCommand(
                    "List the extensions for agents in a folder, with what each may do and brings, or why it is off.",
                    "orch extensions list --json",
                    _list_arguments,
                    _list,
                ),
            ),
            "show": (
                "one of them: what it may do and brings, commands and keys too",
                CliCommand(
                    "Show an extension: what it may do, the hooks, tools and commands that it brings, its keys and "
                    "widgets, and which of these are left out because they are taken.",
                    "orch extensions show redactor",
                    _name_arguments,
                    _show,
                ),
            ),
            "trust": (
                "let a project's run, as it is now",
                CliCommand(
                    "Trust an extension of a project's as it is now, after you have read it; a change asks anew.",
                    "orch extensions trust redactor",
                    _project_arguments,
                    _trust,
                ),
            ),
            "untrust": (
                "let it run no more",
                CliCommand(
                    "Forget that it was trusted.", "orch extensions untrust redactor", _project_arguments, _untrust
                ),
            ),
            "disable": (
                "switch one off, for every folder and for good",
                CliCommand(
                    "Switch an extension off for agents spawned from now on, until it is enabled.",
                    "orch extensions disable redactor",
                    _name_arguments,
                    _disable,
                ),
            ),
            "enable": (
                "switch it on again",
                CliCommand(
                    "Switch an extension on again, for agents spawned from now on.",
                    "orch extensions enable redactor",
                    _name_arguments,
                    _enable,
                ),
            ),
        },
    )
}
