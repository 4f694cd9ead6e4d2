"""Writes a file below the agent's folder, completely or not at all, even if folders are swapped during the call."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from time import sleep
from typing import Final

from orch_protocol.core.text import UTF8_MARK

from ...system.atomic_write import atomic_write
from ...system.files import error_text
from ...system.safe_descent import FOLDER, open_below
from ..api.base import ToolContext, ToolError
from .read import path_inside
from .read_stamps import ReadStamps, State, state_of

__all__ = ["FileTarget", "open_target"]

MAX_PATH: Final = 4_000
FIRST_PAUSE: Final = 0.002
MAX_PAUSE: Final = 0.05
MAX_WAITED: Final = 10.0
"""Maximum seconds to wait for other writers in the same folder. A write usually takes only a moment."""


class FileTarget:
    """A file to write, by its name in an open folder."""

    def __init__(self, folder: int, path: str, real_path: str, read_stamps: ReadStamps) -> None:
        self.path = path
        """The path relative to the agent's folder, with links resolved."""
        self._folder, self._real_path, self._read_stamps = folder, real_path, read_stamps
        self._name = PurePosixPath(path).name

    def read(self, limit: int) -> bytes | None:
        """Return the content of the file. Return None if the file does not exist.

        Raise ToolError if the file has more than `limit` bytes.
        """
        data = self._read(limit + 1)
        if data is not None and len(data) > limit:
            raise ToolError(f"{self.path!r} has more than {limit // 1_000_000} MB.")
        return data

    def has_mark(self) -> bool:
        """Return whether the file exists and begins with the byte order mark of UTF-8."""
        try:
            return self._read(len(UTF8_MARK)) == UTF8_MARK
        except PermissionError:  # A file that cannot be read can be replaced.
            return False

    @property
    def changed(self) -> bool:
        """Whether another program changed the file after the agent read it. False if the agent never read the file."""
        return self._read_stamps.changed(self._real_path, self._state())

    def write(self, data: bytes) -> None:
        """Atomically replace the content by `data`. The file mode is kept. Raise OSError if writing fails."""
        mode, was_unchanged = self._mode(), not self.changed
        with atomic_write(Path(self._name), mode=mode, sync="content", folder=self._folder) as file:
            file.write(data)
        if was_unchanged and (state := self._state()) is not None:
            self._read_stamps.record(self._real_path, state)

    def _read(self, limit: int) -> bytes | None:
        if self._mode() is None:
            return None
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(self._name, flags, dir_fd=self._folder), "rb") as file:
            return file.read(limit)

    def _state(self) -> State | None:
        try:
            return state_of(os.stat(self._name, dir_fd=self._folder, follow_symlinks=False))
        except FileNotFoundError:
            return None

    def _mode(self) -> int | None:
        """Return the permissions of the file, or None if it does not exist.

        Raise ToolError if the file must not be written.
        """
        try:
            mode = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(mode):
            raise ToolError(f"{self.path!r} is {'a folder' if stat.S_ISDIR(mode) else 'not a regular file'}.")
        # A rename ignores the permissions of the replaced file, so check the permissions first.
        if not mode & 0o222:
            raise ToolError(f"{self.path!r} is read-only.")
        return mode & 0o777


@contextmanager
def open_target(context: ToolContext, path: str, *, make_folders: bool = False) -> Iterator[FileTarget]:
    """Open the folder that contains `path`. Raise ToolError if the folder is not below the context's folder.

    Links are resolved once, and the resulting path is opened without following links. A link that is created afterwards
    causes an error. Missing folders are created one by one. A lock on the folder serializes writers in all processes,
    so that concurrent changes are not lost.
    """
    root = context.cwd.resolve()
    real_path = path_inside(context, path)
    if real_path == root:
        raise ToolError(f"{path!r} is the working folder itself: name a file.")
    if len(os.fsencode(real_path)) > MAX_PATH:  # Such a path could be created, but not opened by name.
        raise ToolError(f"The path {path[:80]!r}... is too long.")
    relative = real_path.relative_to(root)
    try:
        try:
            folder = open_below(str(root), relative.parent.as_posix(), FOLDER)
        except FileNotFoundError:
            if not make_folders:
                raise
            folder = _make_folders(root, relative.parent)
        try:
            with _lock_folder(folder, path):
                yield FileTarget(folder, relative.as_posix(), str(real_path), context.agent_object(ReadStamps))
        finally:
            os.close(folder)
    except OSError as error:
        raise ToolError(f"{path!r} cannot be written: {error_text(error)}.") from error


@contextmanager
def _lock_folder(folder: int, path: str) -> Iterator[None]:
    """Hold the lock on the open `folder`, if its file system supports locks."""
    waited, pause = 0.0, FIRST_PAUSE
    is_locked = False
    while not is_locked:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waited >= MAX_WAITED:
                raise ToolError(
                    f"{path!r} was not changed: another process locked its folder for {MAX_WAITED:g} s. Try again."
                ) from None
            sleep(pause)
            waited, pause = waited + pause, min(pause * 2, MAX_PAUSE)
            continue
        except OSError:
            break
        is_locked = True
    try:
        yield
    finally:
        # Closing the folder is not sufficient, because a process forked in the meantime has the folder open too.
        if is_locked:
            fcntl.flock(folder, fcntl.LOCK_UN)


def _make_folders(root: Path, relative: Path) -> int:
    """Open the folder `relative` below `root`. Create missing parts of the path."""
    folder = open_below(str(root), ".", FOLDER)
    try:
        for part in relative.parts:
            child = _open_or_make(folder, part)
            os.close(folder)
            folder = child
    except BaseException:
        os.close(folder)
        raise
    return folder


def _open_or_make(folder: int, name: str) -> int:
    try:
        return os.open(name, FOLDER, dir_fd=folder)
    except FileNotFoundError:
        pass
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        pass  # A concurrent call created the folder.
    return os.open(name, FOLDER, dir_fd=folder)
