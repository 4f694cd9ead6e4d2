"""Resolves the paths of rules and of calls on disk: `~`, links, wildcards and existence."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Mapping
from fnmatch import filter as filtered
from itertools import islice
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from orch_protocol.policy.builtin_tools import facts_of
from orch_protocol.policy.policy import PolicySpec

from ..system.file_names import actual_path
from ..system.secrets import CREDENTIAL_VARIABLES
from .rules import CREDENTIALS, NamedPath, ResolvedRules
from .shell_words import ShellContext, mentioned_paths

__all__ = [
    "RELATIVE_FOLDERS",
    "absolute_rules",
    "credential_rules",
    "expand_wildcards",
    "opened_path",
    "paths_in_call",
    "resolve_rules",
    "shell_context",
]

MAX_NAMES: Final = 100_000
FOLDER_COST: Final = 20
"""The cost of opening a folder, as a number of names that can be read in the same time."""
MAX_MEANT: Final = 5_000
WILDCARDS: Final = frozenset("*?[")

PATH: Final = "path"
"""The argument of built-in tools with the file or folder that they open."""
RELATIVE_FOLDERS: Final = (".", "..")
"""Names of relative folders without a slash, which count as paths, not as names."""


def shell_context(cwd: Path, env: Mapping[str, str]) -> ShellContext:
    """Return the working folder, home folders and variables of an agent.

    The home folder in the password database and the home folder in the environment both count.
    """
    homes = [os.path.expanduser("~"), env.get("HOME", "")]
    try:
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        pass  # The user has no entry in the password database.
    absolute_homes = tuple(dict.fromkeys(home for home in homes if home.startswith("/")))
    folder = os.path.abspath(cwd)
    return ShellContext(
        folder, absolute_homes, {"HOME": absolute_homes[0] if absolute_homes else "/", "PWD": folder, **env}
    )


def resolve_rules(spec: PolicySpec, shell: ShellContext) -> ResolvedRules:
    """Return the rules of `spec` with absolute paths. Each path occurs as written and with links resolved."""
    rules = spec.rules
    credentials, denied = absolute_rules(credential_rules(shell), shell), absolute_rules(rules.denied_paths, shell)
    untrusted, sensitive = (
        absolute_rules(rules.taint.untrusted_paths, shell),
        absolute_rules(rules.taint.sensitive_paths, shell),
    )
    return ResolvedRules(
        spec,
        credentials,
        absolute_rules(rules.usable_credentials, shell),
        denied,
        None if rules.allowed_paths is None else absolute_rules(rules.allowed_paths, shell),
        absolute_rules(rules.personal_paths, shell),
        absolute_rules(rules.code_paths, shell),
        frozenset(path for path in (*credentials, *denied, *untrusted, *sensitive) if os.path.exists(path)),
        untrusted,
        sensitive,
    )


def paths_in_call(tool: str, input: Mapping[str, Any], shell: ShellContext) -> tuple[NamedPath, ...] | None:
    """Return the paths in the arguments of a call, and its working folder.

    Return None if there are too many paths to check.
    """
    facts = facts_of(tool)
    values = [value for name, value in input.items() if name not in facts.text]
    paths = mentioned_paths(values, shell)
    if paths is not None and tool == "run_python" and (current_folder := _current_folder()) not in ("", shell.cwd):
        # Earlier code may have changed the working folder.
        more_paths = mentioned_paths(values, replace(shell, cwd=current_folder))
        paths = None if more_paths is None else (*paths, *more_paths)
    if paths is None:
        return None
    start = () if facts.folderless else (shell.cwd,)
    return tuple(NamedPath(path, _resolve_links(path)) for path in dict.fromkeys((*start, *paths)))


def opened_path(tool: str, input: Mapping[str, Any], shell: ShellContext) -> NamedPath | None:
    """Return the path of the file or folder that a built-in tool opens. Return None if the tool opens none."""
    if PATH not in facts_of(tool).paths:
        return None
    path = os.path.join(shell.cwd, actual_path(shell.cwd, str(input.get(PATH, ".")).replace("\0", "")))
    return NamedPath(os.path.normpath(path), _resolve_links(path))


def expand_wildcards(paths: Iterable[NamedPath]) -> tuple[NamedPath, ...] | None:
    """Return the existing paths that match those `paths` that contain wildcards.

    Return None if there are too many matches, or too many names to read.
    """
    folders: dict[str, dict[str, bool]] = {}
    remaining = MAX_NAMES

    def matching_names(folder: str, part: str, *, last: bool) -> list[str]:
        nonlocal remaining
        if folder not in folders and remaining >= 0:
            folders[folder] = _list_names(folder, remaining)
            remaining -= FOLDER_COST + len(folders[folder])
        names = folders.get(folder, {})
        return [name for name in filtered(names, part) if last or names[name]]

    found: dict[str, None] = {}
    for named_path in paths:
        if WILDCARDS.isdisjoint(named_path.written):
            continue
        matches = ["/"]
        parts = named_path.written.strip("/").split("/")
        for number, part in enumerate(parts, 1):
            if WILDCARDS.isdisjoint(part):
                matches = [os.path.join(folder, part) for folder in matches]
            else:
                last = number == len(parts)
                matches = [
                    os.path.join(folder, each) for folder in matches for each in matching_names(folder, part, last=last)
                ]
            if remaining < 0:
                return None
        for path in matches:
            if os.path.lexists(path):
                found[path] = None
            if len(found) > MAX_MEANT:
                return None
    return tuple(NamedPath(path, _resolve_links(path)) for path in found)


def _list_names(folder: str, limit: int) -> dict[str, bool]:
    """Return the names in `folder`. The value of a name is True if the name may be a folder."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name: _may_be_folder(entry) for entry in islice(entries, limit)}
    except (OSError, ValueError):
        return {}


def _may_be_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # The links form a loop.
        return False


def credential_rules(shell: ShellContext) -> tuple[str, ...]:
    """Return the paths of credentials, also at the places that variables of the agent or of this process name.

    A place that contains the working folder is left out.
    """
    found = dict.fromkeys(CREDENTIALS)
    for name, usual_place in CREDENTIAL_VARIABLES.items():
        for value in (shell.env.get(name, ""), os.environ.get(name, "")):
            for place in filter(os.path.isabs, map(os.path.expanduser, value.split(os.pathsep))):
                moved = (
                    place + path[len(usual_place) :] for path in CREDENTIALS if Path(path).is_relative_to(usual_place)
                )
                found |= dict.fromkeys(path for path in moved if not Path(shell.cwd).is_relative_to(path))
    return tuple(found)


def absolute_rules(paths: Iterable[str], shell: ShellContext, *, follow: bool = True) -> tuple[str, ...]:
    """Return `paths` as absolute paths, as written and with links resolved. Names without a slash stay unchanged.

    If `follow` is False, a path that is itself a link is not resolved, only the folder that contains the path.
    """
    found: dict[str, None] = {}
    for path in paths:
        if "/" not in path and path not in RELATIVE_FOLDERS and not path.startswith("~"):
            found[path] = None  # The rule is a name, which matches in every folder.
            continue
        for home in shell.homes if path == "~" or path.startswith("~/") else ("",):
            absolute_path = os.path.normpath(
                os.path.join(shell.cwd, home + path[1:] if home else os.path.expanduser(path))
            )
            folder, name = os.path.split(absolute_path)
            real_path = _resolve_links(absolute_path) if follow else os.path.join(_resolve_links(folder), name)
            found |= {absolute_path: None, real_path: None}
    return tuple(found)


def _current_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # The folder was deleted.
        return ""


def _resolve_links(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path
