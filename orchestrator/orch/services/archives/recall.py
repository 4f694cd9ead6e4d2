"""Services that search, read and list archives. Also finds the holder of an archive for a query."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from orch_protocol.agent.spec import AgentSpec, Limits
from orch_protocol.core.errors import AgentNotFoundError, AmbiguousRefError, ConfigError, OrchError
from orch_protocol.core.messages import Message
from orch_protocol.core.taint import TaintLabel, inherited_labels, join_labels
from orch_protocol.services.archives.recall import (
    LIST_ARCHIVES,
    LIST_TAINT_LABELS,
    READ_ARCHIVE,
    SEARCH_ARCHIVE,
    ArchiveRow,
    ListArchives,
    ListTaintLabels,
    ReadArchive,
    SearchArchive,
    SearchHit,
)
from orch_protocol.services.service import Reach, Scope
from orch_worker.backends.registry import template_for
from orch_worker.conversation.recalled import with_hits

from ...archival.engine import merge_hits
from ...archival.recall import check_entries, check_search
from ...archival.store.catalog import ArchiveRecord
from ...archival.store.deletion import HOLDERS
from ...policy.caller import Caller, is_below
from ...policy.permissions import ReadContent, may, unreachable_error
from ...tree.agents.agent_record import archive_deleted_error
from ...tree.agents.state import AgentRecord
from ...tree.interface import events
from ..checks.reach import find_agent
from ..checks.taint import label_command
from ..dispatch.handlers import handles
from .archiving import register_archives

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = [
    "archive_row",
    "archives_of",
    "existing_archive",
    "find_agent_or_holder",
    "find_holder",
    "list_archives",
    "list_taint_labels",
    "owners_in_sight",
    "read_archive",
    "search_archive",
    "update_holder_source",
    "with_passages",
]

MIN_PREFIX = 4
MAX_PASSAGES = 8
MAX_HITS = 100


@handles(LIST_ARCHIVES)
async def list_archives(root: Supervisor, caller: Caller, params: ListArchives) -> list[ArchiveRow]:
    """Return the visible archives, ordered by agent and as in the agent's conversation.

    An archive that was merged into another archive is left out.
    """
    owners = await _owners(root, caller, params.ref)
    archives = [(owner, await root.archives.list_shown(owner.spec)) for owner in owners]
    for id, ids in _given_archives(root, caller, params.ref).items():
        owner = root.tree.agents[id]
        archives.append((owner, await root.archives.list_shown(owner.spec, ids)))
    return [archive_row(owner, record) for owner, records in archives for record in records]


@handles(SEARCH_ARCHIVE)
async def search_archive(root: Supervisor, caller: Caller, params: SearchArchive) -> list[SearchHit]:
    """Return passages of visible archives that match the query exactly or approximately. Raises ConfigError."""
    check_search(params.query, params.limit)
    if not params.query.strip():
        raise ConfigError("the query is empty: pass search terms")
    limit = max(1, min(params.limit, MAX_HITS))
    nodes = root.tree.agents
    owners = [each for each in await _owners(root, caller, params.ref) if may(nodes, caller, ReadContent(each))]
    searches = [root.archives.search(owner.spec, params.query, limit) for owner in owners]
    for owner, ids in _given_archives(root, caller, params.ref).items():
        if may(nodes, caller, ReadContent(nodes[owner])):
            searches.append(root.archives.search(nodes[owner].spec, params.query, limit, ids))
    hits = merge_hits(await asyncio.gather(*searches), limit)
    found = ListTaintLabels(tuple(hit.id for hit in hits))
    label_command(root, caller, await list_taint_labels(root, caller, found))
    return hits


@handles(READ_ARCHIVE)
async def read_archive(root: Supervisor, caller: Caller, params: ReadArchive) -> list[Message]:
    """Return messages of a visible archive, unchanged. Raises AgentNotFoundError, AmbiguousRefError."""
    check_entries(params.id, params.first, params.last)
    holder = await _find_holder(root, caller, params.id)
    owner = root.tree.agents[root.tree.agents.holders[holder]]
    if not may(root.tree.agents, caller, ReadContent(owner)):
        raise ConfigError(f"archive {params.id!r} is only for local models: query agent {owner.spec.name!r} about it")
    label_command(root, caller, await list_taint_labels(root, caller, ListTaintLabels((holder,))))
    given = None
    if (
        caller.agent_id is not None
        and owner.spec.id != caller.agent_id
        and not is_below(root.tree.agents, caller.agent_id, owner.spec.id)
    ):
        given = _given_archives(root, caller, None).get(owner.spec.id)
    return await root.archives.read(owner.spec, holder, params.first, params.last, given)


@handles(LIST_TAINT_LABELS)
async def list_taint_labels(root: Supervisor, caller: Caller, params: ListTaintLabels) -> list[TaintLabel]:
    """Return the taint labels that content of these archives adds to a conversation.

    Archives outside the caller's reach are ignored.
    """
    labels: tuple[TaintLabel, ...] = ()
    for id in dict.fromkeys(params.ids):
        with suppress(AgentNotFoundError):
            holder = await _find_holder(root, caller, id)
            owner = root.tree.agents[root.tree.agents.holders[holder]]
            record = await root.archives.record(owner.spec, holder)
            labels = join_labels(
                labels,
                record.marks if owner.spec.id == caller.agent_id else inherited_labels(record.marks, owner.spec.id),
            )
    return list(labels)


async def find_agent_or_holder(root: Supervisor, caller: Caller, ref: str, action: str, scope: Scope) -> AgentRecord:
    """Return the agent that the reference `ref` means for `caller`.

    If the agent is a holder without an agent record, add the holder to the tree. See `reach.find_agent`. Raises
    AgentError. Raises ArchiveDeletedError for a deleted archive.
    """
    nodes = root.tree.agents
    try:
        node = find_agent(root, caller, ref, action, scope)
        if node.is_holder:
            await update_holder_source(root, node)
        return node
    except AgentNotFoundError:
        holder = await find_holder(root, caller, ref, scope)
        if not holder:
            raise
    owner = nodes[nodes.holders[holder]].spec
    # A scripted backend cannot answer questions about an archive.
    backend = owner.backend if owner.backend.provider != "scripted" else type(owner.backend)("extractive")
    spec = AgentSpec(
        id=holder,
        seq=0,
        name=holder,
        task=nodes[owner.id].archives[holder],
        backend=backend,
        folder=f"{owner.folder}/{HOLDERS}/{holder}",
        cwd=owner.cwd,
        depth=owner.depth,
        parent_id=owner.id,
        kind="holder",
        preset="holder",
        limits=Limits(),
        durability=owner.durability,
        template=template_for(backend),
        source=await root.archives.source(owner, holder),
        policy=owner.policy,
        hooks=owner.hooks,
        extensions=tuple(msgspec.structs.replace(each, tools=()) for each in owner.extensions),
        local=owner.local,
        marks=inherited_labels((await root.archives.record(owner, holder)).marks, owner.id),
        compaction=None,
    )
    id: str = root.handle(events.AddHolder(spec))
    return nodes[id]


async def find_holder(root: Supervisor, caller: Caller, ref: str, scope: Scope = "control") -> str:
    """Return the id of the archive with the id or id prefix `ref` within the caller's reach, or ""."""
    try:
        return await _find_holder(root, caller, ref, scope) if len(ref) >= MIN_PREFIX else ""
    except AgentNotFoundError:
        return ""


