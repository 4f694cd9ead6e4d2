"""Determines the paths to hide from an agent's commands: denied paths, credentials and orch's folders."""

from __future__ import annotations

import glob
import os
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from orch_protocol.core.text import plain_line

from ...policy.denied_files import DeniedFiles
from ...policy.path_rules import absolute_rules, credential_rules, shell_context
from ...policy.rules import is_usable_credential
from ...sandbox.bubblewrap import python_folders
from ...sandbox.launcher import Cover
from ..api.archive_texts import archive_texts
from ..api.base import ToolContext
from ..values.store import FOLDER as VALUES

__all__ = ["JOBS", "SCRATCH", "WRITABLE", "HiddenPaths", "PathCovers", "orch_folders"]

SCRATCH: Final = "scratch"
JOBS: Final = "jobs"
WRITABLE: Final = (SCRATCH, VALUES, JOBS)
"""The folders of a session folder in which a tool host writes. The transcript is beside them."""
SESSIONS: Final = "sessions"
"""The name of the folder that contains sessions in orch's home."""
MAX_NAMED: Final = 5
MAX_CHARACTERS: Final = 400


class HiddenPaths(NamedTuple):
    """The paths hidden from a command. `problem` is the reason why denied paths cannot be hidden, or ""."""

    covers: tuple[Cover, ...] = ()
    credentials: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    problem: str = ""

    @property
    def note(self) -> str:
        """A line about the paths that a failed command cannot read, or ""."""
        notes = []
        if self.credentials:
            notes.append(f"credentials: {_list_paths(self.credentials)} (bash with credentials=true asks for them)")
        if self.denied:
            notes.append(f"denied: {_list_paths(self.denied)}")
        return f"[not readable by commands: {'; '.join(notes)}]" if notes else ""


