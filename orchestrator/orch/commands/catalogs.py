"""The catalog of a session: what every session has, templates of prompts, and what the agent's extensions bring."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from orch_protocol.errors import OrchError
from orch_protocol.slash import CommandCatalog, CommandRow, Keybinding

from ..templates import PromptTemplate
from .reading import NAME
from .registry import Here, rest
from .settings import templates_of
from .table import COMMANDS

__all__ = ["TEMPLATE", "catalog_of", "merged", "template_row"]

TEMPLATE: Final = "template"
VALUES: Final = (rest("values", "pair"),)


async def catalog_of(here: Here) -> CommandCatalog:
    """Return all that can be executed in the session. What cannot be looked at is left out, and said in `notes`."""
    notes: list[str] = []
    templates: list[PromptTemplate] = []
    try:
        templates = await here.root.disk.do(templates_of, here)
    except OrchError as error:
        notes.append(f"templates: {error}")
    return merged([template_row(each) for each in templates], CommandCatalog((), notes=tuple(notes)))


def template_row(template: PromptTemplate) -> CommandRow:
    """Return the command that asks what a template says."""
    variables = [f"[{name}=...]" for name in template.variables]
    written = " ".join([f"/{template.name}", *variables, "[TEXT...]"])
    return CommandRow(template.name, f"ask what {template.source} says", written, "templates", (), VALUES, TEMPLATE)


def merged(templates: Iterable[CommandRow], brought: CommandCatalog) -> CommandCatalog:
    """Return the catalog with built-in commands first, then those that extensions `brought`, then `templates`.

    A name that is taken stays whose it is; who comes later is left out, and said so. So are keys.
    """
    rows = [each.row for each in COMMANDS]
    taken = {name: row.source for row in rows for name in (row.name, *row.aliases)}
    notes = list(brought.notes)
    for row in (*brought.commands, *templates):
        if NAME.fullmatch(f"/{row.name}") is None:
            notes.append(f"{row.source}: {row.name!r} cannot be typed as a command; /template {row.name} can")
            continue
        if (owner := taken.get(row.name)) is not None:
            notes.append(f"/{row.name} of {row.source} is left out: there is one of {owner}")
            continue
        free = tuple(alias for alias in row.aliases if alias not in taken)
        notes += (f"/{alias} of {row.source} is left out: it is taken" for alias in row.aliases if alias not in free)
        taken |= dict.fromkeys((row.name, *free), row.source)
        rows.append(replace(row, aliases=free))
    keys: dict[str, Keybinding] = {}
    for key in brought.keys:
        if (there := keys.get(key.key)) is not None:
            notes.append(f"key {key.key} of {key.source} is left out: {there.source} has it, for {there.command}")
        else:
            keys[key.key] = key
    by_command = {key.command: key.key for key in reversed(keys.values())}
    rows = [replace(row, key=by_command.get(f"/{row.name}", "")) for row in rows]
    made = CommandCatalog(tuple(rows), tuple(keys.values()), brought.widgets, tuple(notes))
    return replace(made, digest=hashlib.sha256(msgspec.json.encode(made)).hexdigest()[:16])
