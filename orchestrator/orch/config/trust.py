"""Which folders' configuration a person has read and accepted: by content, so that an edit asks anew."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from orch_protocol.core.errors import ConfigError
from orch_worker.system import atomic_json
from orch_worker.system.files import bytes_of

from . import paths

__all__ = ["Trusted", "is_trusted", "project_file", "trust", "untrust"]


# --- What a person has read and accepted ---


class Trusted:
    """The hashes in `file`, by what they are of. When it cannot be read its ConfigError says to do `then`."""

    def __init__(self, file: Path, then: str = "trust again what you need") -> None:
        self._file, self._then = file, then

    def known(self) -> dict[str, str]:
        """Return the hashes. Raises ConfigError."""
        return atomic_json.read(self._file, dict[str, str], {}, self._then)

    def add(self, key: str, hash: str) -> None:
        """Let `hash` be that of `key`. Raises ConfigError, StoreError."""
        paths.private_dir(self._file.parent)
        atomic_json.change_json(self._file, dict[str, str], {}, self._then, lambda known: known | {key: hash})

    def remove(self, key: str) -> bool:
        """Let there be none of `key`; False when there was none. Raises ConfigError, StoreError."""
        if key not in self.known():
            return False

        def without(known: dict[str, str]) -> dict[str, str]:
            return {each: hash for each, hash in known.items() if each != key}

        return key in atomic_json.change_json(self._file, dict[str, str], {}, self._then, without)


def project_file(folder: Path) -> Path:
    """Return where the configuration of the project in `folder` lies."""
    return folder / ".orch" / "config.toml"


def is_trusted(folder: Path, content: bytes, home: Path) -> bool:
    """Say whether exactly `content`, as the configuration of `folder`, was trusted."""
    return _trusted(home).known().get(_key(folder)) == hashlib.sha256(content).hexdigest()


def trust(folder: Path, home: Path, check: Callable[[Path, bytes, Path], None]) -> Path:
    """Trust the configuration of `folder` as it is now and return its path. ConfigError when there is none.

    `check(file, content, home)` raises for one that does not do.
    """
    file = project_file(folder)
    try:
        content = bytes_of(file)
    except OSError as error:
        raise ConfigError(f"nothing to trust: {file} cannot be read ({error.strerror})") from error
    try:
        check(file, content, home)
    except ConfigError as error:
        raise ConfigError(f"not trusted: {error}") from error
    _trusted(home).add(_key(folder), hashlib.sha256(content).hexdigest())
    return file


def untrust(folder: Path, home: Path) -> bool:
    """Forget that `folder` was trusted. False when it was not."""
    return _trusted(home).remove(_key(folder))


def _key(folder: Path) -> str:
    return os.fsencode(folder.resolve()).decode("utf-8", "backslashreplace")


def _trusted(home: Path) -> Trusted:
    return Trusted(home / "trust.json", "trust the folders you need again")
