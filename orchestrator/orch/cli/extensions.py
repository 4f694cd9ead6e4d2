"""`orch extensions`: which there are, what they may do and bring, trusting a project's, switching them off and on."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.errors import ConfigError
from orch_worker.extensions import load

from .. import config, paths
from ..extensions import FOLDER, Found, disable, enable, find, specs, trust, untrust
from . import render, words
from .failure import Failure
from .verb import Group, Verb

__all__ = ["VERBS", "described", "table"]

HEAD: Final = ["EXTENSION", "VERSION", "FROM", "ON", "MAY", "DESCRIPTION"]
NOT_FOUND: Final = 3


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=".", help="a project's folder (this one)")


def _list(arguments: Namespace) -> int:
    home = paths.home(os.environ)
    rows = [_row(each, home) for each in _there(Path(arguments.folder).absolute())]
    for row in rows:
        if row["why_off"]:
            print(f"orch: {render.line(row['name'], 64)} is off: {render.line(row['why_off'], 400)}", file=sys.stderr)
    words.say(arguments, rows, table(rows) if rows else "no extensions: see docs/extensions.md")
    return 0


def table(rows: list[dict[str, Any]]) -> str:
    """Return extensions as a table, one a line."""
    return render.columns([HEAD, *map(_cells, rows)], frozenset())


def _there(folder: Path) -> list[Found]:
    loaded = config.load(folder, os.environ)
    for note in loaded.notes:
        print(f"orch: {note}", file=sys.stderr)
    return find(folder, paths.home(os.environ), loaded.config.extensions.load)


def described(found: Found) -> dict[str, Any]:
    """Return what an extension says of itself, as JSON data; none of its code runs for that."""
    row: dict[str, Any] = {
        "name": found.name,
        "path": found.path,
        "where": found.where,
        "on": not found.why_off,
        "why_off": found.why_off,
        "version": "",
        "description": "",
        "permissions": None,
        "hooks": [],
        "tools": [],
    }
    if (said := found.manifest) is not None:
        row |= {"version": said.version, "description": said.description}
        row["permissions"] = msgspec.to_builtins(said.permissions)
    return row


def _row(found: Found, home: Path) -> dict[str, Any]:
    """Return what there is to say of an extension: one that is on is loaded, and brings what it registers."""
    row = described(found)
    for spec in specs([found], home):
        try:
            brought = load(spec)
        except ConfigError as error:
            return row | {"on": False, "why_off": str(error)}
        row["hooks"] = [hook.row.name for hook in brought.hooks]
        row["tools"] = [tool.name for tool in brought.tools]
    return row


def _cells(row: dict[str, Any]) -> list[str]:
    may = row["permissions"] or {}
    parts = [f"{kind}: {', '.join(may[kind])}" for kind in ("stages", "tools", "tiers") if may.get(kind)]
    said = [row["name"], row["version"], row["where"], "yes" if row["on"] else "no", "; ".join(parts)]
    return [*(render.line(each, 48) for each in said), render.line(row["description"])]


def _name_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the extension, as orch extensions list names it")


def _project_arguments(parser: ArgumentParser) -> None:
    _name_arguments(parser)
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=".", help="a project's folder (this one)")


def _of_project(arguments: Namespace) -> Path:
    name, folder = words.clean(arguments.name), Path(arguments.folder).absolute()
    place: Path = folder / ".orch" / FOLDER / name
    if os.path.sep in name or not place.is_dir():
        raise Failure("ExtensionNotFoundError", f"there is no extension {name!r} in {folder}/.orch/{FOLDER}", NOT_FOUND)
    return place


def _trust(arguments: Namespace) -> int:
    place = _of_project(arguments)
    manifest = trust(place, paths.home(os.environ))
    words.say(arguments, {"trusted": str(place)}, f"trusted as it is now: {manifest.name} in {render.safe(str(place))}")
    return 0


def _untrust(arguments: Namespace) -> int:
    place = _of_project(arguments)
    was = untrust(place, paths.home(os.environ))
    said = "no longer trusted" if was else "was not trusted"
    words.say(arguments, {"untrusted": was}, f"{said}: {render.safe(str(place))}")
    return 0


def _disable(arguments: Namespace) -> int:
    return _switch(arguments, on=False)


def _enable(arguments: Namespace) -> int:
    return _switch(arguments, on=True)


def _switch(arguments: Namespace, *, on: bool) -> int:
    name, home = words.clean(arguments.name), paths.home(os.environ)
    known = [each.name for each in _there(Path.cwd())]
    if not on and name not in known:
        there = ", ".join(known) or "none"
        raise Failure("ExtensionNotFoundError", f"there is no extension {name!r}; there are: {there}", NOT_FOUND)
    changed = (enable if on else disable)(name, home)
    words.say_switched(arguments, name, "for agents spawned from now on", on=on, changed=changed)
    return 0


VERBS = {
    "extensions": Group(
        "Extensions: folders that bring hooks and tools, and may do no more than they say.",
        "orch extensions list",
        {
            "list": (
                "those there are for a folder, what they may do and bring",
                Verb(
                    "List the extensions for agents in a folder, with what each may do and brings, or why it is off.",
                    "orch extensions list --json",
                    _list_arguments,
                    _list,
                ),
            ),
            "trust": (
                "let a project's run, as it is now",
                Verb(
                    "Trust an extension of a project's as it is now, after you have read it; a change asks anew.",
                    "orch extensions trust redactor",
                    _project_arguments,
                    _trust,
                ),
            ),
            "untrust": (
                "let it run no more",
                Verb("Forget that it was trusted.", "orch extensions untrust redactor", _project_arguments, _untrust),
            ),
            "disable": (
                "switch one off, for every folder and for good",
                Verb(
                    "Switch an extension off for agents spawned from now on, until it is enabled.",
                    "orch extensions disable redactor",
                    _name_arguments,
                    _disable,
                ),
            ),
            "enable": (
                "switch it on again",
                Verb(
                    "Switch an extension on again, for agents spawned from now on.",
                    "orch extensions enable redactor",
                    _name_arguments,
                    _enable,
                ),
            ),
        },
    )
}
