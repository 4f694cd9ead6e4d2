"""What can be written where the cursor is: commands, agents, paths. Data in, data out, but for the names of files."""

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
MOST: Final = 200
List = Callable[[str], Sequence[str]]


class Suggestion(Struct, frozen=True):
    """`text` in place of the last `length` characters before the cursor; `about` says what it is."""

    text: str
    length: int
    about: str = ""


def suggestions(
    before: str,
    commands: Mapping[str, str],
    rows: Sequence[dict[str, Any]] = (),
    arguments: Callable[[str], Sequence[dict[str, Any]]] = lambda _: (),
    *,
    cwd: str = ".",
    listed: List | None = None,
) -> list[Suggestion]:
    """Return what may stand at the end of `before`: a command of `commands` (each with what it does) where a line
    begins with a slash, behind it what its `arguments` may be, an agent of `rows` behind an `@`, or a path as seen from
    `cwd`."""
    if COMMAND.match(before):
        names = sorted(name for name in commands if name.startswith(before[1:]))
        return [Suggestion(f"/{name}", len(before), commands[name]) for name in names]
    found = WORD.search(before)
    word = found[0] if found is not None else ""
    taken = arguments(before[1:].split(None, 1)[0]) if before.startswith("/") and before[1:].strip() else ()
    agents = word.startswith("@") or any(each["kind"] == "agent" for each in taken)
    return [
        *(_agents(word, rows) if agents else ()),
        *_choices(word, taken, commands),
        *_paths(word, cwd, listed or _listed),
    ][:MOST]


def agent_completions(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield what each agent can be called, and what it is for."""
    for row in rows:
        yield row["name"], f"{row['seq']}, {row['status']}: {row['task']}"


def _agents(word: str, rows: Sequence[dict[str, Any]]) -> Iterator[Suggestion]:
    begun = word.removeprefix("@")
    for name, about in agent_completions(rows):
        if name.startswith(begun) and name.isprintable():
            yield Suggestion(name, len(word), terminal.truncate_line(about))


def _choices(word: str, arguments: Sequence[dict[str, Any]], commands: Mapping[str, str]) -> Iterator[Suggestion]:
    for each in arguments:
        names = [f"--{each['name']}"] if each["option"] else []
        names += sorted(commands) if each["kind"] == "command" else each["choices"]
        for name in names:
            if name.startswith(word):
                yield Suggestion(name, len(word))


def _paths(word: str, cwd: str, listed: List) -> Iterator[Suggestion]:
    word = word.removeprefix("@")
    if not word:
        return
    folder, begun = os.path.split(word)
    for name in sorted(listed(os.path.join(cwd, os.path.expanduser(folder)) if folder else cwd)):
        # A name that a terminal would obey, or that is two words, is better written by hand.
        if name.startswith(begun) and (begun or not name.startswith(".")) and name.isprintable() and " " not in name:
            yield Suggestion(name, len(begun))


def _listed(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries]
    except OSError:
        return []
