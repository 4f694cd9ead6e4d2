"""Something that templates of prompts can be registered with."""

from __future__ import annotations

from orch_protocol.errors import ConfigError

from .templates import InMemory, PromptTemplate, TemplateProvider, Templates

__all__ = ["Templated"]


class Templated:
    """An orchestrator with templates: those that are configured, and those that are registered."""

    _templates: Templates

    def register_prompt_template(self, template: str | TemplateProvider, text: str | None = None) -> tuple[str, ...]:
        """Let agents be spawned by the template called `template`, whose text is `text`; return its name.

        Or by the templates of a provider: anything with a method `templates()`. All of these are taken, or none.
        Raises ConfigError: a name that is taken, braces that begin no variable.
        """
        if isinstance(template, str):
            if not isinstance(text, str):
                raise ConfigError(f"template {template!r} needs a text")
            return self._templates.add(InMemory({template: text}))
        if text is not None or not callable(getattr(template, "templates", None)):
            raise ConfigError(f"a template is a name and a text, or something that has templates(), not {template!r}")
        return self._templates.add(template)

    def prompt_templates(self) -> list[PromptTemplate]:
        """Return the templates there are, by name. Raises ConfigError."""
        return self._templates.all()
