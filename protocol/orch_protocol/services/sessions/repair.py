"""The service that checks and repairs session files."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ..service import USERS_ONLY, Service

__all__ = ["CHECK_SESSION", "CheckSession", "FileFinding", "SessionChecked"]


class FileFinding(Struct, frozen=True):
    """A problem of the file or folder at `path`, and how to solve the problem.

    - `kind`: `torn` (an incomplete write), `damaged` (a line), `tree` (a wrong parent), `entry` (invalid content),
      `truncated` (acknowledged lines are missing), `archive`, `index` (of the search), `owner`, `foreign`, `worktree`
      (of an agent that has ended), or `open` (readable by other users).
    - `repaired`: a description of the repair, or "" if nothing was repaired.
    """

    path: str
    kind: str
    what: str
    do: str
    repaired: str = ""


class CheckSession(Struct, frozen=True, forbid_unknown_fields=True):
    """Check the session file of `ref` for damage. If `repair` is True, replace a damaged file with a repaired copy."""

    ref: str
    repair: bool = False


class SessionChecked(Struct, frozen=True):
    """The problems of the session file at `path`, which belongs to the agent `id`.

    `repaired` describes the repairs. `kept` is the path of the damaged file, or "" if nothing was changed.
    """

    id: str
    path: str
    found: tuple[FileFinding, ...] = ()
    repaired: tuple[str, ...] = ()
    kept: str = ""


CHECK_SESSION: Final = Service(
    "check_session", CheckSession, SessionChecked, USERS_ONLY, "Check the files of a session, and repair them."
)
