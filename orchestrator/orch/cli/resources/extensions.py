"""The command `orch extensions` lists, shows, trusts, enables and disables extensions."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, Final

from orch_protocol.core.errors import ConfigError
from orch_protocol.resources.slash_commands import BUILT_IN, CommandCatalog
from orch_worker.extensions.loader import load

from ...client.connection import Connection, replace_invalid_utf8
from ...client.failure import CommandError
from ...config import paths
from ...config.trust import revoke
from ...render.resources.extensions import described, page, table
from ...resources.extensions import FOLDER, FoundExtension, disable, enable, extension_specs, find, trust
from .. import command
from ..command import CliCommand, CommandGroup

__all__ = ["VERBS"]

NOT_FOUND: Final = 3


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", nargs="?", default=".", help="project folder (default: current folder)"
    )


def _list(arguments: Namespace) -> int:
    home = paths.home(os.environ)
    rows = [_row(each, home) for each in _find_extensions(Path(arguments.folder).absolute())]
    for row in rows:
        if row["why_off"]:
            command.print_off(row["name"], row["why_off"])
    command.print_result(arguments, rows, table(rows) if rows else "no extensions; see docs/guides/extensions.md")
    return 0


def _find_extensions(folder: Path) -> list[FoundExtension]:
    loaded = command.load_config(folder)
    return find(folder, paths.home(os.environ), loaded.config.extensions.load)


def _row(found: FoundExtension, home: Path) -> dict[str, Any]:
    """Return the description of an extension. An enabled extension is loaded to list the parts that it registers."""
    row = described(found)
    for spec in extension_specs([found], home):
        try:
            loaded = load(spec)
        except ConfigError as error:
            return row | {"on": False, "why_off": str(error)}
        row["hooks"] = [hook.row.name for hook in loaded.hooks]
        row["tools"] = [tool.name for tool in loaded.tools]
        row["prompts"] = [f"{found.name}:{name}" for name in loaded.prompts]
        from ...commands.catalogs import extension_only_catalog  # slow: imports all commands

        catalog = extension_only_catalog(CommandCatalog(tuple(each.row for each in loaded.commands)), [spec.manifest])
        row["commands"] = [each.usage for each in catalog.commands if each.source != BUILT_IN]
        row["notes"] = list(catalog.notes)
    return row


def _show(arguments: Namespace) -> int:
    name, home = replace_invalid_utf8(arguments.name), paths.home(os.environ)
    found = [each for each in _find_extensions(Path.cwd()) if each.name == name]
    if not found:
        raise CommandError(
            "ExtensionNotFoundError", f"no extension named {name!r}; see: orch extensions list", NOT_FOUND
        )
    row = _row(found[0], home)
    command.print_result(arguments, row, page(row))
    return 0


def _name_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the extension, as in `orch extensions list`")


def _project_arguments(parser: ArgumentParser) -> None:
    _name_arguments(parser)
    parser.add_argument(
        "folder", metavar="FOLDER", nargs="?", default=".", help="project folder (default: current folder)"
    )


def _project_extension(arguments: Namespace) -> Path:
    name, folder = replace_invalid_utf8(arguments.name), Path(arguments.folder).absolute()
    extension_folder: Path = folder / ".orch" / FOLDER / name
    if os.path.sep in name or not extension_folder.is_dir():
        raise CommandError(
            "ExtensionNotFoundError", f"no extension named {name!r} in {folder}/.orch/{FOLDER}", NOT_FOUND
        )
    return extension_folder


def _trust(arguments: Namespace) -> int:
    extension_folder = _project_extension(arguments)
    manifest = trust(extension_folder, paths.home(os.environ))
    _refresh_daemon()
    command.print_trusted(arguments, manifest.name, str(extension_folder))
    return 0


def _untrust(arguments: Namespace) -> int:
    extension_folder = _project_extension(arguments)
    was_trusted = revoke(paths.home(os.environ), "extension", extension_folder)
    _refresh_daemon()
    command.print_untrusted(arguments, str(extension_folder), was_trusted=was_trusted)
    return 0


def _disable(arguments: Namespace) -> int:
    return _switch(arguments, on=False)


def _enable(arguments: Namespace) -> int:
    return _switch(arguments, on=True)


def _switch(arguments: Namespace, *, on: bool) -> int:
    name, home = replace_invalid_utf8(arguments.name), paths.home(os.environ)
    known = [each.name for each in _find_extensions(Path.cwd())]
    if name not in known:
        names_text = ", ".join(known) or "none"
        raise CommandError("ExtensionNotFoundError", f"no extension named {name!r}; known: {names_text}", NOT_FOUND)
    changed = (enable if on else disable)(name, home)
    _refresh_daemon()
    command.print_switched(arguments, name, "for agents spawned from now on", on=on, changed=changed)
    return 0


def _refresh_daemon() -> None:
    """Let a running daemon reload the commands of extensions."""
    try:
        Connection(start=None).call("refresh_catalogs")
    except CommandError:
        pass  # no daemon is running; the next daemon reads the current state


VERBS = {
    "extensions": CommandGroup(
        "Extensions: folders with hooks, tools and commands, limited to the permissions in their manifest.",
        "orch extensions list",
        {
            "list": (
                "list extensions of a folder",
                CliCommand(
                    "List the extensions of a folder: permissions, contents, and the reason why one is off.",
                    "orch extensions list --json",
                    _list_arguments,
                    _list,
                ),
            ),
            "show": (
                "show an extension: permissions, hooks, tools, commands, keys",
                CliCommand(
                    "Show an extension: what it may do, the hooks, tools and commands that it brings, its keys and "
                    "widgets, and which of these are left out because they are taken.",
                    "orch extensions show redactor",
                    _name_arguments,
                    _show,
                ),
            ),
            "trust": (
                "trust the present version of a project's extension",
                CliCommand(
                    "Trust the present version of a project's extension. Read it first. Any change requires new trust.",
                    "orch extensions trust redactor",
                    _project_arguments,
                    _trust,
                ),
            ),
            "untrust": (
                "revoke the trust of a project's extension",
                CliCommand(
                    "Revoke the trust of a project's extension.",
                    "orch extensions untrust redactor",
                    _project_arguments,
                    _untrust,
                ),
            ),
            "disable": (
                "disable an extension for every folder",
                CliCommand(
                    "Disable an extension for agents spawned from now on.",
                    "orch extensions disable redactor",
                    _name_arguments,
                    _disable,
                ),
            ),
            "enable": (
                "enable an extension",
                CliCommand(
                    "Enable an extension for agents spawned from now on.",
                    "orch extensions enable redactor",
                    _name_arguments,
                    _enable,
                ),
            ),
        },
    )
}
