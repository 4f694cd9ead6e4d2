"""Reads and hashes the files of a folder, such as an extension or a skill."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

from orch_protocol.core.errors import ConfigError

from .files import open_regular_file

__all__ = [
    "LEFT_OUT",
    "MAX_BYTES",
    "Contents",
    "contents_of",
    "digest_of",
    "files_in",
    "hash_of",
    "skill_contents",
    "skill_digest",
    "skill_files",
]

LEFT_OUT: Final = frozenset({"__pycache__"})
NOT_A_SKILLS: Final = LEFT_OUT | {".git"}
MAX_BYTES: Final = 16 << 20

Contents: TypeAlias = dict[str, bytes]


def files_in(folder: Path, left_out: frozenset[str] = LEFT_OUT) -> Iterator[Path]:
    """Yield the files below `folder`, except in subfolders named in `left_out`.

    Raise ConfigError for links, for entries that are not regular files, and for unreadable folders.
    """
    try:
        for root, folders, files in os.walk(folder, onerror=_raised):
            folders[:] = [name for name in folders if name not in left_out]
            for name in (*folders, *files):
                path = Path(root, name)
                if path.is_symlink() or (name in files and not path.is_file()):
                    raise ConfigError(f"{path} is not a regular file: {folder} may contain only files and folders")
                if name in files:
                    yield path
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror}") from error


def digest_of(folder: Path, left_out: frozenset[str] = LEFT_OUT) -> str:
    """Return a hash of the names and contents in `folder`. Raise ConfigError in the same cases as `contents_of`."""
    return hash_of(contents_of(folder, left_out))


def contents_of(folder: Path, left_out: frozenset[str] = LEFT_OUT) -> Contents:
    """Return the contents of all files in `folder`. Keys are relative paths.

    After hashing, use these bytes instead of the files, because the files may change. Raise ConfigError for files that
    `files_in` rejects, for unreadable files, and if the files have more than MAX_BYTES.
    """
    found: Contents = {}
    left = MAX_BYTES
    for path in sorted(files_in(folder, left_out)):
        try:
            with open_regular_file(path) as opened:
                data = opened.read(left + 1)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror or 'it is not a file'}") from error
        left -= len(data)
        if left < 0:
            raise ConfigError(f"{folder} contains more than {MAX_BYTES >> 20} MiB: store only code and texts there")
        found[path.relative_to(folder).as_posix()] = data
    return found


def hash_of(contents: Contents) -> str:
    """Return a hash of names and contents, in the given order."""
    digest = hashlib.sha256()
    for path, data in contents.items():
        name = os.fsencode(path)
        digest.update(b"%d %b %d " % (len(name), name, len(data)))
        digest.update(data)
    return digest.hexdigest()


def skill_contents(folder: Path) -> Contents:
    """Return the contents of a skill's folder. Keys are relative paths.

    Raise ConfigError in the same cases as `contents_of`.
    """
    return contents_of(folder, NOT_A_SKILLS)


def skill_digest(folder: Path) -> str:
    """Return a hash of a skill's folder. Raise ConfigError in the same cases as `contents_of`."""
    return hash_of(skill_contents(folder))


def skill_files(folder: Path) -> Iterator[Path]:
    """Yield the files of the skill in `folder`. Raise ConfigError in the same cases as `files_in`."""
    return files_in(folder, NOT_A_SKILLS)


def _raised(error: OSError) -> None:
    raise error
