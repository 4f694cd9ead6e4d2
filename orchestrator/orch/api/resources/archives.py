"""`o.archives` lists, searches, reads and deletes archived turns."""

from __future__ import annotations

import builtins

from orch_protocol.core.messages import Message
from orch_protocol.services.archives.prune import (
    DELETE_ARCHIVES,
    PRUNE_ARCHIVES,
    DeleteArchives,
    PruneArchives,
    PrunedArchives,
)
from orch_protocol.services.archives.recall import (
    LIST_ARCHIVES,
    READ_ARCHIVE,
    SEARCH_ARCHIVE,
    ArchiveRow,
    ListArchives,
    ReadArchive,
    SearchArchive,
    SearchHit,
)

from .service_call import ServiceCall

__all__ = ["AsyncArchives"]


class AsyncArchives:
    """The archives of a run's agents. To ask an archive a question, query its holder: `o.get(id)` or `o.ask_all`."""

    def __init__(self, call: ServiceCall) -> None:
        self._call = call

    async def list(self, ref: str | int | None = None) -> builtins.list[ArchiveRow]:
        """Return the archives of agent `ref` and its descendants in creation order. None returns all archives."""
        return await self._call(LIST_ARCHIVES, ListArchives(_text(ref)))

    async def search(self, query: str, *, ref: str | int | None = None, limit: int = 10) -> builtins.list[SearchHit]:
        """Return up to `limit` passages of archives, best match first. A passage contains `query` or similar words.

        `ref` restricts the search to archives of that agent and its descendants.
        """
        return await self._call(SEARCH_ARCHIVE, SearchArchive(query, limit, _text(ref)))

    async def read(self, id: str, *, first: int = 1, last: int | None = None) -> builtins.list[Message]:
        """Return messages `first` to `last` (from 1, inclusive) of an archive, unchanged.

        Raises AgentNotFoundError, AmbiguousRefError, DamagedError.
        """
        return await self._call(READ_ARCHIVE, ReadArchive(id, first, last))

    async def delete(self, *ids: str, dry_run: bool = False) -> PrunedArchives:
        """Permanently delete the archives `ids` (ids or unique prefixes), and the archives that were merged into them.

        With `dry_run` nothing is deleted, and the result lists what would be deleted. The processes of the agents are
        stopped. If an id is unknown, or one of the agents is running a turn, nothing is deleted. Raises AgentBusyError,
        AgentNotFoundError, AmbiguousRefError, ArchiveDeletedError, ConfigError, StoreError.
        """
        return await self._call(DELETE_ARCHIVES, DeleteArchives(ids, dry_run))

    async def prune(self, *, older: float | str, ref: str | int | None = None, dry_run: bool = False) -> PrunedArchives:
        """Permanently delete archives older than `older` (seconds, or a duration such as "30d").

        `ref` restricts the deletion to one agent and its descendants. With `dry_run` nothing is deleted, and the result
        lists what would be deleted. The processes of idle agents are stopped. Agents that are running a turn keep their
        archives and are listed in `busy`. Raises ConfigError, StoreError.
        """
        return await self._call(PRUNE_ARCHIVES, PruneArchives(older, _text(ref), dry_run))


def _text(ref: str | int | None) -> str | None:
    return None if ref is None else str(ref)
