"""What a person has read and accepted: a record of hashes, changed by one process at a time."""

from __future__ import annotations

from pathlib import Path

from orch_worker import kept

from . import paths

__all__ = ["Trusted"]


class Trusted:
    """The hashes in `file`, by what they are of. When it cannot be read its ConfigError says to do `then`."""

    def __init__(self, file: Path, then: str = "trust again what you need") -> None:
        self._file, self._then = file, then

    def known(self) -> dict[str, str]:
        """Return the hashes. Raises ConfigError."""
        return kept.read(self._file, dict[str, str], {}, self._then)

    def add(self, key: str, hash: str) -> None:
        """Let `hash` be that of `key`. Raises ConfigError, StoreError."""
        paths.private_dir(self._file.parent)
        kept.change(self._file, dict[str, str], {}, self._then, lambda known: known | {key: hash})

    def remove(self, key: str) -> bool:
        """Let there be none of `key`; False when there was none. Raises ConfigError, StoreError."""
        if key not in self.known():
            return False

        def without(known: dict[str, str]) -> dict[str, str]:
            return {each: hash for each, hash in known.items() if each != key}

        return key in kept.change(self._file, dict[str, str], {}, self._then, without)
