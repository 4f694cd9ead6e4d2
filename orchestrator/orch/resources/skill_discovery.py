"""Finds and trusts skills of the program, the user, configured folders, packages, extensions and projects.

Other people may have written a project's skill, and agents follow a skill as an instruction. Therefore a project's
skill is off until its content is trusted, and again after each change.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.core.errors import ConfigError
from orch_protocol.resources.extensions import ExtensionSpec
from orch_protocol.resources.skills import SkillsConfig, SkillSpec
from orch_worker.skills.skill_file import FILES, skill_in
from orch_worker.system.folder_digest import hash_of, skill_contents, skill_files
from orch_worker.system.trust_file import Trusted

from ..config.trust import accept, trust_file
from .extensions import entry_point_folder

__all__ = ["FOLDER", "Found", "SkillCatalogs", "find", "folders_of", "trust"]

FOLDER: Final = "skills"
PROJECT_FOLDERS: Final = (".orch", ".claude")
"""Folders of a project that contain a folder `skills`. Another program writes the second, in the same format."""
GROUP: Final = "orch.skills"
MAX_KNOWN: Final = 1_000
SETTLED_NS: Final = 100_000_000
"""A skill is cached only if its files are older. A newer file may change again and keep its time stamp."""

Where: TypeAlias = Literal["program", "user", "project", "folder", "package", "extension"]
Mark: TypeAlias = tuple[str, int, int, int]


class Found(Struct, frozen=True):
    """A skill.

    `why_off` is the reason why no agent has the skill, or "" if the skill is on. A `broken` skill is invalid.
    """

    name: str
    where: Where
    path: str = ""
    skill: SkillSpec | None = None
    why_off: str = ""
    broken: bool = False


class SkillCatalogs:
    """Cache of skills in folders, valid until a file changes."""

    def __init__(self) -> None:
        self._cache: dict[str, tuple[tuple[Mark, ...], SkillSpec]] = {}

    def look(self, folder: Path) -> SkillSpec:
        """Return the skill in `folder`. Raises ConfigError if it is invalid."""
        began = time.time_ns()
        marks = tuple(_mark(path) for path in sorted(skill_files(folder)))
        cached = self._cache.get(str(folder))
        if cached is not None and cached[0] == marks:
            return cached[1]
        contents = skill_contents(folder)  # reads the skill once, so that the hash belongs to the parsed content
        parsed = skill_in(contents, folder)
        if not parsed.body:
            raise ConfigError(f"{folder / FILES[0]}: the body is empty: write instructions below the front matter")
        skill = SkillSpec(parsed.name, parsed.description, "", hash_of(contents), str(folder), parsed.allowed)
        if all(changed < began - SETTLED_NS for _, changed, _, _ in marks):
            self._cache[str(folder)] = marks, skill
            while len(self._cache) > MAX_KNOWN:
                del self._cache[next(iter(self._cache))]
        return skill


def find(
    folder: Path,
    home: Path,
    rules: SkillsConfig,
    *,
    extensions: Iterable[ExtensionSpec] = (),
    own: Iterable[SkillSpec] = (),
    catalogs: SkillCatalogs | None = None,
) -> list[Found]:
    """Return the skills for agents in `folder`.

    If several skills have the same name, only the first is on. Skills of a project come last. Raises ConfigError if the
    list of trusted skills cannot be read, or if a configured package does not exist.
    """
    catalogs = catalogs or SkillCatalogs()
    trusted = trust_file(home, "skill").read()
    skills = [Found(skill.name, "program", skill=skill) for skill in own]
    for where, parent in folders_of(folder, home, rules):
        for path in _folders(parent):
            source = f"package {parent.name}" if where == "package" else str(parent) if where == "folder" else where
            each = _read_found(catalogs, where, path, source)
            if where == "project" and each.skill is not None:
                each = _require_trust(each, each.skill, trusted, home)
            skills.append(each)
    skills += (each for extension in extensions for each in _extension_skills(catalogs, extension))
    used_names: dict[str, str] = {}
    result = []
    for each in sorted(skills, key=lambda each: each.where == "project"):
        if each.name in used_names and not each.why_off:
            each = replace(each, why_off=f"another skill ({used_names[each.name]}) has the same name")
        elif not each.why_off:
            used_names[each.name] = each.path or each.where
        result.append(each)
    return result


def folders_of(folder: Path, home: Path, rules: SkillsConfig) -> Iterator[tuple[Where, Path]]:
    """Yield the folders of skills for agents in `folder`. Raises ConfigError if a configured package does not exist."""
    yield "user", home / FOLDER
    for folder_text in rules.folders:
        path = Path(folder_text).expanduser()
        yield ("folder", path) if path.is_absolute() else ("project", folder / path)
    for name in rules.load:
        yield "package", entry_point_folder(GROUP, name, "skills.load")
    for name in PROJECT_FOLDERS:
        yield "project", folder / name / FOLDER


def trust(skill: Path, home: Path) -> SkillSpec:
    """Trust the skill in the folder `skill` with its current content. Raises ConfigError if it is invalid."""
    found = SkillCatalogs().look(skill)
    accept(home, "skill", skill, found.hash)
    return found


def _read_found(catalogs: SkillCatalogs, where: Where, path: Path, source: str) -> Found:
    try:
        return Found(path.name, where, str(path), replace(catalogs.look(path), source=source))
    except (ConfigError, OSError) as error:
        return Found(path.name, where, str(path), why_off=str(error), broken=True)


def _require_trust(found: Found, skill: SkillSpec, trusted: Trusted, home: Path) -> Found:
    """Return the project's skill `found`. The skill is off unless its current content is trusted."""
    skill = replace(skill, trust=str(trust_file(home, "skill").file))
    if trusted.accepts(found.path, skill.hash):
        return replace(found, skill=skill)
    return replace(
        found, skill=skill, why_off=f"it {trusted.why_not(found.path)}: read it, then orch skills trust {found.name}"
    )


def _extension_skills(catalogs: SkillCatalogs, extension: ExtensionSpec) -> Iterator[Found]:
    extension_name, permitted = extension.manifest.name, extension.manifest.permissions.skills
    for path in _folders(Path(extension.path, FOLDER)):
        each = _read_found(catalogs, "extension", path, f"extension {extension_name}")
        name = f"{extension_name}:{each.name}"
        if path.name not in permitted:
            why = f"permissions.skills of extension {extension_name!r} has no {path.name!r}: it may not bring it"
            each = Found(name, "extension", str(path), why_off=why, broken=True)
        elif each.skill is not None:
            trusted_path = extension.path if extension.trust else ""
            each = replace(each, skill=replace(each.skill, name=name, trust=extension.trust, trusted=trusted_path))
        yield replace(each, name=name)


def _folders(parent: Path) -> Sequence[Path]:
    """Return the folders in `parent` that contain a skill file."""
    try:
        names = sorted(os.listdir(parent))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise ConfigError(f"{parent} cannot be read: {error.strerror}") from error
    return [parent / name for name in names if any((parent / name / file).is_file() for file in FILES)]


def _mark(path: Path) -> Mark:
    status = path.stat()
    return str(path), status.st_ctime_ns, status.st_ino, status.st_size
