"""Which files are not worth a look: caches, dependencies, and what a `.gitignore` names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Final

from .descent import FOLDER, open_below
from .globs import glob_regex
from .regular import open_regular

__all__ = ["Note", "top", "walk"]

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


def top(
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
        with open_regular(root / prefix / ".gitignore", root) as file:
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
