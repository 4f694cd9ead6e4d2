"""Skills as objects. A skill has the content of a `SKILL.md` and files.

Programs can pass a skill to agents or write it to disk.
"""

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

from .prompt_templates import PROGRAM

__all__ = ["Skill", "SkillProvider", "own_skills"]

MAX_CHARS: Final = 1 << 20
PLAIN: Final = re.compile(r"[A-Za-z][\w ,.;()'/+-]*")
WORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


class Skill(Struct, frozen=True):
    """Instructions for one kind of task.

    `description` says when to use the instructions; `body` contains the instructions in Markdown. `files` maps paths
    such as `references/forms.md` to further texts. `allowed_tools` are the tools that the skill needs. The format is
    that of agentskills.io.
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
        """Return the content of `SKILL.md`."""
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
        """Return the skill as data for an agent. Raises ConfigError, which lists every violated rule."""
        if not all(isinstance(each, str) for each in (self.name, self.description, self.body)):
            raise ConfigError(f"name, description and body of a skill must be texts; got {self!r}")
        text = scrub(self.text())
        found, problems = parse_skill(text, self.name)
        if found is None:
            reasons = "; ".join(f"{each.field or 'skill'}: {each.what}" for each in problems)
            raise ConfigError(f"skill {self.name!r}: {reasons}")
        if not found.body:
            raise ConfigError(f"skill {self.name!r} has no body: write instructions")
        files = {str(path): scrub(content) for path, content in self.files.items()}
        for path in files:
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or not path:
                raise ConfigError(
                    f"skill {self.name!r}: invalid path {path!r}: it must be a relative path below the skill folder"
                )
        if len(text) + sum(map(len, files.values())) > MAX_CHARS:
            raise ConfigError(f"skill {self.name!r} is too large for a skill in memory: put it into a folder")
        digest = hashlib.sha256(json.dumps([text, files], sort_keys=True).encode()).hexdigest()
        return SkillSpec(
            found.name, found.description, source, digest, allowed=found.allowed, text=found.body, files=files
        )


class SkillProvider(Protocol):
    """Protocol of objects that provide skills."""

    def skills(self) -> Iterable[Skill]:
        """Return the current skills. Raises ConfigError."""


class _One:
    def __init__(self, skill: Skill) -> None:
        self._skill = skill

    def skills(self) -> Iterable[Skill]:
        return (self._skill,)


def own_skills(providers: Iterable[SkillProvider]) -> tuple[SkillSpec, ...]:
    """Return the current skills of `providers`. Raises ConfigError if two have the same name."""
    found: dict[str, SkillSpec] = {}
    for provider in providers:
        for skill in provider.skills():
            spec = skill.spec()
            if spec.name in found:
                raise ConfigError(f"two skills are named {spec.name!r}: rename one of the two")
            found[spec.name] = spec
    return tuple(found.values())


def provider_of(skill: Skill | SkillProvider) -> SkillProvider:
    """Return `skill` as a provider. Raises ConfigError if it is neither a Skill nor a provider."""
    if isinstance(skill, Skill):
        return _One(skill)
    if not callable(getattr(skill, "skills", None)):
        raise ConfigError(f"a skill must be a Skill, or an object with skills(); got {skill!r}")
    return skill


def _yaml(text: str) -> str:
    """Return `text` as a YAML value, quoted if necessary."""
    if PLAIN.fullmatch(text) and text == text.strip() and text.lower() not in WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)
