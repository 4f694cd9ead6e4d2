"""Executes a line in a session: reads it, finds the command, binds its arguments, lets it run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orch_protocol.core.errors import ConfigError
from orch_protocol.resources.slash_commands import CommandCatalog, Executed, RunCommand

from ..client.failure import CommandError
from .builtin_commands import BY_NAME
from .catalogs import TEMPLATE, catalog_of
from .parse import ParsedLine, bind, find, read
from .registry import CommandResult, SessionContext
from .settings import fill_template, templates_of
from .user_actions import perform

if TYPE_CHECKING:
    from ..supervisor.supervisor import Supervisor
    from ..tree.agents.state import AgentRecord

__all__ = ["catalog", "execute"]

EXTENSION_SECONDS: Final = 600.0
"""So long is a command of an extension waited for at most; its own deadline is its process's to keep."""


async def catalog(root: Supervisor, node: AgentRecord) -> CommandCatalog:
    """Return all that can be executed in the session of `node`."""
    return await catalog_of(SessionContext(root, node, {}, catalog_of))


async def execute(root: Supervisor, node: AgentRecord, typed: str, *, shows: bool = False) -> Executed:
    """Execute what was `typed` in the session of `node`, and return what came of it; with `shows` nobody typed it.

    Raises ConfigError for what is no command, is not known, or is written otherwise; and what the command raises.
    """
    line = read(typed)
    if line.kind != "command":
        raise ConfigError(f"{line.text[:40]!r} is no command: one begins with a slash, and /help lists them")
    try:
        return (await _said(root, node, line, shows=shows)).as_of(line.name)
    except CommandError as failure:  # of a part that the command line has, too
        raise ConfigError(f"/{line.name}: {failure}") from failure


async def _said(root: Supervisor, node: AgentRecord, line: ParsedLine, *, shows: bool) -> CommandResult:
    if not shows and (built_in := BY_NAME.get(line.name) or BY_NAME.get(line.name.lower())) is not None:
        here = SessionContext(root, node, bind(line.name, built_in.row.arguments, line.text), catalog_of)
        return await built_in.run(here)
    here = SessionContext(root, node, {}, catalog_of)
    there = await catalog_of(here)
    rows = {name: row for row in there.commands for name in (row.name, *row.aliases)}
    row = rows[find(line.name, rows)]
    if shows and not row.source.startswith("extension "):
        raise ConfigError(f"/{row.name} is no widget's: those show what commands of extensions say")
    if row.source == TEMPLATE:
        known = {each.name: each for each in await root.disk.do(templates_of, here)}
        return await fill_template(known[row.name], line.text)
    said = bind(row.name, row.arguments, line.text)
    typed = "" if shows else f"/{line.name} {line.text}".rstrip()
    did = await perform(root, node, RunCommand(row.name, said, typed), EXTENSION_SECONDS)
    return CommandResult(did.text, did.data, did.effect, did.is_error)
