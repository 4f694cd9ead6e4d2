"""Gitignore patterns as regular expressions without excessive backtracking, and a directory walk that applies them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Final

from orch_protocol.core.text import decode_text

from ...system.files import open_regular_file
from ...system.safe_descent import FOLDER, open_below
from ..api.base import ToolError

__all__ = ["OnRead", "expand_braces", "glob_regex", "top_level", "walk"]


NAME: Final = "[^/]*"
ANY: Final = ".*"
FOLDERS: Final = "(?:.*/)?"
NON_GREEDY: Final = {"": "", NAME: "[^/]*?", ANY: ".*?", FOLDERS: "(?:.*?/)??"}
"""Non-greedy forms of the wildcards."""

MAX_ALTERNATIVES: Final = 100

_BRACES: Final = re.compile(r"\{([^{}]*,[^{}]*)\}")
_MORE_STARS: Final = re.compile(r"(?<!\\)\*{3,}")
_CLASS: Final = re.compile(r"\[([!^]?)(\]?[^\]]*)\]")
_SPECIAL: Final = re.compile(r"([\\\[&~|])")

Piece = tuple[str, str]
"""A wildcard (or "") and the regular expression of the fixed-length text after the wildcard."""


def expand_braces(pattern: str) -> list[str]:
    """Return the alternatives of `pattern` with braces such as `*.{c,h}`. The first alternative is the pattern itself.

    Shells support braces, but git does not. The pattern itself is included because names may contain braces. Raise
    ToolError for too many alternatives.
    """
    found, pending = [pattern], [pattern]
    while pending:
        each = pending.pop()
        if match := _BRACES.search(each):
            pending += [f"{each[: match.start()]}{part}{each[match.end() :]}" for part in match[1].split(",")]
        elif each != pattern:
            found.append(each)
        if len(pending) + len(found) > MAX_ALTERNATIVES:
            raise ToolError(
                f"{pattern!r} has more than {MAX_ALTERNATIVES} alternatives: search for fewer alternatives at once."
            )
    return found


@lru_cache(maxsize=256)
def glob_regex(pattern: str) -> re.Pattern[str]:
    """Return a regular expression that matches whole relative paths. `*` does not match a slash, but `**` does.

    A pattern without a slash matches the last component of a path in any folder.
    """
    anchored = "/" in pattern.rstrip("/")
    try:
        return re.compile(_join_pieces(_split_pieces("" if anchored else FOLDERS, pattern.strip("/"))), re.DOTALL)
    except re.error:
        return re.compile(re.escape(pattern))


def _split_pieces(before: str, rest: str) -> list[Piece]:
    rest = _MORE_STARS.sub("**", rest)
    pieces, fixed, full_pattern = [], "", rest
    while rest:
        wildcard = ""
        if rest.startswith("**/") and not fixed and before == FOLDERS:
            rest = rest[3:]  # A repeated **/ is redundant.
            continue
        if rest.startswith("**/") and (rest == full_pattern or fixed.endswith("/")):
            wildcard, rest = FOLDERS, rest[3:]
        elif rest.startswith("**"):
            wildcard, rest = NAME if rest.startswith("**/") else ANY, rest[2:]
        elif rest[0] == "*":
            wildcard, rest = NAME, rest[1:]
        elif rest[0] == "?":
            fixed, rest = f"{fixed}[^/]", rest[1:]
        elif match := _CLASS.match(rest):
            members = _SPECIAL.sub(r"\\\1", match[2])
            fixed, rest = f"{fixed}(?!/)[{'^' if match[1] else ''}{members}]", rest[match.end() :]
        else:
            escaped = rest[0] == "\\" and len(rest) > 1
            fixed, rest = fixed + re.escape(rest[escaped]), rest[1 + escaped :]
        if wildcard:
            pieces.append((before, fixed))
            before, fixed = wildcard, ""
    return [*pieces, (before, fixed)]


def _join_pieces(pieces: list[Piece]) -> str:
    """Return the regular expression of `pieces`.

    Text after a wildcard is matched at its first position, which leaves the longest rest for the following pieces.
    There is no backtracking. With backtracking, a hostile pattern with a few wildcards could run practically forever on
    a long name.
    """
    last = max((index for index, (wildcard, _) in enumerate(pieces) if wildcard in (ANY, FOLDERS)), default=0)
    regex = ""
    for index, (wildcard, fixed) in enumerate(pieces[:last]):
        if index and wildcard == NAME:
            regex = f"{regex}(?>{NON_GREEDY[wildcard]}{fixed})"
        else:
            regex = f"{regex}{')' if index else ''}(?>{NON_GREEDY[wildcard]}{fixed}"
    regex += ")" if last else ""
    first, *following = pieces[last:]
    regex += "".join(first)
    for number, (wildcard, fixed) in enumerate(following, 1):
        regex += f"(?>{NON_GREEDY[wildcard]}{fixed})" if number < len(following) else wildcard + fixed
    return regex


# --- Walking a folder ---

ALWAYS_SKIPPED: Final = frozenset(
    {".git", ".hg", ".svn", ".venv", ".tox", ".mypy_cache", ".pytest_cache", ".ruff_cache", "__pycache__"}
    | {"node_modules"}
)
MAX_GITIGNORE: Final = 1 << 16
MAX_RULES: Final = 1000
"""Maximum number of rules for a folder. The number is limited because each rule is tried on each name.

