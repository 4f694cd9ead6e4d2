"""Executes decisions of the tree. It launches processes, sends signals and frames, sets timers and notifies callers.

The supervisor itself makes no decisions.
"""

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
from orch_protocol.core.messages import Image
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
    SteeringDelivered,
    SteeringRetractedReply,
    TurnEvent,
    TurnFinished,
    TurnSoFar,
)
from orch_worker.tools.api.executor import ToolSource

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
from ..tree.interface.events import (
    REQUESTS,
    BootTimeout,
    ConfirmSteering,
    Event,
    FinishQuery,
    LaunchFailed,
    ProcessExited,
    RestartWorker,
    RetireIdleAgents,
    SpawnRequested,
    StartQuery,
    StopIfIdle,
    TurnTimeout,
    WorkerBooted,
)
from ..tree.interface.instructions import Instruction, Launch, Notify, Send, Signal, Timer, Wake
from ..tree.interface.topics import BudgetTopic, QueryTopic, ReadyTopic, WorkerReplyTopic
from ..tree.journal.entries import CredentialsSet, Entry
from ..tree.journal.journal import Journal
from ..tree.rules.crash_policy import launch
from ..tree.rules.exit_reasons import describe_crash
from ..tree.tree import Tree
from .disk_io import DiskWriter
from .ephemeral_sessions import EphemeralSessions
from .place_queue import PlaceQueue
from .project_facts import ProjectFacts
from .recovery.crash_recovery import RecoveredQuery, recover_query, recovery
from .run_events import RunEvents
from .session_sources import SessionSources
from .timing.heartbeat import Heartbeats
from .timing.ping import Pings
from .timing.query_deadlines import CHECK_SECONDS, QueryDeadlines
from .timing.time_budget import TimeBudgets
from .timing.timers import Timers
from .timing.waiters import Waiters
from .uncancelled_steps import UncancelledSteps
from .watchers import Watcher, Watchers
from .worker_requests import WorkerRequests

__all__ = ["Supervisor"]

DRAIN_SECONDS = 0.25
STEP_SECONDS = 3.0
WAKE_RETRY_SECONDS = 5.0
MAX_CALLS = 256

Serve = Callable[["Supervisor", str, RootCall], Awaitable[msgspec.Raw]]


