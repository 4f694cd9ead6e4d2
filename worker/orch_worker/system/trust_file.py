"""The trust of a user in the contents of folders: a JSON file with the accepted digest of each folder.

The user accepts the current contents of a folder. After a change the digest differs, and the user must accept the
folder again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from . import atomic_json

__all__ = ["TrustFile", "Trusted"]


Digests: TypeAlias = dict[str, str | dict[str, str]]
"""The accepted digests. Keys are folders. The digest of a project can be one digest for each of its files."""


class Trusted(Struct, frozen=True):
    """The accepted digests when the file was read. Keys are folders."""

    digests: Digests

    def accepts(self, folder: str | Path, digest: str) -> bool:
        """Return whether the user accepted `folder` with this digest."""
        return self.digests.get(_key(folder)) == digest

    def is_known(self, folder: str | Path) -> bool:
        """Return whether the user accepted any version of `folder`."""
        return _key(folder) in self.digests

    def files_of(self, folder: str | Path) -> dict[str, str] | None:
        """Return the accepted digest of each file, or None if the user accepted no list of files for `folder`."""
        found = self.digests.get(_key(folder))
        return found if isinstance(found, dict) else None

    def why_not(self, folder: str | Path) -> str:
        """Return the reason why `folder` is not trusted now."""
        return "was changed since it was trusted" if _key(folder) in self.digests else "was not trusted"


class TrustFile:
    """The accepted digests in `file`.

    `then` is the recommendation in the ConfigError that is raised if the file cannot be read.
    """

    def __init__(self, file: Path, then: str = "trust again what you need") -> None:
        self.file = file
        self._then = then

    def read(self) -> Trusted:
        """Return the accepted digests. Raise ConfigError if the file cannot be read."""
        return Trusted(atomic_json.read(self.file, Digests, {}, self._then))

    def accept(self, folder: str | Path, digest: str | dict[str, str]) -> None:
        """Record that the user accepts `folder` with this digest, or with one digest for each file.

        The folder of the file must exist.

        Raise ConfigError if the file cannot be read, and StoreError if the file cannot be written.
        """
        key = _key(folder)
        atomic_json.change_json(self.file, Digests, {}, self._then, lambda known: known | {key: digest})

    def revoke(self, folder: str | Path) -> bool:
        """Remove the trust in `folder`. Return whether the folder was trusted.

        Raise ConfigError if the file cannot be read, and StoreError if the file cannot be written.
        """
        key = _key(folder)
        if key not in self.read().digests:
            return False

        def without(known: Digests) -> Digests:
            return {each: digest for each, digest in known.items() if each != key}

        return key in atomic_json.change_json(self.file, Digests, {}, self._then, without)


def _key(folder: str | Path) -> str:
    # JSON cannot contain undecodable bytes.
    return os.fsencode(os.path.realpath(folder)).decode("utf-8", "backslashreplace")
