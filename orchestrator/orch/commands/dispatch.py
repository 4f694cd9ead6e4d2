"""Executes slash commands. This module parses the line, finds the command, binds the arguments and runs the command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orch_protocol.core.errors import ConfigError
from orch_protocol.resources.slash_commands import CommandCatalog, RunCommand
from orch_protocol.services.resources.slash_commands import Executed

from ..client.failure import CommandError
from .builtin_commands import BY_NAME
from .catalogs import TEMPLATE, catalog_of
from .parse import ParsedLine, bind, find, read
from .registry import CommandResult, SessionContext
from .settings import fill_template, templates_of
from .user_actions import perform, run_program_command

if TYPE_CHECKING:
    from ..supervisor.supervisor import Supervisor
    from ..tree.agents.state import AgentRecord

__all__ = ["catalog", "execute"]

EXTENSION_SECONDS: Final = 600.0
"""The maximum time for a command of an extension. The worker enforces the command's own deadline."""


async def catalog(root: Supervisor, node: AgentRecord) -> CommandCatalog:
    """Return the command catalog of the session of the agent `node`."""
    return await catalog_of(SessionContext(root, node, {}, catalog_of))


async def execute(root: Supervisor, node: AgentRecord, input_line: str, *, shows: bool = False) -> Executed:
    """Execute the line `input_line` in the session of the agent `node` and return the result.

    `shows` means that a widget runs the line. Raises ConfigError for a line that is not a command, an unknown command
    or wrong arguments. Raises the errors of the command.
    """
    line = read(input_line)
    if line.kind != "command":
        raise ConfigError(f"{line.text[:40]!r} is not a command: commands begin with a slash, and /help lists them")
    try:
        return (await _run(root, node, line, shows=shows)).as_of(line.name)
    except CommandError as failure:  # code that is shared with the command line raises CommandError
        raise ConfigError(f"/{line.name}: {failure}") from failure


async def _run(root: Supervisor, node: AgentRecord, line: ParsedLine, *, shows: bool) -> CommandResult:
    if not shows and (built_in := BY_NAME.get(line.name) or BY_NAME.get(line.name.lower())) is not None:
        ctx = SessionContext(root, node, bind(line.name, built_in.row.arguments, line.text), catalog_of)
        return await built_in.run(ctx)
    ctx = SessionContext(root, node, {}, catalog_of)
    available = await catalog_of(ctx)
    rows = {name: row for row in available.commands for name in (row.name, *row.aliases)}
    row = rows[find(line.name, rows)]
    if shows and not row.source.startswith("extension "):
        raise ConfigError(f"/{row.name} cannot be used by a widget: widgets show the output of extension commands")
    if row.source == TEMPLATE:
        templates = {each.name: each for each in await root.disk.do(templates_of, ctx)}
        return await fill_template(templates[row.name], line.text)
    arguments = bind(row.name, row.arguments, line.text)
    recorded_line = "" if shows else f"/{line.name} {line.text}".rstrip()
    if (program_command := root.session_sources.program.commands.get(row.name)) is not None:
        return await run_program_command(ctx, program_command, arguments, recorded_line)
    result = await perform(root, node, RunCommand(row.name, arguments, recorded_line), EXTENSION_SECONDS)
    return CommandResult(result.text, result.data, result.effect, result.is_error)
