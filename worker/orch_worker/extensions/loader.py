"""Load extensions into a process: their hooks, tools, commands and prompt templates.

An extension is loaded whole or left out. What it registers is checked against the permissions of its manifest. Its
code itself is not restricted: it is Python that runs with the rights of the process.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import ConfigError
from orch_protocol.hooks.stages import EVERYTHING
from orch_protocol.resources.extensions import ExtensionPermissions, ExtensionSpec, Manifest
from orch_protocol.resources.key_bindings import invalid_key_reason

from ..hooks.hook import Handler, Hook, make_hook, stage_of
from ..system import atomic_json
from ..system.files import bytes_of
from ..system.folder_digest import Contents, contents_of, hash_of
from ..system.importing import module_at
from ..system.threads import describe_exception
from ..tools.api.base import Tool, tool
from ..tools.dispatch.presets import BUILTIN
from .prompt_tiers import PROMPT_STAGES, check_tiers
from .slash_commands import Function, SlashCommand, make_command

__all__ = ["CODE_FILE", "MANIFEST_FILE", "Extension", "LoadedExtensions", "load", "load_all", "read_manifest"]

CODE_FILE: Final = "extension.py"
MANIFEST_FILE: Final = "extension.toml"
FORMER_PERMISSIONS: Final = frozenset({"reads", "writes", "network", "programs"})
"""Accepted in manifests and ignored. They restricted Python code through audit hooks, which C code bypasses."""


class LoadedExtensions(Struct, frozen=True):
    """What extensions brought: hooks, tools, commands, and a line about each one that was left out."""

    hooks: tuple[Hook, ...] = ()
    tools: tuple[Tool, ...] = ()
    commands: tuple[SlashCommand, ...] = ()
    left_out: tuple[str, ...] = ()


class Extension:
    """The argument of an extension's `register(extension)`. Registrations take effect once that has returned."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.hooks: list[Hook] = []
        self.tools: list[Tool] = []
        self.commands: list[SlashCommand] = []
        self.prompts: dict[str, str] = {}

    def hook(self, *stages: str, **options: Any) -> Callable[[Handler], Handler]:
        """Make a hook of a function, as `orch.hook` does."""

        def make(function: Handler) -> Handler:
            self.register_hook(function, *stages, **options)
            return function

        return make

    def register_hook(self, function: Handler, *stages: str, **options: Any) -> None:
        """Let `function` be called at `stages`. Raises ConfigError for what the manifest does not permit."""
        allowed = self.manifest.permissions.stages
        for name in stages:
            stage = name if name == EVERYTHING else stage_of(name)
            if stage not in allowed and EVERYTHING not in allowed:
                raise ConfigError(f"permissions.stages has no {stage!r}: it may not be called there")
        own = self.manifest.name
        called = options.pop("name", None) or getattr(function, "__name__", "hook")
        if any(name != EVERYTHING and stage_of(name) in PROMPT_STAGES for name in stages):
            function = check_tiers(function, self.manifest)
        made = make_hook(function, *stages, name=f"{own}.{called}", source=f"extension: {own}", **options)
        if any(each.row.name == made.row.name for each in self.hooks):
            raise ConfigError(f"it brings two hooks {called!r}: give one another name (name=)")
        self.hooks.append(made)

    def tool(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make a tool of a function, as `orch.tool` does, for agents that are granted it."""
        if function is None:
            return lambda each: self.tool(each, **options)
        self.register_tool(tool(**options)(function))
        return function

    def register_tool(self, made: Tool) -> None:
        """Bring a tool. Raises ConfigError for one that the manifest does not permit."""
        if made.name not in self.manifest.permissions.tools:
            raise ConfigError(f"permissions.tools has no {made.name!r}: it may not bring it")
        if any(each.name == made.name for each in self.tools):
            raise ConfigError(f"it brings two tools {made.name!r}")
        self.tools.append(made)

    def command(self, name: str, **options: Any) -> Callable[[Function], Function]:
        """Make a command of a session of a function; see `register_slash_command`."""

        def make(function: Function) -> Function:
            self.register_slash_command(name, function, **options)
            return function

        return make

    def register_prompt_template(self, name: str, text: str) -> None:
        """Bring the template EXTENSION:NAME, whose text has `{{variables}}`.

        Raises ConfigError for one that the manifest does not permit.
        """
        if name not in self.manifest.permissions.prompts:
            raise ConfigError(f"permissions.prompts has no {name!r}: it may not bring it")
        if not isinstance(text, str) or name in self.prompts:
            raise ConfigError(f"template {name!r} is a text, and is brought once")
        self.prompts[name] = text

    def register_slash_command(self, name: str, function: Function, **options: Any) -> None:
        """Bring the command `/name`, which calls `function(args, ctx)` in the agent's process; see `make_command`.

        Raises ConfigError for one that the manifest does not permit.
        """
        if name not in self.manifest.permissions.commands:
            raise ConfigError(f"permissions.commands has no {name!r}: it may not bring it")
        made = make_command(name, function, source=f"extension {self.manifest.name}", **options)
        if twice := {made.row.name, *made.row.aliases} & {
            n for c in self.commands for n in (c.row.name, *c.row.aliases)
        }:
            raise ConfigError(f"it brings two commands {min(twice)!r}")
        self.commands.append(made)


def read_manifest(folder: Path) -> Manifest:
    """Return what the extension in `folder` says of itself. Raises ConfigError, which names the file."""
    file = folder / MANIFEST_FILE
    try:
        raw = msgspec.toml.decode(bytes_of(file))
        found = msgspec.convert(raw, Manifest)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"{file}: {error}") from error
    if found.name != folder.name:
        raise ConfigError(f"{file}: name is {found.name!r}, but the folder is {folder.name!r}: they must be equal")
    for name in raw.get("permissions", {}):
        if name not in ExtensionPermissions.__struct_fields__ and name not in FORMER_PERMISSIONS:
            raise ConfigError(f"{file}: permissions: unknown field {name!r}")
    for name in found.permissions.stages:
        try:
            stage = name if name == EVERYTHING else stage_of(name)
        except ConfigError as error:
            raise ConfigError(f"{file}: permissions.stages: {error}") from error
        if stage != name:
            raise ConfigError(f"{file}: permissions.stages: write {stage!r} for {name!r}")
    for name in found.permissions.tools:
        if name in BUILTIN:
            raise ConfigError(f"{file}: permissions.tools: {name!r} is the name of a built-in tool")
    for key in found.keys:
        if why := invalid_key_reason(key):
            raise ConfigError(f"{file}: keys: {why}")
    for line in (*found.keys.values(), *(widget.command for widget in found.widgets)):
        if not line.startswith("/"):
            raise ConfigError(f"{file}: invalid command {line!r}: it must start with a slash")
    return found


def load(spec: ExtensionSpec) -> Extension:
    """Import an extension and return it with everything it registered. Raises ConfigError when any part fails."""
    folder = Path(spec.path)
    try:
        sources = _trusted_contents(spec) if spec.trust else None
        if read_manifest(folder) != spec.manifest:
            raise ConfigError("its manifest was changed since the agent was spawned")
        register = getattr(_import_code(folder, sources), "register", None)
        if not callable(register):
            raise ConfigError(f"{folder / CODE_FILE} has no function register(extension)")
        extension = Extension(spec.manifest)
        register(extension)
    except (Exception, SystemExit) as error:
        why = str(error) if isinstance(error, ConfigError) else describe_exception(error)
        raise ConfigError(f"extension {spec.manifest.name!r} is left out: {why}") from error
    return extension


def load_all(specs: Iterable[ExtensionSpec]) -> LoadedExtensions:
    """Load extensions in order. One that fails is left out whole, with a line in `left_out`."""
    hooks: list[Hook] = []
    tools: list[Tool] = []
    commands: list[SlashCommand] = []
    left_out: list[str] = []
    for spec in specs:
        try:
            found = load(spec)
        except ConfigError as error:
            left_out.append(str(error))
            continue
        hooks += found.hooks
        tools += (each for each in found.tools if each.name in spec.tools)
        commands += found.commands
    return LoadedExtensions(tuple(hooks), tuple(tools), tuple(commands), tuple(left_out))


def _trusted_contents(spec: ExtensionSpec) -> Contents:
    """Return what is in the extension's folder. Raises ConfigError unless it was trusted."""
    known = atomic_json.read(Path(spec.trust), dict[str, str], {}, "trust again what you need")
    found = contents_of(Path(spec.path))
    if known.get(os.path.realpath(spec.path)) != hash_of(found):
        raise ConfigError("it was changed since it was trusted: orch extensions trust " + spec.manifest.name)
    return found


def _import_code(folder: Path, only: Contents | None) -> ModuleType:
    place = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
    name = f"orch_extension_{folder.name.replace('-', '_')}_{place}"
    return module_at(folder / CODE_FILE, name, package=True, only=only)
