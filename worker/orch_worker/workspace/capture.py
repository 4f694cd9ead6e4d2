"""Decides which tool results become artifacts of the workspace, and summarizes them. This module does no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from orch_protocol.core.workspace import Artifact
from orch_protocol.policy.builtin_tools import FILE_WRITERS, facts_of

__all__ = [
    "artifact_of",
    "handle_read",
    "handle_shown",
    "one_line",
    "path_argument",
    "paths_read",
]

MAIN_ARGUMENTS: Final = ("path", "url", "query", "pattern", "command", "code", "file", "name", "id")
MAX_NAME_CHARS: Final = 120
MAX_ARGUMENT_CHARS: Final = 200
MAX_PATHS: Final = 20
MIN_RESULT_CHARS: Final = 16
"""Minimum length of a result that becomes an artifact, in characters."""
MAX_SCANNED_CHARS: Final = 20_000
_LINE_NUMBER: Final = re.compile(r"^[ \t]*+\d++[\t:| ] ?", re.MULTILINE)
_NOTE: Final = re.compile(r"^\[.*\]$", re.MULTILINE)
_DEFINITION: Final = re.compile(
    r"^[ \t]*+(?:export |pub |public |static |async |abstract |final )*"
    r"(?:def|class|function|func|fn|struct|enum|trait|interface|type|impl|module)\s+([A-Za-z_]\w*)",
    re.MULTILINE,
)
_HEADING: Final = re.compile(r"^#{1,4} +(\S.*)$", re.MULTILINE)
_HANDLE: Final = re.compile(r"read_handle with (\.h_\d{3,}) shows")
_MATCH: Final = re.compile(r"^(.+?):\d+: ", re.MULTILINE)


def artifact_of(tool: str, input: Mapping[str, Any], text: str, *, limit: int) -> Artifact | None:
    """Return the artifact for the result `text` of a call. Return None if the result is not worth keeping.

    The artifact has no origin yet. The summary of the artifact has at most `limit` characters.
    """
    if not facts_of(tool).artifact or (len(text) < MIN_RESULT_CHARS and tool not in FILE_WRITERS):
        return None
    content = input.get("content")
    full_text = content if tool in FILE_WRITERS and isinstance(content, str) else text
    arguments = {name: one_line(value, MAX_ARGUMENT_CHARS) for name, value in input.items() if name != "content"}
    name, kind, summary = _describe_result(tool, input, text)
    if not name:
        return None
    return Artifact(
        one_line(name, MAX_NAME_CHARS),
        kind,
        one_line(summary, limit),
        tool,
        arguments,
        size=len(full_text.encode("utf-8", "replace")),
    )


def _describe_result(tool: str, input: Mapping[str, Any], text: str) -> tuple[str, str, str]:
    """Return the name, kind and summary of the result of a call."""
    path, main_argument = (
        path_argument(input),
        next((str(input[name]) for name in MAIN_ARGUMENTS if input.get(name)), ""),
    )
    match tool:
        case "read_file":
            return f"file:{path}", "file", _outline_numbered(text)
        case "write_file":
            return f"file:{path}", "file", _outline(str(input.get("content", "")))
        case "describe_data":
            return f"table:{path}", "table", text.partition(": ")[2]
        case "grep_files":
            return f"search:{string_argument(input, 'pattern')} in {path or '.'}", "search", _summarize_matches(text)
        case "web_search":
            return f"search:{string_argument(input, 'query')}", "search", text
        case "fetch_url":
            return f"page:{string_argument(input, 'url')}", "page", _outline(text)
    return f"result:{f'{tool} {main_argument}'.strip()}", "result", _first_and_last_lines(text)


def string_argument(input: Mapping[str, Any], name: str) -> str:
    """Return the argument `name` if the argument is a string, otherwise ""."""
    value = input.get(name)
    return value if isinstance(value, str) else ""


def path_argument(input: Mapping[str, Any]) -> str:
    """Return the path argument of a call, or ""."""
    return string_argument(input, "path")


def paths_read(tool: str, input: Mapping[str, Any], text: str) -> tuple[str, ...]:
    """Return the files from which the result `text` of a call was made, as far as the call shows them."""
    if tool in ("read_file", "write_file", "describe_data"):
        return (path_argument(input),)
    if tool == "grep_files":
        return tuple(dict.fromkeys(_MATCH.findall(text[:MAX_SCANNED_CHARS])))[:MAX_PATHS]
    return ()


def one_line(value: Any, limit: int) -> str:
    """Return `value` as one line of at most `limit` printable characters."""
    text = value if isinstance(value, str) else repr(value)
    line = " ".join("".join(each if each.isprintable() else " " for each in text[: 20 * limit]).split())
    return line if len(line) <= limit else f"{line[: limit - 3].rstrip()}..."


def _outline_numbered(text: str) -> str:
    return _outline(_LINE_NUMBER.sub("", _NOTE.sub("", text[:MAX_SCANNED_CHARS])))


def _outline(text: str) -> str:
    """Return an outline of a text: its definitions or its headings. If there are none, return the text itself."""
    text = text[:MAX_SCANNED_CHARS]
    for pattern, label in ((_DEFINITION, "defines"), (_HEADING, "headings:")):
        if len(found := list(dict.fromkeys(pattern.findall(text)))) > 1:
            return f"{_first_line(text)} ... {label} {', '.join(found)}"
    return text


def _first_line(text: str) -> str:
    return one_line(next((line for line in text.splitlines() if line.strip()), ""), 80)


def _summarize_matches(text: str) -> str:
    files = _MATCH.findall(text[:MAX_SCANNED_CHARS])
    if not files:
        return text
    unique_files = list(dict.fromkeys(files))
    names = f"{', '.join(unique_files[:8])}{', ...' if len(unique_files) > 8 else ''}"
    return f"{len(files)} matching lines in {names}: {text[:MAX_SCANNED_CHARS]}"


def _first_and_last_lines(text: str) -> str:
    """Return the first and last lines of a result. The last lines of a command's output are the most important."""
    lines = [line for line in text.splitlines() if line.strip()]
    return text if len(lines) <= 4 else " / ".join((*lines[:2], "...", *lines[-2:]))


def handle_read(tool: str, input: Mapping[str, Any]) -> str:
    """Return the handle that a call reads, or ""."""
    handle = string_argument(input, "handle") if tool == "read_handle" else ""
    return f".{handle.strip().lstrip('.')}" if handle else ""


def handle_shown(shown: str) -> str:
    """Return the handle under which the complete form of a shortened text is stored, or ""."""
    found = _HANDLE.search(shown)
    return found[1] if found else ""
