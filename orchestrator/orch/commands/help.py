"""The command /help."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from orch_protocol.resources.slash_commands import CommandRow

from ..render import terminal
from .parse import SHELL_COMMANDS, find, shell_command_note
from .registry import CommandResult, SessionContext, command, positional

__all__ = ["COMMANDS"]

WIDTH: Final = 24
"""The width of the column of usages. The text of a longer usage begins on the next line."""
MOST_USED: Final = ("status", "agents", "switch", "context", "usage", "compact", "new", "diff", "model", "quit")
"""The commands that are listed first."""
HINT: Final = "To begin a prompt with a slash, type two of them. !COMMAND runs a shell command."


@command("help", "list commands, or show the usage of one", positional("name", "command"), group="help", aliases=("?",))
async def help(ctx: SessionContext) -> CommandResult:
    catalog = await ctx.catalog()
    if (name := ctx.get("name")) is None:
        notes = [f"note: {terminal.truncate_line(note, 200)}" for note in catalog.notes]
        text = "\n".join([_overview(catalog.commands), HINT, *notes])
        return CommandResult(text, msgspec.to_builtins(catalog))
    rows = {name: row for row in catalog.commands for name in (row.name, *row.aliases)}
    name = name.removeprefix("/")
    if (shell_name := name.lower()) not in rows and shell_name in SHELL_COMMANDS:
        return CommandResult(shell_command_note(shell_name))
    row = rows[find(name, rows)]
    return CommandResult(_page([row]), msgspec.to_builtins(row))


def _overview(rows: Iterable[CommandRow]) -> str:
    """Return all commands as text. The most used commands are listed first, the others are grouped by subject."""
    others = {row.name: row for row in rows}
    first = [others.pop(name) for name in MOST_USED if name in others]
    return _page([*(replace(row, group="most used") for row in first), *others.values()])


def _page(rows: Iterable[CommandRow]) -> str:
    """Return commands as text, grouped by subject."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        aliases_text = f" (also {', '.join(f'/{alias}' for alias in row.aliases)})" if row.aliases else ""
        source = f" ({row.source})" if row.source.startswith("extension ") else ""
        key = f" [{row.key}]" if row.key else ""
        text = f"{terminal.truncate_line(row.summary, 200)}{aliases_text}{source}{key}"
        groups.setdefault(row.group, []).append((terminal.truncate_line(row.usage, 200), text))
    lines: list[str] = []
    for group, each in groups.items():
        lines.append(f"{group}:")
        for usage, text in each:
            if len(usage) <= WIDTH:
                lines.append(f"  {usage:{WIDTH}}  {text}")
            else:
                lines += [f"  {usage}", f"  {'':{WIDTH}}  {text}"]
        lines.append("")
    return "\n".join(lines)


COMMANDS: Final = (help,)
