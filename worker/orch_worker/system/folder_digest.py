"""What is in a folder that somebody wrote for agents: its files, and one hash for all of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

from orch_protocol.core.errors import ConfigError

from .files import regular_open_regular

__all__ = [
    "LEFT_OUT",
    "MOST_BYTES",
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
MOST_BYTES: Final = 16 << 20

Contents: TypeAlias = dict[str, bytes]


def files_in(folder: Path, left_out: frozenset[str] = LEFT_OUT) -> Iterator[Path]:
    """Yield the files below `folder`, without those in folders called as `left_out` says.

    Raises ConfigError for a link, or anything else that is no file of its own, and for what cannot be read.
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
    """Return a hash of all that is in `folder`, names and contents. Raises ConfigError for what cannot be trusted."""
    return hash_of(contents_of(folder, left_out))


def contents_of(folder: Path, left_out: frozenset[str] = LEFT_OUT) -> Contents:
    """Return all that is in `folder`, by path below it: whoever uses what was trusted takes it from what was hashed.

    Raises ConfigError for what cannot be trusted.
    """
    found: Contents = {}
    left = MOST_BYTES
    for path in sorted(files_in(folder, left_out)):
        try:
            with regular_open_regular(path) as opened:
                data = opened.read(left + 1)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror or 'it is no file'}") from error
        left -= len(data)
        if left < 0:
            raise ConfigError(f"{folder} holds more than {MOST_BYTES >> 20} MiB: it is for code and texts")
        found[path.relative_to(folder).as_posix()] = data
    return found


def hash_of(contents: Contents) -> str:
    """Return a hash of names and contents, in this order."""
    digest = hashlib.sha256()
    for path, data in contents.items():
        name = os.fsencode(path)
        digest.update(b"%d %b %d " % (len(name), name, len(data)))
        digest.update(data)
    return digest.hexdigest()


def skill_contents(folder: Path) -> Contents:
    """Return all that is in the folder of a skill. Raises ConfigError for what cannot be a skill's."""
    return contents_of(folder, NOT_A_SKILLS)


def skill_digest(folder: Path) -> str:
    """Return a hash of all that is in the folder of a skill. Raises ConfigError for what cannot be a skill's."""
    return hash_of(skill_contents(folder))


def skill_files(folder: Path) -> Iterator[Path]:
    """Yield the files of the skill in `folder`. Raises ConfigError for what cannot be a skill's."""
    return files_in(folder, NOT_A_SKILLS)


def _raised(error: OSError) -> None:
    raise error
