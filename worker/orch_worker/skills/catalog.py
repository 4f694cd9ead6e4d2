"""The skills of one agent. The catalog reads skills, detects changes, and tracks the tools that the skills allow."""

from __future__ import annotations

import asyncio
import os
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.text import decode_text
from orch_protocol.resources.skills import SKILL_READ, SkillSpec, SkillsSpec
from orch_protocol.session.entries import Custom

from ..session.transcript import Transcript
from ..system.folder_digest import Contents, contents_of, hash_of, skill_contents, skill_digest
from ..system.trust_file import TrustFile
from .skill_file import FILES, body_of, main_of, skill_in
from .skill_tools import ALWAYS_ALLOWED, tools_named

__all__ = ["ReadSkill", "SkillCatalog"]

HASH_DIGITS: Final = 12
"""Number of digits of a hash that are shown."""
MAX_BYTES: Final = 1 << 20
MAX_NAMED: Final = 50


class ReadSkill(Struct, frozen=True):
    """The result of reading a skill: its `text`, the tools that the skill names, and its other files (`others`).

    `hash` is the hash of the skill. `note` is not empty if the skill has changed.
    """

    text: str
    hash: str
    allowed: tuple[str, ...] | None = None
    others: tuple[str, ...] = ()
    note: str = ""


class SkillCatalog:
    """The skills in `spec`. The `transcript` records which skills the agent has read."""

    def __init__(self, spec: SkillsSpec, transcript: Transcript) -> None:
        self.skills = {skill.name: skill for skill in spec.skills}
        self._transcript = transcript
        self._allowed_tools: dict[str, tuple[str, ...]] = {}
        """The tools named by the skills that were read in this turn. Keys are names of skills."""

    def turn_began(self) -> None:
        """Forget the skills that were read in the last turn."""
        self._allowed_tools.clear()

    def disallowed_reason(self, tool: str) -> str:
        """Return why the skills of this turn do not allow `tool`, or "" if `tool` is allowed.

        `tool` is allowed if one of the skills names it, if no skill names any tools, or if it is in ALWAYS_ALLOWED.
        """
        if (
            not self._allowed_tools
            or tool in ALWAYS_ALLOWED
            or any(tool in tools_named(allowed) for allowed in self._allowed_tools.values())
        ):
            return ""
        return f"it is not among the tools that {' and '.join(f'skill {name!r}' for name in self._allowed_tools)} names"

    async def read(self, name: str, file: str = "") -> ReadSkill:
        """Return the body of the skill `name`, or one of its files. Record that the skill was read.

        Raise ConfigError if the skill or the file cannot be read. Raise StoreError if the record cannot be written.
        """
        skill = self.skills.get(name)
        if skill is None:
            raise ConfigError(f"unknown skill {name!r}; available: {', '.join(self.skills) or 'none'}")
        skill_text = await asyncio.to_thread(_read_skill_folder if skill.path else _read_given_skill, skill, file)
        recorded_hash = self._recorded_hashes().get(name)
        if skill_text.hash != recorded_hash:
            self._transcript.custom(SKILL_READ, {"name": name, "hash": skill_text.hash, "source": skill.source})
        if skill_text.allowed is not None:
            self._allowed_tools[name] = skill_text.allowed
        known_hash = recorded_hash or skill.hash
        if skill_text.hash == known_hash:
            return skill_text
        time_known = "you read it last" if recorded_hash else "you were started"
        note = f"it was changed since {time_known} ({known_hash[:HASH_DIGITS]} then): go by this text"
        return ReadSkill(skill_text.text, skill_text.hash, skill_text.allowed, skill_text.others, note)

    async def changed_skills(self) -> tuple[str, ...]:
        """Return the names of skills that have changed since the agent read them."""
        recorded = [(self.skills[name], hash) for name, hash in self._recorded_hashes().items() if name in self.skills]
        on_disk = [(skill, hash) for skill, hash in recorded if skill.path]
        return await asyncio.to_thread(_changed_names, on_disk) if on_disk else ()

    def _recorded_hashes(self) -> dict[str, str]:
        """Return the hash that each skill had when it was last read on the current branch."""
        return {
            str(entry.data.get("name")): str(entry.data.get("hash"))
            for entry in self._transcript.session.entries
            if type(entry) is Custom and entry.custom_type == SKILL_READ and isinstance(entry.data, dict)
        }


