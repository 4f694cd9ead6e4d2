"""Which extensions there are for a folder: a user's own, a project's that was trusted, those of installed packages.

A user's own lie in `$ORCH_HOME/extensions`, a project's in `.orch/extensions`; those of packages are named in
`extensions.load`. A project's is off until what it holds was trusted, and again after each change.
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

from ..config import paths
from ..config.trust import Trusted
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
    "trust_file",
    "untrust",
]


# --- What installed packages offer by entry points ---


def entry_point_folder(group: str, name: str, setting: str) -> Path:
    """Return the folder of the package that is offered as `name` in the entry points `group`.

    Raises ConfigError, which names the `setting` that asks for it.
    """
    # Both take milliseconds to import, and most users name no package.
    import importlib.metadata
    import importlib.util

    there = {each.name: each.value for each in importlib.metadata.entry_points(group=group)}
    if name not in there:
        known = ", ".join(sorted(there)) or "none"
        raise ConfigError(f"{setting}: no installed package offers {name!r} as {group}; there are: {known}")
    try:
        spec = importlib.util.find_spec(there[name])
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{setting}: {name!r}: {there[name]} cannot be found: {error}") from error
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise ConfigError(f"{setting}: {name!r}: {there[name]} is not a package with {group.rpartition('.')[2]} in it")
    return Path(places[0])


FOLDER: Final = "extensions"
GROUP: Final = "orch.extensions"
PROMPTS: Final = "prompts"
AGAIN: Final = "disable again what is to be"

Where: TypeAlias = Literal["user", "project", "package"]


class FoundExtension(Struct, frozen=True):
    """An extension that is there. `why_off` says why it is off, "" when it is on. A broken one has no manifest."""

    name: str
    path: str
    where: Where
    manifest: Manifest | None = None
    why_off: str = ""


class Prompts:
    """The templates of the extensions that are on for `folder`, each as EXTENSION:NAME: those in its folder `prompts`,
    and those that its code registers, where its manifest says that it does."""

    def __init__(self, folder: Path, home: Path, packages: Iterable[str] = ()) -> None:
        self._folder, self._home, self._packages = folder, home, tuple(packages)
        self._brought: dict[str, dict[str, str]] = {}

    def templates(self) -> Iterable[PromptTemplate]:
        """Return them, by extension and name. Raises ConfigError."""
        for each in find(self._folder, self._home, self._packages):
            if not each.why_off:
                for template in Files(Path(each.path, PROMPTS)).templates():
                    yield PromptTemplate(f"{each.name}:{template.name}", template.text, template.source)
                for name, text in self._registered(each).items():
                    yield PromptTemplate(f"{each.name}:{name}", text, f"extension {each.name}")

    def _registered(self, found: FoundExtension) -> dict[str, str]:
        """Return what the extension's code registers: none where it is left out, which `orch extensions list` tells."""
        if found.manifest is None or not found.manifest.permissions.prompts:
            return {}
        if found.path not in self._brought:
            from orch_worker.extensions.loader import load

            try:
                brought = [load(spec).prompts for spec in extension_specs([found], self._home)]
            except ConfigError:
                brought = []
            self._brought[found.path] = brought[0] if brought else {}
        return self._brought[found.path]


def templates_for(config: Config, folder: Path, home: Path) -> TemplateCatalog:
    """Return the templates for agents in `folder`: those that are configured, and those of extensions."""
    return TemplateCatalog(config.prompt, home, Prompts(folder, home, config.extensions.load))


class Off(Struct, frozen=True):
    """Names of the extensions that are switched off."""

    disabled: tuple[str, ...] = ()


