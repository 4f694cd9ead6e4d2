"""Finds, trusts, enables and disables extensions of the user, of a project and of installed packages.

The user's extensions are in `$ORCH_HOME/extensions`, a project's extensions are in `.orch/extensions`. The setting
`extensions.load` names the packages with extensions. A project's extension is off until its content is trusted, and
again after each change.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from orch_protocol.agent.config import Config
from orch_protocol.core.errors import ConfigError
from orch_protocol.resources.extensions import ExtensionSpec, Manifest
from orch_worker.system import atomic_json
from orch_worker.system.trust_file import Trusted

from ..config import paths
from ..config.trust import accept, trust_file
from .prompt_templates import Files, PromptTemplate, TemplateCatalog

__all__ = [
    "FOLDER",
    "FoundExtension",
    "Prompts",
    "disable",
    "enable",
    "entry_point_folder",
    "extension_specs",
    "find",
    "templates_for",
    "trust",
]


# --- Entry points of installed packages ---


def entry_point_folder(group: str, name: str, setting: str) -> Path:
    """Return the folder of the package that has the entry point `name` in the entry point group `group`.

    Raises ConfigError. The error message names the configuration key `setting`.
    """
    # These modules take milliseconds to import, and most users load no packages.
    import importlib.metadata
    import importlib.util

    entry_points = {each.name: each.value for each in importlib.metadata.entry_points(group=group)}
    if name not in entry_points:
        known = ", ".join(sorted(entry_points)) or "none"
        raise ConfigError(f"{setting}: no installed package offers {name!r} as {group}; there are: {known}")
    try:
        spec = importlib.util.find_spec(entry_points[name])
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{setting}: {name!r}: {entry_points[name]} cannot be found: {error}") from error
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not locations:
        raise ConfigError(
            f"{setting}: {name!r}: {entry_points[name]} is not a package with {group.rpartition('.')[2]} in it"
        )
    return Path(locations[0])


FOLDER: Final = "extensions"
GROUP: Final = "orch.extensions"
PROMPTS: Final = "prompts"
RECOVERY_HINT: Final = "disable those extensions again"

Where: TypeAlias = Literal["user", "project", "package"]


class FoundExtension(Struct, frozen=True):
    """An extension.

    `why_off` is the reason why the extension is off, or "" if the extension is on. An invalid extension has no
    manifest.
    """

    name: str
    path: str
    where: Where
    manifest: Manifest | None = None
    why_off: str = ""


class Prompts:
    """The templates of the active extensions for `folder`. Each template is named EXTENSION:NAME.

    The templates are files in an extension's folder `prompts`, and templates that the extension's code registers. The
    code may register a template only if the manifest permits this template.
    """

    def __init__(self, folder: Path, home: Path, packages: Iterable[str] = ()) -> None:
        self._folder, self._home, self._packages = folder, home, tuple(packages)
        self._prompt_cache: dict[str, dict[str, str]] = {}

    def templates(self) -> Iterable[PromptTemplate]:
        """Return the templates, by extension and name. Raises ConfigError."""
        for each in find(self._folder, self._home, self._packages):
            if not each.why_off:
                for template in Files(Path(each.path, PROMPTS)).templates():
                    yield PromptTemplate(f"{each.name}:{template.name}", template.text, template.source)
                for name, text in self._registered(each).items():
                    yield PromptTemplate(f"{each.name}:{name}", text, f"extension {each.name}")

    def _registered(self, found: FoundExtension) -> dict[str, str]:
        """Return the templates that the extension's code registers. If the code fails, return no templates.

        `orch extensions list` shows the error.
        """
        if found.manifest is None or not found.manifest.permissions.prompts:
            return {}
        if found.path not in self._prompt_cache:
            from orch_worker.extensions.loader import load

            try:
                loaded = [load(spec).prompts for spec in extension_specs([found], self._home)]
            except ConfigError:
                loaded = []
            self._prompt_cache[found.path] = loaded[0] if loaded else {}
        return self._prompt_cache[found.path]


def templates_for(config: Config, folder: Path, home: Path) -> TemplateCatalog:
    """Return the configured templates and the templates of extensions for agents in `folder`."""
    return TemplateCatalog(config.prompt, home, Prompts(folder, home, config.extensions.load))


class DisabledExtensions(Struct, frozen=True):
    """Names of the disabled extensions."""

    disabled: tuple[str, ...] = ()


def find(folder: Path, home: Path, packages: Iterable[str] = ()) -> list[FoundExtension]:
    """Return the extensions for agents in `folder`.

    If several extensions have the same name, all except the first are off. Extensions of the user come first, then
    packages, then the project. Raises ConfigError if the list of disabled or trusted extensions cannot be read.
    """
    candidates: list[tuple[Where, Path]] = [("user", each) for each in _folders(home / FOLDER)]
    candidates += (("package", entry_point_folder(GROUP, name, "extensions.load")) for name in packages)
    candidates += (("project", each) for each in _folders(folder / ".orch" / FOLDER))
    if not candidates:
        return []
    disabled, trusted = _off(home).disabled, trust_file(home, "extension").read()
    found: dict[str, FoundExtension] = {}
    for where, path in candidates:
        each = _read_extension(where, path, disabled, trusted)
        if each.name in found:
            each = msgspec.structs.replace(
                each, why_off=f"another extension in {found[each.name].path} has the same name"
            )
            found[f"{each.name} {path}"] = each
        else:
            found[each.name] = each
    return list(found.values())


def extension_specs(
    found: Iterable[FoundExtension], home: Path, tools: Sequence[str] | None = None
) -> tuple[ExtensionSpec, ...]:
    """Return the specs of the active extensions in `found`.

    The tools of the extensions are limited to `tools`. None allows all tools.
    """
    return tuple(
        ExtensionSpec(
            each.path,
            each.manifest,
            tuple(name for name in each.manifest.permissions.tools if tools is None or name in tools),
            str(trust_file(home, "extension").file) if each.where == "project" else "",
        )
        for each in found
        if each.manifest is not None and not each.why_off
    )


def trust(extension: Path, home: Path) -> Manifest:
    """Trust the extension in the folder `extension` with its current content. Raises ConfigError if it is invalid."""
    from orch_worker.extensions.loader import read_manifest
    from orch_worker.system.folder_digest import digest_of

    manifest = read_manifest(extension)
    accept(home, "extension", extension, digest_of(extension))
    return manifest


def disable(name: str, home: Path) -> bool:
    """Disable the extension `name` for agents that are spawned after this call.

    Returns False if the extension was already disabled.
    """
    paths.private_dir(home)
    return name not in _switch(home, lambda off: off | {name})


def enable(name: str, home: Path) -> bool:
    """Enable the extension `name` again. Returns False if the extension was already enabled."""
    return name in _off(home).disabled and name in _switch(home, lambda off: off - {name})


def _read_extension(where: Where, path: Path, disabled: tuple[str, ...], trusted: Trusted) -> FoundExtension:
    # Modules are imported on first use, so that the start is fast without extensions.
    from orch_worker.extensions.loader import read_manifest
    from orch_worker.system.folder_digest import digest_of

    name = path.name
    try:
        manifest = read_manifest(path)
        reason = ""
        if name in disabled:
            reason = f"it was disabled: orch extensions enable {name}"
        elif where == "project" and not trusted.accepts(path, digest_of(path)):
            reason = f"it {trusted.why_not(path)}: read it, then orch extensions trust {name}"
    except ConfigError as error:
        return FoundExtension(name, str(path), where, None, str(error))
    return FoundExtension(name, str(path), where, manifest, reason)


def _folders(parent: Path) -> Iterator[Path]:
    try:
        names = sorted(os.listdir(parent))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise ConfigError(f"{parent} cannot be read: {error.strerror}") from error
    for name in names:
        if not name.startswith(".") and (parent / name).is_dir():
            yield parent / name


def _disabled_file(home: Path) -> Path:
    return home / "extensions.json"


def _off(home: Path) -> DisabledExtensions:
    return atomic_json.read(_disabled_file(home), DisabledExtensions, DisabledExtensions(), RECOVERY_HINT)


def _switch(home: Path, update: Callable[[frozenset[str]], frozenset[str]]) -> tuple[str, ...]:
    """Call `update` with the disabled extensions, store the result as the new list, and return the previous list."""

    def change(off: DisabledExtensions) -> DisabledExtensions:
        return DisabledExtensions(tuple(sorted(update(frozenset(off.disabled)))))

    return atomic_json.change_json(
        _disabled_file(home), DisabledExtensions, DisabledExtensions(), RECOVERY_HINT, change
    ).disabled
