"""The worker processes of agents and the connections to them.

This module starts, signals and ends workers, and sends frames.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from orch_protocol.agent.spec import Template, WorkerBirth
from orch_protocol.core.ids import new_id, new_token
from orch_protocol.wire.worker_messages import EmptyBody
from orch_worker.system.memory_limit import with_memory_limit

from ..tree.agents.state import AgentRecord, TreeState
from ..tree.rules.exit_reasons import STUCK
from .admission import HOLD_SECONDS, Admission, Step, admitted_at_once
from .base import Launcher, LaunchRequest, WorkerProcess
from .descriptors import require_room
from .oom_detector import OomDetector
from .router import Transport, WorkerConnection
from .session_holds import SessionHolds
from .worker_logs import read_tail

__all__ = ["Workers"]

END_SECONDS = 2.0
TERMINATE_SECONDS = 1.0
STEP_ENDS: Final[dict[str, Literal["start", "query"]]] = {
    "ready": "start",
    "progress": "query",
    "root_call": "query",
    "finished": "query",
}
"""Kinds of frames after which a new worker waits, and the step of the worker that has ended then."""


class WorkerExit(NamedTuple):
    """How a process ended.

    `code` is the exit code. `timed_out` is True if the process was killed because it exceeded a time limit. `oom` is
    the evidence that memory was short.
    """

    code: int | None
    detail: str
    timed_out: bool
    oom: str


class Workers:
    """The processes of the agents in `agents`, on the running event loop.

    `logs` is the folder for the logs of processes. `keys` returns the keys for an agent's birth pipe. If a process
    cannot be started, `on_failed` is called with id, incarnation, reason, and whether a time limit was exceeded. When a
    process has ended, `on_ended` is called with id and incarnation. After `close`, neither function is called.
    """

    def __init__(
        self,
        agents: TreeState,
        launcher: Launcher,
        transport: Transport,
        *,
        logs: Path,
        keys: Callable[[str], dict[str, str]],
        holds: SessionHolds,
        on_failed: Callable[[str, int, str, bool], object],
        on_ended: Callable[[str, int], object],
    ) -> None:
        self.launcher = launcher
        self.transport = transport
        self.processes: dict[str, tuple[int, WorkerProcess]] = {}
        """The running process of each agent, with its incarnation."""
        self._agents = agents
        self._logs = logs
        self._keys = keys
        self._holds = holds
        self._on_failed = on_failed
        self._on_ended = on_ended
        self._peers: dict[str, WorkerConnection] = {}
        self._launches: dict[str, asyncio.Task[WorkerProcess]] = {}
        self._admissions: defaultdict[Template, Admission] = defaultdict(lambda: Admission(admitted_at_once()))
        """An admission for each template, so that no worker waits for the boot of a zygote that it does not need."""
        self._causes: dict[str, str] = {}
        self._stuck: set[str] = set()
        self._timed_out: set[str] = set()
        self._killed: set[str] = set()
        self.oom_detector = OomDetector()
        self._closed = False

    async def close(self) -> None:
        """End all processes within a few seconds. Idle processes are asked to exit; the others are killed."""
        self._closed = True
        for id, (_, process) in self.processes.items():
            if self._agents[id].status == "idle":
                self._peers[id].send("stop", EmptyBody())
            else:
                process.kill()
        for launching in self._launches.values():
            launching.cancel()
        ended = [process.ended for _, process in self.processes.values()]
        if ended:
            await asyncio.wait(ended, timeout=END_SECONDS)
        await self.launcher.stop()

    def close_connections(self) -> None:
        """Close all connections and the socket, even if processes are still running."""
        for peer in self._peers.values():
            self.transport.peers.forget(peer)
        self.transport.close()

    def require_room(self) -> None:
        """Raise ConcurrencyLimitError unless enough descriptors are left for another process."""
        require_room(1 + sum(not peer.authenticated for peer in self._peers.values()))

    def launch(self, agent: AgentRecord) -> None:
        """Start a process for the agent `agent`."""
        id, incarnation = agent.spec.id, agent.incarnation
        self._timed_out.discard(id)
        self._killed.discard(id)
        ident = f"{id}.{incarnation}.{new_id()}".encode()
        token = new_token()
        peer = self._peers[id] = self.transport.peers.expect(id, incarnation, ident, token)
        request = LaunchRequest(
            agent_id=id,
            incarnation=incarnation,
            ident=ident,
            address=self.transport.address,
            birth=WorkerBirth(token, self._keys(id)),
            template=agent.spec.template,
            log=str(self.log(id)),
            spool=str(peer.spool),
        )
        launching = self._launches[id] = asyncio.get_running_loop().create_task(self._launch(agent, request))
        launching.add_done_callback(partial(self._launched, peer))

    def peer(self, id: str) -> WorkerConnection | None:
        """Return the connection to the agent's process, None if the process is not connected."""
        peer = self._peers.get(id)
        return peer if peer is not None and peer.authenticated else None

    def spool(self, id: str) -> Path:
        """Return the folder for large messages to and from the agent's process.

        Raises KeyError if the agent has no process.
        """
        return self._peers[id].spool

    def agent_of(self, pid: int) -> str | None:
        """Return the id of the agent whose worker or tool host is the process `pid`. Return None for other processes.

        A worker that is a thread of this process has no process id of its own.
        """
        if pid == os.getpid():
            return None
        for id, (_, process) in self.processes.items():
            if process.owns(pid):
                return id
        return None

    def send(self, id: str, kind: str, body: Struct, ref: str = "") -> None:
        """Send `body` to the agent's process. Raises OrchError if `body` cannot be sent."""
        self._peers[id].send(kind, body, ref)

    def send_query(self, id: str, send: Callable[[], None]) -> None:
        """Call `send`, which sends a query to the agent's process.

        If this is the first query of the process, call `send` when the processors can take its work. Frames that are
        sent in the meantime, for example to cancel the query, send the query first.
        """
        peer = self._peers[id]
        if peer.asked:
            send()
            return
        peer.asked = True
        admission, step = self._admissions[self._agents[id].spec.template], Step(id, peer.incarnation, "query")

        def begin() -> None:
            peer.send_held = None
            asyncio.get_running_loop().call_later(HOLD_SECONDS, self._end_step, step)
            send()

        peer.send_held = partial(admission.begin_now, step)
        admission.request(step, begin)

    def on_frame(self, peer: WorkerConnection, kind: str) -> None:
        """Let other processes work if a frame of `kind` shows that the process of `peer` waits."""
        if kind in STEP_ENDS:
            self._end_step(Step(peer.agent_id, peer.incarnation, STEP_ENDS[kind]))

    def _end_step(self, step: Step) -> None:
        for admission in self._admissions.values():  # The template of an agent changes with its model.
            admission.end(step)

    def broadcast(self, kind: str, body: Struct) -> None:
        """Send `body` to every connected process, without guaranteed delivery."""
        self.transport.peers.broadcast(kind, body)

    def signal(self, id: str, incarnation: int, how: str) -> None:
        """End the process number `incarnation` of the agent.

        `how` is `stop` to request the exit, `kill` to kill the process, or `late` to kill it because it exceeded a time
        limit. A process can be killed even during the launch.
        """
        current_incarnation, process = self.processes.get(id, (0, None))
        if how == "late":
            self._timed_out.add(id)
        if process is None or current_incarnation != incarnation:
            if how != "stop" and (launching := self._launches.get(id)):
                launching.cancel()
        elif how == "stop":
            self._peers[id].send("stop", EmptyBody())
        else:
            self._killed.add(id)
            process.kill()

    def end(self, id: str, cause: str) -> None:
        """Kill the agent's process. `cause` is the reason."""
        self.set_cause(id, cause)
        self.processes[id][1].kill()

    def end_stuck(self, id: str) -> None:
        """End a process that does not respond. SIGTERM lets the process log its stack; SIGKILL follows."""
        incarnation, process = self.processes.get(id, (0, None))
        if process is not None and id not in self._stuck:
            self._stuck.add(id)
            self.set_cause(id, STUCK)
            process.terminate()
            asyncio.get_running_loop().call_later(TERMINATE_SECONDS, self.signal, id, incarnation, "kill")

    def set_cause(self, id: str, cause: str) -> None:
        """Store the reason why the agent's process is about to end."""
        self._causes[id] = cause

    def has_ended(self, id: str) -> bool:
        """Return whether the agent's process has ended and `remove_ended` was not called since then."""
        return self.processes[id][1].ended.done()

    def remove_ended(self, id: str, incarnation: int) -> WorkerExit | None:
        """Remove a process that has ended, and return how the process ended.

        Return None if the process was removed before.
        """
        current_incarnation, process = self.processes.get(id, (0, None))
        if process is None or current_incarnation != incarnation:
            return None
        del self.processes[id]
        self.transport.peers.forget(self._peers.pop(id))
        self._end_steps(id, incarnation)
        code, detail = process.ended.result(), self._causes.pop(id, "")
        oom = self.oom_detector.claim() if code == -SIGKILL and not detail and id not in self._killed else ""
        stuck = id in self._stuck
        self._stuck.discard(id)
        if stuck or (not detail and code != 0 and self._agents[id].status in ("starting", "busy")):
            log_end = with_memory_limit(read_tail(self.log(id)))
            detail = "; ".join(filter(None, (detail, f"the end of its log:\n{log_end}" if log_end else "")))
        self._killed.discard(id)
        timed_out = id in self._timed_out
        self._timed_out.discard(id)
        return WorkerExit(code, detail, timed_out, oom)

    async def _launch(self, agent: AgentRecord, request: LaunchRequest) -> WorkerProcess:
        await self._holds.wait_until_released(agent.spec)
        admitted = asyncio.Event()
        step = Step(request.agent_id, request.incarnation, "start")
        self._admissions[request.template].request(step, admitted.set)
        await admitted.wait()
        return await self.launcher.launch(request)

    def _launched(self, peer: WorkerConnection, launching: asyncio.Task[WorkerProcess]) -> None:
        id, incarnation = peer.agent_id, peer.incarnation
        del self._launches[id]
        failure = "no process was started within the time limit" if launching.cancelled() else launching.exception()
        if failure is not None:
            self.transport.peers.forget(self._peers.pop(id))
            self._end_steps(id, incarnation)
            if not self._closed:
                timed_out = id in self._timed_out
                self._timed_out.discard(id)
                self._on_failed(id, incarnation, str(failure) or type(failure).__name__, timed_out)
            return
        asyncio.get_running_loop().call_later(HOLD_SECONDS, self._end_step, Step(id, incarnation, "start"))
        process = launching.result()
        self.processes[id] = (incarnation, process)
        process.ended.add_done_callback(partial(self._ended, id, incarnation))
        if self._agents[id].status != "starting" or self._closed:
            process.kill()
        else:
            self.transport.peers.confirm(peer, process.pid)

    def _end_steps(self, id: str, incarnation: int) -> None:
        for admission in self._admissions.values():
            admission.withdraw(Step(id, incarnation, "start"))
            admission.withdraw(Step(id, incarnation, "query"))

    def _ended(self, id: str, incarnation: int, ended: asyncio.Future[int | None]) -> None:
        if not self._closed and not ended.cancelled():
            self._on_ended(id, incarnation)

    def log(self, id: str) -> Path:
        spec = self._agents[id].spec
        return self._logs / f"{id}.log" if spec.persist else Path(f"{spec.folder}.log")
