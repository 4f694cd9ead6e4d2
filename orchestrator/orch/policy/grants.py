"""What was approved for later: for a session in memory, for a project in a file under the user's home."""

from __future__ import annotations

import os
import re
from collections.abc import Container
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import ConfigError, StoreError
from orch_protocol.policy.approval import Consent, Question

from ..config import paths

__all__ = ["Grant", "GrantStore", "covers", "grant_of"]

PROJECT_SECONDS: Final = 90 * 24 * 3600.0
NOT_SIMPLE: Final = re.compile(r"[;&|<>$`(){}\\\n\r]")
"""What lets a command be more than one."""


class Grant(Struct, frozen=True):
    """A yes for later. `subject` is the pattern, or, with a `digest`, what exactly that call was about.

    One that is `tainted` was given although untrusted content and sensitive data were there: others by a pattern are
    not for that. Times are epoch seconds; `expires_at` None is never.
    """

    id: str
    tool: str
    subject: str
    folder: str
    made_at: float
    expires_at: float | None = None
    digest: str = ""
    tainted: bool = False


def grant_of(question: Question, answer: Consent, now: float) -> Grant:
    """Return what `answer` grants for later."""
    seconds = answer.seconds
    if seconds is None and answer.scope == "project":
        seconds = PROJECT_SECONDS
    return Grant(
        os.urandom(4).hex(),
        question.tool,
        question.subject if answer.pattern is None else answer.pattern,
        question.folder,
        now,
        None if seconds is None else now + seconds,
        question.digest if answer.pattern is None else "",
        question.tainted,
    )


def covers(grant: Grant, question: Question, now: float) -> bool:
    """Say whether `grant` answers `question`: the very same call, or a simple one that fits its pattern."""
    if grant.tool != question.tool or grant.folder != question.folder:
        return False
    if grant.expires_at is not None and now >= grant.expires_at:
        return False
    if grant.digest:
        return grant.digest == question.digest
    if question.tainted and not grant.tainted:
        return False
    if question.input.get("credentials", False) is not False:
        return False  # asked about each time: a pattern says nothing of credentials
    simple = not question.local and not NOT_SIMPLE.search(question.subject)
    return simple and fnmatchcase(question.subject, grant.subject)


class GrantStore:
    """The grants of projects, in one file of the user's; never in the project itself, which may be a stranger's."""

    def __init__(self, home: Path) -> None:
        self._file = home / "permissions.json"

    def of(self, folder: str | None = None) -> list[Grant]:
        """Return the grants for `folder`, None: all. Raises ConfigError for a file that cannot be read."""
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=list[Grant])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"cannot read {self._file} ({error}): remove the file and approve the requests again"
            ) from error
        return [grant for grant in found if folder is None or grant.folder == folder]

    def add(self, grant: Grant, now: float) -> None:
        """Keep `grant`, and let go of those that are over. Raises ConfigError, StoreError."""
        self._write([*(each for each in self.of() if each.expires_at is None or each.expires_at > now), grant])

    def revoke(self, ids: Container[str]) -> None:
        """Take the grants called `ids` back. Raises ConfigError, StoreError."""
        known = self.of()
        kept = [each for each in known if each.id not in ids]
        if len(kept) < len(known):
            self._write(kept)

    def _write(self, grants: list[Grant]) -> None:
        """Replace the file whole, so that a reader never sees half of one."""
        beside = self._file.with_name(f"permissions.{os.getpid()}.tmp")
        try:
            paths.private_dir(self._file.parent)
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(msgspec.json.encode(grants))
            os.replace(beside, self._file)
        except OSError as error:
            raise StoreError(f"cannot write {self._file}: {error.strerror}") from error
