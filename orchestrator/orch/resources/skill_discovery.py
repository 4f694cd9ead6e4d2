"""Which skills there are for a folder: a program's, a user's, those of configured folders, packages and extensions, and
a project's that were trusted.

A project's skill is text that somebody else wrote, and every agent would be told of it as of an instruction: it is off
until what its folder holds was trusted, and again after each change.
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

from ..config.trust import Trusted
from .extensions import entry_point_folder

__all__ = ["FOLDER", "Found", "SkillCatalogs", "find", "folders_of", "trust", "trust_file", "untrust"]

FOLDER: Final = "skills"
GROUP: Final = "orch.skills"
MOST_KNOWN: Final = 1_000
SETTLED_NS: Final = 100_000_000
"""What was changed so shortly before it was read may change once more without another time stamp."""

Where: TypeAlias = Literal["program", "user", "project", "folder", "package", "extension"]
Mark: TypeAlias = tuple[str, int, int, int]


class Found(Struct, frozen=True):
    """A skill that is there. `why_off` says why no agent has it, "" when they have; a `broken` one breaks a rule."""

    name: str
    where: Where
    path: str = ""
    skill: SkillSpec | None = None
    why_off: str = ""
    broken: bool = False


class SkillCatalogs:
    """What was found in folders of skills, for as long as nothing in them changes."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[Mark, ...], SkillSpec]] = {}

    def look(self, folder: Path) -> SkillSpec:
        """Return the skill in `folder`. Raises ConfigError when it breaks a rule, or cannot be trusted to be one."""
        began = time.time_ns()
        marks = tuple(_mark(path) for path in sorted(skill_files(folder)))
        known = self._known.get(str(folder))
        if known is not None and known[0] == marks:
            return known[1]
        held = skill_contents(folder)  # read once: what it says is of what was hashed
        found = skill_in(held, folder)
        if not found.body:
            raise ConfigError(f"{folder / FILES[0]}: the body is empty: write instructions below the front matter")
        skill = SkillSpec(found.name, found.description, "", hash_of(held), str(folder), found.allowed)
        if all(changed < began - SETTLED_NS for _, changed, _, _ in marks):
            self._known[str(folder)] = marks, skill
            while len(self._known) > MOST_KNOWN:
                del self._known[next(iter(self._known))]
        return skill


def find(
    folder: Path,
    home: Path,
    rules: SkillsConfig,
    *,
    extensions: Iterable[ExtensionSpec] = (),
    own: Iterable[SkillSpec] = (),
    shelves: SkillCatalogs | None = None,
) -> list[Found]:
    """Return the skills for agents in `folder`. Of two of one name the first is on, a project's the last of all.

    Raises ConfigError when what is trusted cannot be read, or no package offers what is to be loaded.
    """
    shelves = shelves or SkillCatalogs()
    trusted = Trusted(trust_file(home)).known()
    there = [Found(skill.name, "program", skill=skill) for skill in own]
    for where, place in folders_of(folder, home, rules):
        for path in _folders(place):
            source = f"package {place.name}" if where == "package" else str(place) if where == "folder" else where
            each = _found(shelves, where, path, source)
            if where == "project" and each.skill is not None:
                each = _held(each, each.skill, trusted, home)
            there.append(each)
    there += (each for extension in extensions for each in _of_extension(shelves, extension))
    taken: dict[str, str] = {}
    result = []
    for each in sorted(there, key=lambda each: each.where == "project"):
        if each.name in taken and not each.why_off:
            each = replace(each, why_off=f"there is another one of that name, of {taken[each.name]}")
        elif not each.why_off:
            taken[each.name] = each.path or each.where
        result.append(each)
    return result


def folders_of(folder: Path, home: Path, rules: SkillsConfig) -> Iterator[tuple[Where, Path]]:
    """Yield the folders of skills for agents in `folder`. Raises ConfigError: no package offers what is named."""
    yield "user", home / FOLDER
    for place in rules.folders:
        path = Path(place).expanduser()
        yield ("folder", path) if path.is_absolute() else ("project", folder / path)
    for name in rules.load:
        yield "package", entry_point_folder(GROUP, name, "skills.load")
    yield "project", folder / ".orch" / FOLDER


def trust_file(home: Path) -> Path:
    """Return the file that says which contents of which folders are trusted."""
    return home / "trusted_skills.json"


def trust(skill: Path, home: Path) -> SkillSpec:
    """Trust the skill in the folder `skill` as it is now. Raises ConfigError when it breaks a rule."""
    found = SkillCatalogs().look(skill)
    Trusted(trust_file(home)).add(_key(skill), found.hash)
    return found


def untrust(skill: Path, home: Path) -> bool:
    """Forget that the skill was trusted. False when it was not."""
    return Trusted(trust_file(home)).remove(_key(skill))


def _found(shelves: SkillCatalogs, where: Where, path: Path, source: str) -> Found:
    try:
        return Found(path.name, where, str(path), replace(shelves.look(path), source=source))
    except (ConfigError, OSError) as error:
        return Found(path.name, where, str(path), why_off=str(error), broken=True)


def _held(found: Found, skill: SkillSpec, trusted: dict[str, str], home: Path) -> Found:
    """Return what is `found` in a project as far as it was trusted."""
    then = trusted.get(_key(Path(found.path)))
    skill = replace(skill, trust=str(trust_file(home)))
    if then == skill.hash:
        return replace(found, skill=skill)
    changed = "was changed since it was trusted" if then is not None else "was not trusted"
    return replace(found, skill=skill, why_off=f"it {changed}: read it, then orch skills trust {found.name}")


def _of_extension(shelves: SkillCatalogs, extension: ExtensionSpec) -> Iterator[Found]:
    own, permitted = extension.manifest.name, extension.manifest.permissions.skills
    for path in _folders(Path(extension.path, FOLDER)):
        each = _found(shelves, "extension", path, f"extension {own}")
        name = f"{own}:{each.name}"
        if path.name not in permitted:
            why = f"permissions.skills of extension {own!r} has no {path.name!r}: it may not bring it"
            each = Found(name, "extension", str(path), why_off=why, broken=True)
        elif each.skill is not None:
            held = extension.path if extension.trust else ""
            each = replace(each, skill=replace(each.skill, name=name, trust=extension.trust, trusted=held))
        yield replace(each, name=name)


def _folders(place: Path) -> Sequence[Path]:
    """Return the folders in `place` that are skills, or mean to be: those with a file that makes one."""
    try:
        names = sorted(os.listdir(place))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise ConfigError(f"{place} cannot be read: {error.strerror}") from error
    return [place / name for name in names if any((place / name / file).is_file() for file in FILES)]


def _mark(path: Path) -> Mark:
    found = path.stat()
    return str(path), found.st_ctime_ns, found.st_ino, found.st_size


def _key(skill: Path) -> str:
    return os.path.realpath(skill)
