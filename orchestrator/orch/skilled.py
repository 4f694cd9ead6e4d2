"""Something that skills can be registered with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.config import Config
from orch_protocol.errors import ConfigError
from orch_protocol.skills import SkillSpec

from .paths import path_of

if TYPE_CHECKING:
    from .skills.finding import Found
    from .skills.skill import Skill, SkillProvider

__all__ = ["Skilled"]


class Skilled:
    """An orchestrator with skills: those there are, and those that are registered."""

    config: Config
    home: Path
    _skill_providers: list[SkillProvider]

    def register_skill(self, skill: Skill | SkillProvider) -> tuple[str, ...]:
        """Let agents that are spawned from now on have `skill`, a Skill; return its name.

        Or those of a provider: anything with a method `skills()` that returns Skills. All of these are taken, or none.
        Raises ConfigError: a name that is taken, and each rule of agentskills.io that is broken.
        """
        from .skills.skill import own_skills, provider_of

        provider = provider_of(skill)
        names = {each.name for each in self._own_skills()}
        made = own_skills((provider,))
        if taken := [each.name for each in made if each.name in names]:
            raise ConfigError(f"there is a skill {taken[0]!r} already: give one another name")
        self._skill_providers.append(provider)
        return tuple(each.name for each in made)

    def skills(self, folder: str | Path | None = None) -> list[Found]:
        """Return the skills for agents in `folder`, None: this one, and why those that are off are so."""
        from .extensions import find as find_extensions
        from .extensions import specs
        from .skills.finding import find

        place = Path(path_of("folder", folder) or ".").absolute()
        extensions = specs(find_extensions(place, self.home, self.config.extensions.load), self.home)
        return find(place, self.home, self.config.skills, extensions=extensions, own=self._own_skills())

    def _own_skills(self) -> tuple[SkillSpec, ...]:
        if not self._skill_providers:
            return ()
        from .skills.skill import own_skills

        return own_skills(self._skill_providers)
