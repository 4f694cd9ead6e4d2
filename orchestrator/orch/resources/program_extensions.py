"""Extensions of a program.

The program registers the parts of an extension for all agents, without an extension folder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from orch_protocol.agent.spec import ToolSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.policy.builtin_tools import BUILTIN_TOOLS
from orch_protocol.resources.extensions import ExtensionPermissions, Manifest, WidgetSpec
from orch_protocol.resources.slash_commands import CommandRow
from orch_worker.extensions.registration import Registrations, check_keys
from orch_worker.extensions.slash_commands import CommandRunner, Function, SlashCommand
from orch_worker.hooks.hook import Hook, is_redefinition
from orch_worker.tools.api.base import Tool, ToolContext

from .prompt_templates import PROGRAM, PromptTemplate

if TYPE_CHECKING:
    from .skills import Skill, SkillProvider

__all__ = ["Extension", "ProgramExtensions"]


class Extension(Registrations):
    """An extension of this program.

    `o.register_extension` registers the hooks, tools, commands and texts of the extension together. Pass the parts of
    the extension as arguments, or add parts with the decorators `hook`, `tool` and `command` and with `register_...`.

    - `hooks`: results of `orch.hook`. `tools`: functions, or results of `orch.tool`.
    - `prompt_templates`: texts by name; agents are spawned with "EXTENSION:NAME".
    - `skills`: Skill objects, or objects with a method `skills()`.
    - `commands`: functions `(args, ctx)` of slash commands, by name.
    - `keys`: lines such as "/status" that front ends may bind to keys; `widgets`: mappings with the fields `name`,
      `command`, `title` and `place`, or WidgetSpec objects.

    Raises ConfigError for an invalid name, and if two parts have the same name.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "0",
        description: str = "",
        hooks: Iterable[Hook] = (),
        tools: Iterable[Tool | Callable[..., Any]] = (),
        prompt_templates: Mapping[str, str] | None = None,
        skills: Iterable[Skill | SkillProvider] = (),
        commands: Mapping[str, Function] | None = None,
        keys: Mapping[str, str] | None = None,
        widgets: Iterable[WidgetSpec | Mapping[str, str]] = (),
    ) -> None:
        self._base_manifest = _check_manifest(name, version, description, dict(keys or {}), list(widgets))
        super().__init__(name, f"extension: {name} ({PROGRAM})")
        self.skills: list[SkillProvider] = []
        for hook in hooks:
            self.register_hook(hook)
        for tool in tools:
            self.register_tool(tool)
        for template, text in (prompt_templates or {}).items():
            self.register_prompt_template(template, text)
        for skill in skills:
            self.register_skill(skill)
        for command, function in (commands or {}).items():
            self.register_slash_command(command, function)

    def register_skill(self, skill: Skill | SkillProvider) -> None:
        """Register a Skill, or an object with a method `skills()`."""
        from .skills import provider_of

        self.skills.append(provider_of(skill))

    @property
    def manifest(self) -> Manifest:
        """The contents of the extension, in the form of a manifest of an extension folder. Raises ConfigError."""
        from .skills import own_skills

        contents = ExtensionPermissions(
            stages=tuple(dict.fromkeys(stage for hook in self.hooks for stage in hook.row.stages)),
            tools=tuple(tool.name for tool in self.tools),
            skills=tuple(skill.name for skill in own_skills(self.skills)),
            commands=tuple(command.row.name for command in self.commands),
            prompts=tuple(self.prompts),
        )
        return msgspec.structs.replace(self._base_manifest, permissions=contents)

    def templates(self) -> Iterable[PromptTemplate]:
        """Return the prompt templates of the extension. Each template is named EXTENSION:NAME."""
        source = f"extension {self.name}"
        return [PromptTemplate(f"{self.name}:{name}", text, source) for name, text in self.prompts.items()]


def _check_manifest(name: str, version: str, description: str, keys: dict[str, str], widgets: list[Any]) -> Manifest:
    fields = {"name": name, "version": version, "description": description, "keys": keys, "widgets": widgets}
    try:
        manifest = msgspec.convert(msgspec.to_builtins(fields), Manifest)
        check_keys(manifest.keys, manifest.widgets)
    except (msgspec.ValidationError, ConfigError, TypeError, ValueError) as error:
        raise ConfigError(f"extension {name!r}: {error}") from error
    return manifest