# The following functions run in threads.


def _read_given_skill(skill: SkillSpec, file: str) -> ReadSkill:
    if file and file not in skill.files:
        raise ConfigError(f"skill {skill.name!r} has no file {file!r}; it has {', '.join(skill.files) or 'none'}")
    text = skill.files[file] if file else skill.text
    return ReadSkill(text, skill.hash, skill.allowed, tuple(sorted(skill.files)))


def _read_skill_folder(skill: SkillSpec, file: str) -> ReadSkill:
    folder = Path(os.path.realpath(skill.path))
    if not folder.is_dir():
        raise ConfigError(f"skill {skill.name!r} was removed: folder {skill.path} does not exist")
    # The files are read once, so that the returned text is the hashed text even if a file changes.
    contents = skill_contents(folder)
    current_hash = hash_of(contents)
    if skill.trust and not _is_trusted(skill, folder, contents, current_hash):
        raise ConfigError(
            f"skill {skill.name!r} was changed since it was trusted, and is not read: a person must check it, then run "
            f"orch {'extensions' if skill.trusted else 'skills'} trust {Path(skill.trusted or skill.path).name}"
        )
    main = main_of(contents)
    if not main:
        raise ConfigError(f"skill {skill.name!r} no longer exists: {folder} has no {FILES[0]}")
    others = tuple(islice((name for name in contents if name != main), MAX_NAMED))
    # The changed skill may name other tools.
    allowed = skill.allowed if current_hash == skill.hash else skill_in(contents, folder).allowed
    if not file:
        return ReadSkill(body_of(_decode_file(skill, main, contents[main], folder)), current_hash, allowed, others)
    parts = PurePosixPath(file).parts
    available = f"it has {', '.join(others) or 'none'}"
    if PurePosixPath(file).is_absolute() or ".." in parts:
        raise ConfigError(f"{file!r} is outside the folder of skill {skill.name!r}; {available}")
    path = "/".join(parts)
    if path not in contents:
        raise ConfigError(f"skill {skill.name!r} has no file {file!r}; {available}")
    return ReadSkill(_decode_file(skill, path, contents[path], folder), current_hash, allowed, others)


def _changed_names(recorded: list[tuple[SkillSpec, str]]) -> tuple[str, ...]:
    return tuple(skill.name for skill, hash in recorded if _current_hash(skill) != hash)


def _current_hash(skill: SkillSpec) -> str:
    try:
        return skill_digest(Path(os.path.realpath(skill.path)))
    except ConfigError:
        return ""


def _decode_file(skill: SkillSpec, path: str, data: bytes, folder: Path) -> str:
    text = decode_text(data[:MAX_BYTES], lossy=True)
    if len(data) > MAX_BYTES or "\0" in text:
        problem = "over 1 MiB" if len(data) > MAX_BYTES else "no text"
        name = PurePosixPath(path).name
        raise ConfigError(f"{name} of skill {skill.name!r} is {problem}; a tool may do something with {folder / path}")
    return text


def _is_trusted(skill: SkillSpec, folder: Path, contents: Contents, current_hash: str) -> bool:
    trusted = TrustFile(Path(skill.trust)).read()
    if skill.trusted:  # The trust applies to the whole extension that contains the skill.
        extension_contents = contents_of(Path(skill.trusted))
        prefix = folder.relative_to(os.path.realpath(skill.trusted)).as_posix()
        if any(extension_contents.get(f"{prefix}/{name}") != data for name, data in contents.items()):
            return False
        current_hash = hash_of(extension_contents)
    return trusted.accepts(skill.trusted or skill.path, current_hash)