If there are more rules, the rules of folders nearer to the root are used.
"""
MAX_DEPTH: Final = 64

OnRead = Callable[[Path], object]
"""A function that is called with each folder and each `.gitignore` before they are read."""

Rule = tuple[re.Pattern[str], bool, bool]  # Regular expression relative to its folder, negated, folders only.


def walk(
    root: Path, start: Path, quota: Iterator[object] | None = None, on_read: OnRead = lambda _: None
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the path (relative to `root`) and the entry of each regular file and symbolic link below `start`.

    The order is fixed: first the files of a folder by name, then its folders by name. Caches, dependencies, and the
    paths that the `.gitignore` files in `root` and below it list are skipped. Links to folders are never followed, even
    if folders are swapped during the walk. Unreadable folders are skipped. Use only the name and type of an entry. Each
    entry takes one item of `quota`. The walk ends when no items are left.
    """
    prefix = "" if start == root else f"{start.relative_to(root).as_posix()}/"
    rules: list[tuple[str, list[Rule]]] = []
    parts = prefix.split("/")[:-1]
    for depth in range(len(parts)):
        folder = "".join(f"{part}/" for part in parts[:depth])
        rules = _add_rules(folder, root, rules, on_read)
    yield from _walk(root, prefix, rules, 0, repeat(None) if quota is None else quota, on_read)


def top_level(
    root: Path, quota: Iterator[object], on_read: OnRead = lambda _: None
) -> tuple[list[os.DirEntry[str]], list[os.DirEntry[str]]]:
    """Return the files and the folders directly in `root`, sorted by name.

    The same entries are skipped as in `walk`.
    """
    _, files, folders = _list_level(root, "", [], quota, on_read)
    return files, folders


def _walk(
    root: Path, prefix: str, rules: list[tuple[str, list[Rule]]], depth: int, quota: Iterator[object], on_read: OnRead
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    rules, files, folders = _list_level(root, prefix, rules, quota, on_read)
    for entry in files:
        yield prefix + entry.name, entry
    if depth < MAX_DEPTH:
        for entry in folders:
            yield from _walk(root, f"{prefix}{entry.name}/", rules, depth + 1, quota, on_read)


def _list_level(
    root: Path, prefix: str, rules: list[tuple[str, list[Rule]]], quota: Iterator[object], on_read: OnRead
) -> tuple[list[tuple[str, list[Rule]]], list[os.DirEntry[str]], list[os.DirEntry[str]]]:
    """Return the rules for the folder `prefix` of `root`, and its files and folders that are not ignored."""
    files, folders = [], []
    on_read(root / prefix)
    try:
        descriptor = open_below(str(root), prefix.rstrip("/") or ".", FOLDER)
        try:
            with os.scandir(descriptor) as scanned:
                entries = sorted(
                    (entry for _, entry in zip(quota, scanned, strict=False)), key=lambda entry: entry.name
                )
            if any(entry.name == ".gitignore" for entry in entries):
                rules = _add_rules(prefix, root, rules, on_read)
            # Read the types while the folder is open, because on some systems the type of an entry needs a system call.
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                if (is_folder and entry.name in ALWAYS_SKIPPED) or _is_ignored(prefix + entry.name, is_folder, rules):
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


def _is_ignored(path: str, is_folder: bool, rules: list[tuple[str, list[Rule]]]) -> bool:
    for prefix, folder_rules in reversed(rules):
        relative_path = path[len(prefix) :]
        for regex, negated, folders_only in reversed(folder_rules):
            if (is_folder or not folders_only) and regex.fullmatch(relative_path):
                return not negated
    return False


def _add_rules(
    prefix: str, root: Path, rules: list[tuple[str, list[Rule]]], on_read: OnRead
) -> list[tuple[str, list[Rule]]]:
    limit = MAX_RULES - sum(len(folder_rules) for _, folder_rules in rules)
    return [*rules, (prefix, _read_gitignore(root, prefix, limit, on_read))]


def _read_gitignore(root: Path, prefix: str, limit: int, on_read: OnRead) -> list[Rule]:
    on_read(root / prefix / ".gitignore")
    try:
        with open_regular_file(root / prefix / ".gitignore", root) as file:
            text = decode_text(file.read(MAX_GITIGNORE), lossy=True)
    except OSError:
        return []
    rules: list[Rule] = []
    for line in text.splitlines():
        pattern = line.rstrip()
        if len(rules) < limit and pattern and not pattern.startswith("#"):
            negated = pattern.startswith("!")
            pattern = pattern[negated:]
            rules.append((glob_regex(pattern), negated, pattern.endswith("/")))
    return rules
