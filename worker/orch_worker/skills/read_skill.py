"""The skill tool: read_skill."""

from __future__ import annotations

from typing import Final

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.text import plain_line

from ..tools.api.base import ToolContext, ToolError, tool
from .catalog import SkillCatalog
from .prompt_listing import line_of

__all__ = ["read_skill"]

HASH_DIGITS: Final = 12
WIDTH: Final = 2_000


@tool(bits=())
async def read_skill(context: ToolContext, name: str = "", file: str = "") -> str:
    """Read a skill: instructions for a kind of task, or a file that belongs to it.

    Args:
        name: The skill. Without a name, all skills are listed.
        file: A file of the skill, such as references/forms.md, instead of the instructions.
    """
    catalog = context.skills
    if not isinstance(catalog, SkillCatalog):
        raise ToolError("No skills are available.")
    if not name:
        return "\n".join(map(line_of, catalog.skills.values()))
    try:
        skill_text = await catalog.read(name, file)
    except ConfigError as error:
        raise ToolError(f"{error}.") from error
    path, allowed = catalog.skills[name].path, " ".join(skill_text.allowed or ())
    text = (
        f"skill {name}, {skill_text.hash[:HASH_DIGITS]}",
        file,
        skill_text.note,
        f"its folder: {path}" if path else "",
        f"its files, read by file=...: {plain_line(', '.join(skill_text.others), WIDTH)}" if skill_text.others else "",
        f"made for the tools {plain_line(allowed, WIDTH)}: in this turn others need approval" if allowed else "",
    )
    return f"[{'; '.join(filter(None, text))}]\n\n{skill_text.text}"
