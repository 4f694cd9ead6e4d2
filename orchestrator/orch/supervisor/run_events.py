"""Events of a run.

The root passes each event to hooks when the journal records the event. Past events can be read from the journal by
number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.core.errors import OrchError
from orch_protocol.hooks.events import Event, SubagentFinished, SubagentSpawned
from orch_protocol.services.agents.run_events import RunEvent
from orch_protocol.wire.worker_messages import AgentEvent
from orch_worker.session.log.log_reader import newest_sealed

from ..policy.root_hooks import RootHooks
from ..processes.workers import Workers
from ..tree.agents.state import TreeState, head_of
from ..tree.interface.topics import RunEventTopic
from ..tree.journal.entries import AgentSpawned, Entry, QueryFinished, RunSnapshot, Snapshot, WorkerExited, decode_entry
from ..tree.journal.journal import Journal
from .disk_io import DiskWriter
from .timing.waiters import Waiters

__all__ = ["RunEvents", "read_events"]

OMITTED_FIELDS: Final = frozenset(
    {
        "type",
        "at",
        "id",
        "query_id",
        "spec",
        "reply",
        "text",
        "head",
        "prompt",
        "holders",
        "error",
        "entries",
        "transcript",
    }
)
"""Fields of an entry that an event carries in another form, or omits because they contain conversation text."""


class RunEvents:
    """Announces the entries of `journal` to hooks of the root's program, to the parent's worker and to waiters."""

    def __init__(
        self,
        journal: Journal,
        agents: TreeState,
        hooks: RootHooks,
        waiters: Waiters,
        workers: Workers,
        disk: DiskWriter,
    ) -> None:
        self._agents, self._hooks, self._waiters, self._workers, self._disk = agents, hooks, waiters, workers, disk
        self._journal = journal

    @property
    def path(self) -> Path:
        """The journal's file."""
        return self._journal.log.path

    def announce(self, entries: Iterable[Entry]) -> None:
        """Announce `entries`, which the tree has just applied."""
        for entry in entries:
            if isinstance(entry, (AgentSpawned, QueryFinished)):
                self._announce(entry)
            elif isinstance(entry, WorkerExited):
                self._hooks.remove_contexts(entry.id)
        self._waiters.notify(RunEventTopic())

    def _announce(self, entry: AgentSpawned | QueryFinished) -> None:
        agents, hooks = self._agents, self._hooks
        agent = agents.get(entry.spec.id if isinstance(entry, AgentSpawned) else entry.id)
        if agent is None:
            return
        parent = agents.get(agent.spec.parent_id) if agent.spec.parent_id is not None else None
        parent_observes = parent is not None and bool(parent.spec.hooks.load or parent.spec.extensions)
        observed = parent_observes or not hooks.stages.isdisjoint(("subagent_spawned", "subagent_finished"))
        if not observed or agent.is_holder:
            return
        event = _event(entry, agent.spec.name, agent.spec.preset)
        if parent is not None:
            turn = parent.pending.query_id if parent.pending is not None else ""
            event = msgspec.structs.replace(event, agent_id=parent.spec.id, depth=parent.spec.depth, turn=turn)
        hooks.notify_hooks(event, (parent or agent).spec, self._disk.do)
        if parent_observes and parent is not None:
            body = AgentEvent(event.stage, msgspec.Raw(msgspec.msgpack.encode(event)))
            with contextlib.suppress(OrchError, KeyError):  # the worker has no process; the journal has the event
                self._workers.send(parent.spec.id, "happened", body)


def _event(entry: AgentSpawned | QueryFinished, name: str, preset: str) -> Event:
    if isinstance(entry, AgentSpawned):
        return SubagentSpawned(
            at=entry.at, child=entry.spec.id, name=name, preset=preset, task=head_of(entry.spec.task)
        )
    reply, error = entry.reply, entry.error
    return SubagentFinished(
        at=entry.at,
        child=entry.id,
        name=name,
        query=entry.query_id,
        stop_reason=reply.stop_reason if reply is not None else "",
        error=error.type if error is not None else "",
        usage=reply.usage if reply is not None else entry.usage,
        tool_calls=reply.tool_calls if reply is not None else 0,
        files_changed=reply.files_changed if reply is not None else (),
    )


def read_events(path: Path, run: str, since: int, limit: int, agent: str | None = None) -> list[RunEvent]:
    """Return at most `limit` events of the journal at `path` with numbers above `since`, oldest first.

    If `agent` is set, return only events of that agent. The function reads the file backwards from the end, as far as
    necessary. Raises StoreError.
    """
    events: list[RunEvent] = []
    for sealed in newest_sealed(path):
        if (n := sealed.seq - 1) <= since:  # the first line is the header
            break
        entry = decode_entry(sealed.object)
        if isinstance(entry, (Snapshot, RunSnapshot)):  # a snapshot replaces older entries
            break
        if entry is not None and agent in (None, (event := _run_event(entry, n, run)).agent_id):
            events.append(event)
    return events[: -limit - 1 : -1]


def _run_event(entry: Entry, n: int, run: str) -> RunEvent:
    fields: dict[str, Any] = msgspec.to_builtins(entry)
    data = {name: value for name, value in fields.items() if name not in OMITTED_FIELDS}
    id = fields.get("id", "")
    if isinstance(entry, AgentSpawned):
        spec = entry.spec
        id = spec.id
        data |= {"name": spec.name, "seq": spec.seq, "parent_id": spec.parent_id, "depth": spec.depth}
        data |= {"preset": spec.preset, "kind": spec.kind}
    if isinstance(entry, QueryFinished):
        if entry.reply is not None:
            data |= {"stop_reason": entry.reply.stop_reason, "tool_calls": entry.reply.tool_calls}
            data["usage"] = msgspec.to_builtins(entry.reply.usage)
        if entry.error is not None:
            data["error"] = entry.error.type
    if holders := fields.get("holders"):
        data["holders"] = list(holders) if isinstance(holders, dict) else [holder for holder, *_ in holders]
    return RunEvent(n, entry.at, run, str(fields["type"]), id, fields.get("query_id", ""), data)
