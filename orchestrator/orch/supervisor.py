"""Does what the tree decides: launches, signals, sends, sets timers, notifies. Holds no rules of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from orch_protocol.commands import Finished, Init, Nothing, Ping, Progress, Query, Ready, RootCall, RootReply
from orch_protocol.config import Config
from orch_protocol.errors import (
    AgentDiedError,
    OrchError,
    QueryTimeoutError,
    error_from,
    error_info,
)
from orch_protocol.ids import new_id, new_token
from orch_protocol.messages import Reply
from orch_protocol.spec import Birth
from orch_protocol.text import scrub
from orch_worker.transcript import read_last_turn

from .events import (
    Ask,
    Event,
    Finish,
    Gone,
    Instruction,
    Launch,
    LaunchFailed,
    Notify,
    Recover,
    Send,
    Signal,
    Sweep,
    Timer,
    WorkerUp,
)
from .journal import Journal
from .launchers.base import Launcher, LaunchRequest, WorkerProcess
from .nodes import Node, head_of
from .router import Deliver, Peer, Switchboard
from .tree import Tree

__all__ = ["Supervisor"]

DRAIN_SECONDS = 0.25
PONG_CHECK_SECONDS = 0.5
GROUP_SYNC_SECONDS = 0.05
LOG_TAIL = 2000

Serve = Callable[["Supervisor", str, RootCall], Awaitable[msgspec.Raw]]


class Supervisor:
    """Runs the agents of one run.

    `connect` opens the socket, given the callback for arriving frames; `serve` answers a worker's RootCall; `logs` is
    the folder of the workers' logs and `spool` the one for bodies too large for the socket.
    """

    def __init__(
        self,
        *,
        config: Config,
        journal: Journal,
        launcher: Launcher,
        connect: Callable[[Deliver], Switchboard],
        serve: Serve,
        sessions: Path,
        logs: Path,
        spool: Path,
        keys: dict[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.sessions = sessions
        self.tools: dict[str, dict[str, Any]] = {}
        """Functions of the user's program that agents may call, by agent id and tool name."""
        self.activity: dict[str, Progress] = {}
        """What each agent does just now, by its own word."""
        self.tree = Tree(config.subagents, journal.entries)
        self._journal = journal
        journal.log.on_dirty = self._sync_soon
        self._launcher = launcher
        self._serve = serve
        self._logs = logs
        self._spool = spool
        self._keys = keys or {}
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._board = connect(self._on_frame)
        self._peers: dict[str, Peer] = {}
        self._processes: dict[str, tuple[int, WorkerProcess]] = {}
        self._prompts: dict[str, tuple[str, float | None]] = {}
        self._takers: dict[str, str] = {}
        self._boot_errors: dict[str, str] = {}
        self._waiters: defaultdict[str, list[asyncio.Future[Any]]] = defaultdict(list)
        self._ping_ids = count(1)
        self._checking_pongs = False
        self._pongs: dict[str, tuple[asyncio.Future[None], float]] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._syncing: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def counters(self) -> Counter[str]:
        """How many frames were not believed, by reason."""
        return self._board.peers.counters

    def start(self) -> None:
        """Settle what the last root of this run left behind, and begin to look for idle agents."""
        replies: dict[str, Reply] = {}
        for node in self.tree.nodes.pending.values():
            last = read_last_turn(Path(node.spec.folder))
            if last is not None and last.reply is not None:
                replies[last.query_id] = last.reply
        self.handle(Recover(os.getpid(), replies))
        self.handle(Sweep())

    async def close(self) -> None:
        """End every worker; their agents answer again when the run is opened anew. Takes at most some seconds."""
        if self._closed:
            return
        self._closed = True
        for id, (incarnation, _) in list(self._processes.items()):
            if (peer := self._peers.get(id)) and self.tree.nodes[id].status == "idle":
                peer.send("stop", Nothing())
            else:
                self._perform_signal(Signal(id, incarnation, "kill"))
        ended = [process.ended for _, process in self._processes.values()]
        if ended:
            await asyncio.wait(ended, timeout=2.0)
        for task in list(self._tasks):
            task.cancel()
        for timer in self._timers:
            timer.cancel()
        await self._launcher.stop()
        for peer in list(self._peers.values()):
            self._board.peers.forget(peer)
        self._board.close()
        if self._syncing is not None:
            await asyncio.wait([self._syncing])
        settle = self.tree.decide(Recover(os.getpid()), self._clock())
        self._journal.append(settle.entries)
        self.tree.apply(settle.entries)
        self._journal.close()
        waiting = [future for futures in self._waiters.values() for future in futures]
        for future in (*waiting, *(pong for pong, _ in self._pongs.values())):
            if not future.done():
                future.set_exception(AgentDiedError("the orchestrator was closed while somebody waited for an agent"))

    # Events in, instructions out.

    def handle(self, event: Event) -> Any:
        """Decide on `event`, write what follows, make it true, do it. Returns its value or raises its error."""
        decision = self.tree.decide(event, self._clock())
        self._journal.append(decision.entries)
        self.tree.apply(decision.entries)
        for instruction in decision.instructions:
            self._perform(instruction)
        return decision.value

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case Launch():
                self._perform_launch(instruction)
            case Signal():
                self._perform_signal(instruction)
            case Send():
                self._perform_send(instruction)
            case Timer():
                self._perform_timer(instruction)
            case Notify():
                self._perform_notify(instruction)

    def _perform_launch(self, launch: Launch) -> None:
        spec = self.tree.nodes[launch.id].spec
        ident = f"{launch.id}.{launch.incarnation}.{new_id()}".encode()
        token = new_token()
        peer = self._board.peers.expect(launch.id, launch.incarnation, ident, token)
        self._peers[launch.id] = peer
        request = LaunchRequest(
            agent_id=launch.id,
            incarnation=launch.incarnation,
            ident=ident,
            address=self._board.address,
            birth=Birth(token, self._keys),
            template=spec.template,
            log=str(self._log(launch.id)),
            spool=str(self._spool),
        )
        self._spawn_task(self._launch(request, peer))

    def _perform_signal(self, signal: Signal) -> None:
        incarnation, process = self._processes.get(signal.id, (0, None))
        if process is None or incarnation != signal.incarnation:
            return
        if signal.how == "stop":
            self._peers[signal.id].send("stop", Nothing())
        else:
            process.kill()

    def _perform_send(self, send: Send) -> None:
        prompt, deadline = self._prompts.get(send.query_id, ("", None))
        seconds = None if deadline is None else max(0.0, deadline - self._loop.time())
        self._peers[send.id].send("query", Query(prompt, seconds), send.query_id)

    def _perform_timer(self, timer: Timer) -> None:
        self._later(timer.seconds, lambda: self.handle(timer.event))

    def _perform_notify(self, notify: Notify) -> None:
        kind, _, rest = notify.topic.partition(":")
        if kind == "wake":
            self._loop.call_soon(self._wake, rest)
            return
        if kind == "query":
            self._prompts.pop(rest, None)
            self._takers.pop(rest, None)
        for future in self._waiters.pop(notify.topic, ()):
            if not future.done():
                if notify.error is not None:
                    future.set_exception(error_from(notify.error))
                else:
                    future.set_result(notify.value)

    # What callers wait for.

    def ask(
        self,
        node: Node,
        prompt: str,
        *,
        asker: str | None = None,
        waits: bool = False,
        wake: str | int | None = None,
        from_inbox: bool = False,
        seconds: float | None = None,
        request_id: str | None = None,
    ) -> str:
        """Put `prompt` to the agent, reviving it if need be, and return the query's id. Raises AgentError."""
        query_id, prompt = new_id(), scrub(prompt)
        deadline = None if seconds is None else self._loop.time() + seconds
        self._prompts[query_id] = (prompt, deadline)
        try:
            accepted: str = self.handle(
                Ask(node.spec.id, query_id, head_of(prompt), asker, waits, wake, from_inbox, request_id)
            )
        except BaseException:
            del self._prompts[query_id]
            raise
        if accepted != query_id:
            del self._prompts[query_id]
        return accepted

    async def answer(self, node: Node, query_id: str, *, seconds: float | None, taker: str | None) -> Reply:
        """Wait for a query's reply, at most `seconds`; `taker` names who gets it, None leaves it to collect."""
        if taker is not None:
            self._takers[query_id] = taker
        seconds = node.spec.limits.turn_seconds + 60 if seconds is None else seconds
        try:
            reply: Reply = await self.until(f"query:{query_id}", seconds)
        except TimeoutError:
            raise QueryTimeoutError(
                f"agent {node.spec.name!r} ({node.spec.id}) has not answered within {seconds:g} s; "
                f"it works on: `orch collect {node.spec.seq}` takes the answer later"
            ) from None
        finally:
            self._takers.pop(query_id, None)
        return reply

    async def until(self, topic: str, seconds: float) -> Any:
        """Wait for `topic` to be notified, at most `seconds`. Raises TimeoutError, or the error that is notified."""
        future = self.watch(topic)
        timer = self._loop.call_later(seconds, _expire, future)
        try:
            return await future
        finally:
            timer.cancel()
            future.cancel()

    def watch(self, topic: str) -> asyncio.Future[Any]:
        """Return a future of `topic`, which hears of it from this very moment on. Cancel it when done with it."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiters[topic].append(future)
        future.add_done_callback(lambda _: self._unwatch(topic, future))
        return future

    def _unwatch(self, topic: str, future: asyncio.Future[Any]) -> None:
        if not future.cancelled():
            future.exception()  # whoever waited has it; one that nobody waited for is no news to the event loop
        waiters = self._waiters.get(topic)
        if waiters is not None and future in waiters:
            waiters.remove(future)
            if not waiters:
                del self._waiters[topic]

    async def ping(self, node: Node, payload: bytes = b"", seconds: float = 10.0) -> None:
        """Wait until the agent's process has answered. Raises AgentDiedError when it has none, or keeps silent."""
        peer = self._peers.get(node.spec.id)
        if peer is None or not peer.trusted:
            raise AgentDiedError(f"agent {node.spec.name!r} ({node.spec.id}) has no process; a query starts one")
        ping_id = str(next(self._ping_ids))
        pong: asyncio.Future[None] = self._loop.create_future()
        if not self._checking_pongs:
            self._checking_pongs = True
            self._later(PONG_CHECK_SECONDS, self._check_pongs)
        self._pongs[ping_id] = pong, self._loop.time() + seconds
        peer.send("ping", Ping(payload), ping_id, reliable=False)
        try:
            await pong
        except TimeoutError:
            raise AgentDiedError(f"agent {node.spec.name!r} did not answer a ping within {seconds:g} s") from None
        finally:
            self._pongs.pop(ping_id, None)

    def _check_pongs(self) -> None:
        """Fail the pings whose time is over. One timer for all: a timer each would cost more than the ping."""
        now = self._loop.time()
        for pong, deadline in self._pongs.values():
            if now >= deadline:
                _expire(pong)
        self._checking_pongs = bool(self._pongs)
        if self._checking_pongs:
            self._later(PONG_CHECK_SECONDS, self._check_pongs)

    # Workers.

    async def _launch(self, request: LaunchRequest, peer: Peer) -> None:
        id, incarnation = request.agent_id, request.incarnation
        try:
            process = await self._launcher.launch(request)
        except Exception as error:
            self._board.peers.forget(peer)
            self.handle(LaunchFailed(id, incarnation, str(error) or type(error).__name__))
            return
        self._processes[id] = (incarnation, process)
        process.ended.add_done_callback(lambda ended: self._on_ended(id, incarnation, ended))
        if self.tree.nodes[id].status == "killed" or self._closed:
            process.kill()
        else:
            self._board.peers.confirm(peer, process.pid)

    def _on_ended(self, id: str, incarnation: int, ended: asyncio.Future[int | None]) -> None:
        if self._closed or ended.cancelled():
            return
        code = ended.result()
        if self._processes.get(id, (0, None))[0] == incarnation:
            del self._processes[id]
        node = self.tree.nodes[id]
        if node.pending is not None and node.status == "busy":
            # Its last words may still be in the socket; the transcript knows better, but later.
            self._later(DRAIN_SECONDS, lambda: self._bury(id, incarnation, code))
        else:
            self._bury(id, incarnation, code)

    def _bury(self, id: str, incarnation: int, code: int | None) -> None:
        peer = self._peers.get(id)
        if peer is not None and peer.incarnation == incarnation:
            self._board.peers.forget(self._peers.pop(id))
        self.activity.pop(id, None)
        node = self.tree.nodes[id]
        recovered: Reply | None = None
        begun = True
        taker: str | None = None
        if node.pending is not None and node.status == "busy":
            with contextlib.suppress(OrchError):
                last = read_last_turn(Path(node.spec.folder))
                begun = last is not None and last.query_id == node.pending.query_id
                recovered = last.reply if last is not None and begun else None
            taker = self._takers.get(node.pending.query_id)
        detail = self._boot_errors.pop(id, "")
        if not detail and code != 0 and node.status in ("starting", "busy"):
            detail = self._log_tail(id)
        self.handle(Gone(id, incarnation, code, recovered, begun, taker, detail))

    def _on_frame(self, peer: Peer, kind: str, id: str, body: Struct) -> None:
        agent_id = peer.agent_id
        match body:
            case Ready():
                self.handle(
                    WorkerUp(
                        agent_id, peer.incarnation, peer.pid or 0, body.model, body.context_tokens, body.context_limit
                    )
                )
            case Finished() if id == "init":
                self._boot_errors[agent_id] = body.error.message if body.error else ""
            case Finished():
                self.activity.pop(agent_id, None)
                taker = self._takers.get(id)
                self.handle(Finish(agent_id, id, body.reply, body.error, body.usage, body.context_tokens, taker))
            case Progress():
                self.activity[agent_id] = body
            case RootCall():
                self._spawn_task(self._answer_call(peer, id, body))
            case _ if kind == "hello":
                peer.send("init", Init(self.tree.nodes[agent_id].spec), "init")
            case _ if kind == "pong":
                pong, _ = self._pongs.get(id, (None, 0.0))
                if pong is not None and not pong.done():
                    pong.set_result(None)
            case _:
                self.counters["unexpected_kind"] += 1

    async def _answer_call(self, peer: Peer, id: str, call: RootCall) -> None:
        try:
            payload = await self._serve(self, peer.agent_id, call)
            peer.send("root_reply", RootReply(payload), id)
        except Exception as error:
            peer.send("root_reply", RootReply(error=error_info(error)), id)

    def _wake(self, id: str) -> None:
        node = self.tree.nodes[id]
        if node.inbox and node.pending is None and not self._closed:
            # Killed in the meantime, or no room to revive: the news waits in the inbox for the next turn's end.
            with contextlib.suppress(OrchError):
                self.ask(node, "\n\n".join(node.inbox), from_inbox=True)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        def fire() -> None:
            self._timers.discard(handle)
            act()

        handle = self._loop.call_later(seconds, fire)
        self._timers.add(handle)

    def _sync_soon(self) -> None:
        self._later(GROUP_SYNC_SECONDS, self._sync)

    def _sync(self) -> None:
        # In a thread: the root serves everybody, and a busy disk takes its time. A failure ends the journal, and the
        # next that writes to it is told.
        self._syncing = self._loop.run_in_executor(None, self._journal.sync)
        self._syncing.add_done_callback(lambda syncing: syncing.cancelled() or syncing.exception())

    def _spawn_task(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _log(self, id: str) -> Path:
        return self._logs / f"{id}.log"

    def _log_tail(self, id: str) -> str:
        try:
            text = self._log(id).read_bytes()[-LOG_TAIL:].decode("utf-8", "replace").strip()
        except OSError:
            return ""
        return f"the end of its log:\n{text}" if text else ""


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
