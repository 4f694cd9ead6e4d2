"""The paths of rules and of calls, found on the disk: what `~` means, where links lead, what exists."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Mapping
from fnmatch import filter as filtered
from itertools import islice
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from orch_protocol.policy.policy import PolicySpec

from .rules import CREDENTIALS, RECURSIVE, NamedPath, ResolvedRules
from .shell_words import ShellContext, mentioned_paths

__all__ = ["absolute_rules", "expand_wildcards", "grounds_of", "places_of", "start_of", "where_of"]

MOST_NAMES: Final = 100_000
FOLDER: Final = 20
"""To open one takes as long as so many names."""
MOST_MEANT: Final = 5_000
WILD: Final = frozenset("*?[")

HERE: Final = (".", "..")
"""Folders without a slash, by their place and not by their name."""

TEXT: Final[dict[str, frozenset[str]]] = {
    "write_file": frozenset({"content"}),
    "replace_in_file": frozenset({"old_text", "new_text"}),
    "grep_files": frozenset({"pattern"}),
    "chat": frozenset({"prompt", "system", "model"}),
    "spawn_subagent": frozenset({"task", "query"}),
    "query_subagent": frozenset({"prompt"}),
    "map_subagents": frozenset({"prompt"}),
    "search_archive": frozenset({"query"}),
    "web_search": frozenset({"query"}),
    "exit_plan_mode": frozenset({"plan"}),
    "task_create": frozenset({"tasks"}),
    "remember": frozenset({"text"}),
    "recall": frozenset({"query"}),
    "read_skill": frozenset({"name", "file"}),
    "pin_object": frozenset({"name"}),
}
"""Arguments that are text and reach no file by what they say."""

APART: Final = frozenset(
    {
        *("web_search", "fetch_url", "py_help", "installed_packages", "read_handle", "bg_status", "bg_kill"),
        *("describe_variables", "chat", "list_models", "search_archive", "read_archive", "map_subagents"),
        *("exit_plan_mode", "task_create", "task_update", "remember", "recall", "read_skill", "pin_object"),
        *("spawn_subagent", "query_subagent", "collect_subagent", "wait_subagents", "list_subagents", "kill_subagent"),
    }
)
"""Tools that do not work in the agent's folder."""


def where_of(cwd: Path, env: Mapping[str, str]) -> ShellContext:
    """Return where an agent works. Its home is what the system says and what its variables say: both are looked at."""
    homes = [os.path.expanduser("~"), env.get("HOME", "")]
    try:
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        pass  # a user without an entry
    absolute = tuple(dict.fromkeys(home for home in homes if home.startswith("/")))
    start = os.path.abspath(cwd)
    return ShellContext(start, absolute, {"HOME": absolute[0] if absolute else "/", "PWD": start, **env})


def grounds_of(spec: PolicySpec, where: ShellContext) -> ResolvedRules:
    """Return `spec` with its paths made absolute, as they are spelled and where their links lead."""
    rules = spec.rules
    credentials, denied = absolute_rules(CREDENTIALS, where), absolute_rules(rules.denied_paths, where)
    untrusted, sensitive = (
        absolute_rules(rules.taint.untrusted_paths, where),
        absolute_rules(rules.taint.sensitive_paths, where),
    )
    return ResolvedRules(
        spec,
        credentials,
        denied,
        None if rules.allowed_paths is None else absolute_rules(rules.allowed_paths, where),
        absolute_rules(rules.personal_paths, where),
        absolute_rules(rules.code_paths, where),
        frozenset(path for path in (*credentials, *denied, *untrusted, *sensitive) if os.path.exists(path)),
        untrusted,
        sensitive,
    )


def places_of(tool: str, input: Mapping[str, Any], where: ShellContext) -> tuple[NamedPath, ...] | None:
    """Return what a call names, and the folder it works in; None when there is too much of it to be looked through."""
    text = TEXT.get(tool, frozenset())
    said = [value for name, value in input.items() if name not in text]
    named = mentioned_paths(said, where)
    if named is not None and tool == "run_python" and (here := _here()) not in ("", where.cwd):
        there = mentioned_paths(said, replace(where, cwd=here))  # where code went that ran before
        named = None if there is None else (*named, *there)
    if named is None:
        return None
    start = () if tool in APART else (where.cwd,)
    return tuple(NamedPath(path, _real(path)) for path in dict.fromkeys((*start, *named)))


def start_of(tool: str, input: Mapping[str, Any], where: ShellContext) -> NamedPath | None:
    """Return where a call begins that goes down into folders; None for one that does not."""
    if tool not in RECURSIVE:
        return None
    path = os.path.join(where.cwd, str(input.get("path", "."))).replace("\0", "")
    return NamedPath(os.path.normpath(path), _real(path))


def expand_wildcards(places: Iterable[NamedPath]) -> tuple[NamedPath, ...] | None:
    """Return the files and folders that are there and that `places` with wildcards stand for; None when that takes
    looking at too many names, or is too many of them."""
    folders: dict[str, dict[str, bool]] = {}
    left = MOST_NAMES

    def within(folder: str, part: str, *, last: bool) -> list[str]:
        nonlocal left
        if folder not in folders and left >= 0:
            folders[folder] = _listed(folder, left)
            left -= FOLDER + len(folders[folder])
        names = folders.get(folder, {})
        return [name for name in filtered(names, part) if last or names[name]]

    found: dict[str, None] = {}
    for place in places:
        if WILD.isdisjoint(place.spelled):
            continue
        here = ["/"]
        parts = place.spelled.strip("/").split("/")
        for number, part in enumerate(parts, 1):
            if WILD.isdisjoint(part):
                here = [os.path.join(folder, part) for folder in here]
            else:
                last = number == len(parts)
                here = [os.path.join(folder, each) for folder in here for each in within(folder, part, last=last)]
            if left < 0:
                return None
        for path in here:
            if os.path.lexists(path):
                found[path] = None
            if len(found) > MOST_MEANT:
                return None
    return tuple(NamedPath(path, _real(path)) for path in found)


def _listed(folder: str, most: int) -> dict[str, bool]:
    """Return the names in `folder`, and whether each may have something in it."""
    try:
        with os.scandir(folder) as scan:
            return {entry.name: _may_hold(entry) for entry in islice(scan, most)}
    except (OSError, ValueError):
        return {}


def _may_hold(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads round and round
        return False


def absolute_rules(paths: Iterable[str], where: ShellContext) -> tuple[str, ...]:
    """Return `paths` as absolute ones, as they are spelled and with links resolved; bare names stay as they are."""
    found: dict[str, None] = {}
    for path in paths:
        if "/" not in path and path not in HERE and not path.startswith("~"):
            found[path] = None  # a name, in whatever folder
            continue
        for home in where.homes if path == "~" or path.startswith("~/") else ("",):
            whole = os.path.normpath(os.path.join(where.cwd, home + path[1:] if home else os.path.expanduser(path)))
            found |= {whole: None, _real(whole): None}
    return tuple(found)


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:  # it is gone
        return ""


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path
