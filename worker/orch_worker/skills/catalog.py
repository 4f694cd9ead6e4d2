"""The skills of one agent: reading them, as they were or told what has changed, and what they say may be used."""

from __future__ import annotations

import asyncio
import os
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from orch_protocol.core.errors import ConfigError
from orch_protocol.resources.skills import SKILL_READ, SkillSpec, SkillsSpec
from orch_protocol.session.entries import Custom

from ..session.transcript import Transcript
from ..system import atomic_json
from ..system.folder_digest import Contents, contents_of, hash_of, skill_contents, skill_digest
from .skill_file import FILES, body_of, main_of, skill_in
from .skill_tools import FREE, tools_named

__all__ = ["ReadSkill", "SkillCatalog"]

"""Of the entries that say which skill was read, and what was in it."""
SHOWN: Final = 12
"""Digits of a hash."""
MOST_BYTES: Final = 1 << 20
MOST_NAMED: Final = 50


class ReadSkill(Struct, frozen=True):
    """What was read of a skill whose contents are `hash`: `text`, the tools it names, and the `others` beside it.

    `note` says that it is not what it was.
    """

    text: str
    hash: str
    allowed: tuple[str, ...] | None = None
    others: tuple[str, ...] = ()
    note: str = ""


class SkillCatalog:
    """The skills in `spec`, for the agent whose `transcript` that is: which of them it read, is on record there."""

    def __init__(self, spec: SkillsSpec, transcript: Transcript) -> None:
        self.skills = {skill.name: skill for skill in spec.skills}
        self._transcript = transcript
        self._open: dict[str, tuple[str, ...]] = {}
        """Those that were read in this turn and name the tools that they need."""

    def turn_began(self) -> None:
        """Forget which skills the last turn went by."""
        self._open.clear()

    def outside(self, tool: str) -> str:
        """Return why `tool` is outside of what the skills of this turn say they need, "" when it is not."""
        if not self._open or tool in FREE or any(tool in tools_named(allowed) for allowed in self._open.values()):
            return ""
        return f"it is not among the tools that {' and '.join(f'skill {name!r}' for name in self._open)} names"

    async def read(self, name: str, file: str = "") -> ReadSkill:
        """Return the body of the skill `name`, or a `file` of it: that it was read is on record then.

        Raises ConfigError, StoreError.
        """
        skill = self.skills.get(name)
        if skill is None:
            raise ConfigError(f"unknown skill {name!r}; available: {', '.join(self.skills) or 'none'}")
        taken = await asyncio.to_thread(_of_folder if skill.path else _of_text, skill, file)
        before = self._on_record().get(name)
        if taken.hash != before:
            self._transcript.custom(SKILL_READ, {"name": name, "hash": taken.hash, "source": skill.source})
        if taken.allowed is not None:
            self._open[name] = taken.allowed
        then = before or skill.hash
        if taken.hash == then:
            return taken
        since = "you read it last" if before else "you were started"
        note = f"it was changed since {since} ({then[:SHOWN]} then): go by this text"
        return ReadSkill(taken.text, taken.hash, taken.allowed, taken.others, note)

    async def changed(self) -> tuple[str, ...]:
        """Return the names of the skills that were read and are not what they were then."""
        read = [(self.skills[name], hash) for name, hash in self._on_record().items() if name in self.skills]
        on_disk = [(skill, hash) for skill, hash in read if skill.path]
        return await asyncio.to_thread(_changed, on_disk) if on_disk else ()

    def _on_record(self) -> dict[str, str]:
        """Return the hash of each skill that was read, as it was when it was read last, on the conversation's path."""
        return {
            str(entry.data.get("name")): str(entry.data.get("hash"))
            for entry in self._transcript.session.entries
            if type(entry) is Custom and entry.custom_type == SKILL_READ and isinstance(entry.data, dict)
        }


# In threads.


def _of_text(skill: SkillSpec, file: str) -> ReadSkill:
    if file and file not in skill.files:
        raise ConfigError(f"skill {skill.name!r} has no file {file!r}; it has {', '.join(skill.files) or 'none'}")
    text = skill.files[file] if file else skill.text
    return ReadSkill(text, skill.hash, skill.allowed, tuple(sorted(skill.files)))


def _of_folder(skill: SkillSpec, file: str) -> ReadSkill:
    folder = Path(os.path.realpath(skill.path))
    if not folder.is_dir():
        raise ConfigError(f"skill {skill.name!r} was removed: folder {skill.path} does not exist")
    held = skill_contents(folder)  # read once: what is given is what was hashed, whatever is put there meanwhile
    now = hash_of(held)
    if skill.trust and not _is_trusted(skill, folder, held, now):
        raise ConfigError(
            f"skill {skill.name!r} was changed since it was trusted, and is not read: a person reads it, then "
            f"orch {'extensions' if skill.trusted else 'skills'} trust {Path(skill.trusted or skill.path).name}"
        )
    main = main_of(held)
    if not main:
        raise ConfigError(f"skill {skill.name!r} is none any more: {folder} has no {FILES[0]}")
    others = tuple(islice((name for name in held if name != main), MOST_NAMED))
    # What it named once may not be what it names now.
    allowed = skill.allowed if now == skill.hash else skill_in(held, folder).allowed
    if not file:
        return ReadSkill(body_of(_text(skill, main, held[main], folder)), now, allowed, others)
    parts = PurePosixPath(file).parts
    there = f"it has {', '.join(others) or 'none'}"
    if PurePosixPath(file).is_absolute() or ".." in parts:
        raise ConfigError(f"{file!r} does not lie below the folder of skill {skill.name!r}; {there}")
    path = "/".join(parts)
    if path not in held:
        raise ConfigError(f"skill {skill.name!r} has no file {file!r}; {there}")
    return ReadSkill(_text(skill, path, held[path], folder), now, allowed, others)


def _changed(read: list[tuple[SkillSpec, str]]) -> tuple[str, ...]:
    return tuple(skill.name for skill, hash in read if _hash_now(skill) != hash)


def _hash_now(skill: SkillSpec) -> str:
    try:
        return skill_digest(Path(os.path.realpath(skill.path)))
    except ConfigError:
        return ""


def _text(skill: SkillSpec, path: str, data: bytes, folder: Path) -> str:
    if len(data) > MOST_BYTES or b"\0" in data:
        why = "over 1 MiB" if len(data) > MOST_BYTES else "no text"
        name = PurePosixPath(path).name
        raise ConfigError(f"{name} of skill {skill.name!r} is {why}; a tool may do something with {folder / path}")
    return data.decode("utf-8", "replace").removeprefix("\ufeff")


def _is_trusted(skill: SkillSpec, folder: Path, held: Contents, now: str) -> bool:
    known = atomic_json.read(Path(skill.trust), dict[str, str], {}, "trust again what you need")
    if skill.trusted:  # an extension as a whole, of which this is to be a part
        whole = contents_of(Path(skill.trusted))
        below = folder.relative_to(os.path.realpath(skill.trusted)).as_posix()
        if any(whole.get(f"{below}/{name}") != data for name, data in held.items()):
            return False
        now = hash_of(whole)
    return known.get(os.path.realpath(skill.trusted or skill.path)) == now
