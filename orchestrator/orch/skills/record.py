"""What skills were installed from where: a small record of the user's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from msgspec import Struct

from orch_worker import kept

from .. import paths

__all__ = ["Installed", "installed", "note"]

AGAIN: Final = "install again what you need to know the source of"


class Installed(Struct, frozen=True):
    """Where a skill was installed from, which `commit` of a repository, when, and the `hash` that it had then."""

    source: str
    hash: str
    at: str
    commit: str = ""
    path: str = ""


def installed(folder: Path, home: Path) -> Installed | None:
    """Return where the skill in `folder` was installed from, None when it was not. Raises ConfigError."""
    return _record(home).get(_key(folder))


def note(folder: Path, home: Path, row: Installed | None) -> None:
    """Take down where the skill in `folder` is from; None: it is not there any more. Raises ConfigError, StoreError."""
    paths.private_dir(home)
    key = _key(folder)

    def noted(known: dict[str, Installed]) -> dict[str, Installed]:
        return {each: was for each, was in known.items() if each != key} | ({key: row} if row is not None else {})

    kept.change(_file(home), dict[str, Installed], {}, AGAIN, noted)


def _file(home: Path) -> Path:
    return home / "installed_skills.json"


def _record(home: Path) -> dict[str, Installed]:
    return kept.read(_file(home), dict[str, Installed], {}, AGAIN)


def _key(folder: Path) -> str:
    return os.path.join(os.path.realpath(folder.parent), folder.name)
