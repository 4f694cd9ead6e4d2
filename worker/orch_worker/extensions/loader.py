"""Loads extensions into a process: their hooks, tools, commands and prompt templates.

An extension is loaded completely or not at all. The loader checks the extension's registrations against the permissions
in the manifest. The code of an extension is not restricted. This Python code has the rights of the process.
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
from orch_protocol.core.text import decode_text
from orch_protocol.hooks.stages import EVERYTHING
from orch_protocol.policy.builtin_tools import BUILTIN_TOOLS
from orch_protocol.resources.extensions import ExtensionSpec, Manifest

from ..hooks.hook import Handler, Hook, stage_of
from ..system.files import bytes_of
from ..system.folder_digest import Contents, contents_of, hash_of
from ..system.importing import module_at, pin_files
from ..system.project_code import is_project_file
from ..system.threads import describe_exception
from ..system.trust_file import TrustFile
from ..tools.api.base import Tool, tool
from .prompt_tiers import PROMPT_STAGES, check_tiers
from .registration import Registrations, check_keys
from .slash_commands import Function, SlashCommand

__all__ = ["CODE_FILE", "MANIFEST_FILE", "FolderExtension", "LoadedExtensions", "load", "load_all", "read_manifest"]

CODE_FILE: Final = "extension.py"
MANIFEST_FILE: Final = "extension.toml"


class LoadedExtensions(Struct, frozen=True):
    """The hooks, tools and commands of extensions.

    `left_out` has one line for each extension that could not be loaded.
    """

    hooks: tuple[Hook, ...] = ()
    tools: tuple[Tool, ...] = ()
    commands: tuple[SlashCommand, ...] = ()
    left_out: tuple[str, ...] = ()


class FolderExtension(Registrations):
    """The argument of an extension's function `register(extension)`.

    Registrations take effect when this function has returned. A registration that the manifest does not permit raises
    ConfigError.
    """

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest.name, f"extension: {manifest.name}")
        self.manifest = manifest

    def register_hook(self, function: Handler, *stages: str, **options: Any) -> None:
        """See `Registrations.register_hook`.

        The manifest must permit the stages and the prompt tiers that the hook changes.
        """
        stage_names = function.row.stages if isinstance(function, Hook) else stages
        allowed = self.manifest.permissions.stages
        names = [name if name == EVERYTHING else stage_of(name) for name in stage_names]
        for stage in names:
            if stage not in allowed and EVERYTHING not in allowed:
                raise ConfigError(
                    f"permissions.stages does not contain {stage!r}: a hook may not be registered at this stage"
                )
        if not PROMPT_STAGES.isdisjoint(names):
            if isinstance(function, Hook):
                function = Hook(function.row, check_tiers(function.handler, self.manifest))
            else:
                function = check_tiers(function, self.manifest)
        super().register_hook(function, *stages, **options)

    def register_tool(self, function: Tool | Callable[..., Any]) -> None:
        """See `Registrations.register_tool`. The manifest must permit the name."""
        new_tool = tool(function)
        if new_tool.name not in self.manifest.permissions.tools:
            raise ConfigError(f"permissions.tools does not contain {new_tool.name!r}: this tool may not be registered")
        super().register_tool(new_tool)

    def register_prompt_template(self, name: str, text: str) -> None:
        """See `Registrations.register_prompt_template`. The manifest must permit the name."""
        if name not in self.manifest.permissions.prompts:
            raise ConfigError(f"permissions.prompts does not contain {name!r}: this template may not be registered")
        super().register_prompt_template(name, text)

    def register_slash_command(self, name: str, function: Function, **options: Any) -> None:
        """See `Registrations.register_slash_command`. The manifest must permit the name.

        The command runs in the agent's process.
        """
        if name not in self.manifest.permissions.commands:
            raise ConfigError(f"permissions.commands does not contain {name!r}: this command may not be registered")
        super().register_slash_command(name, function, **options)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of the extension in `folder`.

    Raise ConfigError with the name of the file if the manifest is invalid.
    """
    file = folder / MANIFEST_FILE
    try:
        manifest = msgspec.toml.decode(decode_text(bytes_of(file)), type=Manifest)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"{file}: {error}") from error
    if manifest.name != folder.name:
        raise ConfigError(f"{file}: name is {manifest.name!r}, but the folder is {folder.name!r}: they must be equal")
    for name in manifest.permissions.stages:
        try:
            stage = name if name == EVERYTHING else stage_of(name)
        except ConfigError as error:
            raise ConfigError(f"{file}: permissions.stages: {error}") from error
        if stage != name:
            raise ConfigError(f"{file}: permissions.stages: write {stage!r} for {name!r}")
    for name in manifest.permissions.tools:
        if name in BUILTIN_TOOLS:
            raise ConfigError(f"{file}: permissions.tools: {name!r} is the name of a built-in tool")
    try:
        check_keys(manifest.keys, manifest.widgets)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    return manifest


def load(spec: ExtensionSpec) -> FolderExtension:
    """Import an extension, and return it with its registrations. Raise ConfigError if any part fails."""
    folder = Path(spec.path)
    try:
        sources = _trusted_contents(spec) if spec.trust else None
        if read_manifest(folder) != spec.manifest:
            raise ConfigError("its manifest was changed after the agent was spawned")
        register = getattr(_import_code(folder, sources), "register", None)
        if not callable(register):
            raise ConfigError(f"{folder / CODE_FILE} has no function register(extension)")
        extension = FolderExtension(spec.manifest)
        register(extension)
    except (Exception, SystemExit) as error:
        reason = str(error) if isinstance(error, ConfigError) else describe_exception(error)
        raise ConfigError(f"extension {spec.manifest.name!r} is left out: {reason}") from error
    return extension


def load_all(specs: Iterable[ExtensionSpec]) -> LoadedExtensions:
    """Load extensions in order. An extension that fails is left out, and `left_out` gets a line about the failure."""
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
    """Return the contents of the extension's folder. Raise ConfigError if the contents are not trusted."""
    contents = contents_of(Path(spec.path))
    if not TrustFile(Path(spec.trust)).read().accepts(spec.path, hash_of(contents)):
        raise ConfigError("it was changed since it was trusted: orch extensions trust " + spec.manifest.name)
    return contents


def _import_code(folder: Path, sources: Contents | None) -> ModuleType:
    folder_digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
    name = f"orch_extension_{folder.name.replace('-', '_')}_{folder_digest}"
    if sources is not None:
        pin_files({}, lambda _, file, by_pinned: by_pinned and is_project_file(file, folder.parents[2]))
    return module_at(folder / CODE_FILE, name, package=True, only=sources)
