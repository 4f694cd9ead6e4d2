"""Writing a file below the agent's folder: whole or not at all, and nowhere else, whatever is swapped meanwhile."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from time import sleep
from typing import Final

from ...system.files import error_text
from ...system.safe_descent import FOLDER, open_below
from ..api.base import ToolContext, ToolError
from .read import path_inside
from .read_stamps import ReadStamps, State, state_of

__all__ = ["FileTarget", "open_target"]

MAX_PATH: Final = 4_000
FIRST_PAUSE: Final = 0.002
LONGEST_PAUSE: Final = 0.05
MOST_WAITED: Final = 10.0
"""Seconds that a call waits for others to have changed files of the same folder: each takes a moment."""


class FileTarget:
    """Where a file is or will be: its name in an open folder."""

    def __init__(self, folder: int, path: str, real: str, sights: ReadStamps) -> None:
        self.path = path
        """Relative to the agent's folder, with links resolved."""
        self._folder, self._real, self._sights = folder, real, sights
        self._name = PurePosixPath(path).name

    def read(self, most: int) -> bytes | None:
        """Return what the file holds, None when there is none. Raises ToolError when it is over `most` bytes."""
        if self._mode() is None:
            return None
        descriptor = os.open(
            self._name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder
        )
        with open(descriptor, "rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise ToolError(f"{self.path!r} is over {most // 1_000_000} MB.")
        return data

    @property
    def changed(self) -> bool:
        """Whether somebody else has changed the file since the agent read it; of one that it never read, nobody."""
        return self._sights.changed(self._real, self._state())

    def write(self, data: bytes) -> None:
        """Put `data` in place of what was there, in one step; the mode of the file stays. Raises OSError."""
        mode, known = self._mode(), not self.changed
        beside = f".{os.urandom(8).hex()}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(beside, flags, 0o666, dir_fd=self._folder)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                if mode is not None:
                    os.fchmod(descriptor, mode)
                os.fsync(descriptor)
            os.replace(beside, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except BaseException:
            os.unlink(beside, dir_fd=self._folder)
            raise
        if known and (state := self._state()) is not None:
            self._sights.note(self._real, state)

    def _state(self) -> State | None:
        try:
            return state_of(os.stat(self._name, dir_fd=self._folder, follow_symlinks=False))
        except FileNotFoundError:
            return None

    def _mode(self) -> int | None:
        """Return the permissions of the file, None when there is none. Raises ToolError for one not to be written."""
        try:
            mode = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(mode):
            raise ToolError(f"{self.path!r} is {'a folder' if stat.S_ISDIR(mode) else 'not a regular file'}.")
        # A rename needs no leave of the file it replaces, so a file that says "do not write" is asked first.
        if not mode & 0o222:
            raise ToolError(f"{self.path!r} is read-only.")
        return mode & 0o777


@contextmanager
def open_target(context: ToolContext, path: str, *, make_folders: bool = False) -> Iterator[FileTarget]:
    """Open the folder that `path` lies in. Raises ToolError when that is not below the context's folder.

    Links are resolved once, and the result is opened without following any: a link put there afterwards is an error,
    not a way out. Folders that are to be made are entered one by one. Meanwhile no other agent, in whatever process,
    changes a file of that folder in this way: of what several read and write at the same time nothing is lost.
    """
    root = context.cwd.resolve()
    real = path_inside(context, path)
    if real == root:
        raise ToolError(f"{path!r} is the working folder itself: name a file.")
    if len(os.fsencode(real)) > MAX_PATH:  # a walk would get there, and nobody by the name
        raise ToolError(f"{path[:80]!r}... is too long a path.")
    relative = real.relative_to(root)
    try:
        try:
            folder = open_below(str(root), relative.parent.as_posix(), FOLDER)
        except FileNotFoundError:
            if not make_folders:
                raise
            folder = _made(root, relative.parent)
        try:
            with _locked(folder, path):
                yield FileTarget(folder, relative.as_posix(), str(real), context.own(ReadStamps))
        finally:
            os.close(folder)
    except OSError as error:
        raise ToolError(f"{path!r} cannot be written: {error_text(error)}.") from error


@contextmanager
def _locked(folder: int, path: str) -> Iterator[None]:
    """Hold the lock on the open `folder`; where its file system has none, go without."""
    waited, pause = 0.0, FIRST_PAUSE
    held = False
    while not held:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waited >= MOST_WAITED:
                raise ToolError(
                    f"{path!r} was not changed: another process locked its folder for {MOST_WAITED:g} s. Try again."
                ) from None
            sleep(pause)
            waited, pause = waited + pause, min(pause * 2, LONGEST_PAUSE)
            continue
        except OSError:
            break
        held = True
    try:
        yield
    finally:
        if held:  # closing would not do: a process that was forked meanwhile has the folder open as well
            fcntl.flock(folder, fcntl.LOCK_UN)


def _made(root: Path, relative: Path) -> int:
    """Open the folder `relative` below `root`, with each part made that is not there."""
    folder = open_below(str(root), ".", FOLDER)
    try:
        for part in relative.parts:
            child = _enter(folder, part)
            os.close(folder)
            folder = child
    except BaseException:
        os.close(folder)
        raise
    return folder


def _enter(folder: int, name: str) -> int:
    try:
        return os.open(name, FOLDER, dir_fd=folder)
    except FileNotFoundError:
        pass
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        pass  # by a call beside this one
    return os.open(name, FOLDER, dir_fd=folder)
