"""Reading skills: read_skill."""

from __future__ import annotations

from typing import Final

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.text import plain_line

from ..tools.api.base import ToolContext, ToolError, tool
from .catalog import SkillCatalog
from .prompt_listing import line_of

__all__ = ["read_skill"]

SHOWN: Final = 12
WIDTH: Final = 2_000


@tool(category="skills", bits=())
async def read_skill(context: ToolContext, name: str = "", file: str = "") -> str:
    """Read a skill: instructions for particular work, or a file that belongs to them.

    Args:
        name: The skill; without one, all are listed.
        file: A file of it, such as references/forms.md, instead of the instructions.
    """
    shelf = context.skills
    if not isinstance(shelf, SkillCatalog):
        raise ToolError("No skills are available.")
    if not name:
        return "\n".join(map(line_of, shelf.skills.values()))
    try:
        taken = await shelf.read(name, file)
    except ConfigError as error:
        raise ToolError(f"{error}.") from error
    path, allowed = shelf.skills[name].path, " ".join(taken.allowed or ())
    said = (
        f"skill {name}, {taken.hash[:SHOWN]}",
        file,
        taken.note,
        f"its folder: {path}" if path else "",
        f"its files, read by file=...: {plain_line(', '.join(taken.others), WIDTH)}" if taken.others else "",
        f"made for the tools {plain_line(allowed, WIDTH)}: in this turn others need approval" if allowed else "",
    )
    return f"[{'; '.join(filter(None, said))}]\n\n{taken.text}"
