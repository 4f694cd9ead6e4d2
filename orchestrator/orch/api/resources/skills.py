"""`o.skills` contains the skills that agents can have."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.agent.config import Config
from orch_protocol.core.errors import ConfigError
from orch_protocol.resources.skills import SkillSpec

from ...config.paths import checked_path

if TYPE_CHECKING:
    from ...resources.skill_discovery import Found
    from ...resources.skills import Skill, SkillProvider

__all__ = ["Skills"]


class Skills:
    """Skills on disk and skills that the program registered."""

    def __init__(self, config: Config, home: Path) -> None:
        self._config = config
        self._home = home
        self._providers: list[SkillProvider] = []

    def list(self, folder: str | Path | None = None) -> builtins.list[Found]:
        """Return the skills for agents in `folder`. None selects the current folder.

        Each disabled skill has the reason why it is disabled.
        """
        from ...resources.extensions import extension_specs
        from ...resources.extensions import find as find_extensions
        from ...resources.skill_discovery import find

        project_folder = Path(checked_path("folder", folder) or ".").absolute()
        extensions = extension_specs(
            find_extensions(project_folder, self._home, self._config.extensions.load), self._home
        )
        return find(project_folder, self._home, self._config.skills, extensions=extensions, own=self.registered())

    def register(self, skill: Skill | SkillProvider) -> tuple[str, ...]:
        """See `AsyncOrchestrator.register_skill`."""
        from ...resources.skills import own_skills, provider_of

        provider = provider_of(skill)
        names = {each.name for each in self.registered()}
        added = own_skills((provider,))
        if duplicates := [each.name for each in added if each.name in names]:
            raise ConfigError(f"a skill named {duplicates[0]!r} already exists: rename one of the two")
        self._providers.append(provider)
        return tuple(each.name for each in added)

    def unregister(self, provider: SkillProvider) -> None:
        """Remove a provider and the skills that it registered."""
        self._providers.remove(provider)

    def registered(self) -> tuple[SkillSpec, ...]:
        """Return the skills that the program registered."""
        if not self._providers:
            return ()
        from ...resources.skills import own_skills

        return own_skills(self._providers)
