"""Services that delete archives older than a given age, or with given ids."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from orch_protocol.core.errors import AgentBusyError, ConfigError, OrchError, StoreError
from orch_protocol.services.archives.prune import (
    DELETE_ARCHIVES,
    PRUNE_ARCHIVES,
    DeleteArchives,
    PruneArchives,
    PrunedArchives,
)
from orch_protocol.services.archives.recall import ArchiveRow
from orch_protocol.session.entries import TranscriptPosition
from orch_worker.session.log.log_reader import last_position
from orch_worker.session.session_reader import NAME

from ...archival.store.catalog import containing
from ...archival.store.prune import ArchivesToDelete
from ...policy.caller import Caller
from ...tree.agents.state import AgentRecord, iso_time
from ...tree.interface import events
from ...tree.journal.entries import TranscriptRewritten
from ...tree.rules.deletions import redacted, unrecorded
from ..checks.idle import AgentBusy, check_not_busy, holders_of, stop_processes
from ..dispatch.handlers import handles
from .recall import archive_row, existing_archive, owners_in_sight, update_holder_source

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["delete_archives", "finish_pruning", "parse_age", "prune_archives"]

Selection: TypeAlias = list[tuple[AgentRecord, ArchivesToDelete]]
"""The archives to delete, by the agent that owns them."""

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
    selection: Selection = [(owner, cutoff) for owner in owners]
    if params.dry_run:
        return await _preview(root, selection)
    return await root.steps.run(_prune(root, selection, iso_time(now)))


@handles(DELETE_ARCHIVES)
async def delete_archives(root: Supervisor, caller: Caller, params: DeleteArchives) -> PrunedArchives:
    """Delete the archives with the given ids. If an id is invalid or an agent is busy, delete nothing.

    Raises AgentBusyError, AgentNotFoundError, AmbiguousRefError, ArchiveDeletedError, ConfigError, StoreError. If the
    caller stops waiting, the deletion continues.
    """
    if not params.ids:
        raise ConfigError("no archive given: pass at least one id of an archive")
    ids: dict[str, set[str]] = {}
    for ref in params.ids:
        owner, record = await existing_archive(root, caller, ref)
        ids.setdefault(owner.spec.id, set()).add(record.id)
    selection: Selection = [(root.tree.agents[owner], frozenset(chosen)) for owner, chosen in ids.items()]
    if params.dry_run:
        return await _preview(root, selection)
    return await root.steps.run(_delete(root, selection))


def parse_age(age: float | str) -> float:
    """Return the age `age` in seconds. Raises ConfigError."""
    if isinstance(age, str) and (match := AGE.fullmatch(age.strip().lower())):
        return float(match[1]) * UNITS[match[2]]
    if isinstance(age, (int, float)) and not isinstance(age, bool) and 0 <= age < float("inf"):
        return float(age)
    raise ConfigError(f"invalid age {age!r}: use a number of seconds, or a string such as 90m, 12h, 30d, 8w")


async def _preview(root: Supervisor, selection: Selection) -> PrunedArchives:
    rows: list[ArchiveRow] = []
    size = 0
    for owner, which in selection:
        plan, extra_bytes = await root.archives.content_to_delete(owner.spec, which)
        rows += [archive_row(owner, record) for record in plan.records]
        size += plan.bytes + extra_bytes
    return PrunedArchives(tuple(rows), size)


async def _delete(root: Supervisor, selection: Selection) -> PrunedArchives:
    try:
        for owner, ids in selection:
            records = await root.archives.list_records(owner.spec)
            affected = {*ids, *containing(records, ids)}
            check_not_busy([owner, *(holder for holder in holders_of(root, owner) if holder.spec.id in affected)])
    except AgentBusy as error:
        raise AgentBusyError(f"nothing was deleted: {error}") from None
    deleted = await _prune(root, selection, iso_time(root.clock()))
    if deleted.busy:  # an agent got a query in the meantime
        raise AgentBusyError(f"{len(deleted.archives)} archives were deleted: {'; '.join(deleted.busy.values())}")
    return deleted


async def _prune(root: Supervisor, selection: Selection, timestamp: str) -> PrunedArchives:
    rows: list[ArchiveRow] = []
    busy: dict[str, str] = {}
    size = 0
    finished: dict[str, TranscriptPosition] = {}
    async with root.holds.lock:
        try:
            for owner, which in selection:
                try:
                    result = await _prune_one(root, owner, which, timestamp, finished)
                except AgentBusy as error:
                    busy[owner.spec.id] = str(error)
                    continue
                rows += result.archives
                size += result.bytes
        finally:
            await _record_finished(root, finished)
    return PrunedArchives(tuple(rows), size, busy)


async def _prune_one(
    root: Supervisor,
    owner: AgentRecord,
    which: ArchivesToDelete,
    timestamp: str,
    finished: dict[str, TranscriptPosition],
) -> PrunedArchives:
    records = await root.archives.list_records(owner.spec)
    plan, size = await root.archives.content_to_delete(owner.spec, which)
    if not plan.due and not any(record.deleted for record in records):
        return PrunedArchives()
    deleted_ids = {record.id for record in plan.records}
    affected = deleted_ids | containing(records, deleted_ids)
    with root.holds.hold(owner.spec.id):
        holders = holders_of(root, owner)
        await stop_processes(root, [owner, *(holder for holder in holders if holder.spec.id in affected)], holders)
        position = await _last_position(root, owner)
        root.record(TranscriptRewritten(at=root.clock(), id=owner.spec.id, before=position))
        try:
            await root.archives.delete(owner.spec, which, timestamp)
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
    new = unrecorded(root.tree.agents, owner, deletion.archives)
    await _forget_questions(root, owner, new)
    root.handle(events.RecordDeletion(owner.spec.id, deletion.archives, deletion.turns))
    return position


async def _forget_questions(root: Supervisor, owner: AgentRecord, deleted: Collection[str]) -> None:
    """Delete all questions to the holders of the archives that contain the archives `deleted`.

    The holders quoted the deleted content. They stay, and answer new questions.
    """
    holders = containing(await root.archives.list_records(owner.spec), deleted)
    turns = await root.archives.turns_of_holders(owner.spec, holders)
    for id in holders & {holder.spec.id for holder in holders_of(root, owner)}:
        when = dict.fromkeys(turns.get(id, ()), iso_time(root.clock()))
        root.handle(events.RecordDeletion(id, {}, when))
        root.record(TranscriptRewritten(at=root.clock(), id=id))
    await root.archives.remove_holder_sessions(owner.spec, holders)


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
