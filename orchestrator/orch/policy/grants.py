"""Grants, which are approvals for later calls.

A grant for a session is in memory. A grant for a project is in a file in the user's home folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from msgspec import Struct

from orch_protocol.policy.approval import Consent, Question
from orch_worker.system import atomic_json

from ..config import paths

__all__ = ["Grant", "GrantStore", "covers", "grant_of"]

AGAIN: Final = "approve the requests again"
PROJECT_SECONDS: Final = 90 * 24 * 3600.0
NOT_SIMPLE: Final = re.compile(r"[;&|<>$`(){}\\\n\r]")
"""Characters that can turn a command into several commands."""


class Grant(Struct, frozen=True):
    """An approval for later calls.

    `subject` is a pattern. If `digest` is set, the grant covers one exact call. `tainted` is True if the conversation
    contained untrusted content and sensitive data when the grant was given. In such a conversation, a grant with a
    pattern applies only if `tainted` is True. Times are epoch seconds. `expires_at` is None if the grant does not
    expire.
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
    """Return the grant for later calls, according to `answer`."""
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
    """Return whether `grant` covers `question`.

    A grant covers the same call, or a simple command that matches the pattern.
    """
    if grant.tool != question.tool or grant.folder != question.folder:
        return False
    if grant.expires_at is not None and now >= grant.expires_at:
        return False
    if grant.digest:
        return grant.digest == question.digest
    if question.tainted and not grant.tainted:
        return False
    if question.credentials or question.input.get("credentials", False) is not False:
        return False  # each access to credentials needs its own approval, so no pattern covers such a call
    simple = not question.local and not NOT_SIMPLE.search(question.subject)
    return simple and fnmatchcase(question.subject, grant.subject)


class GrantStore:
    """The grants of projects, stored in a file of the user.

    The file is outside the project, because a person whom the user does not trust may have written the project.
    """

    def __init__(self, home: Path) -> None:
        self._file = home / "permissions.json"

    def of(self, folder: str | None = None) -> list[Grant]:
        """Return the grants for `folder`.

        If `folder` is None, return all grants. Raises ConfigError if the file cannot be read.
        """
        found = atomic_json.read(self._file, list[Grant], [], AGAIN)
        return [grant for grant in found if folder is None or grant.folder == folder]

    def add(self, grant: Grant, now: float) -> None:
        """Store `grant`, and remove grants that have expired. Raises ConfigError or StoreError."""
        self._change(lambda known: [*(g for g in known if g.expires_at is None or g.expires_at > now), grant])

    def revoke(self, ids: Container[str]) -> None:
        """Remove the grants with the ids `ids`. Raises ConfigError or StoreError."""
        if any(grant.id in ids for grant in self.of()):
            self._change(lambda known: [grant for grant in known if grant.id not in ids])

    def _change(self, change: Callable[[list[Grant]], list[Grant]]) -> None:
        paths.private_dir(self._file.parent)
        atomic_json.change_json(self._file, list[Grant], [], AGAIN, change)
