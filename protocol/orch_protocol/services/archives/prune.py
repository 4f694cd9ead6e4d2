"""The services that delete archives by age and by id."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ..service import USERS_ONLY, Service
from .recall import ArchiveRow

__all__ = ["DELETE_ARCHIVES", "PRUNE_ARCHIVES", "DeleteArchives", "PruneArchives", "PrunedArchives"]


class PruneArchives(Struct, frozen=True, forbid_unknown_fields=True):
    """Permanently delete the archives older than `older`, which is a number of seconds or text such as "30d".

    `ref` limits the deletion to one agent and its subagents. None means all agents. If `dry_run` is True, nothing is
    deleted.
    """

    older: float | str
    ref: str | None = None
    dry_run: bool = False


class DeleteArchives(Struct, frozen=True, forbid_unknown_fields=True):
    """Permanently delete the archives `ids`, which are ids or unique prefixes of ids.

    If `dry_run` is True, nothing is deleted.
    """

    ids: tuple[str, ...]
    dry_run: bool = False


class PrunedArchives(Struct, frozen=True):
    """The deleted archives, and the total size of their messages and sessions.

    If `dry_run` was True, the result lists the archives that would be deleted. `busy` maps ids of agents to the reason
    why their archives were not deleted.
    """

    archives: tuple[ArchiveRow, ...] = ()
    bytes: int = 0
    busy: dict[str, str] = {}


PRUNE_ARCHIVES: Final = Service(
    "prune_archives", PruneArchives, PrunedArchives, USERS_ONLY, "Delete archives older than a given age."
)
DELETE_ARCHIVES: Final = Service(
    "delete_archives", DeleteArchives, PrunedArchives, USERS_ONLY, "Delete archives by id."
)
