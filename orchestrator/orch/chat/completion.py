"""Completions at the cursor: commands, agents and paths. Except for listing files, the functions are pure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from ..render import terminal

__all__ = ["Suggestion", "agent_completions", "suggestions"]

WORD: Final = re.compile(r"\S*\Z")
COMMAND: Final = re.compile(r"/[\w.:-]*\Z")
MAX_SUGGESTIONS: Final = 200
List = Callable[[str], Sequence[str]]


class Suggestion(Struct, frozen=True):
    """A completion.

    `text` replaces the last `length` characters before the cursor; `description` describes the completion.
    """

    text: str
    length: int
    description: str = ""


def suggestions(
    before: str,
    commands: Mapping[str, str],
    rows: Sequence[dict[str, Any]] = (),
    arguments: Callable[[str], Sequence[dict[str, Any]]] = lambda _: (),
    *,
    cwd: str = ".",
    list_folder: List | None = None,
) -> list[Suggestion]:
    """Return completions of the text `before` the cursor.

    After a slash at the beginning of a line, the completions are `commands` (with summaries). After a command, the
    completions are the `arguments` of the command. After an `@`, the completions are agents in `rows`. Paths are
    relative to `cwd`.
    """
    if COMMAND.match(before):
        names = sorted(name for name in commands if name.startswith(before[1:]))
        return [Suggestion(f"/{name}", len(before), commands[name]) for name in names]
    match = WORD.search(before)
    word = match[0] if match is not None else ""
    command_arguments = arguments(before[1:].split(None, 1)[0]) if before.startswith("/") and before[1:].strip() else ()
    agents = word.startswith("@") or any(each["kind"] == "agent" for each in command_arguments)
    return [
        *(_agents(word, rows) if agents else ()),
        *_choices(word, command_arguments, commands),
        *_paths(word, cwd, list_folder or _list_folder),
    ][:MAX_SUGGESTIONS]


def agent_completions(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the name of each agent and its description."""
    for row in rows:
        yield row["name"], f"{row['seq']}, {row['status']}: {row['task']}"


def _agents(word: str, rows: Sequence[dict[str, Any]]) -> Iterator[Suggestion]:
    prefix = word.removeprefix("@")
    for name, description in agent_completions(rows):
        if name.startswith(prefix) and name.isprintable():
            yield Suggestion(name, len(word), terminal.truncate_line(description))


def _choices(word: str, arguments: Sequence[dict[str, Any]], commands: Mapping[str, str]) -> Iterator[Suggestion]:
    for each in arguments:
        names = [f"--{each['name']}"] if each["option"] else []
        names += sorted(commands) if each["kind"] == "command" else each["choices"]
        for name in names:
            if name.startswith(word):
                yield Suggestion(name, len(word))


def _paths(word: str, cwd: str, list_folder: List) -> Iterator[Suggestion]:
    word = word.removeprefix("@")
    if not word:
        return
    folder, prefix = os.path.split(word)
    for name in sorted(list_folder(os.path.join(cwd, os.path.expanduser(folder)) if folder else cwd)):
        # Names with control characters or spaces are skipped.
        if name.startswith(prefix) and (prefix or not name.startswith(".")) and name.isprintable() and " " not in name:
            yield Suggestion(name, len(prefix))


def _list_folder(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries]
    except OSError:
        return []
