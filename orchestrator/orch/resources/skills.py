"""A skill as an object: what a `SKILL.md` says, and the files beside it, from a program or to be written."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final, Protocol

from msgspec import Struct

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.text import scrub
from orch_protocol.resources.skills import SkillSpec
from orch_worker.skills.skill_file import parse_skill

__all__ = ["PROGRAM", "Skill", "SkillProvider", "own_skills"]

PROGRAM: Final = "this program"
MOST_CHARS: Final = 1 << 20
PLAIN: Final = re.compile(r"[A-Za-z][\w ,.;()'/+-]*")
WORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


class Skill(Struct, frozen=True):
    """Instructions for one kind of work: `description` says when they are for, `body` what to do, in Markdown.

    `files` are more of it, by path, such as `references/forms.md`. `allowed_tools` are the tools that it needs.
    The rules for all of it are those of agentskills.io.
    """

    name: str
    description: str
    body: str
    files: Mapping[str, str] = {}
    allowed_tools: tuple[str, ...] = ()
    license: str = ""
    compatibility: str = ""
    metadata: Mapping[str, str] = {}

    def text(self) -> str:
        """Return its `SKILL.md`."""
        fields = {
            "name": self.name,
            "description": self.description,
            "license": self.license,
            "compatibility": self.compatibility,
            "allowed-tools": " ".join(self.allowed_tools),
        }
        lines = [
            f"{name}: {_yaml(value)}" for name, value in fields.items() if value or name in ("name", "description")
        ]
        if self.metadata:
            lines += ["metadata:", *(f"  {_yaml(name)}: {_yaml(value)}" for name, value in self.metadata.items())]
        return "\n".join(("---", *lines, "---", "", self.body.strip(), ""))

    def spec(self, source: str = PROGRAM) -> SkillSpec:
        """Return it as an agent has it. Raises ConfigError, which tells of every rule that it breaks."""
        if not all(isinstance(each, str) for each in (self.name, self.description, self.body)):
            raise ConfigError(f"name, description and body of a skill are texts, not {self!r}")
        text = scrub(self.text())
        found, problems = parse_skill(text, self.name)
        if found is None:
            told = "; ".join(f"{each.field or 'skill'}: {each.what}" for each in problems)
            raise ConfigError(f"skill {self.name!r}: {told}")
        if not found.body:
            raise ConfigError(f"skill {self.name!r} has no body: write instructions")
        files = {str(path): scrub(content) for path, content in self.files.items()}
        for path in files:
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or not path:
                raise ConfigError(
                    f"skill {self.name!r}: invalid path {path!r}: it must be a relative path below the skill folder"
                )
        if len(text) + sum(map(len, files.values())) > MOST_CHARS:
            raise ConfigError(f"skill {self.name!r} is too long for one in memory: put it into a folder")
        digest = hashlib.sha256(json.dumps([text, files], sort_keys=True).encode()).hexdigest()
        return SkillSpec(
            found.name, found.description, source, digest, allowed=found.allowed, text=found.body, files=files
        )


class SkillProvider(Protocol):
    """Something that has skills: whoever has this one method is one."""

    def skills(self) -> Iterable[Skill]:
        """Return the skills there are now. Raises ConfigError."""


class _One:
    def __init__(self, skill: Skill) -> None:
        self._skill = skill

    def skills(self) -> Iterable[Skill]:
        return (self._skill,)


def own_skills(providers: Iterable[SkillProvider]) -> tuple[SkillSpec, ...]:
    """Return what `providers` have now. Raises ConfigError where two have the same name."""
    found: dict[str, SkillSpec] = {}
    for provider in providers:
        for skill in provider.skills():
            spec = skill.spec()
            if spec.name in found:
                raise ConfigError(f"there are two skills {spec.name!r}: give one another name")
            found[spec.name] = spec
    return tuple(found.values())


def provider_of(skill: Skill | SkillProvider) -> SkillProvider:
    """Return the provider that `skill` is, or that has it alone. Raises ConfigError for what is neither."""
    if isinstance(skill, Skill):
        return _One(skill)
    if not callable(getattr(skill, "skills", None)):
        raise ConfigError(f"a skill is a Skill, or something that has skills(), not {skill!r}")
    return skill


def _yaml(text: str) -> str:
    """Return `text` as it stands in front matter: in quotes, where it would be taken for anything else."""
    if PLAIN.fullmatch(text) and text == text.strip() and text.lower() not in WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)
