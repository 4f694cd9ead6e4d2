"""Getting back what was archived: by search, by reading, by asking the holder."""

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
from orch_protocol.services.recall import (
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
from orch_worker.backends.registry import template_for
from orch_worker.conversation.recalled import with_hits

from ...archival.engine import merge_hits
from ...archival.recall import check_entries, check_search
from ...archival.store.catalog import ArchiveRecord
from ...archival.store.deletion import HOLDERS
from ...policy.caller import Caller, Scope
from ...tree.agents.state import AgentRecord
from ...tree.journal import events
from ..checks.local_only import is_hidden_from
from ..checks.reach import find_agent
from ..dispatch.handlers import handles
from .archiving import note

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = [
    "archive_row",
    "archives_of",
    "find_agent_or_holder",
    "list_archives",
    "list_taint_labels",
    "look_up",
    "owners_in_sight",
    "read_archive",
    "search_archive",
    "with_passages",
]

LEAST_PREFIX = 4
PASSAGES = 8
MOST_HITS = 100


@handles(LIST_ARCHIVES)
async def list_archives(root: Supervisor, caller: Caller, params: ListArchives) -> list[ArchiveRow]:
    """Return the archives in sight, by agent, in the order they were made."""
    owners = await _owners(root, caller, params.ref)
    known = [(owner, await root.archives.known(owner.spec)) for owner in owners]
    rows = [archive_row(owner, record) for owner, records in known for record in records if not record.deleted]
    for id, ids in _given_archives(root, caller, params.ref).items():
        owner = root.tree.agents[id]
        records = await root.archives.known(owner.spec)
        rows += [archive_row(owner, record) for record in records if record.id in ids and not record.deleted]
    return rows


@handles(SEARCH_ARCHIVE)
async def search_archive(root: Supervisor, caller: Caller, params: SearchArchive) -> list[SearchHit]:
    """Return the places in archives in sight where the query stands, or what resembles it. Raises ConfigError."""
    check_search(params.query, params.limit)
    if not params.query.strip():
        raise ConfigError("the query is empty: pass search terms")
    limit = max(1, min(params.limit, MOST_HITS))
    owners = [each for each in await _owners(root, caller, params.ref) if not is_hidden_from(root, caller, each)]
    searches = [root.archives.search(owner.spec, params.query, limit) for owner in owners]
    for owner, ids in _given_archives(root, caller, params.ref).items():
        if not is_hidden_from(root, caller, root.tree.agents[owner]):
            searches.append(root.archives.search(root.tree.agents[owner].spec, params.query, limit, ids))
    return merge_hits(await asyncio.gather(*searches), limit)


@handles(READ_ARCHIVE)
async def read_archive(root: Supervisor, caller: Caller, params: ReadArchive) -> list[Message]:
    """Return messages of an archive in sight, exactly as they were. Raises AgentNotFoundError, AmbiguousRefError."""
    check_entries(params.id, params.first, params.last)
    holder = await _holder(root, caller, params.id)
    owner = root.tree.agents[root.tree.agents.holders[holder]]
    if is_hidden_from(root, caller, owner):
        raise ConfigError(f"archive {params.id!r} is for local models alone: ask {owner.spec.name!r} about it")
    return await root.archives.read(owner.spec, holder, params.first, params.last)


@handles(LIST_TAINT_LABELS)
async def list_taint_labels(root: Supervisor, caller: Caller, params: ListTaintLabels) -> list[TaintLabel]:
    """Return what a conversation holds that is shown something of these archives. Those out of sight say nothing."""
    said: tuple[TaintLabel, ...] = ()
    for id in dict.fromkeys(params.ids):
        with suppress(AgentNotFoundError):
            holder = await _holder(root, caller, id)
            owner = root.tree.agents[root.tree.agents.holders[holder]]
            record = await root.archives.record(owner.spec, holder)
            said = join_labels(
                said,
                record.marks if owner.spec.id == caller.agent_id else inherited_labels(record.marks, owner.spec.id),
            )
    return list(said)


async def find_agent_or_holder(root: Supervisor, caller: Caller, ref: str, action: str, scope: Scope) -> AgentRecord:
    """Return the agent that `ref` means to `caller`; a holder that nobody has asked yet is added to the tree.

    See `reach.find_agent`. Raises AgentError, for a holder whose archive was deleted ArchiveDeletedError.
    """
    nodes = root.tree.agents
    try:
        node = find_agent(root, caller, ref, action, scope)
        if node.is_holder:
            await look_up(root, node)
        return node
    except AgentNotFoundError:
        try:
            holder = await _holder(root, caller, ref, scope) if len(ref) >= LEAST_PREFIX else ""
        except AgentNotFoundError:
            holder = ""
        if not holder:
            raise
    owner = nodes[nodes.holders[holder]].spec
    # A script has nothing to say about what it is shown.
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


async def look_up(root: Supervisor, node: AgentRecord, *, eras: bool = False) -> None:
    """Let a holder know where in its agent's file it finds what it holds. Raises ArchiveDeletedError, StoreError.

    That changes when other archives are deleted, and a root that died right then has not taken it down. What the holder
    of an era is shown is found anew with `eras` alone.
    """
    if node.deleted:
        raise node.refusal()
    owner, known = root.tree.agents[node.spec.parent_id or ""].spec, node.spec.source
    record = await root.archives.record(owner, node.spec.id)
    if eras if record.kind == "era" else known is None or record.spans != known.spans:
        source = await root.archives.source(owner, record.id)
        root.handle(events.AddHolder(msgspec.structs.replace(node.spec, source=source)))


async def with_passages(root: Supervisor, node: AgentRecord, prompt: str) -> str:
    """Return `prompt` for an agent; for the holder of an era with what a search for it finds among what that holds."""
    source = node.spec.source
    if source is None or source.kind != "era" or not isinstance(prompt, str) or not prompt.strip():
        return prompt
    owner = root.tree.agents[source.owner].spec
    hits = await root.archives.passages(owner, prompt, node.spec.id, PASSAGES)
    return with_hits(prompt, hits)


async def archives_of(root: Supervisor, caller: Caller, refs: Iterable[str]) -> tuple[str, ...]:
    """Return the ids of the archives `refs`, which `caller` hands to an agent, with those that they contain.

    Raises AgentError for an archive that the caller does not reach itself.
    """
    ids: dict[str, None] = {}
    for ref in refs:
        holder = await _holder(root, caller, ref)
        owner = root.tree.agents[root.tree.agents.holders[holder]].spec
        records = {record.id: record for record in await root.archives.known(owner)}
        await root.archives.record(owner, holder)  # raises for one that was deleted
        new = [holder]
        for id in new:
            ids[id] = None
            new += records[id].members if id in records else ()
    return tuple(ids)


async def _holder(root: Supervisor, caller: Caller, ref: str, scope: Scope = "ask") -> str:
    """Return the id of the archive that `ref` is, or begins, to `caller`.

    Raises AgentNotFoundError, AmbiguousRefError.
    """
    nodes, known = root.tree.agents, root.tree.agents.holders

    def matching() -> list[str]:
        return [id for id in known if id.startswith(ref) and caller.reaches(nodes, id, scope)]

    if ref not in known or not caller.reaches(nodes, ref, scope):
        for _ in range(2):
            matches = matching() if len(ref) >= LEAST_PREFIX else []
            if len(matches) == 1:
                return matches[0]
            if matches:
                raise AmbiguousRefError(
                    f"{ref!r} is the beginning of {len(matches)} archives: {', '.join(matches[:8])}"
                )
            # A root that died as an archive was put on record has not heard of it.
            among = root.tree.agents
            await _look(root, [among[id] for id in sorted(among.unlooked | among.alive.keys())])
        if matching():
            raise AmbiguousRefError(f"archive id {ref!r} is too short: type at least {LEAST_PREFIX} characters")
        if not caller.is_user:
            raise AgentNotFoundError(f"no archive {ref[:80]!r} of yours: search_archive finds the ids there are")
        raise AgentNotFoundError(f"no archive {ref[:80]!r}: `orch archive list` shows those there are")
    return ref


async def _look(root: Supervisor, nodes: Iterable[AgentRecord]) -> None:
    """Look for archives of which nobody has told, in the files of those of the agents that may have some: each file
    once, whatever becomes of the root."""
    for node in nodes:
        unlooked = node.spec.id in root.tree.agents.unlooked
        if node.spec.archival is not None and (unlooked or node.running) and root.archives.grew(node.spec):
            with suppress(OrchError):  # who asks for that agent's archives is told
                await note(root, node)


async def _owners(root: Supervisor, caller: Caller, ref: str | None) -> Sequence[AgentRecord]:
    """Return those of the agents in sight that have archives, or are alive."""
    await _look(root, owners_in_sight(root, caller, ref))
    return owners_in_sight(root, caller, ref)


def owners_in_sight(root: Supervisor, caller: Caller, ref: str | None) -> Sequence[AgentRecord]:
    """Return the agents that may have archives: `ref` and those below it; None means all, for an agent its own.

    Raises AgentError, ConfigError.
    """
    nodes = root.tree.agents
    may_have = {*nodes.holders.values(), *nodes.unlooked, *nodes.alive}
    if ref is None and caller.agent_id is None:
        top = sorted((nodes[id] for id in may_have), key=lambda node: node.spec.seq)
    elif ref is None:
        top = nodes.subtree(caller.agent_id or "")
    else:
        node = find_agent(root, caller, ref, "use archives of", "read")
        if node.is_holder:
            raise ConfigError(f"{ref!r} is an archive, not an agent with archives; read it with `orch archive read`")
        if node.deleted:
            raise node.refusal()
        if not node.spec.persist:
            raise ConfigError(f"agent {node.spec.name!r} has no archives, because it was spawned with persist=False")
        top = nodes.subtree(node.spec.id)
    there = [node for node in top if node.spec.id in may_have and not node.deleted]
    return [node for node in there if node.spec.archival is not None or node.archives]


def _given_archives(root: Supervisor, caller: Caller, ref: str | None) -> dict[str, set[str]]:
    """Return the archives that the caller was handed, by their owner, unless it names whose archives it means."""
    nodes, found = root.tree.agents, dict[str, set[str]]()
    agent = caller.find_agent(nodes)
    for id in agent.spec.archives if agent is not None and ref is None else ():
        owner = nodes.get(nodes.holders.get(id))
        if owner is not None and not owner.deleted:
            found.setdefault(owner.spec.id, set()).add(id)
    return found


def archive_row(owner: AgentRecord, record: ArchiveRecord) -> ArchiveRow:
    """Return an archive of the agent `owner` as its row."""
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
        summarised=record.summarised,
        record=record.record,
        members=record.members,
    )
