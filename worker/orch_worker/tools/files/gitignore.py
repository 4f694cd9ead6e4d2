"""Patterns of file names, as Git writes them, as regular expressions that are soon done, whoever wrote them. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Final

from ...system.files import regular_open_regular
from ...system.safe_descent import FOLDER, open_below
from ..api.base import ToolError

__all__ = ["Note", "expand_braces", "glob_regex", "top_level", "walk"]


NAME: Final = "[^/]*"
ANY: Final = ".*"
FOLDERS: Final = "(?:.*/)?"
EARLY: Final = {"": "", NAME: "[^/]*?", ANY: ".*?", FOLDERS: "(?:.*?/)??"}
"""Each of them, so that it takes as little as it can."""

MOST_ALTERNATIVES: Final = 100

_BRACES: Final = re.compile(r"\{([^{}]*,[^{}]*)\}")
_MORE_STARS: Final = re.compile(r"(?<!\\)\*{3,}")
_CLASS: Final = re.compile(r"\[([!^]?)(\]?[^\]]*)\]")
_SPECIAL: Final = re.compile(r"([\\\[&~|])")

Piece = tuple[str, str]
"""What may stand before, one of the above or nothing, and a regex of so many characters."""


def expand_braces(pattern: str) -> list[str]:
    """Return what `pattern` stands for where braces hold one of several, `*.{c,h}`, as shells have it and Git has not;
    itself first, since names may have braces. Raises ToolError when that is too many."""
    found, whole = [pattern], [pattern]
    while whole:
        each = whole.pop()
        if match := _BRACES.search(each):
            whole += [f"{each[: match.start()]}{part}{each[match.end() :]}" for part in match[1].split(",")]
        elif each != pattern:
            found.append(each)
        if len(whole) + len(found) > MOST_ALTERNATIVES:
            raise ToolError(f"{pattern!r} has more than {MOST_ALTERNATIVES} alternatives: look for fewer at once.")
    return found


@lru_cache(maxsize=256)
def glob_regex(pattern: str) -> re.Pattern[str]:
    """Return `pattern` as a regex over a whole relative path. `*` stops at a slash, `**` does not.

    A pattern without a slash matches the last part alone, in any folder.
    """
    anchored = "/" in pattern.rstrip("/")
    try:
        return re.compile(_joined(_pieces("" if anchored else FOLDERS, pattern.strip("/"))), re.DOTALL)
    except re.error:
        return re.compile(re.escape(pattern))


def _pieces(before: str, rest: str) -> list[Piece]:
    rest = _MORE_STARS.sub("**", rest)
    pieces, fixed, whole = [], "", rest
    while rest:
        star = ""
        if rest.startswith("**/") and not fixed and before == FOLDERS:
            rest = rest[3:]  # any folders below any folders
            continue
        if rest.startswith("**/") and (rest == whole or fixed.endswith("/")):
            star, rest = FOLDERS, rest[3:]
        elif rest.startswith("**"):
            star, rest = NAME if rest.startswith("**/") else ANY, rest[2:]
        elif rest[0] == "*":
            star, rest = NAME, rest[1:]
        elif rest[0] == "?":
            fixed, rest = f"{fixed}[^/]", rest[1:]
        elif match := _CLASS.match(rest):
            inside = _SPECIAL.sub(r"\\\1", match[2])
            fixed, rest = f"{fixed}(?!/)[{'^' if match[1] else ''}{inside}]", rest[match.end() :]
        else:
            escaped = rest[0] == "\\" and len(rest) > 1
            fixed, rest = fixed + re.escape(rest[escaped]), rest[1 + escaped :]
        if star:
            pieces.append((before, fixed))
            before, fixed = star, ""
    return [*pieces, (before, fixed)]


def _joined(pieces: list[Piece]) -> str:
    """Return the regex of `pieces`.

    Whatever stands after a star is taken where it stands first, and not looked for again: that leaves the most for the
    rest. Else a few stars in a pattern of a stranger's would take longer than the universe lasts on one long name.
    """
    last = max((place for place, (star, _) in enumerate(pieces) if star in (ANY, FOLDERS)), default=0)
    out = ""
    for place, (star, fixed) in enumerate(pieces[:last]):
        if place and star == NAME:
            out = f"{out}(?>{EARLY[star]}{fixed})"
        else:
            out = f"{out}{')' if place else ''}(?>{EARLY[star]}{fixed}"
    out += ")" if last else ""
    first, *others = pieces[last:]
    out += "".join(first)
    for number, (star, fixed) in enumerate(others, 1):
        out += f"(?>{EARLY[star]}{fixed})" if number < len(others) else star + fixed
    return out


# --- Which files are not worth a look ---

ALWAYS: Final = frozenset(
    {".git", ".hg", ".svn", ".venv", ".tox", ".mypy_cache", ".pytest_cache", ".ruff_cache", "__pycache__"}
    | {"node_modules"}
)
MAX_GITIGNORE: Final = 1 << 16
MAX_RULES: Final = 1000
"""So many hold in a folder at most, those nearer to the root first: each is tried on each name."""
MAX_DEPTH: Final = 64

Note = Callable[[Path], object]
"""Told of each folder, and of each `.gitignore`, before it is looked at."""

Rule = tuple[re.Pattern[str], bool, bool]  # what it matches below its folder, negated, folders only


def walk(
    root: Path, start: Path, tickets: Iterator[object] | None = None, note: Note = lambda _: None
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the regular files and symbolic links below `start`, as path relative to `root` and entry.

    In a fixed order: the files of a folder by name, then its folders by name. Skips what `.gitignore` files from
    `root` down name, caches and dependencies; never follows a link to a folder, whatever is swapped meanwhile;
    unreadable folders are passed over. Of an entry only name and kind are to be asked.
    Each entry that is looked at takes one of the `tickets`; when there are no more of them, the walk is over.
    """
    prefix = "" if start == root else f"{start.relative_to(root).as_posix()}/"
    rules: list[tuple[str, list[Rule]]] = []
    parts = prefix.split("/")[:-1]
    for depth in range(len(parts)):
        folder = "".join(f"{part}/" for part in parts[:depth])
        rules = _with_those_of(folder, root, rules, note)
    yield from _walk(root, prefix, rules, 0, repeat(None) if tickets is None else tickets, note)


