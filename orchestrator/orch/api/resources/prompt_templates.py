"""`o.prompt_templates` contains the prompt templates that agents can be spawned with."""

from __future__ import annotations

import builtins

from ...resources.prompt_templates import PromptTemplate, TemplateCatalog

__all__ = ["PromptTemplates"]


class PromptTemplates:
    """Configured and registered prompt templates."""

    def __init__(self, templates: TemplateCatalog) -> None:
        self._templates = templates

    def list(self) -> builtins.list[PromptTemplate]:
        """Return all templates by name. Raises ConfigError when two templates have the same name."""
        return self._templates.all()
