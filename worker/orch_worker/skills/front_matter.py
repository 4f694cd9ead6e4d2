"""Front matter: fields in a subset of YAML at the beginning of a Markdown file. Every scalar is a string."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from msgspec import Struct

__all__ = [
    "FrontMatterError",
    "FrontMatterProblem",
    "FrontMatterValue",
    "parse_front_matter",
    "split_front_matter",
    "tool_names",
]

MAX_HEAD: Final = 1 << 14
"""Maximum number of characters of the front matter, because parsing untrusted YAML takes time."""
FENCE_PATTERN: Final = re.compile(r"---[ \t]*")
TOOL_PATTERN: Final = re.compile(r"[^\s,(]+(?:\([^)]*\)?)?")
"""The name of a tool, with an optional restriction in parentheses."""


class FrontMatterProblem(Struct, frozen=True):
    """A violated rule in a file: the line (0 means the whole file), the field, and how to correct the file."""

    line: int
    field: str
    what: str

    def __str__(self) -> str:
        where = ", ".join(filter(None, (f"line {self.line}" if self.line else "", self.field)))
        return f"{where}: {self.what}" if where else self.what


class FrontMatterError(Exception):
    """The front matter is invalid."""

    def __init__(self, line: int, field: str, what: str) -> None:
        super().__init__(what)
        self.problem = FrontMatterProblem(line, field, what)


class FrontMatterValue(Struct, frozen=True):
    """A value in the front matter, and the number of the value's first line."""

    line: int
    is_: FieldValue


FieldValue: TypeAlias = "str | list[FrontMatterValue] | dict[str, FrontMatterValue]"


def parse_front_matter(text: str) -> tuple[dict[str, FrontMatterValue], str]:
    """Return the fields of `text` and the body below the fields. Raise FrontMatterError for invalid front matter."""
    header, body = split_front_matter(text)
    return _parse_mapping(header), body


def tool_names(
    field: str, value: FrontMatterValue | None
) -> tuple[tuple[str, ...] | None, tuple[FrontMatterProblem, ...]]:
    """Return the names of tools in the value of `field`, and the problems of the value.

    The names are None if the field is missing.
    """
    if value is None or value.is_ == "":
        return None, ()
    items = value.is_ if isinstance(value.is_, list) else [value]
    if isinstance(value.is_, dict) or not all(isinstance(item.is_, str) for item in items):
        return None, (FrontMatterProblem(value.line, field, "it must be names of tools, separated by spaces"),)
    return tuple(name for item in items for name in TOOL_PATTERN.findall(str(item.is_))), ()


def split_front_matter(text: str) -> tuple[str, str]:
    """Return the front matter and the body of `text`. Raise FrontMatterError for invalid front matter."""
    lines = text.replace("\r\n", "\n").split("\n")
    if not FENCE_PATTERN.fullmatch(lines[0]):
        raise FrontMatterError(1, "", "the first line must be ---, followed by the front matter")
    for number, line in enumerate(lines[1:], 1):
        if FENCE_PATTERN.fullmatch(line):
            return "\n".join(lines[1:number]), "\n".join(lines[number + 1 :]).strip()
    raise FrontMatterError(1, "", "the front matter has no end: add a line --- after it")


def _parse_mapping(header: str) -> dict[str, FrontMatterValue]:
    if len(header) > MAX_HEAD:
        raise FrontMatterError(
            2,
            "",
            f"the front matter has {len(header):,} characters, but at most {MAX_HEAD:,} are allowed: "
            "move text below it",
        )
    # This module is imported here because the import is slow and most agents have no skills.
    import yaml

    try:
        events = yaml.parse(header, yaml.BaseLoader)
        value = next(
            (_parse_value(event, events) for event in events if isinstance(event, yaml.NodeEvent)),
            FrontMatterValue(2, ""),
        )
        if any(isinstance(event, yaml.DocumentStartEvent) for event in events):
            raise FrontMatterError(2, "", "the front matter must be a single YAML document")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 2 if mark is not None else 1
        message = " ".join(filter(None, (error.problem, error.context)))
        raise FrontMatterError(
            line, "", f"not YAML: {message}; put a text that contains a colon or a # in quotes"
        ) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise FrontMatterError(1, "", f"not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value.is_, dict):
        raise FrontMatterError(value.line, "", "the front matter must consist of lines of the form name: value")
    return value.is_


def _parse_value(event: Any, events: Iterator[Any]) -> FrontMatterValue:
    """Return the value that starts with `event`. Read the rest of the value from `events`.

    Raise FrontMatterError for an invalid value.
    """
    import yaml

    line = event.start_mark.line + 2  # Marks count lines from 0, and the first line is the fence.
    if isinstance(event, yaml.AliasEvent) or event.anchor:
        raise FrontMatterError(
            line, "", "anchors and aliases (& and *) are not allowed: repeat the text, or put it in quotes"
        )
    if event.tag and not (isinstance(event, yaml.ScalarEvent) and any(event.implicit)):
        raise FrontMatterError(line, "", "tags (!) are not allowed: put the text in quotes")
    if isinstance(event, yaml.ScalarEvent):
        return FrontMatterValue(line, event.value)
    if event.flow_style:
        raise FrontMatterError(
            line, "", "[...] and {...} are not allowed: use one line for each item, or put the text in quotes"
        )
    if isinstance(event, yaml.SequenceStartEvent):
        items: list[FrontMatterValue] = []
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            items.append(_parse_value(item, events))
        return FrontMatterValue(line, items)
    fields: dict[str, FrontMatterValue] = {}
    while not isinstance(key := next(events), yaml.MappingEndEvent):
        name = _parse_value(key, events)
        if not isinstance(name.is_, str):
            raise FrontMatterError(name.line, "", "a name must be text")
        if name.is_ in fields:
            raise FrontMatterError(name.line, name.is_, "the field occurs twice: remove one of them")
        value = _parse_value(next(events), events)
        fields[name.is_] = FrontMatterValue(name.line, value.is_)
    return FrontMatterValue(line, fields)
