"""Which skills an agent has: of those there are, the ones it was given or its preset has; below an agent, its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import ConfigError, ToolNotGrantedError
from orch_protocol.resources.skills import READ_SKILL, SkillsConfig, SkillSpec, SkillsSpec
from orch_protocol.services.requests import Spawn

if TYPE_CHECKING:
    from ...resources.skill_discovery import Found
    from ...supervisor.supervisor import Supervisor

__all__ = ["discover_skills", "left_out", "skills_of"]


async def discover_skills(root: Supervisor, request: Spawn, folder: Path) -> Sequence[Found]:
    """Return the skills for an agent in `folder` that a person or a program asks for. Raises ConfigError."""
    rules = request.skill_rules or root.config.skills
    home = root.hooks.home
    if not rules.enabled:
        if request.skills:
            raise ConfigError(f"skills are switched off (skills.enabled), and {request.skills[0]!r} is asked for")
        return ()
    if not (request.own_skills or rules.folders or rules.load or _any(home, folder)):
        return ()
    return await root.disk.do(_look, root, request, rules, folder)


def skills_of(
    request: Spawn, preset: str, parent: AgentSpec | None, found: Sequence[Found], rules: SkillsConfig
) -> SkillsSpec:
    """Return the skills of an agent of `preset`: of its `parent`'s, or else of those `found`.

    Raises ConfigError, ToolNotGrantedError for one by a name that is none of them.
    """
    if parent is not None:
        known = parent.skills.skills if READ_SKILL in parent.active else ()
        tokens, presets = parent.skills.tokens, parent.skills.presets
    else:
        known = tuple(each.skill for each in found if each.skill is not None and not each.why_off)
        tokens, presets = rules.tokens, rules.presets
    names = request.skills
    if names is None:
        named = presets.get(preset)
        skills = tuple(skill for skill in known if named is None or skill.name in named)
    else:
        by_name = {skill.name: skill for skill in known}
        for name in names:
            if name not in by_name:
                raise _unknown(name, by_name, parent, found)
        skills = tuple(by_name[name] for name in dict.fromkeys(names))
    return SkillsSpec(skills, tokens, presets) if skills else SkillsSpec()


def left_out(found: Sequence[Found]) -> str:
    """Return what is to be said of skills that break a rule, a line each, "" for nothing."""
    return "\n".join(f"skill {each.name!r} is left out: {each.why_off}" for each in found if each.broken)


def _unknown(name: str, known: dict[str, SkillSpec], parent: AgentSpec | None, found: Sequence[Found]) -> Exception:
    names = ", ".join(known) or "none"
    if parent is not None:
        return ToolNotGrantedError(f"agent {parent.name!r} cannot give skill {name!r}: it has {names}")
    off = next((each.why_off for each in found if each.name == name), "")
    return ConfigError(f"skill {name!r} is off: {off}" if off else f"there is no skill {name!r}; there are {names}")


def _any(home: Path, folder: Path) -> bool:
    """Say whether there is anything to look at: most users have no skills, and their agents start as fast."""
    places = (home, folder / ".orch")
    return any((place / name).is_dir() for place in places for name in ("skills", "extensions"))


# In a thread.


def _look(root: Supervisor, request: Spawn, rules: SkillsConfig, folder: Path) -> Sequence[Found]:
    from ...resources.extensions import extension_specs
    from ...resources.extensions import find as find_extensions
    from ...resources.skill_discovery import find

    home = root.hooks.home
    extensions = extension_specs(find_extensions(folder, home, root.config.extensions.load), home)
    shelves = root.projects.shelves()
    return find(folder, home, rules, extensions=extensions, own=request.own_skills, shelves=shelves)
