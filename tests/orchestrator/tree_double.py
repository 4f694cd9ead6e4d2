"""A tree with a journal in memory. It applies decisions as the supervisor does, but executes no instructions."""

from __future__ import annotations

from typing import Any

from orch.tree.interface.events import (
    Event,
    FinishQuery,
    ProcessExited,
    RestartWorker,
    SpawnRequested,
    StartQuery,
    WorkerBooted,
)
from orch.tree.interface.instructions import Instruction, Launch, Notify, Send, Signal, Timer
from orch.tree.journal.entries import Entry
from orch.tree.tree import Tree
from orch_protocol.agent.config import SubagentsConfig
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import ErrorInfo
from orch_protocol.core.messages import Reply, Usage


class Forest:
    """A tree, its journal, and the instructions for the last event."""

    def __init__(self, **config: Any) -> None:
        self.config = SubagentsConfig(**config)
        self.tree = Tree(self.config)
        self.journal: list[Entry] = []
        self.now = 1000.0
        self.last: list[Instruction] = []
        self._count = 0

    def handle(self, event: Event) -> Any:
        """Decide on the event, write and apply the entries, and store the instructions."""
        decision = self.tree.decide(event, self.now)
        self.journal += decision.entries
        self.tree.apply(decision.entries)
        self.last = list(decision.instructions)
        return decision.value

    def write(self, entries: list[Entry]) -> None:
        """Write `entries` to the journal and apply them."""
        self.journal += entries
        self.tree.apply(entries)

    def refold(self) -> Tree:
        """Return the tree that results from the entries in the journal."""
        return Tree(self.config, self.journal)

    def spec(self, **fields: Any) -> AgentSpec:
        """Return a spec with a new id."""
        self._count += 1
        base: dict[str, Any] = {
            "id": f"a{self._count:03}",
            "seq": 0,
            "name": "",
            "task": "t",
            "backend": BackendSpec("scripted"),
            "folder": "/nowhere",
            "cwd": "/",
        }
        return AgentSpec(**(base | fields))

    def spawn(self, caller: str | None = None, up: bool = True, **fields: Any) -> str:
        """Spawn an agent and return its id. If `up` is True, its process becomes ready."""
        id: str = self.handle(SpawnRequested(self.spec(**fields), caller))
        if up:
            self.up(id)
        return id

    def up(self, id: str) -> None:
        """Make the agent's process ready."""
        incarnation = self.tree.agents[id].incarnation
        self.handle(WorkerBooted(id, incarnation, pid=100 + incarnation))

    def ask(self, id: str, query_id: str = "q", **fields: Any) -> Any:
        """Start a query of the agent."""
        return self.handle(StartQuery(id, query_id, "do it", **fields))

    def finish(self, id: str, query_id: str = "q", *, error: str | None = None, taken_by: str | None = None) -> None:
        """Finish the agent's query."""
        reply = None if error else Reply(id, query_id, "done", usage=Usage(10, 5, cost_usd=0.5))
        self.handle(
            FinishQuery(id, query_id, reply, ErrorInfo("BackendError", error) if error else None, taken_by=taken_by)
        )

    def gone(self, id: str, code: int | None = -9, **fields: Any) -> None:
        """End the agent's process."""
        self.handle(ProcessExited(id, self.tree.agents[id].incarnation, code, **fields))

    def back(self, id: str, **fields: Any) -> None:
        """End the delay before the agent's next process."""
        self.handle(RestartWorker(id, self.tree.agents[id].incarnation, **fields))

    def told(self, kind: type[Instruction]) -> list[Any]:
        """Return those of the last instructions that have the type `kind`."""
        return [instruction for instruction in self.last if isinstance(instruction, kind)]

    def status(self, id: str) -> str:
        return self.tree.agents[id].status


__all__ = [
    "FinishQuery",
    "Forest",
    "Launch",
    "Notify",
    "ProcessExited",
    "Send",
    "Signal",
    "SpawnRequested",
    "StartQuery",
    "Timer",
    "WorkerBooted",
]
