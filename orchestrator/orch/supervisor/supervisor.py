"""Does what the tree decides: launches, signals, sends, sets timers, notifies. Holds no rules of its own."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from orch_protocol.agent.config import Config
from orch_protocol.core.errors import AgentDiedError, AgentGoneError, ErrorInfo, OrchError, ProtocolError, error_info
from orch_protocol.core.ids import new_id
from orch_protocol.core.text import scrub
from orch_protocol.wire.tool_events import CallReport
from orch_protocol.wire.worker_messages import (
    ANSWERS,
    CancelCurrentTurn,
    Init,
    Ping,
    Progress,
    Query,
    Ready,
    RootCall,
    RootReply,
    SteeringHeard,
    SteeringRetractedReply,
    TurnEvent,
    TurnFinished,
    TurnSoFar,
)

from ..archival.engine import ArchiveEngine
from ..config.models import Catalog
from ..policy.approvals import ApprovalBroker
from ..policy.budgets import BudgetLedger
from ..policy.credentials import Credentials, ProgramCredentials
from ..policy.rate_limits import RateLimiter
from ..policy.root_hooks import RootHooks
from ..processes.base import Launcher
from ..processes.router import Deliver, Transport, WorkerConnection
from ..processes.session_holds import SessionHolds
from ..processes.workers import Workers
from ..tree.agents.state import AgentRecord, head_of
from ..tree.journal.entries import CredentialsSet, Entry
from ..tree.journal.events import (
    REQUESTS,
    BootTimeout,
    ConfirmSteering,
    Event,
    FinishQuery,
    Instruction,
    Launch,
    LaunchFailed,
    Notify,
    ProcessExited,
    RestartWorker,
    RetireIdleAgents,
    Send,
    Signal,
    StartQuery,
    StopIfIdle,
    Timer,
    TurnTimeout,
    WorkerBooted,
)
from ..tree.journal.journal import Journal
from ..tree.rules.crash_policy import launch
from ..tree.rules.exit_reasons import describe_crash
from ..tree.tree import Tree
from .disk_io import DiskWriter
from .ephemeral_sessions import EphemeralSessions
from .project_facts import ProjectFacts
from .recovery.crash_recovery import RecoveredQuery, recover_query, recovery
from .run_events import RunEvents
from .session_sources import SessionSources
from .timing.heartbeat import Heartbeats
from .timing.ping import Pings
from .timing.query_deadlines import CHECK_SECONDS, QueryDeadlines
from .timing.time_budget import TimeBudgets
from .timing.timers import Timers
from .timing.waiters import SETTLED, Waiters
from .watchers import Watcher, Watchers
from .worker_requests import WorkerRequests

__all__ = ["Supervisor"]

DRAIN_SECONDS = 0.25
WAKE_RETRY_SECONDS = 5.0
MOST_CALLS = 256

Serve = Callable[["Supervisor", str, RootCall], Awaitable[msgspec.Raw]]


class Supervisor:
    """Runs the agents of one run.

    `connect` opens the socket, given the callback for arriving frames; `serve` answers a worker's RootCall; `logs` is
    the folder of the workers' logs, `orch_folders` what workers are told in Init.
    """

    def __init__(
        self,
        *,
        config: Config,
        journal: Journal,
        launcher: Launcher,
        connect: Callable[[Deliver], Transport],
        serve: Serve,
        sessions: Path,
        logs: Path,
        catalog: Catalog,
        approvals: ApprovalBroker,
        watchers: Watchers,
        hooks: RootHooks,
        credentials: Credentials | None = None,
        keys: Callable[[str], dict[str, str]] = lambda _: {},
        orch_folders: tuple[str, ...] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config, self.sessions, self.fleeting = config, sessions, EphemeralSessions()
        self._catalog, self.approvals = catalog, approvals
        self.credentials: Credentials = credentials or ProgramCredentials()
        self.watchers, self.hooks = watchers, hooks
        self.tools: dict[str, dict[str, Any]] = {}
        """Functions of the user's program that agents may call, by agent id and tool name."""
        self.activity: dict[str, Progress] = {}
        """What each agent does just now, by its own word."""
        self.tree = Tree(config.subagents, journal.taken(), warm_holders=config.archival.warm_holders)
        self.credentials.nodes = self.tree.agents
        self.budgets = BudgetLedger(self.tree.agents, config.budget, clock)
        self.timers = Timers()
        self._overtime = TimeBudgets(self.tree.agents, self.budgets, self._end_for_budget, self.timers.later)
        self._journal = journal
        self.disk, self.projects = DiskWriter(journal), ProjectFacts()
        self.archives = ArchiveEngine(config.archival, self.disk.do)
        self._serve = serve
        self.mounts_missing = launcher.mounts_missing
        """Says why commands cannot have mount namespaces of their own, "" when they can."""
        self._orch_folders = orch_folders
        self.clock = clock
        self._loop = asyncio.get_running_loop()
        self.waiters, self.holds = Waiters(), SessionHolds()
        self.lanes = RateLimiter(self.tree.agents)
        self.workers = Workers(
            self.tree.agents,
            launcher,
            connect(self._on_frame),
            logs=logs,
            keys=keys,
            holds=self.holds,
            orch_folders=orch_folders,
            on_failed=lambda id, incarnation, why, late: self.handle(LaunchFailed(id, incarnation, why, late)),
            on_ended=self._on_ended,
        )
        self.happenings = RunEvents(self, journal)
        self._turns, self._calls, self.offers = QueryDeadlines(), WorkerRequests(), SessionSources()
        self._waking: set[str] = set()
        self._unlaunched: dict[str, int] = {}
        """Agents whose process waits for credentials, and which incarnation it will be."""
        self._born_with: dict[str, str] = {}
        self._luck, self._pings = random.Random(), Pings()
        self._pulses = Heartbeats(self._ask_for_life)
        self._closed = False

    @property
    def counters(self) -> Counter[str]:
        """How many frames were not believed, by reason."""
        return self.workers.board.peers.counters

    def start(self) -> None:
        """Settle what the last root of this run left behind, and begin to look for idle agents and endless turns."""
        self.handle(recovery(self.tree.agents.pending.values()))
        for node in self.tree.agents.pending.values():  # asked again, as soon as it has a process
            assert node.pending is not None
            self._turns.accept(node.pending.query_id, node.pending.prompt)
        if self._journal.notes:  # of whom it does not tell any more, nobody knows
            self.tree.agents.unlooked.update(self.tree.agents.by_id)
        self._journal.shorten(partial(self.tree.agents.kept, self.clock()))
        self.handle(RetireIdleAgents())
        self.timers.later(CHECK_SECONDS, self._check_turns)

    async def close(self) -> None:
        """End every worker; their agents answer again when the run is opened anew. Takes at most some seconds."""
        if self._closed:
            return
        self._closed = True
        try:
            self._calls.cancel_all()
            await self.workers.close()
            await self.archives.close()
            await self.disk.close(2.0)
        finally:
            self._settle()
            self.fleeting.close()

    def _settle(self) -> None:
        """Bring everything to its end, whatever became of the processes: none outlives this root."""
        self.timers.close()
        self.workers.hang_up()
        settled = self.tree.decide(recovery(self.tree.agents.pending.values()), self.clock())
        self._journal.record(entries := self.budgets.charged(settled.entries))
        self.tree.apply(entries)
        why = error_info(AgentDiedError("the orchestrator was closed while somebody waited for an agent"))
        self.waiters.fail(why)
        self._pings.close(why)
        self._journal.close()

    # Events in, instructions out.

    def handle(self, event: Event) -> Any:
        """Decide on `event`, write what follows, make it true, do it. Returns its value or raises its error.

        A request is refused when it cannot be written (StoreError), or takes more descriptors than there are
        (ConcurrencyLimitError). A fact stays one: it is written later.
        """
        if isinstance(event, REQUESTS):
            if self._closed:
                raise OrchError("this orchestrator is being closed: open another one")
            decision = self.tree.decide(event, self.clock())
            for instruction in decision.instructions:
                if isinstance(instruction, Launch):
                    self.workers.require_room()
                    known = instruction.id in self.tree.agents.by_id
                    user = instruction.id if known else getattr(event, "caller", None)
                    self.budgets.require_process(user, getattr(event, "asker", None))
            self._journal.append(entries := self.budgets.charged(decision.entries))
        else:
            decision = self.tree.decide(event, self.clock())
            self._journal.record(entries := self.budgets.charged(decision.entries))
        self.tree.apply(entries)
        self.happenings.tell(entries)
        for instruction in decision.instructions:
            self._perform(instruction)
        return decision.value

    def write_down(self) -> None:
        """See to it that everything that happened is on record. Raises StoreError."""
        self._journal.append([])

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case Launch():
                self._launch(instruction)
            case Signal():
                self._signal(instruction)
            case Send():
                self._perform_send(instruction)
            case Timer():
                self._perform_timer(instruction)
            case Notify():
                self._perform_notify(instruction)

    def _launch(self, launch: Launch) -> None:
        node = self.tree.agents[launch.id]
        if self.credentials.missing(node):
            self._unlaunched[launch.id] = launch.incarnation
            return
        self._born_with[launch.id] = self.credentials.version(node)
        self.workers.launch(node)

    def _signal(self, signal: Signal) -> None:
        if self._unlaunched.get(signal.id) != signal.incarnation:
            self.workers.signal(signal.id, signal.incarnation, signal.how)
        elif signal.how != "late":  # one that waits for credentials may wait for as long as it takes
            del self._unlaunched[signal.id]
            failed = LaunchFailed(signal.id, signal.incarnation, "it was waiting for credentials")
            self._loop.call_soon(self.handle, failed)

    def credentials_offered(self) -> None:
        """Start the processes that wait for credentials which a caller has offered by now."""
        for id, incarnation in tuple(self._unlaunched.items()):
            node = self.tree.agents[id]
            with contextlib.suppress(OrchError):
                self._admit(node)
                del self._unlaunched[id]
                for instruction in launch(id, incarnation):
                    self._perform(instruction)

    def _admit(self, node: AgentRecord) -> None:
        """Check that the agent has its credentials, and let a process end that was born with others.

        Raises CredentialsError.
        """
        if (record := self.credentials.admit(node)) is not None:
            self.note(CredentialsSet(at=self.clock(), id=node.spec.id, credentials=record))
        born = self._born_with.get(node.spec.id)
        if node.status == "idle" and born is not None and born != self.credentials.version(node):
            self.handle(StopIfIdle(node.spec.id))

    def catalog_for(self, id: str | None) -> Catalog:
        """Return the catalog with the keys and servers of the agent `id`, of the current caller when `id` is None."""
        values = self.credentials.values(id)
        return self._catalog if values is None else self._catalog.reached_with(values)

    def _perform_send(self, send: Send) -> None:
        if send.body is not None:
            # What cannot be handed over now (a full disk) is not lost: it is on record, and said to the next process.
            with contextlib.suppress(OrchError):
                self.workers.send(send.id, send.kind, send.body, send.query_id)
            return
        node, budgeted = self.tree.agents[send.id], self.budgets.kinds_for(send.id)
        limit = node.spec.limits.turn_seconds
        prompt, seconds = self._turns.send(send.query_id, send.id, node.incarnation, limit)
        try:
            query = Query(
                prompt,
                seconds,
                stream=self.watchers.begins(node, send.query_id, prompt),
                budgeted=budgeted,
                observed=self.watchers.observing,
                ended=node.last_turn_was_ended,
                died=describe_crash(node),
                local=node.spec.local,
                hooks=self.hooks.rows,
                marks=node.spec.marks,
            )
            self.workers.send(send.id, "query", query, send.query_id)
            if "seconds" in budgeted:
                self._overtime.look()
        except OrchError as error:
            # Later, so that whoever asks can begin to wait for it.
            failed = FinishQuery(send.id, send.query_id, error=error_info(error))
            self._loop.call_soon(self.handle, failed)

    def _perform_timer(self, timer: Timer) -> None:
        seconds, event = timer.seconds * (1 + timer.spread * self._luck.uniform(-1, 1)), timer.event
        act = partial(self._relaunch, event) if isinstance(event, RestartWorker) else partial(self.handle, event)
        self.timers.later(seconds, act, event if isinstance(event, BootTimeout) else None)

    def _relaunch(self, event: RestartWorker) -> None:
        try:
            self.workers.require_room()
            self.budgets.require_process(event.id)
        except OrchError as error:
            event = msgspec.structs.replace(event, refused=str(error))
        self.handle(event)

    def _perform_notify(self, notify: Notify) -> None:
        kind, _, rest = notify.topic.partition(":")
        if kind == "wake":
            if rest not in self._waking:
                self._waking.add(rest)
                self._loop.call_soon(self._wake, rest)
            return
        if kind == "up":
            self.timers.cancel(BootTimeout(rest, self.tree.agents[rest].incarnation))
        elif kind == "query":
            self._turns.forget(rest)
            self.watchers.ended(rest, notify.value, notify.error)
        self.waiters.tell(notify.topic, notify.value, notify.error)

    def note(self, entry: Entry) -> None:
        """Let `entry` be on record, and true. Raises StoreError."""
        self._journal.append([entry])
        self.tree.apply([entry])

    def budgets_changed(self) -> None:
        """Let those who wait for more, or are to end when time is over, look again."""
        self.waiters.tell(SETTLED)
        self._overtime.look()

    def _end_for_budget(self, id: str, query_id: str, short: str) -> None:
        self._turns.end_now(query_id)
        with contextlib.suppress(OrchError):  # what cannot be told to end is ended
            self.workers.send(id, "cancel", CancelCurrentTurn(short), query_id)

    # What callers wait for.

    def ask(
        self,
        node: AgentRecord,
        prompt: str,
        *,
        asker: str | None = None,
        waits: bool = False,
        wake: str | int | None = None,
        from_inbox: bool = False,
        request_id: str | None = None,
        watcher: Watcher | None = None,
        stays: bool = False,
    ) -> str:
        """Put `prompt` to the agent, reviving it if need be, and return the query's id. Raises AgentError.

        `watcher` is called with each TurnEvent of the turn, until its end. Must not raise. With `stays` the answer is
        there until somebody collects it, and the whole prompt is in the journal when this returns: the next root asks
        it again if this one ends before the agent's transcript has it.
        """
        self.budgets.require_time(node.spec.id, asker)
        if node.status not in ("killed", "failed"):  # which the tree refuses
            self._admit(node)
        query_id, prompt = new_id(), scrub(prompt)
        self.watchers.attend(query_id, watcher)
        # Who waits does so in a turn of its own, and what it waits for is to end before that.
        within = self.tree.agents[asker].pending if asker is not None and waits else None
        self._turns.accept(query_id, prompt, within.query_id if within else None)
        try:
            accepted: str = self.handle(
                StartQuery(
                    node.spec.id,
                    query_id,
                    head_of(prompt),
                    asker,
                    waits,
                    wake,
                    from_inbox,
                    request_id,
                    stays,
                    prompt if stays or from_inbox else "",
                )
            )
        except BaseException:
            self._turns.forget(query_id)
            self.watchers.leave(query_id)
            raise
        if accepted != query_id:
            self._turns.forget(query_id)
            self.watchers.leave(query_id)
        return accepted

    async def ping(self, node: AgentRecord, payload: bytes = b"", seconds: float = 10.0) -> None:
        """Wait until the agent's process has answered. Raises AgentDiedError when it has none, or keeps silent."""
        peer = self.workers.peer(node.spec.id)
        if peer is None:
            raise AgentDiedError(f"agent {node.spec.name!r} ({node.spec.id}) has no process; a query starts one")
        try:
            await self._pings.ping(peer, payload, seconds)
        except TimeoutError:
            raise AgentDiedError(f"agent {node.spec.name!r} did not answer a ping within {seconds:g} s") from None

    # Workers.

    def _on_ended(self, id: str, incarnation: int) -> None:
        if self.tree.agents[id].status == "busy":
            # Its last words may still be in the socket; the transcript knows better, but later.
            self.timers.later(DRAIN_SECONDS, partial(self._bury, id, incarnation))
        else:
            self._bury(id, incarnation)

    def _bury(self, id: str, incarnation: int) -> None:
        if (end := self.workers.bury(id, incarnation)) is None:
            return  # its last word came while it was waited for
        self.activity.pop(id, None)
        self._calls.cancel_all(id)
        node = self.tree.agents[id]
        remains, taker = RecoveredQuery(), None
        if node.pending is not None and node.status == "busy":
            remains, taker = recover_query(node), self.waiters.taker(f"query:{node.pending.query_id}")
        said = remains.reply, remains.begun, taker, end.detail, remains.usage, end.late, end.oom
        self.handle(ProcessExited(id, incarnation, end.code, *said))

    def _check_turns(self) -> None:
        """End the processes that are stuck, or do not end their turns: nobody should wait for ever.

        For how long this root was asleep itself (a suspended machine), nobody else could work either.
        """
        self.workers.ooms.look()
        self._turns.grant(self._pulses.slept())
        for node in self._pulses.look(self.tree.agents.pending.values()):
            self.workers.end_stuck(node.spec.id)
        for query_id, id, incarnation in self._turns.overdue():
            self.workers.set_cause(id, "its turn did not end when its time was over")
            self.handle(TurnTimeout(id, incarnation, query_id))
        self.timers.later(CHECK_SECONDS, self._check_turns)

    def _ask_for_life(self, id: str) -> None:
        if (peer := self.workers.peer(id)) is not None:
            peer.send("ping", Ping(), reliable=False)

    def _on_frame(self, peer: WorkerConnection, kind: str, id: str, body: Struct) -> None:
        agent_id = peer.agent_id
        self._pulses.beat(agent_id, peer.incarnation)
        match body:
            case Ready():
                self.handle(WorkerBooted(agent_id, peer.incarnation, peer.pid or 0, body))
            case TurnFinished() if id == "init":
                self.workers.set_cause(agent_id, body.error.message if body.error else "")
            case TurnFinished():
                self._on_finished(peer, id, body)
            case Progress():
                self.activity[agent_id] = body
            case TurnEvent() | TurnSoFar():
                self.watchers.happened(id, body)
            case CallReport():
                self.watchers.called(self.tree.agents, agent_id, id, body)
            case SteeringHeard():
                self.handle(ConfirmSteering(agent_id, id))
            case SteeringRetractedReply():
                self.waiters.tell(f"unsaid:{agent_id}:{id}", body)
            case RootCall():
                if self._calls.under_way(agent_id) < MOST_CALLS:
                    self._calls.start(agent_id, id, self._answer_call(peer, id, body))
                else:
                    full = ProtocolError(f"{MOST_CALLS} calls of this agent are under way: wait for one of them")
                    peer.send("root_reply", RootReply(error=error_info(full)), id)
            case ErrorInfo():
                self._on_unreadable(peer, kind, id, body)
            case _ if kind in ANSWERS:
                self.waiters.tell(f"{kind}:{agent_id}:{id}", body, getattr(body, "error", None))
            case _ if kind == "hello":
                try:
                    node = self.tree.agents[agent_id]
                    peer.send("init", Init(node.spec, self.lanes.names(), node.transcript, self._orch_folders), "init")
                except OrchError as error:
                    self.workers.end(agent_id, str(error))
            case _ if kind == "pong":
                self._pings.heard(id)
            case _ if kind == "cancel":
                self._calls.cancel(agent_id, id)
            case _:
                self.counters["unexpected_kind"] += 1

    def _on_finished(self, peer: WorkerConnection, id: str, body: TurnFinished) -> None:
        agent_id = peer.agent_id
        self.activity.pop(agent_id, None)
        reply, error = body.reply, body.error
        if reply is not None and (reply.id != agent_id or reply.query_id != id):
            reply = msgspec.structs.replace(reply, id=agent_id, query_id=id)  # whose it is, the line knows
        if reply is None and error is None:
            error = error_info(ProtocolError(f"the worker ended query {id} with neither reply nor error"))
        if (denied := self.approvals.take_denied(id)) and reply is not None:
            reply = msgspec.structs.replace(reply, denied=denied)
        taker = self.waiters.taker(f"query:{id}")
        self.handle(FinishQuery(agent_id, id, reply, error, body.usage, body.context_tokens, taker, body.transcript))
        if self.workers.has_ended(agent_id):
            self._bury(agent_id, peer.incarnation)  # that was its last word

    def _on_unreadable(self, peer: WorkerConnection, kind: str, id: str, error: ErrorInfo) -> None:
        """A frame arrived without its body, and will not come again."""
        if kind == "finished":
            left = recover_query(self.tree.agents[peer.agent_id])
            self._on_finished(
                peer, id, TurnFinished(left.reply) if left.reply else TurnFinished(error=error, usage=left.usage)
            )
        elif kind == "root_call":
            peer.send("root_reply", RootReply(error=error), id)
        elif kind == "ready":
            self.workers.end(peer.agent_id, error.message)

    async def _answer_call(self, peer: WorkerConnection, id: str, call: RootCall) -> None:
        try:
            payload = await self._serve(self, peer.agent_id, call)
            peer.send("root_reply", RootReply(payload), id)
        except Exception as error:
            peer.send("root_reply", RootReply(error=error_info(error)), id)

    def _wake(self, id: str) -> None:
        node = self.tree.agents[id]
        self._waking.discard(id)
        if not node.inbox or node.pending is not None or self._closed:
            return
        try:
            self.ask(node, "\n\n".join(node.inbox), from_inbox=True)
        except AgentGoneError:
            pass  # killed in the meantime: the news waits for its first turn after that
        except OrchError:
            # No room to revive it just now, or none on the disk.
            self._waking.add(id)
            self.timers.later(WAKE_RETRY_SECONDS, partial(self._wake, id))