async def update_holder_source(root: Supervisor, node: AgentRecord, *, eras: bool = False) -> None:
    """Update the recorded position of a holder's archive in the owner's session file.

    The position changes when other archives are deleted. A root that was killed during the deletion did not record the
    new position. The holder of an era is updated only if `eras` is True. The records that this holder sees are then
    updated too. Raises ArchiveDeletedError, StoreError.
    """
    if node.deleted:
        raise node.refusal()
    owner, recorded = root.tree.agents[node.spec.parent_id or ""].spec, node.spec.source
    record = await root.archives.record(owner, node.spec.id)
    if eras if record.kind == "era" else recorded is None or record.spans != recorded.spans:
        source = await root.archives.source(owner, record.id)
        root.handle(events.AddHolder(msgspec.structs.replace(node.spec, source=source)))


async def with_passages(root: Supervisor, node: AgentRecord, prompt: str) -> str:
    """Return `prompt` for the holder `node`. If `node` holds an era, add passages of the era that match `prompt`."""
    source = node.spec.source
    if source is None or source.kind != "era" or not isinstance(prompt, str) or not prompt.strip():
        return prompt
    owner = root.tree.agents[source.owner].spec
    hits = await root.archives.passages(owner, prompt, node.spec.id, MAX_PASSAGES)
    return with_hits(prompt, hits)


async def existing_archive(root: Supervisor, caller: Caller, ref: str) -> tuple[AgentRecord, ArchiveRecord]:
    """Return the owner and the record of the archive with the id or id prefix `ref`, also of one that was merged.

    Raises AgentNotFoundError, AmbiguousRefError, ArchiveDeletedError.
    """
    check_entries(ref, 1, None)
    holder = await _find_holder(root, caller, ref)
    owner = root.tree.agents[root.tree.agents.holders[holder]]
    return owner, await root.archives.record(owner.spec, holder)


async def archives_of(root: Supervisor, caller: Caller, refs: Iterable[str]) -> tuple[str, ...]:
    """Return the ids of the archives `refs`, and the ids of archives that were merged into them.

    `caller` gives these archives to an agent. Raises AgentError for an archive outside the caller's reach.
    """
    ids: dict[str, None] = {}
    for ref in refs:
        holder = await _find_holder(root, caller, ref)
        owner = root.tree.agents[root.tree.agents.holders[holder]].spec
        records = {record.id: record for record in await root.archives.list_records(owner)}
        await root.archives.record(owner, holder)  # raises an error for a deleted archive
        pending = [holder]
        for id in pending:
            ids[id] = None
            pending += records[id].members if id in records else ()
    return tuple(ids)


