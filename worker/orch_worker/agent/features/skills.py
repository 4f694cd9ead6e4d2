"""Skills in a turn. Skill files that changed after the agent read them are mentioned in the next request."""

from __future__ import annotations

from ...prompt.builder import PromptBuilder
from ...skills.catalog import SkillCatalog
from .turn_extension import TurnExtension, TurnState

__all__ = ["SkillsExtension"]


class SkillsExtension(TurnExtension):
    """Adds changed skills of `catalog` to each request. `prompt` builds the requests."""

    def __init__(self, catalog: SkillCatalog, prompt: PromptBuilder) -> None:
        self._catalog = catalog
        self._prompt = prompt

    async def before_prompt(self, turn: TurnState) -> None:  # noqa: ARG002
        """Look for changed skill files."""
        self._prompt.changed = await self._catalog.changed_skills()
