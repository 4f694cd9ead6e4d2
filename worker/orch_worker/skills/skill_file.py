"""Parses and checks `SKILL.md` files by the rules of agentskills.io. Problems are reported with line and field."""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.text import TextEncodingError, decode_text

from .front_matter import (
    FrontMatterError,
    FrontMatterProblem,
    FrontMatterValue,
    parse_front_matter,
    split_front_matter,
    tool_names,
)

__all__ = [
    "FILES",
    "SkillFile",
    "body_of",
    "check_skill",
    "file_of",
    "main_of",
    "name_in",
    "parse_data",
    "parse_skill",
    "read_skill_file",
    "skill_in",
]

FILES: Final = ("SKILL.md", "skill.md")
FIELDS: Final = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
MAX_BYTES: Final = 1 << 20
MAX_LENGTHS: Final = {"name": 64, "description": 1024, "compatibility": 500}


class SkillFile(Struct, frozen=True):
    """The content of a `SKILL.md`: its front matter, and the text after the front matter (`body`).

    `allowed` is None if the file names no tools.
    """

    name: str
    description: str
    license: str = ""
    compatibility: str = ""
    metadata: dict[str, str] = {}
    allowed: tuple[str, ...] | None = None
    body: str = ""


def file_of(folder: Path) -> Path:
    """Return the `SKILL.md` in `folder`. Raise ConfigError if the folder has no such file."""
    for name in FILES:
        if (folder / name).is_file():
            return folder / name
    raise ConfigError(f"{folder} is not a skill: it has no {FILES[0]}")


def name_in(file: Path) -> str:
    """Return the name in the front matter of `file`, or "" if the front matter cannot be read."""
    try:
        with file.open("rb") as stream:
            name = parse_front_matter(decode_text(stream.read(MAX_BYTES)))[0].get("name")
    except (FrontMatterError, OSError, TextEncodingError):
        return ""
    return name.is_.strip() if name is not None and isinstance(name.is_, str) else ""


def read_skill_file(folder: Path) -> SkillFile:
    """Return the skill in `folder`. If the skill is invalid, raise ConfigError with the file name and all problems."""
    found, problems = check_skill(folder)
    if problems or found is None:
        raise ConfigError(f"{folder / FILES[0]}: {'; '.join(map(str, problems))}")
    return found


def check_skill(folder: Path) -> tuple[SkillFile | None, tuple[FrontMatterProblem, ...]]:
    """Return the skill in `folder` (None if invalid) and all its problems.

    Raise ConfigError if the file cannot be read.
    """
    file = file_of(folder)
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    return parse_data(data, folder.name)


def parse_data(data: bytes, folder: str) -> tuple[SkillFile | None, tuple[FrontMatterProblem, ...]]:
    """Return the skill in the bytes `data` (None if invalid) and all its problems."""
    if len(data) > MAX_BYTES:
        problem = f"it is over {MAX_BYTES >> 20} MiB: move long texts into files beside it"
        return None, (FrontMatterProblem(0, "", problem),)
    try:
        text = decode_text(data)
    except TextEncodingError as error:
        return None, (FrontMatterProblem(error.line, "", str(error)),)
    return parse_skill(text, folder)


def skill_in(contents: Mapping[str, bytes], folder: Path) -> SkillFile:
    """Return the skill in the file contents `contents` of `folder`.

    Raise ConfigError in the same cases as `read_skill_file`.
    """
    main = main_of(contents)
    if not main:
        raise ConfigError(f"{folder} is not a skill: it has no {FILES[0]}")
    found, problems = parse_data(contents[main], folder.name)
    if found is None:
        raise ConfigError(f"{folder / main}: {'; '.join(map(str, problems))}")
    return found


def main_of(names: Container[str]) -> str:
    """Return the name of the skill's main file in `names`, or "" if `names` does not contain it."""
    return next((name for name in FILES if name in names), "")


def parse_skill(text: str, folder: str) -> tuple[SkillFile | None, tuple[FrontMatterProblem, ...]]:
    """Return the skill in `text` (None if invalid) and its problems. `folder` is the name of the skill's folder."""
    try:
        fields, body = parse_front_matter(text)
    except FrontMatterError as error:
        return None, (error.problem,)
    problems = [
        FrontMatterProblem(value.line, name, f"unknown field; the fields are {', '.join(FIELDS)}")
        for name, value in fields.items()
        if name not in FIELDS
    ]
    problems += (
        FrontMatterProblem(1, name, "it is missing: the front matter needs name and description")
        for name in ("name", "description")
        if name not in fields
    )
    texts = {}
    for name in ("name", "description", "license", "compatibility"):
        if name in fields:
            value = fields[name]
            if not isinstance(value.is_, str):
                problems.append(FrontMatterProblem(value.line, name, "it must be text"))
                continue
            texts[name] = value.is_
            problems += (FrontMatterProblem(value.line, name, what) for what in _text_rules(name, value.is_, folder))
    metadata, metadata_problems = _metadata(fields.get("metadata"))
    allowed, tool_problems = tool_names("allowed-tools", fields.get("allowed-tools"))
    problems += (*metadata_problems, *tool_problems)
    if problems:
        return None, tuple(sorted(problems, key=lambda each: each.line))
    return (
        SkillFile(
            unicodedata.normalize("NFKC", texts["name"].strip()),
            texts["description"].strip(),
            texts.get("license", ""),
            texts.get("compatibility", ""),
            metadata,
            allowed,
            body,
        ),
        (),
    )


def body_of(text: str) -> str:
    """Return the part of `text` below the front matter. Without front matter, return the whole text."""
    try:
        return split_front_matter(text)[1]
    except FrontMatterError:
        return text.strip()


def _text_rules(name: str, text: str, folder: str) -> Iterator[str]:
    if name in ("name", "description") and not text.strip():
        yield "it is empty: write a text"
        return
    limit = MAX_LENGTHS.get(name)
    normalized = unicodedata.normalize("NFKC", text.strip()) if name == "name" else text
    if limit is not None and len(normalized) > limit:
        yield f"it has {len(normalized)} characters: at most {limit}"
    if name != "name":
        return
    if normalized != normalized.lower():
        yield f"{normalized!r} has capital letters: write {normalized.lower()!r}"
    if not all(each.isalnum() or each == "-" for each in normalized):
        yield f"{normalized!r} has other signs than letters, digits and hyphens: leave them out"
    if normalized.startswith("-") or normalized.endswith("-") or "--" in normalized:
        yield f"{normalized!r}: a hyphen must stand between two letters or digits"
    if unicodedata.normalize("NFKC", folder) != normalized:
        yield f"it is {normalized!r} and its folder is called {folder!r}: they must be the same"


def _metadata(field: FrontMatterValue | None) -> tuple[dict[str, str], tuple[FrontMatterProblem, ...]]:
    if field is None or field.is_ == "":
        return {}, ()
    if not isinstance(field.is_, dict):
        return {}, (FrontMatterProblem(field.line, "metadata", "it must be a mapping of names to texts"),)
    return {name: _flatten(value) for name, value in field.is_.items()}, ()


def _flatten(field: FrontMatterValue) -> str:
    """Return a nested value as one text."""
    if isinstance(field.is_, dict):
        return ", ".join(f"{name}: {_flatten(value)}" for name, value in field.is_.items())
    return field.is_ if isinstance(field.is_, str) else ", ".join(map(_flatten, field.is_))
