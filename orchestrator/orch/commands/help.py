"""The command /help."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from orch_protocol.resources.slash_commands import CommandRow

from ..render import terminal
from .parse import find
from .registry import CommandResult, SessionContext, command, positional

__all__ = ["COMMANDS"]

WIDTH: Final = 40
HINT: Final = "To begin a prompt with a slash, type two of them. !COMMAND runs a shell command."


@command("help", "list commands, or show the usage of one", positional("name", "command"), group="help", aliases=("?",))
async def help(ctx: SessionContext) -> CommandResult:
    catalog = await ctx.catalog()
    if (name := ctx.get("name")) is None:
        text = "\n".join(
            [_page(catalog.commands), HINT, *(f"note: {terminal.truncate_line(note, 200)}" for note in catalog.notes)]
        )
        return CommandResult(text, msgspec.to_builtins(catalog))
    rows = {name: row for row in catalog.commands for name in (row.name, *row.aliases)}
    row = rows[find(name.removeprefix("/"), rows)]
    return CommandResult(_page([row]), msgspec.to_builtins(row))


def _page(rows: Iterable[CommandRow]) -> str:
    """Return commands as text, grouped by subject."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        aliases_text = f" (also {', '.join(f'/{alias}' for alias in row.aliases)})" if row.aliases else ""
        source = f" ({row.source})" if row.source.startswith("extension ") else ""
        key = f" [{row.key}]" if row.key else ""
        text = f"{terminal.truncate_line(row.summary, 200)}{aliases_text}{source}{key}"
        groups.setdefault(row.group, []).append((terminal.truncate_line(row.usage, 200), text))
    width = min(WIDTH, max((len(usage) for each in groups.values() for usage, _ in each), default=0))
    lines: list[str] = []
    for group, each in groups.items():
        lines += [f"{group}:", *(f"  {usage:{width}}  {text}" for usage, text in each), ""]
    return "\n".join(lines)


COMMANDS: Final = (help,)
