"""Skills: instructions for particular tasks.

The prompt contains one line for each skill. The agent reads the instructions with a tool.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

__all__ = ["READ_SKILL", "SKILL_READ", "SkillSpec", "SkillsConfig", "SkillsSpec"]

READ_SKILL: Final = "read_skill"
"""The tool that reads skills."""
SKILL_READ: Final = "skill"
"""The type of the custom entries that record which skill was read."""
TOKENS: Final = 2000


class SkillsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Skills in addition to those in `$ORCH_HOME/skills` and a project's `.orch/skills`."""

    enabled: bool = True
    folders: tuple[str, ...] = ()
    """More folders with skills. A relative path is inside each project.

    Each skill of a project must be trusted separately.
    """
    load: tuple[str, ...] = ()
    """Entry point names of skills in installed packages."""
    tokens: Annotated[int, Meta(ge=50, le=1_000_000)] = TOKENS
    """Maximum size of the list of skills in the system text."""
    presets: dict[str, tuple[str, ...]] = {}
    """The skills of agents with a preset, by preset. Agents of a preset that is not listed have all skills."""


class SkillSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A skill of an agent, in the folder `path`. If `path` is "", `text` and `files` contain the skill.

    `hash` identifies the content. `allowed` are the tools that the skill declares as sufficient. None means that the
    skill declares no tools. `trust` is the file that lists trusted contents, or "" if the skill needs no trust.
    `trusted` is the folder whose content must be trusted, or "" for the skill's own folder.
    """

    name: str
    description: str
    source: str = ""
    hash: str = ""
    path: str = ""
    allowed: tuple[str, ...] | None = None
    trust: str = ""
    trusted: str = ""
    text: str = ""
    files: dict[str, str] = {}


class SkillsSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The skills of one agent, the maximum tokens of their list, and the skills of its subagents by preset."""

    skills: tuple[SkillSpec, ...] = ()
    tokens: int = TOKENS
    presets: dict[str, tuple[str, ...]] = {}
