"""Service that deletes archives older than a given age."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orch_protocol.core.errors import ConfigError, OrchError, StoreError
from orch_protocol.services.archives.prune import PRUNE_ARCHIVES, PruneArchives, PrunedArchives
from orch_protocol.services.archives.recall import ArchiveRow
from orch_protocol.session.entries import TranscriptPosition
from orch_worker.session.log.log_reader import last_position
from orch_worker.session.session_reader import NAME

from ...policy.caller import Caller
from ...tree.agents.state import AgentRecord, iso_time
from ...tree.interface import events
from ...tree.journal.entries import TranscriptRewritten
from ...tree.rules.deletions import redacted
from ..checks.idle import AgentBusy, holders_of, stop_processes
from ..dispatch.handlers import handles
from .recall import archive_row, owners_in_sight, update_holder_source

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["finish_pruning", "parse_age", "prune_archives"]

UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
AGE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")


@handles(PRUNE_ARCHIVES)
async def prune_archives(root: Supervisor, caller: Caller, params: PruneArchives) -> PrunedArchives:
    """Delete archives, agent by agent. Archives of busy agents are kept. Raises ConfigError, StoreError.

    If the caller stops waiting, the deletion continues.
    """
    owners = owners_in_sight(root, caller, params.ref)
    now = root.clock()
    cutoff = iso_time(max(0.0, now - parse_age(params.older)))
    if params.dry_run:
        return await _preview(root, owners, cutoff)
    return await root.steps.run(_prune(root, owners, cutoff, iso_time(now)))


def parse_age(age: float | str) -> float:
    """Return the age `age` in seconds. Raises ConfigError."""
    if isinstance(age, str) and (match := AGE.fullmatch(age.strip().lower())):
        return float(match[1]) * UNITS[match[2]]
    if isinstance(age, (int, float)) and not isinstance(age, bool) and 0 <= age < float("inf"):
        return float(age)
    raise ConfigError(f"invalid age {age!r}: use a number of seconds, or a string such as 90m, 12h, 30d, 8w")


async def _preview(root: Supervisor, owners: Iterable[AgentRecord], cutoff: str) -> PrunedArchives:
    rows: list[ArchiveRow] = []
    size = 0
    for owner in owners:
        plan, extra_bytes = await root.archives.content_to_delete(owner.spec, cutoff)
        rows += [archive_row(owner, record) for record in plan.records]
        size += plan.bytes + extra_bytes
    return PrunedArchives(tuple(rows), size)


async def _prune(root: Supervisor, owners: Iterable[AgentRecord], cutoff: str, timestamp: str) -> PrunedArchives:
    rows: list[ArchiveRow] = []
    busy: dict[str, str] = {}
    size = 0
    finished: dict[str, TranscriptPosition] = {}
    async with root.holds.lock:
        try:
            for owner in owners:
                try:
                    result = await _prune_one(root, owner, cutoff, timestamp, finished)
                except AgentBusy as error:
                    busy[owner.spec.id] = str(error)
                    continue
                rows += result.archives
                size += result.bytes
        finally:
            await _record_finished(root, finished)
    return PrunedArchives(tuple(rows), size, busy)


async def _prune_one(
    root: Supervisor, owner: AgentRecord, cutoff: str, timestamp: str, finished: dict[str, TranscriptPosition]
) -> PrunedArchives:
    records = await root.archives.list_records(owner.spec)
    plan, size = await root.archives.content_to_delete(owner.spec, cutoff)
    if not plan.due and not any(record.deleted for record in records):
        return PrunedArchives()
    deleted_ids = {record.id for record in plan.records}
    with root.holds.hold(owner.spec.id):
        holders = holders_of(root, owner)
        await stop_processes(root, [owner, *(holder for holder in holders if holder.spec.id in deleted_ids)], holders)
        position = await _last_position(root, owner)
        root.record(TranscriptRewritten(at=root.clock(), id=owner.spec.id, before=position))
        try:
            await root.archives.delete(owner.spec, cutoff, timestamp)
        finally:
            finished[owner.spec.id] = await _finish(root, owner)
        for holder in holders_of(root, owner):
            if not holder.deleted:
                await update_holder_source(root, holder, eras=True)
    return PrunedArchives(tuple(archive_row(owner, record) for record in plan.records), plan.bytes + size)


async def finish_pruning(root: Supervisor) -> None:
    """Finish each deletion of archives that an earlier root began before it was killed. Raises StoreError.

    If another process has the session open, the deletion in this session stays unfinished.
    """
    if not (unfinished := [*root.tree.agents.rewriting]):
        return
    finished: dict[str, TranscriptPosition] = {}
    async with root.holds.lock:
        with root.holds.hold(*unfinished):
            for id in unfinished:
                with suppress(OrchError):
                    finished[id] = await _finish(root, root.tree.agents[id])
        await _record_finished(root, finished)


async def _finish(root: Supervisor, owner: AgentRecord) -> TranscriptPosition:
    """Remove the remaining files of a deletion, unless the old session file is still in place.

    Return the position of the last line of the session file.
    """
    position = await _last_position(root, owner)
    rewritten = position != root.tree.agents.rewriting[owner.spec.id]
    deletion = await root.archives.finish_deletion(owner.spec, rewritten=rewritten)
    root.handle(events.RecordDeletion(owner.spec.id, deletion.archives, deletion.turns))
    return position


async def _record_finished(root: Supervisor, finished: Mapping[str, TranscriptPosition]) -> None:
    """Remove deleted content from the journal, and record the new last lines of the transcripts. Raises StoreError."""
    await root.disk.rewrite(redacted)
    for id, position in finished.items():
        root.record(TranscriptRewritten(at=root.clock(), id=id, transcript=position))


async def _last_position(root: Supervisor, owner: AgentRecord) -> TranscriptPosition:
    path = Path(owner.spec.folder, NAME)
    position = await root.disk.do(last_position, path)
    if position is None:
        raise StoreError(f"cannot delete archives in {path}: it has no valid line; run `orch fsck`")
    return position
