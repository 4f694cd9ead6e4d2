"""Finds the existing files and folders that match `denied_paths` or the credential paths.

While a command runs, mounts hide these files. Therefore, the search is repeated before each command.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate
from typing import Final, NamedTuple

from .rules import ANY_FOLDERS, split_rule

__all__ = ["MAX_MOUNTS", "MAX_NAMES", "DeniedFiles", "DeniedPaths"]

MAX_NAMES: Final = 200_000
MAX_MOUNTS: Final = 1_000
SKIPPED_FOLDERS: Final = frozenset({"/usr", "/etc", "/proc", "/sys", "/dev"})
SKIPPED_NAMES: Final = frozenset({"site-packages", "node_modules"})
WILDCARDS: Final = frozenset("*?[")
NO_NAME: Final = r"(?!)"
"""A regular expression that matches nothing."""
SETTLED_NS: Final = 1_000_000_000
"""Nanoseconds during which a changed folder is listed again, because a further change may not change its timestamp."""


class DeniedPaths(NamedTuple):
    """The existing paths, sorted and with links resolved. A path below another denied path is left out.

    `incomplete` is the reason why paths may be missing, or "".
    """

    paths: tuple[str, ...]
    incomplete: str = ""


class _FolderListing(NamedTuple):
    changed_ns: int
    size: int
    folders: tuple[str, ...]
    denied_folders: tuple[str, ...]
    matches: tuple[str, ...]


class _TooManyNamesError(Exception):
    pass


class DeniedFiles:
    """Finds the paths that match `rules`. A rule that contains a slash is an absolute path.

    Other rules are names, which are searched in `folders` and below. Listings of folders are cached until a folder
    changes.
    """

    def __init__(
        self,
        rules: Iterable[str],
        folders: Iterable[str],
        *,
        max_names: int | None = None,
        max_paths: int | None = None,
    ) -> None:
        unique_rules = tuple(dict.fromkeys(rules))
        # Rules that need few names come first, so that a large rule does not use up the limit before them.
        self._paths = sorted((rule for rule in unique_rules if "/" in rule), key=_search_size)
        names = [rule for rule in unique_rules if "/" not in rule]
        self._has_names = bool(names)
        self._name_pattern = re.compile(
            "|".join(f"{translate(name)}|{re.escape(name)}\\Z" for name in names) or NO_NAME
        )
        self._folders = tuple(dict.fromkeys(map(os.path.realpath, folders)))
        self._max_names = MAX_NAMES if max_names is None else max_names
        self._max_paths = MAX_MOUNTS if max_paths is None else max_paths
        self._listings: dict[str, _FolderListing] = {}
        self._old_listings: dict[str, _FolderListing] = {}

    def find(self) -> DeniedPaths:
        """Return the paths that exist now. This method reads folders."""
        found: dict[str, None] = {}
        self._remaining_names, incomplete = self._max_names, ""
        self._old_listings, self._listings = self._listings, {}
        searches = [
            *map(self._expand_rule, self._paths),
            *map(self._find_names, self._folders if self._has_names else ()),
        ]
        for search in searches:
            try:
                for path in search:
                    found[path] = None
            except _TooManyNamesError:
                incomplete = f"more than {self._max_names:,} names to look through"
        existing = sorted({os.path.realpath(path) for path in found if os.path.exists(path)})
        paths = _outermost(existing)
        if len(paths) > self._max_paths:
            incomplete = f"{len(paths):,} denied files, of which {self._max_paths:,} can be covered"
            paths = paths[: self._max_paths]
        return DeniedPaths(tuple(paths), incomplete)

    def _expand_rule(self, rule: str) -> Iterator[str]:
        """Yield the paths that match the absolute path `rule`. See `split_rule`."""
        paths: Iterable[str] = ["/"]
        for part in split_rule(rule):
            paths = self._expand_part(paths, part)
        return iter(paths)

    def _expand_part(self, folders: Iterable[str], part: str) -> Iterator[str]:
        if part == ANY_FOLDERS:
            seen: set[str] = set()
            for top in folders:
                for folder, _ in self._folders_below(top, enter_denied=True):
                    if folder not in seen:
                        seen.add(folder)
                        yield folder
        elif WILDCARDS.isdisjoint(part):
            for folder in folders:
                yield os.path.join(folder, part)
        else:
            matches = re.compile(f"{translate(part)}|{re.escape(part)}\\Z").match
            for folder in folders:
                yield from (os.path.join(folder, name) for name in self._folder_names(folder) if matches(name))

    def _find_names(self, top: str) -> Iterator[str]:
        """Yield the paths below `top` whose name is denied."""
        for folder, listing in self._folders_below(top):
            yield from (os.path.join(folder, name) for name in listing.matches)

    def _folder_names(self, folder: str) -> Sequence[str]:
        try:
            names = os.listdir(folder)
        except OSError:
            return ()
        if folder not in self._listings:
            self._count_names(len(names))
        return names

    def _folders_below(self, top: str, *, enter_denied: bool = False) -> Iterator[tuple[str, _FolderListing]]:
        """Yield `top` and the folders below `top`. Links are not followed.

        Folders whose name is denied are yielded only if `enter_denied` is True.
        """
        pending = [top]
        while pending:
            folder = pending.pop()
            listing = self._listings.get(folder)
            if listing is None:
                listing = self._list_folder(folder, self._old_listings.get(folder))
                if listing is None:
                    continue
                self._listings[folder] = listing
                self._count_names(listing.size + 1)
            yield folder, listing
            names = listing.folders + listing.denied_folders if enter_denied else listing.folders
            pending += [path for name in names if (path := os.path.join(folder, name)) not in SKIPPED_FOLDERS]

    def _list_folder(self, folder: str, old_listing: _FolderListing | None) -> _FolderListing | None:
        try:
            changed_ns = os.stat(folder).st_ctime_ns
            if old_listing is not None and old_listing.changed_ns == changed_ns:
                return old_listing
            if time.time_ns() - changed_ns < SETTLED_NS:
                changed_ns = -1
            folders: list[str] = []
            denied_folders: list[str] = []
            matches, size = [], 0
            with os.scandir(folder) as entries:
                for entry in entries:
                    size += 1
                    is_denied = self._name_pattern.match(entry.name)
                    if is_denied:
                        matches.append(entry.name)
                    if entry.name not in SKIPPED_NAMES and entry.is_dir(follow_symlinks=False):
                        (denied_folders if is_denied else folders).append(entry.name)
                    if size > self._remaining_names:
                        changed_ns = -1  # The listing is incomplete, so it must not be used again.
                        break
        except OSError:
            return None
        return _FolderListing(changed_ns, size, tuple(folders), tuple(denied_folders), tuple(matches))

    def _count_names(self, names: int) -> None:
        self._remaining_names -= names
        if self._remaining_names < 0:
            raise _TooManyNamesError


def _search_size(rule: str) -> int:
    """Return 0 for a rule without wildcards, 2 for a rule with `**`, else 1."""
    return 0 if WILDCARDS.isdisjoint(rule) else 2 if ANY_FOLDERS in split_rule(rule) else 1


def _outermost(paths: Iterable[str]) -> list[str]:
    """Return `paths`, sorted, without the paths that lie below another path."""
    found: list[str] = []
    chosen: set[str] = set()
    for path in sorted(paths, key=lambda path: path.count("/")):
        parents = path.split("/")
        if any("/".join(parents[:count]) in chosen for count in range(2, len(parents))):
            continue
        chosen.add(path)
        found.append(path)
    return sorted(found)