def top_level(
    root: Path, tickets: Iterator[object], note: Note = lambda _: None
) -> tuple[list[os.DirEntry[str]], list[os.DirEntry[str]]]:
    """Return the files of `root` itself and its folders, both by name, as `walk` would come upon them."""
    _, files, folders = _level(root, "", [], tickets, note)
    return files, folders


def _walk(
    root: Path, prefix: str, rules: list[tuple[str, list[Rule]]], depth: int, tickets: Iterator[object], note: Note
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    rules, files, folders = _level(root, prefix, rules, tickets, note)
    for entry in files:
        yield prefix + entry.name, entry
    if depth < MAX_DEPTH:
        for entry in folders:
            yield from _walk(root, f"{prefix}{entry.name}/", rules, depth + 1, tickets, note)


def _level(
    root: Path, prefix: str, rules: list[tuple[str, list[Rule]]], tickets: Iterator[object], note: Note
) -> tuple[list[tuple[str, list[Rule]]], list[os.DirEntry[str]], list[os.DirEntry[str]]]:
    """Return the rules that hold in the folder `prefix` of `root`, and its files and folders that no rule names."""
    files, folders = [], []
    note(root / prefix)
    try:
        descriptor = open_below(str(root), prefix.rstrip("/") or ".", FOLDER)
        try:
            with os.scandir(descriptor) as scan:
                entries = sorted((entry for _, entry in zip(tickets, scan, strict=False)), key=lambda entry: entry.name)
            if any(entry.name == ".gitignore" for entry in entries):
                rules = _with_those_of(prefix, root, rules, note)
            for entry in entries:  # while it is open: some systems must be asked what an entry is
                is_folder = entry.is_dir(follow_symlinks=False)
                if (is_folder and entry.name in ALWAYS) or _ignored(prefix + entry.name, is_folder, rules):
                    continue
                if is_folder:
                    folders.append(entry)
                elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                    files.append(entry)
        finally:
            os.close(descriptor)
    except OSError:
        return rules, [], []
    return rules, files, folders


def _ignored(path: str, is_folder: bool, rules: list[tuple[str, list[Rule]]]) -> bool:
    for prefix, found in reversed(rules):
        below = path[len(prefix) :]
        for regex, negated, folders_only in reversed(found):
            if (is_folder or not folders_only) and regex.fullmatch(below):
                return not negated
    return False


def _with_those_of(
    prefix: str, root: Path, rules: list[tuple[str, list[Rule]]], note: Note
) -> list[tuple[str, list[Rule]]]:
    most = MAX_RULES - sum(len(found) for _, found in rules)
    return [*rules, (prefix, _gitignore(root, prefix, most, note))]


def _gitignore(root: Path, prefix: str, most: int, note: Note) -> list[Rule]:
    note(root / prefix / ".gitignore")
    try:
        with regular_open_regular(root / prefix / ".gitignore", root) as file:
            text = file.read(MAX_GITIGNORE).decode(errors="replace")
    except OSError:
        return []
    rules: list[Rule] = []
    for line in text.splitlines():
        pattern = line.rstrip()
        if len(rules) < most and pattern and not pattern.startswith("#"):
            negated = pattern.startswith("!")
            pattern = pattern[negated:]
            rules.append((glob_regex(pattern), negated, pattern.endswith("/")))
    return rules
