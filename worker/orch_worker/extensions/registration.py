"""The hooks, tools, slash commands and prompt templates that an extension registers, with unique names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from orch_protocol.core.errors import ConfigError
from orch_protocol.resources.extensions import WidgetSpec
from orch_protocol.resources.key_bindings import invalid_key_reason

from ..hooks.hook import Handler, Hook, make_hook
from ..tools.api.base import Tool, tool
from .slash_commands import Function, SlashCommand, make_command

__all__ = ["Registrations", "check_keys"]


class Registrations:
    """The hooks, tools, slash commands and prompt templates of the extension `name`.

    `hook_source` is the source of the extension's hooks, as `orch hooks list` shows it.
    """

    def __init__(self, name: str, hook_source: str) -> None:
        self.name = name
        self.hooks: list[Hook] = []
        self.tools: list[Tool] = []
        self.commands: list[SlashCommand] = []
        self.prompts: dict[str, str] = {}
        self._hook_source = hook_source

    def hook(self, *stages: str, **options: Any) -> Callable[[Handler], Handler]:
        """Return a decorator that registers a hook, like `orch.hook`."""

        def make(function: Handler) -> Handler:
            self.register_hook(function, *stages, **options)
            return function

        return make

    def register_hook(self, function: Handler, *stages: str, **options: Any) -> None:
        """Register a hook at `stages`. `function` is a function or a result of `orch.hook`.

        The hook's name is EXTENSION.NAME.
        """
        hook_name = options.pop("name", None)
        if isinstance(function, Hook):
            if stages or options:
                raise ConfigError(
                    f"hook {function.row.name!r} already has stages and options: register it without them"
                )
            hook_name = hook_name or function.row.name.rpartition(".")[2]
            row = replace(function.row, name=f"{self.name}.{hook_name}", source=self._hook_source)
            new_hook = Hook(row, function.handler)
        else:
            hook_name = hook_name or getattr(function, "__name__", "hook")
            new_hook = make_hook(
                function, *stages, name=f"{self.name}.{hook_name}", source=self._hook_source, **options
            )
        if any(each.row.name == new_hook.row.name for each in self.hooks):
            raise ConfigError(f"two hooks {hook_name!r} in extension {self.name!r}: rename one of them (name=)")
        self.hooks.append(new_hook)

    def tool(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Register a function as a tool, like `orch.tool`. Agents need a grant to use the tool."""
        if function is None:
            return lambda each: self.tool(each, **options)
        self.register_tool(tool(**options)(function))
        return function

    def register_tool(self, function: Tool | Callable[..., Any]) -> None:
        """Register a tool: a function, or a result of `orch.tool`."""
        new_tool = tool(function)
        if any(each.name == new_tool.name for each in self.tools):
            raise ConfigError(f"two tools {new_tool.name!r} in extension {self.name!r}: rename one of them (name=)")
        self.tools.append(new_tool)

    def command(self, name: str, **options: Any) -> Callable[[Function], Function]:
        """Return a decorator that registers a slash command; see `register_slash_command`."""

        def make(function: Function) -> Function:
            self.register_slash_command(name, function, **options)
            return function

        return make

    def register_slash_command(self, name: str, function: Function, **options: Any) -> None:
        """Register the command `/name`, which calls `function(args, ctx)`. See `make_command` for the options."""
        command = make_command(name, function, source=f"extension {self.name}", **options)
        used_names = {name for each in self.commands for name in (each.row.name, *each.row.aliases)}
        if duplicates := used_names.intersection((command.row.name, *command.row.aliases)):
            raise ConfigError(f"two commands /{min(duplicates)} in extension {self.name!r}: rename one of them")
        self.commands.append(command)

    def register_prompt_template(self, name: str, text: str) -> None:
        """Register the template EXTENSION:NAME, whose text contains `{{variables}}`."""
        if not isinstance(text, str):
            raise ConfigError(f"prompt template {name!r} must be a string; got {text!r}")
        if name in self.prompts:
            raise ConfigError(f"two prompt templates {name!r} in extension {self.name!r}: rename one of them")
        self.prompts[name] = text


def check_keys(keys: dict[str, str], widgets: Iterable[WidgetSpec]) -> None:
    """Raise ConfigError for a key that cannot be bound, and for a command without a slash."""
    for key in keys:
        if reason := invalid_key_reason(key):
            raise ConfigError(f"keys: {reason}")
    for line in (*keys.values(), *(widget.command for widget in widgets)):
        if not line.startswith("/"):
            raise ConfigError(f"invalid command {line!r}: it must start with a slash")
