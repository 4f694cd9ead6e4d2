"""What skills were installed from where: a small record of the user's."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from orch_worker import kept

from .. import paths

__all__ = ["Installed", "installed", "note"]


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
    with kept.locked(home / "installed_skills.lock"):
        known = _record(home)
        known.pop(_key(folder), None)
        kept.write(_file(home), known | ({_key(folder): row} if row is not None else {}))


def _file(home: Path) -> Path:
    return home / "installed_skills.json"


def _record(home: Path) -> dict[str, Installed]:
    return kept.read(_file(home), dict[str, Installed], {}, "install again what you need to know the source of")


def _key(folder: Path) -> str:
    return os.path.join(os.path.realpath(folder.parent), folder.name)
