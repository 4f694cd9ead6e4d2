"""Registration of hooks, tools, commands, prompt templates, skills and extensions for all agents of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from orch_protocol.core.errors import ConfigError
from orch_worker.extensions.slash_commands import SECONDS, Function, make_command
from orch_worker.tools.api.base import Tool, tool

from ..policy.root_hooks import HookRegistrar
from ..resources.program_extensions import Extension, ProgramExtensions
from ..resources.prompt_templates import PROGRAM, InMemory, PromptTemplate, TemplateCatalog, TemplateProvider
from ..resources.prompt_templates import provider_of as template_provider
from .resources.skills import Skills

if TYPE_CHECKING:
    from ..resources.skills import Skill, SkillProvider

__all__ = ["Registration"]


class Registration(HookRegistrar):
    """Base class of orchestrators with the methods that register something.

    The methods can be called from any thread.
    """

    skills: Skills
    _templates: TemplateCatalog
    _program: ProgramExtensions

    def register_extension(self, extension: Extension) -> str:
        """Register everything in `extension` and return its name.

        If a part cannot be registered, no part is registered. Hooks apply from the next turn of each agent. Commands
        and keys apply at once. Tools and skills apply to agents that are spawned after this call. Raises ConfigError if
        a name is already in use.
        """
        if not isinstance(extension, Extension):
            raise ConfigError(f"register_extension takes an orch.Extension; got {extension!r}")
        with ExitStack() as undo:
            self._program.add_extension(extension)
            undo.callback(self._program.forget, extension.name)
            for command in extension.commands:
                self._program.add_command(command, _built_in_commands())
                undo.callback(self._program.commands.pop, command.row.name)
            for each in extension.tools:
                self._program.add_tool(each)
                undo.callback(self._program.tools.pop, each.name)
            for provider in extension.skills:
                self.skills.register(provider)
                undo.callback(self.skills.unregister, provider)
            templates = InMemory(*extension.templates())
            self._templates.add(templates)
            undo.callback(self._templates.remove, templates)
            for hook in extension.hooks:  # last, so that no hook is called if another part cannot be registered
                self._hooks.register(hook)
                undo.callback(self._hooks.remove, hook.row.name)
            self._program.keep(extension.name, undo.pop_all())
        self._program.changed()
        return extension.name

    def unregister_extension(self, name: str) -> None:
        """Remove the extension `name` and everything it registered. Raises ConfigError if it is not registered.

        Agents that have tools of the extension get an error when they call these tools.
        """
        self._program.remove_extension(name)
        self._program.changed()

    def register_tool(self, function: Tool | Callable[..., Any]) -> str:
        """Register a function of this program as a tool of all agents that are spawned after this call.

        Return its name. `orch.tool` sets the tool's name and other options. Agents with a preset get the tool. Agents
        with a list of tools get it only if the list names it. A subagent has the tool if its parent has it. If the same
        function is defined again, the new definition replaces the tool. Raises ConfigError if the name is already in
        use.
        """
        new_tool = tool(function)
        self._program.add_tool(new_tool, single=True)
        return new_tool.name

    def register_slash_command(
        self,
        name: str,
        function: Function,
        *,
        summary: str = "",
        arguments: Iterable[str] | None = None,
        aliases: Iterable[str] = (),
        timeout: float = SECONDS,
    ) -> None:
        """Register the command `/name` for all sessions. The command calls `function(args, ctx)` in this program.

        `args` contains the arguments by name, as in `agent.execute("/name ...")`. `arguments` describes the arguments,
        such as `["path", "[text...]", "--to=", "--dry"]`. `ctx` is the context of hooks. The function returns text,
        JSON data, an Effect or None, and may be async. `timeout` is in seconds. If the same function is defined again,
        the new definition replaces the command. Raises ConfigError if a name is already in use.
        """
        options: dict[str, Any] = {"summary": summary, "arguments": arguments, "aliases": aliases, "timeout": timeout}
        self._program.add_command(make_command(name, function, source=PROGRAM, **options), _built_in_commands())
        self._program.changed()

    def register_skill(self, skill: Skill | SkillProvider) -> tuple[str, ...]:
        """Make a skill, or all skills of a provider, available to agents that are spawned after this call.

        Return the names. A provider is an object with a method `skills()` that returns Skills. If one skill cannot be
        registered, none is registered. Raises ConfigError if a name is already in use, and for a skill that breaks a
        rule of agentskills.io.
        """
        return self.skills.register(skill)

    def register_prompt_template(
        self, template: str | PromptTemplate | TemplateProvider, text: str | None = None
    ) -> tuple[str, ...]:
        """Register a prompt template, by name and text or as an object, or all templates of a provider.

        Return the names. A provider is an object with a method `templates()`. If one template cannot be registered,
        none is registered. Raises ConfigError if a name is already in use, and for invalid variables in braces.
        """
        if isinstance(template, str):
            if not isinstance(text, str):
                raise ConfigError(f"prompt template {template!r} needs a text")
            template = PromptTemplate(template, text)
        elif text is not None:
            raise ConfigError(f"a text requires the name of a template; got {template!r}")
        return self._templates.add(template_provider(template))


def _built_in_commands() -> frozenset[str]:
    from ..commands.builtin_commands import BY_NAME  # slow: imports all commands

    return frozenset(BY_NAME)
