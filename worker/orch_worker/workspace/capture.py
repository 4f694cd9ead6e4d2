"""Which results of tools are worth keeping track of, and what is said of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from orch_protocol.core.workspace import Artifact

__all__ = ["NOT_KEPT", "WRITES", "artifact_of", "first_path", "handle_in", "handle_of", "one_line", "paths_read"]

WRITES: Final = frozenset({"write_file", "replace_in_file"})
NOT_KEPT: Final = frozenset(
    {
        *("run_python", "describe_variables", "read_handle", "replace_in_file", "list_files", "git_status"),
        *("bg_status", "bg_kill", "py_help", "installed_packages", "list_models", "pin_object"),
        *("remember", "recall", "exit_plan_mode", "task_create", "task_update"),
        *("search_archive", "read_archive", "map_subagents", "spawn_subagent", "query_subagent", "collect_subagent"),
        *("wait_subagents", "list_subagents", "kill_subagent"),
    }
)
"""Tools whose results are no objects, or kept track of by others: what Python binds are values, agents are archived."""

MAIN: Final = ("path", "url", "query", "pattern", "command", "code", "file", "name", "id")
LONGEST_NAME: Final = 120
LONGEST_ARGUMENT: Final = 200
MOST_PATHS: Final = 20
LEAST: Final = 16
"""A shorter result is no object, but an answer."""
READ: Final = 20_000
_NUMBERED: Final = re.compile(r"^[ \t]*+\d++[\t:| ] ?", re.MULTILINE)
_NOTE: Final = re.compile(r"^\[.*\]$", re.MULTILINE)
_DEFINED: Final = re.compile(
    r"^[ \t]*+(?:export |pub |public |static |async |abstract |final )*"
    r"(?:def|class|function|func|fn|struct|enum|trait|interface|type|impl|module)\s+([A-Za-z_]\w*)",
    re.MULTILINE,
)
_HEADING: Final = re.compile(r"^#{1,4} +(\S.*)$", re.MULTILINE)
_HANDLE: Final = re.compile(r"read_handle with (\.h_\d{3,}) shows")
_MATCH: Final = re.compile(r"^(.+?):\d+: ", re.MULTILINE)


def artifact_of(tool: str, input: Mapping[str, Any], text: str, *, most: int) -> Artifact | None:
    """Return what the result `text` of a call is kept as, without where it is from; None when it is not worth it.

    Its summary has at most `most` characters.
    """
    if tool in NOT_KEPT or (len(text) < LEAST and tool not in WRITES):
        return None
    content = input.get("content")
    whole = content if tool in WRITES and isinstance(content, str) else text
    said = {name: one_line(value, LONGEST_ARGUMENT) for name, value in input.items() if name != "content"}
    name, kind, summary = _named(tool, input, text)
    if not name:
        return None
    return Artifact(
        one_line(name, LONGEST_NAME),
        kind,
        one_line(summary, most),
        tool,
        said,
        size=len(whole.encode("utf-8", "replace")),
    )


def _named(tool: str, input: Mapping[str, Any], text: str) -> tuple[str, str, str]:
    """Return the name, kind and summary of what a call came to."""
    path, first = first_path(input), next((str(input[name]) for name in MAIN if input.get(name)), "")
    match tool:
        case "read_file":
            return f"file:{path}", "file", _read(text)
        case "write_file":
            return f"file:{path}", "file", _contents(str(input.get("content", "")))
        case "describe_data":
            return f"table:{path}", "table", text.partition(": ")[2]
        case "grep_files":
            return f"search:{first_of(input, 'pattern')} in {path or '.'}", "search", _matches(text)
        case "web_search":
            return f"search:{first_of(input, 'query')}", "search", text
        case "fetch_url":
            return f"page:{first_of(input, 'url')}", "page", _contents(text)
    return f"result:{f'{tool} {first}'.strip()}", "result", _ends(text)


def first_of(input: Mapping[str, Any], name: str) -> str:
    """Return an argument as text."""
    value = input.get(name)
    return value if isinstance(value, str) else ""


def first_path(input: Mapping[str, Any]) -> str:
    """Return the path that a call names, "" for none."""
    return first_of(input, "path")


def paths_read(tool: str, input: Mapping[str, Any], text: str) -> tuple[str, ...]:
    """Return the files that the result `text` of a call was made from, as far as it tells."""
    if tool in ("read_file", "write_file", "describe_data"):
        return (first_path(input),)
    if tool == "grep_files":
        return tuple(dict.fromkeys(_MATCH.findall(text[:READ])))[:MOST_PATHS]
    return ()


def one_line(value: Any, most: int) -> str:
    """Return `value` as text on one line, of at most `most` characters, without anything that begins something new."""
    text = value if isinstance(value, str) else repr(value)
    line = " ".join("".join(each if each.isprintable() else " " for each in text[: 20 * most]).split())
    return line if len(line) <= most else f"{line[: most - 3].rstrip()}..."


def _read(text: str) -> str:
    return _contents(_NUMBERED.sub("", _NOTE.sub("", text[:READ])))


def _contents(text: str) -> str:
    """Return what a text is about: what it defines, its headings, or else how it begins."""
    text = text[:READ]
    for pattern, what in ((_DEFINED, "defines"), (_HEADING, "headings:")):
        if len(found := list(dict.fromkeys(pattern.findall(text)))) > 1:
            return f"{_first_line(text)} ... {what} {', '.join(found)}"
    return text


def _first_line(text: str) -> str:
    return one_line(next((line for line in text.splitlines() if line.strip()), ""), 80)


def _matches(text: str) -> str:
    files = _MATCH.findall(text[:READ])
    if not files:
        return text
    names = list(dict.fromkeys(files))
    return f"{len(files)} matching lines in {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}: {text[:READ]}"


def _ends(text: str) -> str:
    """Return how a result begins and how it ends: of a command the end says most."""
    lines = [line for line in text.splitlines() if line.strip()]
    return text if len(lines) <= 4 else " / ".join((*lines[:2], "...", *lines[-2:]))


def handle_of(tool: str, input: Mapping[str, Any]) -> str:
    """Return the handle that a call reads, "" when it reads none."""
    handle = first_of(input, "handle") if tool == "read_handle" else ""
    return f".{handle.strip().lstrip('.')}" if handle else ""


def handle_in(shown: str) -> str:
    """Return the handle under which the whole is kept of a text that was cut, "" for none."""
    found = _HANDLE.search(shown)
    return found[1] if found else ""
