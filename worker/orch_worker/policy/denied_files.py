"""Finds the existing files and folders that match `denied_paths`.

While a command runs, mounts hide these files. Therefore, the search is repeated before each command. After an
incomplete search, no command may run: an agent can create any number of files, so it could choose the files that the
search leaves out.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from orch_protocol.core.text import plain_line

from ..system.files import error_text, open_regular_file
from .rules import ANY_FOLDERS, split_rule

__all__ = ["MAX_MOUNTS", "MAX_NAMES", "MAX_SECONDS", "DeniedFiles", "DeniedPaths"]

MAX_NAMES: Final = 1_000_000
MAX_MOUNTS: Final = 1_000
MAX_SECONDS: Final = 30.0
MAX_CERTIFICATES: Final = 4 << 20
"""Maximum size in bytes of a file with certificates that stays visible."""
MAX_NAMED: Final = 3
MAX_CHARACTERS: Final = 200
SYSTEM_FOLDERS: Final = frozenset({"/usr", "/etc", "/proc", "/sys", "/dev"})
PACKAGE_FOLDERS: Final = frozenset({"site-packages", "node_modules"})
"""Names of folders with installed packages. Programs need the public certificates in these packages."""
CERTIFICATE_LINE: Final = re.compile(rb"\s*(#.*|-----(BEGIN|END) CERTIFICATE-----|[A-Za-z0-9+/=]*)\s*")
WILDCARDS: Final = frozenset("*?[")
NO_NAME: Final = r"(?!)"
"""A regular expression that matches nothing."""
SETTLED_NS: Final = 1_000_000_000
"""Nanoseconds during which a changed folder is listed again, because a further change may not change its timestamp."""
OWN_ACCESS: Final = stat.S_IRUSR | stat.S_IXUSR
REMEDY: Final = "remove or move files, or name folders instead of patterns in policy.denied_paths"


class DeniedPaths(NamedTuple):
    """The existing paths, sorted and with links resolved. A path below another denied path is left out.

    `problem` is the reason why paths are missing or cannot be hidden, and what to do, or "".
    """

    paths: tuple[str, ...]
    problem: str = ""


class _FolderListing(NamedTuple):
    changed_ns: int
    size: int
    folders: tuple[str, ...]
    denied_folders: tuple[str, ...]
    matches: tuple[str, ...]


class _SearchError(Exception):
    """The search is incomplete. The text is the reason."""


class DeniedFiles:
    """Finds the paths that match `rules`. A rule that contains a slash is an absolute path.

    Other rules are names, which are searched in `folders` and below. The search does not enter the folders `skipped`.
    The folders `needed` and the first of `folders`, the working folder, must stay visible. Listings of folders are
    cached until a folder changes.
    """

    def __init__(
        self,
        rules: Iterable[str],
        folders: Iterable[str],
        *,
        skipped: Iterable[str] = (),
        needed: Iterable[str] = (),
        max_names: int | None = None,
        max_paths: int | None = None,
        max_seconds: float | None = None,
    ) -> None:
        unique_rules = tuple(dict.fromkeys(rules))
        # Paths without wildcards come first. Then come the rules that need few names.
        self._paths = sorted((rule for rule in unique_rules if "/" in rule), key=_search_size)
        self._names = tuple(rule for rule in unique_rules if "/" not in rule)
        self._name_pattern = re.compile("|".join(map(_pattern, self._names)) or NO_NAME)
        self._folders = tuple(dict.fromkeys(map(os.path.realpath, folders)))
        self._skipped = SYSTEM_FOLDERS | frozenset(map(os.path.realpath, skipped))
        self._needed = frozenset((*self._folders[:1], *map(os.path.realpath, needed)))
        self._max_names = MAX_NAMES if max_names is None else max_names
        self._max_paths = MAX_MOUNTS if max_paths is None else max_paths
        self._max_seconds = MAX_SECONDS if max_seconds is None else max_seconds
        self._listings: dict[str, _FolderListing] = {}
        self._old_listings: dict[str, _FolderListing] = {}
        self._closed: dict[str, None] = {}
        self._lock = threading.Lock()

    def find(self) -> DeniedPaths:
        """Return the paths that exist now. This method reads folders. Paths without wildcards are never left out."""
        with self._lock:
            self._remaining_names, self._deadline = self._max_names, time.monotonic() + self._max_seconds
            self._old_listings, self._listings = self._listings, {}
            self._closed.clear()
            found: dict[str, str] = {}
            problem = ""
            for rules, search in (
                *(((rule,), partial(self._expand_rule, rule)) for rule in self._paths),
                *((self._names, partial(self._find_names, top)) for top in self._folders if self._names),
            ):
                try:
                    for path in search():
                        if self._exists(path) and not (_is_pattern(rules) and _is_package_certificate(path)):
                            found.setdefault(os.path.realpath(path), _rule_of(path, rules))
                    # A command could make these folders accessible again.
                    for folder in self._closed:
                        self._check_not_needed(folder)
                        found.setdefault(folder, rules[0])
                except _SearchError as error:
                    problem = problem or f"{error} (denied_paths: {_list_rules(rules)}); {REMEDY}"
            paths = _outermost(found)
            if len(paths) > self._max_paths and not problem:
                counts = Counter(found[path] for path in paths).most_common()
                problem = (
                    f"{len(paths):,} paths are denied, of which at most {self._max_paths:,} can be hidden "
                    f"(denied_paths: {_list_rules([f'{rule}: {count:,}' for rule, count in counts])}); {REMEDY}"
                )
            return DeniedPaths(tuple(paths), problem)

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
            matches = re.compile(_pattern(part)).match
            for folder in folders:
                yield from (os.path.join(folder, name) for name in self._folder_names(folder) if matches(name))

    def _find_names(self, top: str) -> Iterator[str]:
        """Yield the paths below `top` whose name is denied."""
        for folder, listing in self._folders_below(top):
            yield from (os.path.join(folder, name) for name in listing.matches)

    def _folder_names(self, folder: str) -> Sequence[str]:
        self._check_time()
        try:
            names = os.listdir(folder)
        except OSError as error:
            self._skip_folder(folder, error)
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
                self._check_time()
                listing = self._list_folder(folder, self._old_listings.get(folder))
                if listing is None:
                    continue
                self._listings[folder] = listing
                self._count_names(listing.size + 1)
            yield folder, listing
            names = listing.folders + listing.denied_folders if enter_denied else listing.folders
            pending += [path for name in names if (path := os.path.join(folder, name)) not in self._skipped]

    def _list_folder(self, folder: str, old_listing: _FolderListing | None) -> _FolderListing | None:
        try:
            status = os.stat(folder)
            if status.st_uid == os.geteuid() and status.st_mode & OWN_ACCESS != OWN_ACCESS:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))  # The superuser could list the folder.
            changed_ns = status.st_ctime_ns
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
                    if entry.is_dir(follow_symlinks=False):
                        (denied_folders if is_denied else folders).append(entry.name)
                    if size > self._remaining_names:
                        changed_ns = -1  # The listing is incomplete, so it must not be used again.
                        break
        except OSError as error:
            self._skip_folder(folder, error)
            return None
        return _FolderListing(changed_ns, size, tuple(folders), tuple(denied_folders), tuple(matches))

    def _skip_folder(self, folder: str, error: OSError) -> None:
        """Record that `folder` cannot be listed because of `error`.

        Raise _SearchError if commands may be able to read denied files in the folder.
        """
        if isinstance(error, PermissionError):
            self._close(folder, error)
        elif not _is_missing(error):
            raise _SearchError(f"the folder {_plain(folder)} cannot be listed: {error_text(error)}") from error

    def _exists(self, path: str) -> bool:
        """Return whether `path` exists. If a folder above `path` cannot be entered, this folder is closed."""
        try:
            os.stat(path)
        except PermissionError as error:
            self._close(path, error)
            return False
        except OSError as error:
            if _is_missing(error):
                return False
            raise _SearchError(f"{_plain(path)} cannot be examined: {error_text(error)}") from error
        return True

    def _close(self, path: str, error: OSError) -> None:
        """Record the folder to hide because `path` is inaccessible: a command could make its own folder accessible."""
        path = os.path.realpath(path)
        parts = path.split("/")
        parents = ("/".join(parts[:count]) or "/" for count in range(1, len(parts)))
        closed = next((parent for parent in parents if not os.access(parent, os.X_OK)), None)
        if closed is None and os.path.isdir(path):
            closed = path
        elif closed is None:
            raise _SearchError(f"{_plain(path)} cannot be examined: {error_text(error)}") from error
        elif os.stat(closed).st_uid != os.geteuid():
            return  # Commands cannot enter the folder of another user either.
        self._closed[closed] = None

    def _check_not_needed(self, folder: str) -> None:
        if any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for path in self._needed):
            raise _SearchError(f"the folder {_plain(folder)} cannot be listed: permission denied")

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise _SearchError(f"the search for denied files takes longer than {self._max_seconds:g} s")

    def _count_names(self, names: int) -> None:
        self._remaining_names -= names
        if self._remaining_names < 0:
            raise _SearchError(f"there are more than {self._max_names:,} names to look through")


def _search_size(rule: str) -> int:
    """Return 0 for a rule without wildcards, 2 for a rule with `**`, else 1."""
    return 0 if WILDCARDS.isdisjoint(rule) else 2 if ANY_FOLDERS in split_rule(rule) else 1


def _is_missing(error: OSError) -> bool:
    return isinstance(error, (FileNotFoundError, NotADirectoryError)) or error.errno == errno.ELOOP


def _is_pattern(rules: Sequence[str]) -> bool:
    return not all("/" in rule and WILDCARDS.isdisjoint(rule) for rule in rules)


def _pattern(name: str) -> str:
    """Return the regular expression for `name` as a pattern and for the same name without wildcards."""
    return f"{translate(name)}|{re.escape(name)}\\Z"


def _rule_of(path: str, rules: Sequence[str]) -> str:
    """Return the rule of `rules` that matches `path`. All rules are names, or there is only one rule."""
    if len(rules) == 1:
        return rules[0]
    name = os.path.basename(path)
    return next((rule for rule in rules if re.match(_pattern(rule), name)), rules[0])


def _is_package_certificate(path: str) -> bool:
    """Return whether `path` is a file in an installed package that contains only public certificates."""
    if PACKAGE_FOLDERS.isdisjoint(path.split("/")):
        return False
    try:
        with open_regular_file(Path(path)) as file:
            data = file.read(MAX_CERTIFICATES + 1)
    except OSError:
        return False
    is_short, has_certificate = len(data) <= MAX_CERTIFICATES, b"-----BEGIN CERTIFICATE-----" in data
    return is_short and has_certificate and all(map(CERTIFICATE_LINE.fullmatch, data.splitlines()))


def _list_rules(rules: Sequence[str]) -> str:
    more = f" and {len(rules) - MAX_NAMED:,} more" if len(rules) > MAX_NAMED else ""
    return ", ".join(map(_plain, rules[:MAX_NAMED])) + more


def _plain(path: str) -> str:
    return plain_line(path, MAX_CHARACTERS)


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
