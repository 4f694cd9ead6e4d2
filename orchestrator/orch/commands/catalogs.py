"""The catalog of a session: what every session has, templates of prompts, and what the agent's extensions bring."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from orch_protocol.core.errors import OrchError
from orch_protocol.resources.extensions import Manifest
from orch_protocol.resources.slash_commands import CommandCatalog, CommandRow, Keybinding, ListCommands, Widget

from ..resources.prompt_templates import PromptTemplate, usable_templates
from ..tree.journal import events
from .builtin_commands import COMMANDS
from .parse import NAME, read
from .registry import SessionContext, remainder
from .settings import templates_of
from .user_actions import perform

__all__ = ["TEMPLATE", "catalog_of", "extension_catalog", "extension_only_catalog", "merge_catalogs", "template_row"]

TEMPLATE: Final = "template"
ASK_SECONDS: Final = 15.0
VALUES: Final = (remainder("values", "pair"),)


async def catalog_of(here: SessionContext) -> CommandCatalog:
    """Return all that can be executed in the session. What cannot be looked at is left out, and said in `notes`."""
    notes: list[str] = []
    templates: list[PromptTemplate] = []
    brought = await extension_catalog(here)
    try:
        templates, notes = usable_templates(await here.root.disk.do(templates_of, here))
    except OrchError as error:
        notes.append(f"templates: {error}")
    made = merge_catalogs([template_row(each) for each in templates], replace(brought, notes=(*brought.notes, *notes)))
    offers, id = here.root.offers, here.id
    if offers.digests.get(id, made.digest) != made.digest:
        here.root.handle(events.RecordCatalog(id, made.digest))
    offers.digests[id] = made.digest
    return made


async def extension_catalog(here: SessionContext) -> CommandCatalog:
    """Return what the agent's extensions bring: keys and widgets as they say themselves, commands as its process does.

    That is asked once, and started where some extension may bring commands and nobody has asked yet.
    """
    manifests = [each.manifest for each in here.spec.extensions]
    said = await _asked(here) if any(each.permissions.commands for each in manifests) else CommandCatalog(())
    return replace(said, keys=keys_of(manifests), widgets=widgets_of(manifests))


def keys_of(manifests: Iterable[Manifest]) -> tuple[Keybinding, ...]:
    """Return the keys that extensions have lines for."""
    return tuple(
        Keybinding(key, line, f"extension {each.name}") for each in manifests for key, line in each.keys.items()
    )


def widgets_of(manifests: Iterable[Manifest]) -> tuple[Widget, ...]:
    """Return what extensions would have shown."""
    return tuple(
        Widget(widget.name, widget.command, widget.title, widget.place, f"extension {each.name}")
        for each in manifests
        for widget in each.widgets
    )


def extension_only_catalog(commands: CommandCatalog, manifests: Iterable[Manifest]) -> CommandCatalog:
    """Return the catalog of a session whose extensions bring `commands`, and say that of themselves."""
    manifests = list(manifests)
    return merge_catalogs([], replace(commands, keys=keys_of(manifests), widgets=widgets_of(manifests)))


async def _asked(here: SessionContext) -> CommandCatalog:
    known = here.root.offers.brought.get(here.id)
    if known is not None and (known[0] == here.node.incarnation or not here.node.running):
        return known[1]
    did = await perform(here.root, here.node, ListCommands(), ASK_SECONDS)
    said = did.catalog or CommandCatalog(())
    here.root.offers.brought[here.id] = (here.node.incarnation, said)
    return said


def template_row(template: PromptTemplate) -> CommandRow:
    """Return the command that asks what a template says."""
    variables = [f"[{name}=...]" for name in template.variables]
    written = " ".join([f"/{template.name}", *variables, "[TEXT...]"])
    return CommandRow(template.name, f"ask what {template.source} says", written, "templates", (), VALUES, TEMPLATE)


def merge_catalogs(templates: Iterable[CommandRow], brought: CommandCatalog) -> CommandCatalog:
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
    bound = {key: each for key, each in keys.items() if _is_known(each.command, taken, f"key {key}", each, notes)}
    shown = [each for each in brought.widgets if _is_brought(each, taken, notes)]
    by_command = {key.command: key.key for key in reversed(bound.values())}
    rows = [replace(row, key=by_command.get(f"/{row.name}", "")) for row in rows]
    made = CommandCatalog(tuple(rows), tuple(bound.values()), tuple(shown), tuple(notes))
    return replace(made, digest=hashlib.sha256(msgspec.json.encode(made)).hexdigest()[:16])


def _is_known(line: str, taken: dict[str, str], what: str, owner: Keybinding | Widget, notes: list[str]) -> bool:
    if (name := read(line).name) in taken:
        return True
    notes.append(f"{what} of {owner.source} is left out: there is no command /{name}")
    return False


def _is_brought(widget: Widget, taken: dict[str, str], notes: list[str]) -> bool:
    """Return whether what the widget shows can be asked for again and again without a trace: an extension brings it."""
    if not _is_known(widget.command, taken, f"widget {widget.name}", widget, notes):
        return False
    if taken[name := read(widget.command).name].startswith("extension "):
        return True
    notes.append(f"widget {widget.name} of {widget.source} is left out: /{name} is no command of an extension")
    return False
