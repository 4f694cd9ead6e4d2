"""The command that tells of the others."""

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
HINT: Final = "A prompt that is to begin with a slash is written with two of them; !COMMAND is for the shell."


@command(
    "help", "the commands there are, or how one is written", positional("name", "command"), group="help", aliases=("?",)
)
async def help(here: SessionContext) -> CommandResult:
    there = await here.catalog()
    if (name := here.get("name")) is None:
        text = "\n".join(
            [_page(there.commands), HINT, *(f"note: {terminal.truncate_line(note, 200)}" for note in there.notes)]
        )
        return CommandResult(text, msgspec.to_builtins(there))
    rows = {name: row for row in there.commands for name in (row.name, *row.aliases)}
    row = rows[find(name.removeprefix("/"), rows)]
    return CommandResult(_page([row]), msgspec.to_builtins(row))


def _page(rows: Iterable[CommandRow]) -> str:
    """Return commands for people, by what they are about."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        also = f" (also {', '.join(f'/{alias}' for alias in row.aliases)})" if row.aliases else ""
        source = f" ({row.source})" if row.source.startswith("extension ") else ""
        key = f" [{row.key}]" if row.key else ""
        said = f"{terminal.truncate_line(row.summary, 200)}{also}{source}{key}"
        groups.setdefault(row.group, []).append((terminal.truncate_line(row.usage, 200), said))
    width = min(WIDTH, max((len(usage) for each in groups.values() for usage, _ in each), default=0))
    lines: list[str] = []
    for group, each in groups.items():
        lines += [f"{group}:", *(f"  {usage:{width}}  {said}" for usage, said in each), ""]
    return "\n".join(lines)


COMMANDS: Final = (help,)
