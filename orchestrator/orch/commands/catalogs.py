"""The command catalog of a session with built-in commands, prompt templates, and extension commands."""

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
from ..tree.interface import events
from .builtin_commands import COMMANDS
from .parse import NAME, read
from .registry import SessionContext, remainder
from .settings import templates_of
from .user_actions import perform

__all__ = ["TEMPLATE", "catalog_of", "extension_catalog", "extension_only_catalog", "merge_catalogs", "template_row"]

TEMPLATE: Final = "template"
ASK_SECONDS: Final = 15.0
VALUES: Final = (remainder("values", "pair"),)


async def catalog_of(ctx: SessionContext) -> CommandCatalog:
    """Return the catalog of the session. Parts that cannot be loaded are omitted, and `notes` reports them."""
    notes: list[str] = []
    templates: list[PromptTemplate] = []
    contributed = await extension_catalog(ctx)
    try:
        templates, notes = usable_templates(await ctx.root.disk.do(templates_of, ctx))
    except OrchError as error:
        notes.append(f"templates: {error}")
    merged = merge_catalogs(
        [template_row(each) for each in templates], replace(contributed, notes=(*contributed.notes, *notes))
    )
    offers, id = ctx.root.session_sources, ctx.id
    if offers.digests.get(id, merged.digest) != merged.digest:
        ctx.root.handle(events.RecordCatalog(id, merged.digest))
    offers.digests[id] = merged.digest
    return merged


async def extension_catalog(ctx: SessionContext) -> CommandCatalog:
    """Return the commands, keys and widgets that extensions of the program and of the agent provide.

    The commands of the agent's extensions are requested once for each process of the agent. Start the process only if
    an extension may provide commands that are not known yet.
    """
    program, agent_manifests = ctx.root.session_sources.program, [each.manifest for each in ctx.spec.extensions]
    catalog = (
        await _worker_catalog(ctx) if any(each.permissions.commands for each in agent_manifests) else CommandCatalog(())
    )
    manifests = (*program.manifests, *agent_manifests)
    return replace(
        catalog, commands=(*program.rows, *catalog.commands), keys=keys_of(manifests), widgets=widgets_of(manifests)
    )


def keys_of(manifests: Iterable[Manifest]) -> tuple[Keybinding, ...]:
    """Return the key bindings of extensions."""
    return tuple(
        Keybinding(key, line, f"extension {each.name}") for each in manifests for key, line in each.keys.items()
    )


def widgets_of(manifests: Iterable[Manifest]) -> tuple[Widget, ...]:
    """Return the widgets of extensions."""
    return tuple(
        Widget(widget.name, widget.command, widget.title, widget.place, f"extension {each.name}")
        for each in manifests
        for widget in each.widgets
    )


def extension_only_catalog(commands: CommandCatalog, manifests: Iterable[Manifest]) -> CommandCatalog:
    """Return the catalog of a session whose extensions have `manifests` and provide `commands`."""
    manifests = list(manifests)
    return merge_catalogs([], replace(commands, keys=keys_of(manifests), widgets=widgets_of(manifests)))


async def _worker_catalog(ctx: SessionContext) -> CommandCatalog:
    cached = ctx.root.session_sources.extension_commands.get(ctx.id)
    if cached is not None and (cached[0] == ctx.node.incarnation or not ctx.node.running):
        return cached[1]
    result = await perform(ctx.root, ctx.node, ListCommands(), ASK_SECONDS)
    catalog = result.catalog or CommandCatalog(())
    ctx.root.session_sources.extension_commands[ctx.id] = (ctx.node.incarnation, catalog)
    return catalog


def template_row(template: PromptTemplate) -> CommandRow:
    """Return the command that sends the text of a prompt template."""
    variables = [f"[{name}=...]" for name in template.variables]
    usage = " ".join([f"/{template.name}", *variables, "[TEXT...]"])
    return CommandRow(
        template.name, f"query with the template of {template.source}", usage, "templates", (), VALUES, TEMPLATE
    )


def merge_catalogs(templates: Iterable[CommandRow], contributed: CommandCatalog) -> CommandCatalog:
    """Return the catalog with built-in commands, then commands `contributed` by extensions, then `templates`.

    If several commands have the same name, only the first is kept. The notes report the omitted commands. The same
    applies to keys.
    """
    rows = [each.row for each in COMMANDS]
    sources = {name: row.source for row in rows for name in (row.name, *row.aliases)}
    notes = list(contributed.notes)
    for row in (*contributed.commands, *templates):
        if NAME.fullmatch(f"/{row.name}") is None:
            notes.append(f"{row.source}: {row.name!r} cannot be typed as a command; /template {row.name} can")
            continue
        if (owner := sources.get(row.name)) is not None:
            notes.append(f"/{row.name} of {row.source} is left out: {owner} already has a command of this name")
            continue
        free = tuple(alias for alias in row.aliases if alias not in sources)
        notes += (f"/{alias} of {row.source} is left out: it is in use" for alias in row.aliases if alias not in free)
        sources |= dict.fromkeys((row.name, *free), row.source)
        rows.append(replace(row, aliases=free))
    keys: dict[str, Keybinding] = {}
    for key in contributed.keys:
        if (existing := keys.get(key.key)) is not None:
            notes.append(f"key {key.key} of {key.source} is left out: {existing.source} uses it for {existing.command}")
        else:
            keys[key.key] = key
    bindings = {
        key: each for key, each in keys.items() if _has_command(each.command, sources, f"key {key}", each, notes)
    }
    widgets = [each for each in contributed.widgets if _runs_extension_command(each, sources, notes)]
    by_command = {key.command: key.key for key in reversed(bindings.values())}
    rows = [replace(row, key=by_command.get(f"/{row.name}", "")) for row in rows]
    catalog = CommandCatalog(tuple(rows), tuple(bindings.values()), tuple(widgets), tuple(notes))
    return replace(catalog, digest=hashlib.sha256(msgspec.json.encode(catalog)).hexdigest()[:16])


def _has_command(
    line: str, sources: dict[str, str], subject: str, owner: Keybinding | Widget, notes: list[str]
) -> bool:
    if (name := read(line).name) in sources:
        return True
    notes.append(f"{subject} of {owner.source} is left out: there is no command /{name}")
    return False


def _runs_extension_command(widget: Widget, sources: dict[str, str], notes: list[str]) -> bool:
    """Return whether the widget's command comes from an extension. A widget cannot run other commands."""
    if not _has_command(widget.command, sources, f"widget {widget.name}", widget, notes):
        return False
    if sources[name := read(widget.command).name].startswith("extension "):
        return True
    notes.append(f"widget {widget.name} of {widget.source} is left out: /{name} is not a command of an extension")
    return False
