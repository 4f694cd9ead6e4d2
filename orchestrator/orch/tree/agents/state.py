"""The agents of a run, as the fold of its journal. Nothing here is assigned except by applying an entry."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from orch_protocol.agent.models import Answers
from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.budget import Amounts, changed
from orch_protocol.core.messages import Usage
from orch_worker.backends.registry import template_for

from ..journal.entries import (
    Acknowledged,
    Answered,
    Archived,
    Asked,
    Budgeted,
    CatalogChanged,
    Chosen,
    Collected,
    CredentialsSet,
    Ended,
    Entry,
    Heard,
    Hearing,
    Kept,
    KeptRun,
    Killed,
    Launched,
    LetGo,
    Localised,
    Marked,
    Moved,
    Narrowed,
    Opened,
    PlanApproved,
    PlanBegun,
    Pruned,
    PutAside,
    Resumed,
    RootBudgeted,
    Spawned,
    Spent,
    Steered,
    Stopping,
    Titled,
    Unsaid,
    Up,
    Woken,
)
from .agent_record import Node, Result, Worked, bury, discard, forget, in_plan_mode
from .agent_table import Roll
from .wake_messages import news_line

__all__ = ["Aside", "Node", "Nodes", "Result", "answered_by", "head_of", "iso"]

HEAD = 80
MOST_EARLIER = 16
"""Answers that wait to be taken, of one agent, beside its last."""
MOST_REQUESTS = 4096
NUMBERED = re.compile(r"agent-([1-9][0-9]{0,17})")


@dataclass(slots=True)
class Aside:
    """What is put aside for a query: the least that each hold takes, and what was let go, the least of each too."""

    held: dict[str, Amounts] = field(default_factory=dict)
    let_go: list[Amounts] = field(default_factory=list)


class _Run(msgspec.Struct):
    """What is no agent's; see the fields of Nodes."""

    at: float
    usage: Usage
    processes: int
    worked: Worked
    failed_starts: list[float]
    root_budgets: list[RootBudgeted]
    requests: dict[str, str]
    names: dict[str, str]
    past_names: dict[str, str]
    going: dict[str, str] = {}
    unlooked: set[str] = set()


_run = msgspec.json.Decoder(_Run)
_node = msgspec.json.Decoder(Node)


def _encoded(state: Node | _Run) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(state))