class ProgramExtensions:
    """The tools, slash commands and extensions that a program registered for all agents.

    Any thread may call the methods.
    """

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}
        self.commands: dict[str, SlashCommand] = {}
        self.runner = CommandRunner()
        self.changed: Callable[[], object] = lambda: None
        """Called after a change of commands, keys or widgets."""
        self._manifests: dict[str, Manifest] = {}
        self._undo: dict[str, ExitStack] = {}

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """The manifests of the registered extensions, in order."""
        return tuple(self._manifests.values())

    @property
    def rows(self) -> tuple[CommandRow, ...]:
        """The rows of the registered commands, in order."""
        return tuple(command.row for command in self.commands.values())

    def specs(self, folder: Path, env: Mapping[str, str]) -> dict[str, ToolSpec]:
        """Return the registered tools by name. `folder` and `env` are the agent's folder and variables."""
        if not self.tools:
            return {}
        context = ToolContext(folder, env=env)
        return {name: tool.spec_in(context) for name, tool in list(self.tools.items())}

    def add_tool(self, tool: Tool, *, single: bool = False) -> None:
        """Register `tool`. Raises ConfigError if the name is already in use.

        A `single` tool belongs to no extension. The tool replaces an earlier definition of its function.
        """
        if tool.name in BUILTIN_TOOLS:
            raise ConfigError(f"tool {tool.name!r} is a built-in tool: give yours another name (name=)")
        existing = self.tools.get(tool.name)
        by_extension = any(tool.name in manifest.permissions.tools for manifest in self.manifests)
        if existing is not None and (
            by_extension or not single or not is_redefinition(tool.function, existing.function)
        ):
            raise ConfigError(f"a tool {tool.name!r} is registered already: give one another name (name=)")
        self.tools[tool.name] = tool

    def add_command(self, command: SlashCommand, built_in: Collection[str]) -> None:
        """Register `command`.

        Raises ConfigError if the name is already in use. `built_in` contains names of other commands. A command that
        belongs to no extension replaces an earlier definition of its function.
        """
        used_names = dict.fromkeys(built_in, "built in")
        for each in self.commands.values():
            row, is_same = each.row, (each.row.name, each.row.source) == (command.row.name, PROGRAM)
            if not is_same or command.row.source != PROGRAM or not is_redefinition(command.function, each.function):
                used_names |= dict.fromkeys((row.name, *row.aliases), f"registered by {row.source}")
        for name in (command.row.name, *command.row.aliases):
            if name in used_names:
                raise ConfigError(f"a command /{name} is {used_names[name]} already: give yours another name")
        self.commands[command.row.name] = command

    def add_extension(self, extension: Extension) -> None:
        """Register the name and the keys of `extension`. Raises ConfigError if one of them is already in use."""
        manifest = extension.manifest
        if manifest.name in self._manifests:
            raise ConfigError(
                f"an extension {manifest.name!r} is registered already: o.unregister_extension({manifest.name!r}) "
                "removes it"
            )
        for other in self.manifests:
            for key in manifest.keys.keys() & other.keys.keys():
                raise ConfigError(f"extension {manifest.name!r}: key {key!r} is bound by extension {other.name!r}")
        self._manifests[manifest.name] = manifest

    def keep(self, name: str, undo: ExitStack) -> None:
        """Store `undo`, which removes the extension `name`."""
        self._undo[name] = undo

    def remove_extension(self, name: str) -> None:
        """Remove the extension `name` with everything it registered. Raises ConfigError for an unknown name."""
        undo = self._undo.pop(name, None)
        if undo is None:
            known = ", ".join(self._undo) or "none"
            raise ConfigError(f"no extension {name!r} is registered; registered: {known}")
        undo.close()

    def forget(self, name: str) -> None:
        """Remove the name and the keys of the extension `name`."""
        self._manifests.pop(name, None)
