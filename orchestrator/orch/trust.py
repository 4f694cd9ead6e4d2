"""Which folders' configuration a person has read and accepted: by content, so that an edit asks anew."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from orch_protocol.errors import ConfigError
from orch_worker.files import bytes_of

from .trusted import Trusted

__all__ = ["is_trusted", "project_file", "trust", "untrust"]


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