async def _find_holder(root: Supervisor, caller: Caller, ref: str, scope: Scope = "ask") -> str:
    """Return the id of the archive with the id or id prefix `ref`.

    Only archives within the caller's reach are searched. Raises AgentNotFoundError, AmbiguousRefError. Raises
    ArchiveDeletedError for an archive of a deleted session.
    """
    id = await _find_holder_id(root, caller, ref, scope)
    owner = root.tree.agents[root.tree.agents.holders[id]]
    if owner.deleted:
        raise archive_deleted_error(id, owner.deleted)
    return id


async def _find_holder_id(root: Supervisor, caller: Caller, ref: str, scope: Scope) -> str:
    nodes, holders = root.tree.agents, root.tree.agents.holders

    def matching() -> list[str]:
        return [id for id in holders if id.startswith(ref) and caller.reaches(nodes, id, scope)]

    if ref not in holders or not caller.reaches(nodes, ref, scope):
        for searched in (False, True):
            matches = matching() if len(ref) >= MIN_PREFIX else []
            if len(matches) == 1:
                return matches[0]
            if matches:
                raise AmbiguousRefError(f"{ref!r} is a prefix of {len(matches)} archive ids: {', '.join(matches[:8])}")
            if not searched:
                # A root that was killed while an archive was being recorded has not registered that archive.
                ids = sorted(nodes.unsearched | nodes.alive.keys())
                await _register_new_archives(root, [nodes[id] for id in ids])
        if matching():
            raise AmbiguousRefError(f"archive id {ref!r} is too short: type at least {MIN_PREFIX} characters")
        if (agent := caller.find_agent(nodes)) is not None:
            raise unreachable_error(agent.spec, ref, Reach("", scope))
        raise AgentNotFoundError(f"no archive {ref[:80]!r}: list archives with `orch archive list`")
    return ref


async def _register_new_archives(root: Supervisor, nodes: Iterable[AgentRecord]) -> None:
    """Search the session files of `nodes` for unregistered archives. Files that cannot contain archives are skipped."""
    for node in nodes:
        not_searched = node.spec.id in root.tree.agents.unsearched
        if (
            node.spec.archival is not None
            and (not_searched or node.running)
            and root.archives.may_have_new_archives(node.spec)
        ):
            with suppress(OrchError):  # callers that ask for that agent's archives get the error
                await register_archives(root, node)


async def _owners(root: Supervisor, caller: Caller, ref: str | None) -> Sequence[AgentRecord]:
    """Return the visible agents that have archives or were not killed."""
    await _register_new_archives(root, owners_in_sight(root, caller, ref))
    return owners_in_sight(root, caller, ref)


def owners_in_sight(root: Supervisor, caller: Caller, ref: str | None) -> Sequence[AgentRecord]:
    """Return the agents that may have archives. If `ref` is set, these are the agent `ref` and its descendants.

    If `ref` is None, a user gets all agents, and an agent gets itself and its descendants. Raises AgentError,
    ConfigError.
    """
    nodes = root.tree.agents
    may_have = {*nodes.holders.values(), *nodes.unsearched, *nodes.alive}
    if ref is None and caller.agent_id is None:
        candidates = sorted((nodes[id] for id in may_have), key=lambda node: node.spec.seq)
    elif ref is None:
        candidates = nodes.subtree(caller.agent_id or "")
    else:
        node = find_agent(root, caller, ref, *SEARCH_ARCHIVE.fields.refs["ref"])
        if node.is_holder:
            raise ConfigError(f"{ref!r} is an archive, not an agent with archives; read it with `orch archive read`")
        if node.deleted:
            raise node.refusal()
        if not node.spec.persist:
            raise ConfigError(f"agent {node.spec.name!r} has no archives, because it was spawned with persist=False")
        candidates = nodes.subtree(node.spec.id)
    existing = [node for node in candidates if node.spec.id in may_have and not node.deleted]
    return [node for node in existing if node.spec.archival is not None or node.archives]


def _given_archives(root: Supervisor, caller: Caller, ref: str | None) -> dict[str, set[str]]:
    """Return the archives that were given to the caller, by owner. If `ref` names an agent, the result is empty."""
    nodes, found = root.tree.agents, dict[str, set[str]]()
    agent = caller.find_agent(nodes)
    for id in agent.spec.archives if agent is not None and ref is None else ():
        owner = nodes.get(nodes.holders.get(id))
        if owner is not None and not owner.deleted:
            found.setdefault(owner.spec.id, set()).add(id)
    return found


def archive_row(owner: AgentRecord, record: ArchiveRecord) -> ArchiveRow:
    """Return the row of an archive of the agent `owner`."""
    return ArchiveRow(
        id=record.id,
        owner=owner.spec.id,
        kind=record.kind,
        task=record.task,
        created_at=record.timestamp,
        messages=record.count,
        turns=record.turns,
        calls=record.calls,
        tokens=record.tokens,
        level=record.level,
        reason=record.reason,
        summarized=record.summarized,
        record=record.record,
        members=record.members,
    )
