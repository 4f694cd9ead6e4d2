"""Deleting for good what was archived long enough ago."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from orch_protocol.core.errors import ConfigError
from orch_protocol.services.recall import PRUNE_ARCHIVES, ArchiveRow, PruneArchives, PrunedArchives

from ...policy.caller import Caller
from ...tree.agents.state import AgentRecord, iso_time
from ...tree.journal import events
from ...tree.rules.deletions import redacted
from ..checks.idle import AgentBusy, holders_of, stop_processes
from ..checks.transcripts import rewriting_transcripts
from ..dispatch.handlers import handles
from .recall import archive_row, look_up, owners_in_sight

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["prune_archives", "seconds_of"]

UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
AGE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")


@handles(PRUNE_ARCHIVES)
async def prune_archives(root: Supervisor, caller: Caller, params: PruneArchives) -> PrunedArchives:
    """Delete archives, agent by agent; one that works just now keeps its own. Raises ConfigError, StoreError.

    Whoever gives up waiting does not end it.
    """
    owners = owners_in_sight(root, caller, params.ref)
    now = root.clock()
    before = iso_time(max(0.0, now - seconds_of(params.older)))
    if params.dry_run:
        return await _planned(root, owners, before)
    pruning = asyncio.ensure_future(_prune(root, owners, before, iso_time(now)))
    pruning.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(pruning)


def seconds_of(older: float | str) -> float:
    """Return the age that `older` is, in seconds. Raises ConfigError."""
    if isinstance(older, str) and (match := AGE.fullmatch(older.strip().lower())):
        return float(match[1]) * UNITS[match[2]]
    if isinstance(older, (int, float)) and not isinstance(older, bool) and 0 <= older < float("inf"):
        return float(older)
    raise ConfigError(f"invalid age {older!r}: use a number of seconds, or a string such as 90m, 12h, 30d, 8w")


async def _planned(root: Supervisor, owners: Iterable[AgentRecord], before: str) -> PrunedArchives:
    rows: list[ArchiveRow] = []
    size = 0
    for owner in owners:
        going, beside = await root.archives.doomed(owner.spec, before)
        rows += [archive_row(owner, record) for record in going.records]
        size += going.bytes + beside
    return PrunedArchives(tuple(rows), size)


async def _prune(root: Supervisor, owners: Iterable[AgentRecord], before: str, when: str) -> PrunedArchives:
    rows: list[ArchiveRow] = []
    busy: dict[str, str] = {}
    size = 0
    async with root.holds.turn:
        try:
            for owner in owners:
                try:
                    done = await _prune_one(root, owner, before, when)
                except AgentBusy as error:
                    busy[owner.spec.id] = str(error)
                    continue
                rows += done.archives
                size += done.bytes
        finally:
            await root.disk.rewrite(redacted)
    return PrunedArchives(tuple(rows), size, busy)


async def _prune_one(root: Supervisor, owner: AgentRecord, before: str, when: str) -> PrunedArchives:
    known = await root.archives.known(owner.spec)
    going, _ = await root.archives.doomed(owner.spec, before)
    if not going.due and not any(record.deleted for record in known):
        return PrunedArchives()
    doomed = {record.id for record in going.records}
    with root.holds.hold(owner.spec.id):
        holders = holders_of(root, owner)
        rewritten = [owner, *(holder for holder in holders if holder.spec.id in doomed)]
        await stop_processes(root, rewritten, holders)
        async with rewriting_transcripts(root, rewritten):
            done = await root.archives.delete(owner.spec, before, when)
            root.handle(events.RecordDeletion(owner.spec.id, done.archives, done.turns))
        for holder in holders_of(root, owner):
            if not holder.deleted:
                await look_up(root, holder, eras=True)
    rows = tuple(archive_row(owner, record) for record in done.going.records)
    return PrunedArchives(rows, done.going.bytes + done.bytes)
