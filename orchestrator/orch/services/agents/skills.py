"""Selects the skills of a new agent among the requested skills, the skills of its preset, and its parent's skills."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import ConfigError, ToolNotGrantedError
from orch_protocol.resources.skills import READ_SKILL, SkillsConfig, SkillSpec, SkillsSpec
from orch_protocol.services.agents.spawn import Spawn

if TYPE_CHECKING:
    from ...resources.skill_discovery import Found
    from ...supervisor.supervisor import Supervisor

__all__ = ["describe_invalid_skills", "discover_skills", "skills_of"]


async def discover_skills(root: Supervisor, request: Spawn, folder: Path) -> Sequence[Found]:
    """Return the skills that are available to an agent in `folder` that a user spawns. Raises ConfigError."""
    rules = request.skill_rules or root.config.skills
    home = root.hooks.home
    if not rules.enabled:
        if request.skills:
            raise ConfigError(f"skill {request.skills[0]!r} was requested, but skills are disabled (skills.enabled)")
        return ()
    if not (request.own_skills or rules.folders or rules.load or _has_skill_folders(home, folder)):
        return ()
    return await root.disk.do(_find_skills, root, request, rules, folder)


def skills_of(
    request: Spawn, preset: str, parent: AgentSpec | None, found: Sequence[Found], rules: SkillsConfig
) -> SkillsSpec:
    """Return the skills of an agent of `preset`.

    The skills of an agent with a `parent` are chosen from the parent's skills. The skills of an agent without a parent
    are chosen from `found`. Raises ConfigError or ToolNotGrantedError if a requested skill is not available.
    """
    if parent is not None:
        available = parent.skills.skills if READ_SKILL in parent.active else ()
        tokens, presets = parent.skills.tokens, parent.skills.presets
    else:
        available = tuple(each.skill for each in found if each.skill is not None and not each.why_off)
        tokens, presets = rules.tokens, rules.presets
    names = request.skills
    if names is None:
        preset_skills = presets.get(preset)
        skills = tuple(skill for skill in available if preset_skills is None or skill.name in preset_skills)
    else:
        by_name = {skill.name: skill for skill in available}
        for name in names:
            if name not in by_name:
                raise _unknown_skill_error(name, by_name, parent, found)
        skills = tuple(by_name[name] for name in dict.fromkeys(names))
    return SkillsSpec(skills, tokens, presets) if skills else SkillsSpec()


def describe_invalid_skills(found: Sequence[Found]) -> str:
    """Return one line for each skill in `found` that is left out because it is invalid."""
    return "\n".join(f"skill {each.name!r} is left out: {each.why_off}" for each in found if each.broken)


def _unknown_skill_error(
    name: str, available: dict[str, SkillSpec], parent: AgentSpec | None, found: Sequence[Found]
) -> Exception:
    names = ", ".join(available) or "none"
    if parent is not None:
        return ToolNotGrantedError(
            f"agent {parent.name!r} cannot give skill {name!r}, because it does not have the skill; it has {names}"
        )
    reason = next((each.why_off for each in found if each.name == name), "")
    return ConfigError(f"skill {name!r} is off: {reason}" if reason else f"no skill {name!r}; available: {names}")


def _has_skill_folders(home: Path, folder: Path) -> bool:
    """Return whether any skill or extension folder exists.

    If no folder exists, a spawn can skip the search for skills.
    """
    roots = (home, folder / ".orch", folder / ".claude")
    return any((root / name).is_dir() for root in roots for name in ("skills", "extensions"))


# This function runs in a thread.


def _find_skills(root: Supervisor, request: Spawn, rules: SkillsConfig, folder: Path) -> Sequence[Found]:
    from ...resources.extensions import extension_specs
    from ...resources.extensions import find as find_extensions
    from ...resources.skill_discovery import find

    home = root.hooks.home
    extensions = extension_specs(find_extensions(folder, home, root.config.extensions.load), home)
    skill_catalogs = root.projects.skill_catalogs()
    return find(folder, home, rules, extensions=extensions, own=request.own_skills, catalogs=skill_catalogs)
