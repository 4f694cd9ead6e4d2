"""Services that show and change an agent's workspace."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ...core.workspace import Artifact, Bytes, Count
from ..service import USERS_ONLY, Service

__all__ = [
    "CHANGE_WORKSPACE",
    "SHOW_WORKSPACE",
    "ChangeWorkspace",
    "ShowWorkspace",
    "WorkspaceChanged",
    "WorkspaceShown",
]


class ShowWorkspace(Struct, frozen=True, forbid_unknown_fields=True):
    """Show the workspace of `ref`, sorted by relevance to the text `about`.

    If `about` is None, the latest artifacts come first.
    """

    ref: str
    about: str | None = None


class WorkspaceShown(Struct, frozen=True):
    """The workspace of the agent `id`. `turn` is the number of its turns so far.

    The files of the workspace were compared with the files on disk.

    `enabled`: whether the agent has a workspace. `digest`: a summary in one line.
    """

    id: str
    turn: int
    artifacts: tuple[Artifact, ...] = ()
    digest: str = ""
    enabled: bool = True


class ChangeWorkspace(Struct, frozen=True, forbid_unknown_fields=True):
    """Change the workspace of `ref`: `pin`, `unpin` or `drop` artifacts.

    A name may omit the part before the colon. If `prune` is True, drop artifacts by the agent's prune limits. `turns`
    and `bytes` override these limits.
    """

    ref: str
    pin: tuple[str, ...] = ()
    unpin: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    prune: bool = False
    turns: Count | None = None
    bytes: Bytes | None = None


class WorkspaceChanged(Struct, frozen=True):
    """The full names of the artifacts that were pinned, unpinned and dropped."""

    id: str
    pinned: tuple[str, ...] = ()
    unpinned: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


SHOW_WORKSPACE: Final = Service(
    "workspace", ShowWorkspace, WorkspaceShown, USERS_ONLY, "Show the workspace of an agent.", reads_files=True
)
CHANGE_WORKSPACE: Final = Service(
    "change_workspace",
    ChangeWorkspace,
    WorkspaceChanged,
    USERS_ONLY,
    "Pin, unpin or drop items of an agent's workspace.",
)