class Nodes:
    """All agents, by id, in the order they were spawned, with the indexes that questions about all of them need."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.by_id = Roll()
        self.names: dict[str, str] = {}
        """Ids of agents by name; a killed agent's name is free again."""
        self._past_names: dict[str, str] = {}
        """Ids of the youngest killed agents that had such a name, where that does not say their number."""
        self.alive: dict[str, Node] = {}
        self.pending: dict[str, Node] = {}
        self.warm: dict[str, Node] = {}
        """Holders that have a process."""
        self.holders: dict[str, str] = {}
        """Whose conversation each holder has a part of: ids by ids, of holders that were never asked too."""
        self.unlooked: set[str] = set()
        """Agents that may have archives of which nobody has told: their processes ended before they could, say."""
        self.requests: dict[str, str] = {}
        """What was spawned for whose request, of the youngest."""
        self.going: dict[str, str] = {}
        """The folders of agents whose sessions were deleted, as far as they may be there still, by id."""
        self.usage = Usage()
        """What all of them have used in turns that are over."""
        self.processes = 0
        """How many processes they have had; holders' are none."""
        self.failed_starts: list[float] = []
        """When processes ended before they were up, whosever they were, since one came up."""
        self.worked = Worked()
        """For how long any of them was at work."""
        self.root_budgets: list[RootBudgeted] = []
        """How the budget of all of them was changed, in order."""
        self.aside: dict[str, Aside] = {}
        """What is put aside for queries under way, by agent."""
        self._touched: list[Node] = []
        self._at = 0.0
        for entry in entries:
            self.apply(entry)

    def __getitem__(self, id: str) -> Node:
        return self.by_id[id]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.by_id.values())

    def __len__(self) -> int:
        return len(self.by_id)

    def get(self, id: str | None) -> Node | None:
        """Return the agent with exactly that id, if there is one."""
        return self.by_id.find(id) if id is not None else None

    def called(self, name: str) -> Node | None:
        """Return the agent that goes by `name`; else the youngest that did before it was killed."""
        id = self.names.get(name) or self._past_names.get(name)
        found = self.get(id)
        said = NUMBERED.fullmatch(name)
        if said is None or name in self.names:
            return found
        numbered = self.by_id.at(int(said[1]))
        if numbered is None or numbered.spec.name != name or (found and found.spec.seq > numbered.spec.seq):
            return found
        return numbered

    def subtree(self, id: str) -> list[Node]:
        """Return the agent and everything below it, children before parents, youngest first."""
        node = self.by_id[id]
        below = [grandchild for child in reversed(node.children) for grandchild in self.subtree(child)]
        return [*below, node]

    def tree_usage(self, id: str) -> Usage:
        """Return what the agent and everything below it has used; the killed count too."""
        return sum((node.usage for node in self.subtree(id)), Usage())

    def waited_for_by(self, id: str) -> set[str]:
        """Return the agents that `id` waits for, directly or not: those with a turn under way that it blocks on."""
        found: set[str] = set()
        frontier = [id]
        while frontier:
            asker = frontier.pop()
            for node in self.pending.values():
                asked = node.pending
                if asked and asked.waits and asked.asker == asker and node.spec.id not in found:
                    found.add(node.spec.id)
                    frontier.append(node.spec.id)
        return found

    def apply(self, entry: Entry) -> None:
        """Make `entry` true. Entries about agents that no entry introduced are skipped."""
        away, self._at = entry.at - self._at, entry.at
        if isinstance(entry, Opened):
            for worked in (self.worked, *(node.worked for node in self.by_id.awake())):
                worked.skip(max(0.0, away))
            return
        if isinstance(entry, RootBudgeted):
            self.root_budgets.append(entry)
            return
        if isinstance(entry, KeptRun):
            self._restore(_run.decode(entry.state))
            return
        if isinstance(entry, Spawned):
            self._touched.append(self._apply_spawned(entry))
        elif isinstance(entry, Kept):
            self._touched.append(self._apply_kept(entry))
        else:
            node = self._own(entry.id)
            if node is None:
                return
            getattr(self, f"_apply_{type(entry).__name__.lower()}")(node, entry)
        for node in self._touched:
            self._index(node)
        self._touched.clear()

    def _own(self, id: str | None) -> Node | None:
        """Return the agent, for a change."""
        node = self.by_id.take(id) if id is not None else None
        if node is not None:
            self._touched.append(node)
        return node

    def _index(self, node: Node) -> None:
        id, name = node.spec.id, node.spec.name
        warm = node.is_holder and node.running
        for index, belongs in (
            (self.alive, node.alive),
            (self.pending, node.pending is not None),
            (self.warm, warm),
        ):
            if belongs:
                index[id] = node
            else:
                index.pop(id, None)
        if node.status != "killed":
            self.names[name] = id
            if self._past_names.get(name) == id:
                del self._past_names[name]
        elif self.names.get(name) == id:
            del self.names[name]
            if name != f"agent-{node.spec.seq}":
                self._past_names[name] = id
        self.by_id.put(node)

    def _apply_spawned(self, entry: Spawned) -> Node:
        node = Node(
            entry.spec,
            entry.at,
            entry.at,
            model=_model(entry.spec),
            repaired=entry.repaired,
            credentials=entry.credentials,
        )
        above = self.get(entry.spec.parent_id)
        if above is not None and above.pending is not None:
            node.payers = above.payers
        if node.is_holder or entry.cold:
            node.status = "cold"  # until somebody asks it
        if entry.cold and entry.spec.archival is not None:
            self.unlooked.add(entry.id)
        self.by_id.add(node)
        if entry.request_id is not None:
            self.requests[entry.request_id] = entry.id
            if len(self.requests) > MOST_REQUESTS:
                del self.requests[next(iter(self.requests))]
        parent = self._own(entry.spec.parent_id)
        if parent is not None:
            parent.children.append(entry.id)
        return node

    def _apply_kept(self, entry: Kept) -> Node:
        node = _node.decode(entry.state)
        self.by_id.add(node)
        self.holders |= dict.fromkeys(node.archives, entry.id)
        return node

    def kept(self, at: float) -> list[Entry]:
        """Return entries that come to what these agents are; none of them may be at work."""
        agents = [Kept(at=at, id=node.spec.id, state=_encoded(node)) for node in self]
        run = _Run(
            self._at,
            self.usage,
            self.processes,
            self.worked,
            self.failed_starts,
            self.root_budgets,
            self.requests,
            self.names,
            self._past_names,
            self.going,
            self.unlooked,
        )
        return [*agents, KeptRun(at=at, state=_encoded(run))]

    def _restore(self, run: _Run) -> None:
        self._at, self.usage, self.processes = run.at, run.usage, run.processes
        self.worked, self.failed_starts, self.root_budgets = run.worked, run.failed_starts, run.root_budgets
        self.requests, self.names, self._past_names = run.requests, run.names, run.past_names
        self.going, self.unlooked = run.going, run.unlooked

    def _apply_launched(self, node: Node, entry: Launched) -> None:
        if not node.is_holder:
            self.processes += entry.incarnation - node.incarnation
            if node.pending is not None or entry.incarnation == 1:
                for payer in self._payers(node):
                    payer.peer_processes += entry.incarnation - node.incarnation
        node.status, node.incarnation, node.pid, node.running = "starting", entry.incarnation, None, True
        node.stopping, node.error, node.last_activity = False, None, entry.at

    def _apply_up(self, node: Node, entry: Up) -> None:
        node.status, node.came_up = "busy" if node.pending else "idle", True
        self.failed_starts.clear()
        node.pid, node.model = entry.pid, entry.model or node.model
        node.context_tokens, node.context_limit = entry.context_tokens, entry.context_limit
        node.last_activity = entry.at
        node.repaired = entry.repaired or node.repaired
        node.untold = entry.repaired or node.untold
        node.transcript = entry.transcript or node.transcript
        # The transcript holds the seeded history from here on.
        node.spec = msgspec.structs.replace(node.spec, history=())

    def chain(self, id: str | None) -> Iterator[Node]:
        """Yield the agent and those above it; nobody for None."""
        node = self.get(id)
        while node is not None:
            yield node
            node = self.get(node.spec.parent_id)

    def _working(self, node: Node) -> Iterator[Worked]:
        yield self.worked
        above: Node | None = node
        while above is not None:
            yield above.worked
            above = self._own(above.spec.parent_id)
        for payer in self._payers(node):
            yield payer.worked

    def _payers(self, node: Node) -> list[Node]:
        """Return the payers of `node`, for a change."""
        return [payer for payer in map(self._own, node.payers) if payer is not None]

    def payers(self, asker: str | None, id: str) -> tuple[str, ...]:
        """Return the agents that are charged, besides the path of `id`, for what it uses when `asker` asks it.

        They are the asker, the agents above it, and its own payers. Agents on the path of `id` are left out: they are
        charged already.
        """
        node = self.get(asker)
        if node is None:
            return ()
        own = {each.spec.id for each in self.chain(id)}
        path = (*(each.spec.id for each in self.chain(asker)), *node.payers)
        return tuple(each for each in dict.fromkeys(path) if each not in own)

    def _apply_asked(self, node: Node, entry: Asked) -> None:
        if node.pending is None:
            if not entry.from_inbox:  # a turn that goes on with the answers to the last one's queries
                node.payers = self.payers(entry.asker, entry.id)
            for worked in self._working(node):
                worked.begin(entry.at)
        node.pending, node.last_activity = entry, entry.at
        node.queries += 1
        if node.status == "idle" and not node.stopping:
            node.status = "busy"
        if entry.from_inbox:
            node.inbox.clear()
        if entry.request_id is not None:
            node.requests = {entry.request_id: entry.query_id}
        asker = self._own(entry.asker)
        if asker is not None and entry.wake is not None:
            asker.watching[entry.id] = entry.wake

    def _apply_answered(self, node: Node, entry: Answered) -> None:
        pending = node.pending
        if pending is not None:
            for worked in self._working(node):
                worked.end(entry.at)
        taken_at = entry.at if entry.taken_by else None
        asked_by = pending.asker if pending else None
        stays = pending is not None and pending.stays
        if node.last is not None and node.last.stays and node.last.taken_by is None:
            node.earlier = [*node.earlier, node.last][-MOST_EARLIER:]
        node.last = Result(
            entry.query_id, entry.reply, entry.error, entry.taken_by, taken_at, asked_by, entry.ended, stays
        )
        node.pending, node.last_activity = None, entry.at
        self.aside.pop(entry.id, None)
        self._use(node, entry.usage)
        if entry.reply is not None and node.running:
            node.crashes.clear()
        if entry.reply is not None and entry.reply.warning:
            node.untold = ""
        node.context_tokens = entry.context_tokens or node.context_tokens
        node.transcript = entry.transcript or node.transcript
        if node.status == "busy":
            node.status = "idle"
        asker = self._own(asked_by)
        if asker is not None and asker.watching.pop(entry.id, None) is not None:
            asker.news.append(news_line(node, entry))

    def _apply_acknowledged(self, node: Node, entry: Acknowledged) -> None:
        node.transcript = entry.transcript

    def _apply_collected(self, node: Node, entry: Collected) -> None:
        node.earlier = [result for result in node.earlier if result.taken_by is None]
        for result in (*node.earlier, node.last):
            if result is not None and result.query_id == entry.query_id:
                result.taken_by, result.taken_at = entry.by, entry.at

    def _apply_stopping(self, node: Node, _: Stopping) -> None:
        node.stopping = True

    def _apply_ended(self, node: Node, entry: Ended) -> None:
        if entry.crash:
            node.crashes.append(entry.at)
            if node.status == "starting":
                self.failed_starts.append(entry.at)
        node.status = entry.status  # type: ignore[assignment]
        node.pid, node.running, node.stopping, node.error = None, False, False, entry.error
        node.exit_code, node.end = entry.code, entry.error or ""
        if node.queries and node.spec.archival is not None:
            self.unlooked.add(node.spec.id)

    def _apply_killed(self, node: Node, entry: Killed) -> None:
        node.last_activity = entry.at
        # What a holder holds is not to be lost by a kill: its process ends, and the next query starts another.
        node.status, node.stopping = ("cold", node.running) if node.is_holder else ("killed", False)

    def _apply_resumed(self, node: Node, entry: Resumed) -> None:
        node.status, node.error, node.last_activity = "cold", None, entry.at
        node.crashes.clear()

    def _apply_budgeted(self, node: Node, entry: Budgeted) -> None:
        limits = changed(node.spec.limits, entry)
        node.spec = msgspec.structs.replace(node.spec, limits=limits)

    def _apply_localised(self, node: Node, entry: Localised) -> None:
        node.spec = msgspec.structs.replace(node.spec, backend=entry.backend, local=True)
        node.model = _model(node.spec)

    def _apply_chosen(self, node: Node, entry: Chosen) -> None:
        node.spec = answered_by(node.spec, entry.answers)
        node.model = _model(node.spec)
        node.context_limit = node.spec.backend.options.get("context") or node.context_limit

    def _apply_credentialsset(self, node: Node, entry: CredentialsSet) -> None:
        node.credentials = entry.credentials or node.credentials
        if entry.base_url:
            spec, provider = node.spec, node.spec.backend.provider
            at = {"base_url": entry.base_url}
            backend = msgspec.structs.replace(spec.backend, options=spec.backend.options | at)
            born = spec.born
            if born is not None and born.provider == provider:
                born = msgspec.structs.replace(born, options=born.options | at)
            node.spec = msgspec.structs.replace(spec, backend=backend, born=born)

    def _apply_marked(self, node: Node, entry: Marked) -> None:
        node.spec = msgspec.structs.replace(node.spec, marks=entry.marks)

    def _apply_narrowed(self, node: Node, entry: Narrowed) -> None:
        node.spec = msgspec.structs.replace(node.spec, withdrawn=entry.withdrawn)

    def _apply_planapproved(self, node: Node, _: PlanApproved) -> None:
        node.spec = msgspec.structs.replace(node.spec, plan=False)

    def _apply_planbegun(self, node: Node, entry: PlanBegun) -> None:
        node.spec = in_plan_mode(node.spec, entry.plan)

    def _apply_steered(self, node: Node, entry: Steered) -> None:
        node.unheard[entry.steer_id] = entry

    def _apply_heard(self, node: Node, entry: Heard) -> None:
        node.unheard.pop(entry.steer_id, None)

    def _apply_titled(self, node: Node, entry: Titled) -> None:
        node.title = entry.title

    def _apply_catalogchanged(self, node: Node, entry: CatalogChanged) -> None:
        """Whoever wants to know what it is now asks for it: here it is not kept."""

    def _apply_unsaid(self, node: Node, entry: Unsaid) -> None:
        for id in entry.steer_ids:
            node.unheard.pop(id, None)

    def _apply_hearing(self, node: Node, entry: Hearing) -> None:
        node.spec = msgspec.structs.replace(node.spec, queue_mode=entry.steering, follow_up_mode=entry.follow_up)

    def _apply_archived(self, node: Node, entry: Archived) -> None:
        node.archives.update(entry.holders)
        self.holders |= {id: node.spec.id for id, _ in entry.holders}
        if entry.looked:
            self.unlooked.discard(node.spec.id)
        node.context_tokens = entry.context_tokens or node.context_tokens
        node.repaired = entry.problem or node.repaired

    def _apply_moved(self, node: Node, entry: Moved) -> None:
        node.spec = msgspec.structs.replace(node.spec, source=entry.source)

    def _apply_pruned(self, node: Node, entry: Pruned) -> None:
        forget(node, entry)
        self.holders |= dict.fromkeys(entry.holders, node.spec.id)
        for id, when in entry.holders.items():
            holder = self._own(id)
            if holder is not None:
                bury(holder, when)
        if entry.session == "going":
            discard(node, iso(entry.at))
            self.going[node.spec.id] = node.spec.folder
        elif entry.session:
            self.going.pop(node.spec.id, None)

    def _apply_spent(self, node: Node, entry: Spent) -> None:
        self._use(node, entry.usage)

    def _use(self, node: Node, usage: Usage) -> None:
        node.usage, self.usage = node.usage + usage, self.usage + usage
        for payer in self._payers(node):
            payer.peer_usage += usage

    def _apply_putaside(self, node: Node, entry: PutAside) -> None:
        if node.pending is not None and node.pending.query_id == entry.query_id:
            self.aside.setdefault(entry.id, Aside()).held[entry.hold] = entry.least

    def _apply_letgo(self, _: Node, entry: LetGo) -> None:
        aside = self.aside.get(entry.id)
        if aside is not None and (least := aside.held.pop(entry.hold, None)) is not None:
            aside.let_go.append(least)

    def _apply_woken(self, node: Node, entry: Woken) -> None:
        node.inbox.append(entry.text)
        node.news.clear()


def answered_by(spec: AgentSpec, answers: Answers) -> AgentSpec:
    """Return the agent that `spec` describes with another model, which its conversation has on record."""
    backend, born = answers.backend, spec.born or spec.backend
    return msgspec.structs.replace(
        spec, backend=backend, born=born, chosen=answers.chosen, template=template_for(backend)
    )


def head_of(prompt: str) -> str:
    """Return the first HEAD characters of `prompt` on one line."""
    line = " ".join(prompt[: HEAD * 4].split())
    return line if len(line) <= HEAD else line[: HEAD - 1] + "\N{HORIZONTAL ELLIPSIS}"


def iso(at: float) -> str:
    """Return epoch time `at` as ISO 8601 UTC to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _model(spec: AgentSpec) -> str:
    return f"{spec.backend.provider}:{spec.backend.model}" if spec.backend.model else spec.backend.provider
