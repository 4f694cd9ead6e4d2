"""Which paths are hidden from an agent's commands: denied paths, credentials, and the folders of orch itself."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from orch_protocol.core.text import plain_line

from ...policy.denied_files import DeniedFiles
from ...policy.path_rules import absolute_rules, where_of
from ...policy.rules import CREDENTIALS
from ...sandbox.bubblewrap import python_folders
from ...sandbox.launcher import Cover
from ..api.base import ToolContext

__all__ = ["SCRATCH", "HiddenPaths", "PathCovers", "orch_folders"]

SCRATCH: Final = "scratch"
SESSIONS: Final = "sessions"
"""The daemon's socket in an orch home."""
MOST_NAMED: Final = 5
MOST_CHARACTERS: Final = 400


class HiddenPaths(NamedTuple):
    """What is hidden from a command. `incomplete` says why some denied paths are not among it, "" when all are."""

    covers: tuple[Cover, ...] = ()
    credentials: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    incomplete: str = ""

    @property
    def note(self) -> str:
        """One line for a command that failed, which names what it could not read; "" when that is nothing."""
        said = []
        if self.credentials:
            said.append(f"credentials: {_named(self.credentials)} (bash with credentials=true asks for them)")
        if self.denied:
            said.append(f"denied: {_named(self.denied)}")
        return f"[not readable by commands: {'; '.join(said)}]" if said else ""


class PathCovers:
    """Finds what is to be hidden from the commands of the agent of `context`."""

    def __init__(self, context: ToolContext) -> None:
        self._context, self._policy = context, context.policy
        self._cwd = os.path.realpath(context.cwd)
        self._where = where_of(context.cwd, context.env)
        sandbox = context.sandbox
        self._writable = _absolute(sandbox.write, self._cwd)
        self._readable = (*_absolute(sandbox.read, self._cwd), *map(os.path.realpath, python_folders()))
        self._denied = DeniedFiles(
            absolute_rules(self._policy.denied_paths, self._where),
            (self._cwd, *_absolute((*sandbox.read, *sandbox.write), self._cwd)),
        )

    @property
    def is_quick(self) -> bool:
        """Whether finding out takes no more than a look at a few paths."""
        return not self._policy.denied_paths

    def find_for_worker(self, own: Iterable[str], shown: Iterable[str]) -> HiddenPaths:
        """Return what to hide from the agent's own process, which writes `own` and reads `shown` of orch's folders.

        Credentials stay readable: commands started with them are descendants of this process. Denied paths at or below
        `own` and `shown` are left out.
        """
        session = () if self._context.folder is None else (os.fspath(self._context.folder),)
        own = tuple(map(os.path.realpath, (*session, *own)))
        shown = (*map(os.path.realpath, shown), *map(os.path.realpath, python_folders()))
        denied = self._denied.find()
        covers = [
            Cover(path, _all_below(path, own), _all_below(path, shown))
            for path in denied.paths
            if not any(path == each or _is_below(path, each) for each in (*own, *shown))
        ]
        return HiddenPaths((*self._orch(own, shown), *covers), (), denied.paths, denied.incomplete)

    def find(self, *, credentials: bool) -> HiddenPaths:
        """Return what exists now. With `credentials` commands can read those."""
        denied = self._denied.find()
        secrets = () if credentials else tuple(self._credentials())
        covers = (*self._orch(), *secrets, *map(Cover, denied.paths))
        return HiddenPaths(covers, tuple(cover.path for cover in secrets), denied.paths, denied.incomplete)

    def _orch(self, own: tuple[str, ...] = (), shown: tuple[str, ...] = ()) -> Iterator[Cover]:
        """Yield the folders of orch, without those the agent works in, its scratch folder, skills and Python.

        `own` and `shown` are more that stay visible: to write to, and to read.
        The daemon's socket stays too: what connects from a command acts as the agent.
        """
        if not self._context.orch_folders:
            return  # not in an agent's own process
        scratch = () if self._context.folder is None else (os.path.realpath(self._context.folder / SCRATCH),)
        writable, readable = (self._cwd, *scratch, *self._writable, *own), (*self._readable, *shown)
        folders = {os.path.realpath(path) for path in orch_folders(self._context) if path.is_dir()} - {self._cwd}
        for folder in sorted(folders):
            if any(_is_below(folder, other) for other in folders - {folder}):
                continue
            sockets = tuple(_control_sockets(folder))
            yield Cover(folder, _all_below(folder, writable), _all_below(folder, (*readable, *sockets)))

    def _credentials(self) -> Iterator[Cover]:
        usable = {os.path.realpath(path) for path in absolute_rules(self._policy.usable_credentials, self._where)}
        found = {os.path.realpath(path) for path in absolute_rules(CREDENTIALS, self._where) if os.path.exists(path)}
        for path in sorted(found):
            if path not in usable and not any(_is_below(path, other) for other in usable):
                yield Cover(path, tuple(sorted(each for each in usable if _is_below(each, path))))


def orch_folders(context: ToolContext) -> Iterator[Path]:
    """Yield the folders of orch itself and those with the sessions of agents, one of which is the agent's own."""
    yield from map(Path, context.orch_folders)
    if (folder := context.folder) is not None:
        yield folder.parent
        if folder.parent.name == SESSIONS:  # where they are unless somebody said otherwise, also without a process
            yield folder.parent.parent


def _control_sockets(folder: str) -> Iterator[str]:
    """Yield the sockets of daemons in a folder of orch: a command may connect, and is served as its agent."""
    yield from glob.iglob(os.path.join(glob.escape(folder), "daemon", "control.sock"))
    yield from glob.iglob(os.path.join(glob.escape(folder), "*-control.sock"))


def _all_below(folder: str, paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(path for path in dict.fromkeys(paths) if _is_below(path, folder))


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder.rstrip('/')}/")


def _absolute(paths: Iterable[str], cwd: str) -> tuple[str, ...]:
    return tuple(os.path.realpath(os.path.join(cwd, os.path.expanduser(path))) for path in paths)


def _named(paths: tuple[str, ...]) -> str:
    home = os.path.expanduser("~")
    shown = [f"~{path[len(home) :]}" if _is_below(path, home) else path for path in paths[:MOST_NAMED]]
    more = f" and {len(paths) - MOST_NAMED:,} more" if len(paths) > MOST_NAMED else ""
    return plain_line(", ".join(shown), MOST_CHARACTERS) + more