def find(folder: Path, home: Path, packages: Iterable[str] = ()) -> list[FoundExtension]:
    """Return the extensions for agents in `folder`. Of two of one name the project's gives way: it is off.

    Raises ConfigError when what is switched off, or trusted, cannot be read.
    """
    places: list[tuple[Where, Path]] = [("user", each) for each in _folders(home / FOLDER)]
    places += (("package", entry_point_folder(GROUP, name, "extensions.load")) for name in packages)
    places += (("project", each) for each in _folders(folder / ".orch" / FOLDER))
    if not places:
        return []
    off, trusted = _off(home).disabled, Trusted(trust_file(home)).known()
    found: dict[str, FoundExtension] = {}
    for where, path in places:
        each = _found(where, path, off, trusted)
        if each.name in found:
            each = msgspec.structs.replace(
                each, why_off=f"there is another one of that name in {found[each.name].path}"
            )
            found[f"{each.name} {path}"] = each
        else:
            found[each.name] = each
    return list(found.values())


def extension_specs(
    found: Iterable[FoundExtension], home: Path, tools: Sequence[str] | None = None
) -> tuple[ExtensionSpec, ...]:
    """Return those of `found` that are on, as agents are told of them; of their tools `tools` alone, None: all."""
    return tuple(
        ExtensionSpec(
            each.path,
            each.manifest,
            tuple(name for name in each.manifest.permissions.tools if tools is None or name in tools),
            str(trust_file(home)) if each.where == "project" else "",
        )
        for each in found
        if each.manifest is not None and not each.why_off
    )


def trust_file(home: Path) -> Path:
    """Return the file that says which contents of which folders are trusted."""
    return home / "trusted_extensions.json"


def trust(extension: Path, home: Path) -> Manifest:
    """Trust the extension in the folder `extension` as it is now. Raises ConfigError when it does not do."""
    from orch_worker.extensions.loader import read_manifest
    from orch_worker.system.folder_digest import digest_of

    manifest = read_manifest(extension)
    Trusted(trust_file(home)).add(_key(extension), digest_of(extension))
    return manifest


def untrust(extension: Path, home: Path) -> bool:
    """Forget that the extension was trusted. False when it was not."""
    return Trusted(trust_file(home)).remove(_key(extension))


def disable(name: str, home: Path) -> bool:
    """Switch the extension `name` off for agents spawned from now on; False when it is off already."""
    paths.private_dir(home)
    return name not in _switch(home, lambda off: off | {name})


def enable(name: str, home: Path) -> bool:
    """Switch the extension `name` on again; False when it is on."""
    return name in _off(home).disabled and name in _switch(home, lambda off: off - {name})


def _found(where: Where, path: Path, off: tuple[str, ...], trusted: dict[str, str]) -> FoundExtension:
    # Imported when there is one: who has no extensions is not to pay for them.
    from orch_worker.extensions.loader import read_manifest
    from orch_worker.system.folder_digest import digest_of

    name = path.name
    try:
        manifest = read_manifest(path)
        why = ""
        if name in off:
            why = f"it was disabled: orch extensions enable {name}"
        elif where == "project" and trusted.get(_key(path)) != digest_of(path):
            changed = "was changed since it was trusted" if _key(path) in trusted else "was not trusted"
            why = f"it {changed}: read it, then orch extensions trust {name}"
    except ConfigError as error:
        return FoundExtension(name, str(path), where, None, str(error))
    return FoundExtension(name, str(path), where, manifest, why)


def _folders(place: Path) -> Iterator[Path]:
    try:
        names = sorted(os.listdir(place))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise ConfigError(f"{place} cannot be read: {error.strerror}") from error
    for name in names:
        if not name.startswith(".") and (place / name).is_dir():
            yield place / name


def _key(extension: Path) -> str:
    return os.path.realpath(extension)


def _off_file(home: Path) -> Path:
    return home / "extensions.json"


def _off(home: Path) -> Off:
    return atomic_json.read(_off_file(home), Off, Off(), AGAIN)


def _switch(home: Path, switched: Callable[[frozenset[str]], frozenset[str]]) -> tuple[str, ...]:
    """Let what is switched off be what `switched` makes of it; return what was."""

    def change(off: Off) -> Off:
        return Off(tuple(sorted(switched(frozenset(off.disabled)))))

    return atomic_json.change_json(_off_file(home), Off, Off(), AGAIN, change).disabled