class PathCovers:
    """Determines the paths to hide from commands of the agent of `context`."""

    def __init__(self, context: ToolContext) -> None:
        self._context, self._policy = context, context.policy
        self._cwd = os.path.realpath(context.cwd)
        self._shell = shell_context(context.cwd, context.env)
        sandbox = context.sandbox
        self._writable = _absolute_paths(sandbox.write, self._cwd)
        self._readable = (*_absolute_paths(sandbox.read, self._cwd), *map(os.path.realpath, python_folders()))
        self._denied = DeniedFiles(
            absolute_rules(self._policy.denied_paths, self._shell),
            (self._cwd, *_absolute_paths((*sandbox.read, *sandbox.write), self._cwd)),
            skipped=(*self._orch_folders(), *python_folders()),
            needed=(*self._shell.homes, *(() if context.folder is None else (os.fspath(context.folder),))),
        )

    @property
    def is_quick(self) -> bool:
        """Whether `find` checks only a few paths."""
        return not self._policy.denied_paths

    def find_for_tool_host(self, shown_paths: Iterable[str] = ()) -> HiddenPaths:
        """Return the paths to hide from the agent's tool host.

        In orch's folders, the tool host writes to the folders `WRITABLE` of the session folder, and reads the session
        folder and `shown_paths`. Credentials stay readable, because commands that may use credentials are descendants
        of the tool host. Denied paths in the session folder and `shown_paths`, and below them, are left out.
        """
        session = () if self._context.folder is None else (os.path.realpath(self._context.folder),)
        own_paths = tuple(os.path.join(folder, name) for folder in session for name in WRITABLE)
        shown_paths = (*session, *map(os.path.realpath, (*shown_paths, *python_folders())))
        denied = self._denied.find()
        covers = [
            Cover(path, _paths_below(path, own_paths), _paths_below(path, shown_paths))
            for path in denied.paths
            if not any(path == each or _is_below(path, each) for each in (*own_paths, *shown_paths))
        ]
        return HiddenPaths((*self._orch_covers(own_paths, shown_paths), *covers), (), denied.paths, denied.problem)

    def find(self, credentials: Container[str] = ()) -> HiddenPaths:
        """Return the existing paths to hide, without the credentials `credentials` (resolved paths)."""
        denied = self._denied.find()
        credential_covers = tuple(cover for cover in self._credential_covers() if cover.path not in credentials)
        covers = (*self._orch_covers(), *credential_covers, *map(Cover, denied.paths))
        return HiddenPaths(covers, tuple(cover.path for cover in credential_covers), denied.paths, denied.problem)

    def _orch_folders(self) -> set[str]:
        """Return orch's folders without the working folder. The set is empty if the tool runs in the root."""
        if not self._context.orch_folders:
            return set()
        return {os.path.realpath(path) for path in orch_folders(self._context) if path.is_dir()} - {self._cwd}

    def _orch_covers(self, own_paths: tuple[str, ...] = (), shown_paths: tuple[str, ...] = ()) -> Iterator[Cover]:
        """Yield orch's folders, except the agent's working folder, its scratch folder, skills and Python.

        The texts of the agent's own archives stay readable.

        The paths `own_paths` (writable) and `shown_paths` (readable) also stay visible. The daemon's socket stays
        visible too: a connection from a command has the rights of the agent.
        """
        scratch = () if self._context.folder is None else (os.path.realpath(self._context.folder / SCRATCH),)
        writable = (self._cwd, *scratch, *self._writable, *own_paths)
        readable = (*self._readable, *archive_texts(self._context), *shown_paths)
        folders = self._orch_folders()
        for folder in sorted(folders):
            if any(_is_below(folder, other) for other in folders - {folder}):
                continue
            sockets = tuple(_control_sockets(folder))
            yield Cover(folder, _paths_below(folder, writable), _paths_below(folder, (*readable, *sockets)))

    def _credential_covers(self) -> Iterator[Cover]:
        # A usable path that a command replaced by a link to other credentials does not make those usable.
        usable = absolute_rules(self._policy.usable_credentials, self._shell, follow=False)
        hidden = set()
        for path in absolute_rules(credential_rules(self._shell), self._shell, follow=False):
            real_path = os.path.realpath(path)
            if os.path.exists(path) and not any(is_usable_credential(each, usable) for each in (path, real_path)):
                hidden.add(real_path)
        for path in sorted(hidden):
            yield Cover(path, tuple(sorted(each for each in usable if _is_below(each, path))))


def orch_folders(context: ToolContext) -> Iterator[Path]:
    """Yield orch's folders and the folders that contain agent sessions, including the session of this agent."""
    yield from map(Path, context.orch_folders)
    if (folder := context.folder) is not None:
        yield folder.parent
        # This is the default location. It also applies to an agent without a process.
        if folder.parent.name == SESSIONS:
            yield folder.parent.parent


def _control_sockets(folder: str) -> Iterator[str]:
    """Yield the daemon sockets in one of orch's folders.

    Commands may connect to these sockets, with the rights of their agent.
    """
    yield from glob.iglob(os.path.join(glob.escape(folder), "daemon", "control.sock"))
    yield from glob.iglob(os.path.join(glob.escape(folder), "*-control.sock"))


def _paths_below(folder: str, paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(path for path in dict.fromkeys(paths) if _is_below(path, folder))


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder.rstrip('/')}/")


def _absolute_paths(paths: Iterable[str], cwd: str) -> tuple[str, ...]:
    return tuple(os.path.realpath(os.path.join(cwd, os.path.expanduser(path))) for path in paths)


def _list_paths(paths: tuple[str, ...]) -> str:
    home = os.path.expanduser("~")
    shown = [f"~{path[len(home) :]}" if _is_below(path, home) else path for path in paths[:MAX_NAMED]]
    more = f" and {len(paths) - MAX_NAMED:,} more" if len(paths) > MAX_NAMED else ""
    return plain_line(", ".join(shown), MAX_CHARACTERS) + more