class Supervisor:
    """Runs the agents of one run.

    `connect` opens the socket; its parameter is a callback for incoming frames. `serve` answers the RootCall of a
    worker. `logs` is the folder for worker logs. Workers get `orch_folders` in Init.
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
        self.config, self.sessions, self.ephemeral_sessions = config, sessions, EphemeralSessions()
        self._catalog, self.approvals = catalog, approvals
        self.credentials: Credentials = credentials or ProgramCredentials()
        self.watchers, self.hooks = watchers, hooks
        self.tools: dict[str, dict[str, Any]] = {}
        """Functions of the user's program that agents may call, by agent id and tool name."""
        self.executors: dict[str, ToolSource] = {}
        """Executors of the user's program, by the id of their agent."""
        self.activity: dict[str, Progress] = {}
        self.waiting_for_admission: set[str] = set()
        """The agents whose request waits for a rate limit. Their activity is known here and not in their processes."""
        """The last progress that each agent's worker reported."""
        self.tree = Tree(config.subagents, journal.take_entries(), warm_holders=config.archival.warm_holders)
        self.credentials.agents = self.tree.agents
        self.budgets = BudgetLedger(self.tree.agents, config.budget, clock)
        self.timers = Timers()
        self._time_budgets = TimeBudgets(self.tree.agents, self.budgets, self._end_turn_over_budget, self.timers.later)
        self._journal = journal
        self.disk, self.projects = DiskWriter(journal), ProjectFacts()
        self.archives = ArchiveEngine(config.archival, self.disk.do)
        self._serve = serve
        self.mount_namespace_problem = launcher.mount_namespace_problem
        """The reason why commands cannot have their own mount namespaces, "" if they can."""
        self.orch_folders = orch_folders
        self.clock = clock
        self._loop = asyncio.get_running_loop()
        self.waiters, self.holds = Waiters(), SessionHolds()
        self.rate_limiter = RateLimiter(self.tree.agents)
        self.workers = Workers(
            self.tree.agents,
            launcher,
            connect(self._on_frame),
            logs=logs,
            keys=keys,
            holds=self.holds,
            on_failed=lambda id, incarnation, why, late: self.handle(LaunchFailed(id, incarnation, why, late)),
            on_ended=self._on_ended,
        )
        self.run_events = RunEvents(journal, self.tree.agents, hooks, self.waiters, self.workers, self.disk)
        self._deadlines, self._worker_requests, self.session_sources = (
            QueryDeadlines(),
            WorkerRequests(),
            SessionSources(),
        )
        self.steps, self.places = UncancelledSteps(), PlaceQueue()
        self._waking: set[str] = set()
        self._waiting_launches: dict[str, int] = {}
        """Numbers of the processes that wait for credentials, by the id of their agent."""
        self._credential_versions: dict[str, str] = {}
        self._random, self._pings = random.Random(), Pings()
        self._heartbeats = Heartbeats(self._ping_worker)
        self._closed = False

    @property
    def counters(self) -> Counter[str]:
        """The number of rejected frames, by reason."""
        return self.workers.transport.peers.counters

    def start(self) -> None:
        """Recover what the previous root of this run left unfinished, and start the periodic checks of idle agents and
        turns.
        """
        self.handle(recovery(self.tree.agents.pending.values()))
        for agent in self.tree.agents.pending.values():  # the query is sent again as soon as the agent has a process
            assert agent.pending is not None
            self._deadlines.accept(agent.pending.query_id, agent.pending.prompt, images=agent.pending.images)
        if self._journal.notes:  # an incomplete journal may not list all archives
            self.tree.agents.unsearched.update(self.tree.agents.by_id)
        self._journal.shorten(partial(self.tree.agents.snapshot_entries, self.clock()))
        self.handle(RetireIdleAgents())
        self.timers.later(CHECK_SECONDS, self._check_turns)

    async def close(self) -> None:
        """End every worker within a few seconds. The agents accept queries again when the run is reopened."""
        if self._closed:
            return
        self._closed = True
        try:
            self._worker_requests.cancel_all()
            await self.workers.close()
            await self.steps.close(STEP_SECONDS)
            await self.archives.close()
            await self.disk.close(2.0)
        finally:
            self._release()
            self.ephemeral_sessions.close()

    def _release(self) -> None:
        """Release all resources, whether or not the workers ended properly."""
        self.timers.close()
        self.workers.close_connections()
        decision = self.tree.decide(recovery(self.tree.agents.pending.values()), self.clock())
        self._journal.record(entries := self.budgets.with_lost_usage(decision.entries))
        self.tree.apply(entries)
        error = error_info(AgentDiedError("the orchestrator was closed while a call waited for an agent"))
        self.waiters.fail(error)
        self._pings.close(error)
        self._journal.close()

    # Events in, instructions out.

    def handle(self, event: Event) -> Any:
        """Decide on `event`, record the resulting entries, apply them and execute the instructions.

        Return the value of the decision, or raise its error. A request fails with StoreError if the journal cannot be
        written, and with ConcurrencyLimitError if too few file descriptors are left. An event that reports a fact never
        fails. If the journal cannot be written, such an event is recorded later.
        """
        requested = isinstance(event, REQUESTS)
        if requested and self._closed:
            raise OrchError("this orchestrator is being closed; open another orchestrator")
        decision = self.tree.decide(event, self.clock())
        entries = self.budgets.with_lost_usage(decision.entries) if self.tree.agents.has_budgets else decision.entries
        if requested:
            for instruction in decision.instructions:
                if isinstance(instruction, Launch):
                    self._check_launch(instruction, event)
            self._journal.append(entries)
        else:
            self._journal.record(entries)
        self.tree.apply(entries)
        self.run_events.announce(entries)
        for instruction in decision.instructions:
            self._perform(instruction)
        return decision.value

    def _check_launch(self, launch: Launch, event: Event) -> None:
        """Check whether the process that the request `event` needs may start.

        Raises ConcurrencyLimitError or BudgetExceededError.
        """
        self.workers.require_room()
        payer = event.caller or event.spec.parent_id if isinstance(event, SpawnRequested) else launch.id
        self.budgets.require_process(payer, getattr(event, "asker", None))

    def flush_journal(self) -> None:
        """Write entries to the journal that could not be written earlier. Raises StoreError."""
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
            case Wake():
                self._perform_wake(instruction)

    def _launch(self, launch: Launch) -> None:
        agent = self.tree.agents[launch.id]
        if self.credentials.missing(agent):
            self._waiting_launches[launch.id] = launch.incarnation
            return
        self._credential_versions[launch.id] = self.credentials.version(agent)
        self.workers.launch(agent)

    def _signal(self, signal: Signal) -> None:
        if self._waiting_launches.get(signal.id) != signal.incarnation:
            self.workers.signal(signal.id, signal.incarnation, signal.how)
        elif signal.how != "late":  # there is no time limit for waiting for credentials
            del self._waiting_launches[signal.id]
            failed = LaunchFailed(signal.id, signal.incarnation, "it was waiting for credentials")
            self._loop.call_soon(self.handle, failed)

    def launch_waiting(self) -> None:
        """Start the waiting processes whose credentials a caller has offered in the meantime."""
        for id, incarnation in tuple(self._waiting_launches.items()):
            agent = self.tree.agents[id]
            with contextlib.suppress(OrchError):
                self._admit(agent)
                del self._waiting_launches[id]
                for instruction in launch(id, incarnation):
                    self._perform(instruction)

    def _admit(self, agent: AgentRecord) -> None:
        """Check that the credentials of the agent are available. Raises CredentialsError.

        If the agent's process is idle and was started with other credentials, stop the process.
        """
        if (record := self.credentials.admit(agent)) is not None:
            self.record(CredentialsSet(at=self.clock(), id=agent.spec.id, credentials=record))
        version = self._credential_versions.get(agent.spec.id)
        if agent.status == "idle" and version is not None and version != self.credentials.version(agent):
            self.handle(StopIfIdle(agent.spec.id))

    def catalog_for(self, id: str | None) -> Catalog:
        """Return the model catalog with the keys and servers of the agent `id`.

        If `id` is None, use those of the current caller.
        """
        values = self.credentials.values(id)
        return self._catalog if values is None else self._catalog.with_variables(values)

    def _perform_send(self, send: Send) -> None:
        if send.body is not None:
            # A message that cannot be sent now, for example because the disk is full, is not lost. The next process
            # gets the message from the journal.
            with contextlib.suppress(OrchError):
                self.workers.send(send.id, send.kind, send.body, send.query_id)
            return
        agent, watchers = self.tree.agents[send.id], self.watchers
        budgeted = self.budgets.kinds_for(send.id) if self.tree.agents.has_budgets else ()
        limit = agent.spec.limits.turn_seconds
        prompt, images, seconds = self._deadlines.send(send.query_id, send.id, agent.incarnation, limit)
        query = Query(
            prompt,
            seconds,
            stream=watchers.active and watchers.turn_started(agent, send.query_id, prompt),
            budgeted=budgeted,
            observed=watchers.active and watchers.observing,
            ended=agent.last_turn_was_ended,
            died=describe_crash(agent),
            local=agent.spec.local,
            hooks=self.hooks.rows,
            marks=agent.spec.marks,
            images=images,
        )
        self.workers.send_query(send.id, partial(self._send_query, send, query))

    def _send_query(self, send: Send, query: Query) -> None:
        try:
            self.workers.send(send.id, "query", query, send.query_id)
            if "seconds" in query.budgeted:
                self._time_budgets.end_overdue_turns()
        except OrchError as error:
            # The notification is deferred, so that the caller can begin to wait for it.
            failed = FinishQuery(send.id, send.query_id, error=error_info(error))
            self._loop.call_soon(self.handle, failed)

    def _perform_timer(self, timer: Timer) -> None:
        seconds, event = timer.seconds * (1 + timer.spread * self._random.uniform(-1, 1)), timer.event
        callback = partial(self._relaunch, event) if isinstance(event, RestartWorker) else partial(self.handle, event)
        self.timers.later(seconds, callback, event if isinstance(event, BootTimeout) else None)

    def _relaunch(self, event: RestartWorker) -> None:
        try:
            self.workers.require_room()
            self.budgets.require_process(event.id)
        except OrchError as error:
            event = msgspec.structs.replace(event, refused=str(error))
        self.handle(event)

    def _perform_notify(self, notify: Notify) -> None:
        match notify.topic:
            case ReadyTopic(id):
                self.timers.cancel(BootTimeout(id, self.tree.agents[id].incarnation))
            case QueryTopic(id):
                self._deadlines.forget(id)
                if self.watchers.active:
                    self.watchers.turn_ended(id, notify.value, notify.error)
        self.waiters.notify(notify.topic, notify.value, notify.error)

    def _perform_wake(self, wake: Wake) -> None:
        if wake.id not in self._waking:
            self._waking.add(wake.id)
            self._loop.call_soon(self._wake, wake.id)

    def record(self, entry: Entry) -> None:
        """Record, apply and announce `entry`. Raises StoreError."""
        self._journal.append([entry])
        self.tree.apply([entry])
        self.run_events.announce([entry])

    def budgets_changed(self) -> None:
        """Notify queries that wait for budget, and check the time budgets again."""
        self.waiters.notify(BudgetTopic())
        self._time_budgets.end_overdue_turns()

    def _end_turn_over_budget(self, id: str, query_id: str, short: str) -> None:
        self._deadlines.end_now(query_id)
        with contextlib.suppress(OrchError):  # the deadline ends a worker that cannot be notified
            self.workers.send(id, "cancel", CancelCurrentTurn(short), query_id)

    # Requests of callers.

    def ask(
        self,
        agent: AgentRecord,
        prompt: str,
        *,
        asker: str | None = None,
        waits: bool = False,
        wake: str | int | None = None,
        from_inbox: bool = False,
        request_id: str | None = None,
        watcher: Watcher | None = None,
        stays: bool = False,
        images: tuple[Image, ...] = (),
        item: str = "",
    ) -> str:
        """Send the query `prompt` to the agent and return the id of the query. Raises AgentError.

        An agent without a process gets a process. `watcher` is called with each TurnEvent of the turn and must not
        raise. If `stays` is True, the reply is stored until a caller collects the reply, and the journal contains the
        whole prompt when this method returns. If this root ends before the agent's transcript contains the prompt, the
        next root sends the query again.
        """
        if self.tree.agents.has_budgets:
            self.budgets.require_time(agent.spec.id, asker)
        if agent.status not in ("killed", "failed"):  # the tree rejects queries to such agents
            self._admit(agent)
        query_id, prompt = new_id(), scrub(prompt)
        if watcher is not None:
            self.watchers.watch_query(query_id, watcher)
        # If an agent waits for the reply, it waits during its own turn. The query must end before that turn ends.
        asker_query = self.tree.agents[asker].pending if asker is not None and waits else None
        self._deadlines.accept(query_id, prompt, asker_query.query_id if asker_query else None, images=images)
        try:
            accepted: str = self.handle(
                StartQuery(
                    id=agent.spec.id,
                    query_id=query_id,
                    head=head_of(prompt),
                    asker=asker,
                    waits=waits,
                    wake=wake,
                    from_inbox=from_inbox,
                    request_id=request_id,
                    stays=stays,
                    prompt=prompt if stays or from_inbox else "",
                    images=images if stays else (),
                    item=item,
                )
            )
        except BaseException:
            self._deadlines.forget(query_id)
            self.watchers.unwatch_query(query_id)
            raise
        if accepted != query_id:
            self._deadlines.forget(query_id)
            self.watchers.unwatch_query(query_id)
        return accepted

    async def ping(self, agent: AgentRecord, payload: bytes = b"", seconds: float = 10.0) -> None:
        """Wait until the agent's process answers.

        Raises AgentDiedError if there is no process, or if the process does not answer within `seconds`.
        """
        peer = self.workers.peer(agent.spec.id)
        if peer is None:
            raise AgentDiedError(f"agent {agent.spec.name!r} ({agent.spec.id}) has no process; a query starts one")
        try:
            await self._pings.ping(peer, payload, seconds)
        except TimeoutError:
            raise AgentDiedError(f"agent {agent.spec.name!r} did not answer a ping within {seconds:g} s") from None

    # Workers.

    def _on_ended(self, id: str, incarnation: int) -> None:
        if self.tree.agents[id].status == "busy":
            # The last frames of the process may still be in the socket. Read them before the transcript determines the
            # outcome.
            self.timers.later(DRAIN_SECONDS, partial(self._finish_process, id, incarnation))
        else:
            self._finish_process(id, incarnation)

    def _finish_process(self, id: str, incarnation: int) -> None:
        if (exit := self.workers.remove_ended(id, incarnation)) is None:
            return  # the last frame of the process arrived during the delay
        self.activity.pop(id, None)
        self._worker_requests.cancel_all(id)
        agent = self.tree.agents[id]
        recovered, taker = RecoveredQuery(), None
        if agent.pending is not None and agent.status == "busy":
            recovered, taker = recover_query(agent), self.waiters.taker(QueryTopic(agent.pending.query_id))
        self.handle(
            ProcessExited(
                id,
                incarnation,
                exit.code,
                recovered=recovered.reply,
                begun=recovered.begun,
                taken_by=taker,
                detail=exit.detail,
                usage=recovered.usage,
                timed_out=exit.timed_out,
                oom=exit.oom,
            )
        )

    def _check_turns(self) -> None:
        """End processes that are stuck or do not end their turns.

        Time during which the machine was suspended does not count.
        """
        self.workers.oom_detector.ignore_earlier()
        self._deadlines.extend_all(self._heartbeats.suspended_seconds())
        for agent in self._heartbeats.find_unresponsive(self.tree.agents.pending.values()):
            self.workers.end_stuck(agent.spec.id)
        for query_id, id, incarnation in self._deadlines.overdue():
            self.workers.set_cause(id, "its turn did not end within the time limit")
            self.handle(TurnTimeout(id, incarnation, query_id))
        self.timers.later(CHECK_SECONDS, self._check_turns)

    def _ping_worker(self, id: str) -> None:
        if (peer := self.workers.peer(id)) is not None:
            peer.send("ping", Ping(), reliable=False)

    def _on_frame(self, peer: WorkerConnection, kind: str, id: str, body: Struct) -> None:
        self._handle_frame(peer, kind, id, body)
        self.workers.on_frame(peer, kind)

    def _handle_frame(self, peer: WorkerConnection, kind: str, id: str, body: Struct) -> None:
        agent_id = peer.agent_id
        self._heartbeats.beat(agent_id, peer.incarnation)
        match body:
            case Ready():
                self.handle(WorkerBooted(agent_id, peer.incarnation, peer.pid or 0, body))
            case TurnFinished() if id == "init":
                self.workers.set_cause(agent_id, body.error.message if body.error else "")
            case TurnFinished():
                self._on_finished(peer, id, body)
            case Progress():
                if agent_id not in self.waiting_for_admission:
                    self.activity[agent_id] = body
            case TurnEvent() | TurnSoFar():
                self.watchers.notify_turn_event(id, body)
            case CallReport():
                self.watchers.notify_tool_call(self.tree.agents, agent_id, id, body)
            case SteeringDelivered():
                self.handle(ConfirmSteering(agent_id, id))
            case SteeringRetractedReply():
                self.waiters.notify(WorkerReplyTopic(kind, agent_id, id), body)
            case RootCall():
                if self._worker_requests.count_active(agent_id) < MAX_CALLS:
                    self._worker_requests.start(agent_id, id, self._answer_call(peer, id, body))
                else:
                    full = ProtocolError(
                        f"{MAX_CALLS} calls of this agent are in progress; wait until one of them ends"
                    )
                    peer.send("root_reply", RootReply(error=error_info(full)), id)
            case ErrorInfo():
                self._on_unreadable(peer, kind, id, body)
            case _ if kind in ANSWERS:
                self.waiters.notify(WorkerReplyTopic(kind, agent_id, id), body, getattr(body, "error", None))
            case _ if kind == "hello":
                try:
                    agent = self.tree.agents[agent_id]
                    peer.send(
                        "init",
                        Init(agent.spec, self.rate_limiter.names(), agent.transcript, self.orch_folders),
                        "init",
                    )
                except OrchError as error:
                    self.workers.end(agent_id, str(error))
            case _ if kind == "pong":
                self._pings.on_pong(id)
            case _ if kind == "cancel":
                self._worker_requests.cancel(agent_id, id)
            case _:
                self.counters["unexpected_kind"] += 1

    def _on_finished(self, peer: WorkerConnection, id: str, body: TurnFinished) -> None:
        agent_id = peer.agent_id
        self.activity.pop(agent_id, None)
        reply, error = body.reply, body.error
        if reply is not None and (reply.id != agent_id or reply.query_id != id):
            # the connection determines the id of the agent and of the query
            reply = msgspec.structs.replace(reply, id=agent_id, query_id=id)
        if reply is None and error is None:
            error = error_info(ProtocolError(f"the worker ended query {id} without a reply or an error"))
        if (denied := self.approvals.take_denied(id)) and reply is not None:
            reply = msgspec.structs.replace(reply, denied=denied)
        taker = self.waiters.taker(QueryTopic(id))
        self.handle(
            FinishQuery(
                agent_id,
                id,
                reply,
                error,
                usage=body.usage,
                context_tokens=body.context_tokens,
                taken_by=taker,
                transcript=body.transcript,
            )
        )
        if self.workers.has_ended(agent_id):
            self._finish_process(agent_id, peer.incarnation)  # this was the last frame of the process

    def _on_unreadable(self, peer: WorkerConnection, kind: str, id: str, error: ErrorInfo) -> None:
        """Handle a frame with a body that cannot be decoded. The worker does not send the frame again."""
        if kind == "finished":
            recovered = recover_query(self.tree.agents[peer.agent_id])
            self._on_finished(
                peer,
                id,
                TurnFinished(recovered.reply) if recovered.reply else TurnFinished(error=error, usage=recovered.usage),
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
        agent = self.tree.agents[id]
        self._waking.discard(id)
        if not agent.inbox or agent.pending is not None or self._closed:
            return
        try:
            self.ask(agent, "\n\n".join(agent.inbox), from_inbox=True)
        except AgentGoneError:
            pass  # the agent was killed, and its inbox waits for its next turn
        except OrchError:
            # The process limit is reached, or the disk is full. The inbox waits.
            self._waking.add(id)
            self.timers.later(WAKE_RETRY_SECONDS, partial(self._wake, id))
