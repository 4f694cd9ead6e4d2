"""Skills as data: instructions for particular work, of which an agent is told a line each, and reads the rest."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

__all__ = ["READ_SKILL", "SKILL_READ", "SkillSpec", "SkillsConfig", "SkillsSpec"]

READ_SKILL: Final = "read_skill"
"""The tool that reads them."""
SKILL_READ: Final = "skill"
"""The type of the custom entries that tell which one was read, and as what it was."""
TOKENS: Final = 2000


class SkillsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Skills beside those in `$ORCH_HOME/skills` and a project's `.orch/skills`."""

    enabled: bool = True
    folders: tuple[str, ...] = ()
    """Other folders of skills; a relative one is a project's own, which is to be trusted skill by skill."""
    load: tuple[str, ...] = ()
    """Names under which installed packages offer skills."""
    tokens: Annotated[int, Meta(ge=50, le=1_000_000)] = TOKENS
    """What their index may take in the system text."""
    presets: dict[str, tuple[str, ...]] = {}
    """By preset: which of them its agents have; all, where nothing is said."""


class SkillSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A skill that an agent has: in the folder `path`; or, without one, its `text` is here, and so are its `files`.

    `hash` tells what is in it from everything else. `allowed` are the tools that it says are enough, None: it does not
    say. `trust` is the file that says which contents are trusted, "" where they need not be: of the folder `trusted`,
    "" for its own.
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
    """The skills of one agent, and how many `tokens` may tell of them; by preset, which ones agents below it have."""

    skills: tuple[SkillSpec, ...] = ()
    tokens: int = TOKENS
    presets: dict[str, tuple[str, ...]] = {}
