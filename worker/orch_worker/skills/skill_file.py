"""`SKILL.md`: a skill as a file, by the rules of agentskills.io; each breach of them is told with line and field."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec import Struct

from orch_protocol.core.errors import ConfigError

__all__ = [
    "FILES",
    "SkillFile",
    "SkillProblem",
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
MOST_BYTES: Final = 1 << 20
MOST_HEAD: Final = 1 << 14
"""Of the front matter, in characters: reading it takes its time, and anybody may have written it."""
MOST: Final = {"name": 64, "description": 1024, "compatibility": 500}
FENCE: Final = re.compile(r"---[ \t]*")
TOOL: Final = re.compile(r"[^\s,(]+(?:\([^)]*\)?)?")
"""The name of a tool, and in parentheses what of it."""


class SkillProblem(Struct, frozen=True):
    """A rule that a skill breaks: on which line (0: the folder), in which field, and what to do."""

    line: int
    field: str
    what: str

    def __str__(self) -> str:
        where = ", ".join(filter(None, (f"line {self.line}" if self.line else "", self.field)))
        return f"{where}: {self.what}" if where else self.what


class SkillFile(Struct, frozen=True):
    """What a `SKILL.md` says: its front matter, and the `body` below it. `allowed` is None when it names no tools."""

    name: str
    description: str
    license: str = ""
    compatibility: str = ""
    metadata: dict[str, str] = {}
    allowed: tuple[str, ...] | None = None
    body: str = ""


class FrontMatterError(Exception):
    """The front matter cannot be taken as one."""

    def __init__(self, line: int, field: str, what: str) -> None:
        super().__init__(what)
        self.problem = SkillProblem(line, field, what)


class FrontMatterValue(Struct, frozen=True):
    """A value in the front matter, and the line where it begins."""

    line: int
    is_: Said


Said: TypeAlias = "str | list[FrontMatterValue] | dict[str, FrontMatterValue]"


def file_of(folder: Path) -> Path:
    """Return the file in `folder` that makes it a skill. Raises ConfigError when there is none."""
    for name in FILES:
        if (folder / name).is_file():
            return folder / name
    raise ConfigError(f"{folder} is not a skill: it has no {FILES[0]}")


def name_in(file: Path) -> str:
    """Return the name that the skill in `file` gives itself, "" when it has none that can be read."""
    try:
        with file.open("rb") as opened:
            said = _mapping(_parted(opened.read(MOST_BYTES).decode())[0]).get("name")
    except (FrontMatterError, OSError, UnicodeDecodeError):
        return ""
    return said.is_.strip() if said is not None and isinstance(said.is_, str) else ""


def read_skill_file(folder: Path) -> SkillFile:
    """Return the skill in `folder`. Raises ConfigError, which names the file and tells of all that is wrong."""
    found, problems = check_skill(folder)
    if problems or found is None:
        raise ConfigError(f"{folder / FILES[0]}: {'; '.join(map(str, problems))}")
    return found


def check_skill(folder: Path) -> tuple[SkillFile | None, tuple[SkillProblem, ...]]:
    """Return the skill in `folder`, None where it is not one, and every rule that it breaks. Raises ConfigError."""
    file = file_of(folder)
    try:
        with file.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    return parse_data(data, folder.name)


def parse_data(data: bytes, folder: str) -> tuple[SkillFile | None, tuple[SkillProblem, ...]]:
    """Return the skill that a file of `data` is, as `parse_skill` does its text."""
    if len(data) > MOST_BYTES:
        what = f"it is over {MOST_BYTES >> 20} MiB: put what is long into files beside it"
        return None, (SkillProblem(0, "", what),)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        what = f"not UTF-8 (byte 0x{data[error.start]:02x}): save it as UTF-8"
        return None, (SkillProblem(data.count(b"\n", 0, error.start) + 1, "", what),)
    return parse_skill(text, folder)


def skill_in(contents: Mapping[str, bytes], folder: Path) -> SkillFile:
    """Return the skill that the files of `folder` make, as they were read. Raises ConfigError, as read_skill_file."""
    main = main_of(contents)
    if not main:
        raise ConfigError(f"{folder} is not a skill: it has no {FILES[0]}")
    found, problems = parse_data(contents[main], folder.name)
    if found is None:
        raise ConfigError(f"{folder / main}: {'; '.join(map(str, problems))}")
    return found


def main_of(names: Container[str]) -> str:
    """Return which of the files of a folder makes it a skill, "" when none does."""
    return next((name for name in FILES if name in names), "")


def parse_skill(text: str, folder: str) -> tuple[SkillFile | None, tuple[SkillProblem, ...]]:
    """Return the skill that `text` is in a folder of that name, None where it is not one, and the rules it breaks."""
    try:
        head, body = _parted(text)
        said = _mapping(head)
    except FrontMatterError as error:
        return None, (error.problem,)
    problems = [
        SkillProblem(value.line, name, f"there is no such field; there are {', '.join(FIELDS)}")
        for name, value in said.items()
        if name not in FIELDS
    ]
    problems += (
        SkillProblem(1, name, "it is missing: the front matter needs name and description")
        for name in ("name", "description")
        if name not in said
    )
    texts = {}
    for name in ("name", "description", "license", "compatibility"):
        if name in said:
            value = said[name]
            if not isinstance(value.is_, str):
                problems.append(SkillProblem(value.line, name, "it is to be text"))
                continue
            texts[name] = value.is_
            problems += (SkillProblem(value.line, name, what) for what in _text_rules(name, value.is_, folder))
    metadata, wrong = _metadata(said.get("metadata"))
    allowed, also = _allowed(said.get("allowed-tools"))
    problems += (*wrong, *also)
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
    """Return what `text` says below its front matter; all of it, where it has none."""
    try:
        return _parted(text)[1]
    except FrontMatterError:
        return text.strip()


def _text_rules(name: str, text: str, folder: str) -> Iterator[str]:
    if name in ("name", "description") and not text.strip():
        yield "it is empty: say something"
        return
    most = MOST.get(name)
    counted = unicodedata.normalize("NFKC", text.strip()) if name == "name" else text
    if most is not None and len(counted) > most:
        yield f"it has {len(counted)} characters: at most {most}"
    if name != "name":
        return
    if counted != counted.lower():
        yield f"{counted!r} has capital letters: write {counted.lower()!r}"
    if not all(each.isalnum() or each == "-" for each in counted):
        yield f"{counted!r} has other signs than letters, digits and hyphens: leave them out"
    if counted.startswith("-") or counted.endswith("-") or "--" in counted:
        yield f"{counted!r}: a hyphen stands between two letters or digits, one at a time"
    if unicodedata.normalize("NFKC", folder) != counted:
        yield f"it is {counted!r} and its folder is called {folder!r}: they are to be the same"


def _metadata(said: FrontMatterValue | None) -> tuple[dict[str, str], tuple[SkillProblem, ...]]:
    if said is None or said.is_ == "":
        return {}, ()
    if not isinstance(said.is_, dict):
        return {}, (SkillProblem(said.line, "metadata", "it is to be a mapping of names to texts"),)
    return {name: _flat(value) for name, value in said.is_.items()}, ()


def _flat(said: FrontMatterValue) -> str:
    """Return what stands deeper than a text should, as a text."""
    if isinstance(said.is_, dict):
        return ", ".join(f"{name}: {_flat(value)}" for name, value in said.is_.items())
    return said.is_ if isinstance(said.is_, str) else ", ".join(map(_flat, said.is_))


def _allowed(said: FrontMatterValue | None) -> tuple[tuple[str, ...] | None, tuple[SkillProblem, ...]]:
    if said is None or said.is_ == "":
        return None, ()
    items = said.is_ if isinstance(said.is_, list) else [said]
    if isinstance(said.is_, dict) or not all(isinstance(item.is_, str) for item in items):
        return None, (SkillProblem(said.line, "allowed-tools", "it is to be names of tools, apart by spaces"),)
    return tuple(name for item in items for name in TOOL.findall(str(item.is_))), ()


# The front matter: the part of YAML that the format uses, in which every value is a text.


def _parted(text: str) -> tuple[str, str]:
    """Return front matter and body. Raises Broken."""
    lines = text.replace("\r\n", "\n").split("\n")
    if not FENCE.fullmatch(lines[0]):
        marked = "; it begins with a byte order mark: save it without" if text.startswith("\ufeff") else ""
        raise FrontMatterError(1, "", f"the first line is to be ---, and front matter to follow{marked}")
    for number, line in enumerate(lines[1:], 1):
        if FENCE.fullmatch(line):
            return "\n".join(lines[1:number]), "\n".join(lines[number + 1 :]).strip()
    raise FrontMatterError(1, "", "the front matter does not end: close it with a line ---")


def _mapping(head: str) -> dict[str, FrontMatterValue]:
    if len(head) > MOST_HEAD:
        raise FrontMatterError(
            2, "", f"the front matter has {len(head):,} characters: at most {MOST_HEAD:,}, the rest below it"
        )
    # It takes its time to import, and most agents have no skills.
    import yaml

    try:
        events = yaml.parse(head, yaml.BaseLoader)
        said = next(
            (_value(event, events) for event in events if isinstance(event, yaml.NodeEvent)), FrontMatterValue(2, "")
        )
        if any(isinstance(event, yaml.DocumentStartEvent) for event in events):
            raise FrontMatterError(2, "", "the front matter is one document, not several")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 2 if mark is not None else 1
        what = " ".join(filter(None, (error.problem, error.context)))
        raise FrontMatterError(
            line, "", f"not YAML: {what}; a text with a colon or a # in it stands in quotes"
        ) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise FrontMatterError(1, "", f"not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(said.is_, dict):
        raise FrontMatterError(said.line, "", "the front matter is to be lines of the form name: value")
    return said.is_


def _value(event: Any, events: Iterator[Any]) -> FrontMatterValue:
    """Return the value that `event` begins, the others of which are the next ones of `events`. Raises Broken."""
    import yaml

    line = event.start_mark.line + 2  # counted from 0, and below the fence
    if isinstance(event, yaml.AliasEvent) or event.anchor:
        raise FrontMatterError(
            line, "", "anchors and aliases (& and *) are not allowed: write the text out, or in quotes"
        )
    if event.tag and not (isinstance(event, yaml.ScalarEvent) and any(event.implicit)):
        raise FrontMatterError(line, "", "tags (!) are not allowed: write the text, in quotes")
    if isinstance(event, yaml.ScalarEvent):
        return FrontMatterValue(line, event.value)
    if event.flow_style:
        raise FrontMatterError(line, "", "[...] and {...} are not allowed: write a line each, or the text in quotes")
    if isinstance(event, yaml.SequenceStartEvent):
        listed: list[FrontMatterValue] = []
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            listed.append(_value(item, events))
        return FrontMatterValue(line, listed)
    found: dict[str, FrontMatterValue] = {}
    while not isinstance(key := next(events), yaml.MappingEndEvent):
        name = _value(key, events)
        if not isinstance(name.is_, str):
            raise FrontMatterError(name.line, "", "a name is a text")
        if name.is_ in found:
            raise FrontMatterError(name.line, name.is_, "it is there twice: once is all it can be")
        value = _value(next(events), events)
        found[name.is_] = FrontMatterValue(name.line, value.is_)
    return FrontMatterValue(line, found)
