"""What happened in a run: told to hooks as it is written down, and read again from the journal, by number."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from orch_protocol.core.errors import OrchError
from orch_protocol.hooks.events import Event, SubagentFinished, SubagentSpawned
from orch_protocol.services.run_events import RunEvent
from orch_protocol.wire.worker_messages import AgentEvent
from orch_worker.session.log.append_log import newest_sealed

from ..tree.agents.state import head_of
from ..tree.journal.entries import AgentSpawned, Entry, QueryFinished, RunSnapshot, Snapshot, WorkerExited, decode_entry
from ..tree.journal.journal import Journal

if TYPE_CHECKING:
    from .supervisor import Supervisor

__all__ = ["RECORDED", "RunEvents", "read_events"]

RECORDED: Final = "recorded"
"""The topic of there being more in the journal."""
SAID: Final = frozenset(
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
"""What of an entry is told elsewhere in an event, or is not told because it is what somebody said."""


class RunEvents:
    """Tells of the entries of `journal`: functions of the program of `root`, the process of a parent, who waits."""

    def __init__(self, root: Supervisor, journal: Journal) -> None:
        self._root = root
        self._journal = journal

    @property
    def path(self) -> Path:
        """The file that has all of it."""
        return self._journal.log.path

    def tell(self, entries: Iterable[Entry]) -> None:
        """Tell of `entries`, which have just become true."""
        for entry in entries:
            if isinstance(entry, (AgentSpawned, QueryFinished)):
                self._tell(entry)
            elif isinstance(entry, WorkerExited):
                self._root.hooks.ended(entry.id)
        self._root.waiters.tell(RECORDED)

    def _tell(self, entry: AgentSpawned | QueryFinished) -> None:
        node = self._root.tree.agents.get(entry.spec.id if isinstance(entry, AgentSpawned) else entry.id)
        if node is None or node.is_holder:
            return
        parent = self._root.tree.agents.get(node.spec.parent_id)
        above = parent is not None and bool(parent.spec.hooks.load)
        if not above and not self._root.hooks.listens("subagent_spawned", "subagent_finished"):
            return
        event = _event(entry, node.spec.name, node.spec.preset)
        if parent is not None:
            turn = parent.pending.query_id if parent.pending is not None else ""
            event = msgspec.structs.replace(event, agent_id=parent.spec.id, depth=parent.spec.depth, turn=turn)
        self._root.hooks.happened(event, (parent or node).spec, self._root.hooks.say, self._root.disk.do)
        if above and parent is not None:
            body = AgentEvent(event.stage, msgspec.Raw(msgspec.msgpack.encode(event)))
            with contextlib.suppress(OrchError, KeyError):  # without a process it hears nothing; the journal has it
                self._root.workers.send(parent.spec.id, "happened", body)


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


def read_events(path: Path, run: str, since: int, most: int, agent: str | None = None) -> list[RunEvent]:
    """Return what the journal at `path` has after the event `since`, the oldest first, of `agent` alone if named.

    Reads no more of the file than that. Raises StoreError.
    """
    found: list[RunEvent] = []
    for sealed in newest_sealed(path):
        if (n := sealed.seq - 1) <= since:  # the header is the first line
            break
        entry = decode_entry(sealed.object)
        if isinstance(entry, (Snapshot, RunSnapshot)):  # what they stand for happened before
            break
        if entry is not None and agent in (None, (event := _row(entry, n, run)).agent_id):
            found.append(event)
    return found[: -most - 1 : -1]


def _row(entry: Entry, n: int, run: str) -> RunEvent:
    told: dict[str, Any] = msgspec.to_builtins(entry)
    data = {name: value for name, value in told.items() if name not in SAID}
    id = told.get("id", "")
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
    if holders := told.get("holders"):
        data["holders"] = list(holders) if isinstance(holders, dict) else [holder for holder, *_ in holders]
    return RunEvent(n, entry.at, run, str(told["type"]), id, told.get("query_id", ""), data)
