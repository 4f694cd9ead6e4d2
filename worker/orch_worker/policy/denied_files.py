"""The files and folders that `denied_paths` and credential paths stand for on the disk now.

Commands run where these are covered by mounts, so each is found before a command starts.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from typing import Final, NamedTuple

__all__ = ["MOST_MOUNTS", "MOST_NAMES", "DeniedFiles", "DeniedPaths"]

MOST_NAMES: Final = 200_000
MOST_MOUNTS: Final = 1_000
SKIPPED: Final = frozenset({"/usr", "/etc", "/proc", "/sys", "/dev"})
SKIPPED_NAMES: Final = frozenset({"site-packages", "node_modules"})
WILD: Final = frozenset("*?[")
SETTLED_NS: Final = 1_000_000_000
"""A folder that changed more recently than this is listed again: its time may not tell a further change."""


class DeniedPaths(NamedTuple):
    """Existing paths with links resolved, sorted, none below another; and why that may not be all of them, or ""."""

    paths: tuple[str, ...]
    incomplete: str = ""


class _FolderListing(NamedTuple):
    changed: int
    size: int
    folders: tuple[str, ...]
    matches: tuple[str, ...]


class _TooManyError(Exception):
    pass


class DeniedFiles:
    """Finds what `rules` match. Rules with a slash are absolute; others are names, looked for at and below `folders`.

    Listings are kept and read again when a folder has changed.
    """

    def __init__(
        self,
        rules: Iterable[str],
        folders: Iterable[str],
        *,
        most_names: int | None = None,
        most_paths: int | None = None,
    ) -> None:
        given = tuple(dict.fromkeys(rules))
        self._paths = [rule for rule in given if "/" in rule]
        names = [rule for rule in given if "/" not in rule]
        self._name = (
            re.compile("|".join(f"{translate(name)}|{re.escape(name)}\\Z" for name in names)) if names else None
        )
        self._folders = tuple(dict.fromkeys(map(os.path.realpath, folders)))
        self._most_names = MOST_NAMES if most_names is None else most_names
        self._most_paths = MOST_MOUNTS if most_paths is None else most_paths
        self._listings: dict[str, _FolderListing] = {}

    def find(self) -> DeniedPaths:
        """Return what is there now. Reads folders."""
        found: dict[str, None] = {}
        self._left, incomplete = self._most_names, ""
        known, self._listings = self._listings, {}
        try:
            for rule in self._paths:
                found |= dict.fromkeys(self._expanded(rule))
            if self._name is not None:
                for folder in self._folders:
                    found |= dict.fromkeys(self._named_below(folder, known))
        except _TooManyError:
            incomplete = f"more than {self._most_names:,} names to look through"
        real = sorted({os.path.realpath(path) for path in found if os.path.exists(path)})
        paths = _outermost(real)
        if len(paths) > self._most_paths:
            incomplete = f"{len(paths):,} denied files, of which {self._most_paths:,} can be covered"
            paths = paths[: self._most_paths]
        return DeniedPaths(tuple(paths), incomplete)

    def _expanded(self, rule: str) -> Iterator[str]:
        """Yield the paths that the absolute `rule` matches."""
        here = ["/"]
        for part in filter(None, rule.split("/")):
            if WILD.isdisjoint(part):
                here = [os.path.join(folder, part) for folder in here]
                continue
            matches = re.compile(f"{translate(part)}|{re.escape(part)}\\Z").match
            here = [os.path.join(folder, name) for folder in here for name in self._names(folder) if matches(name)]
        yield from here

    def _names(self, folder: str) -> Sequence[str]:
        try:
            names = os.listdir(folder)
        except OSError:
            return ()
        self._count(len(names))
        return names

    def _named_below(self, top: str, known: Mapping[str, _FolderListing]) -> Iterator[str]:
        """Yield what has a denied name below `top`; links are not followed."""
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            listing = self._listings.get(folder) or self._listed(folder, known.get(folder))
            if listing is None:
                continue
            self._listings[folder] = listing
            self._count(listing.size + 1)
            for name in listing.matches:
                yield os.path.join(folder, name)
            waiting += [path for name in listing.folders if (path := os.path.join(folder, name)) not in SKIPPED]

    def _listed(self, folder: str, known: _FolderListing | None) -> _FolderListing | None:
        assert self._name is not None
        try:
            changed = os.stat(folder).st_ctime_ns
            if known is not None and known.changed == changed:
                return known
            if time.time_ns() - changed < SETTLED_NS:
                changed = -1
            folders, matches, size = [], [], 0
            with os.scandir(folder) as scan:
                for entry in scan:
                    size += 1
                    if self._name.match(entry.name):
                        matches.append(entry.name)
                    elif entry.name not in SKIPPED_NAMES and entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
                    if size > self._left:
                        changed = -1  # not all of it: never taken from here again
                        break
        except OSError:
            return None
        return _FolderListing(changed, size, tuple(folders), tuple(matches))

    def _count(self, names: int) -> None:
        self._left -= names
        if self._left < 0:
            raise _TooManyError


def _outermost(paths: Iterable[str]) -> list[str]:
    """Return `paths`, which are sorted, without those below another one."""
    found: list[str] = []
    inside: set[str] = set()
    for path in sorted(paths, key=lambda path: path.count("/")):
        parents = path.split("/")
        if any("/".join(parents[:count]) in inside for count in range(2, len(parents))):
            continue
        inside.add(path)
        found.append(path)
    return sorted(found)
