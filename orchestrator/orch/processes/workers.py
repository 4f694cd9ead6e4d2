"""The processes of agents, each with its line to the root: made, spoken to, ended, missed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import NamedTuple

from msgspec import Struct

from orch_protocol.agent.spec import WorkerBirth
from orch_protocol.core.ids import new_id, new_token
from orch_protocol.wire.worker_messages import EmptyBody

from ..policy.sandbox import worker_paths
from ..tree.agents.state import AgentRecord, TreeState
from ..tree.rules.exit_reasons import STUCK
from .base import Launcher, LaunchRequest, WorkerProcess
from .descriptors import require_room
from .oom_detector import OomDetector
from .router import Transport, WorkerConnection
from .session_holds import SessionHolds
from .worker_logs import read_tail

__all__ = ["Workers"]

END_SECONDS = 2.0
LAST_WORDS_SECONDS = 1.0


class WorkerExit(NamedTuple):
    """How a process ended: its exit code and why, as far as they are known; whether its time was over, and what shows
    that there was not enough memory for it."""

    code: int | None
    detail: str
    late: bool
    oom: str


class Workers:
    """The processes of the agents in `nodes`, on the running event loop.

    `logs` is the folder of their logs, `keys` returns what an agent's get by their birth pipes, `orch_folders` are
    hidden from the code that agents run in them. `on_failed` is called with id, incarnation, reason and whether its
    time was over when there was to be a process and is none, `on_ended` with id and incarnation when one has ended;
    neither once `close` was called.
    """

    def __init__(
        self,
        nodes: TreeState,
        launcher: Launcher,
        board: Transport,
        *,
        logs: Path,
        keys: Callable[[str], dict[str, str]],
        holds: SessionHolds,
        orch_folders: tuple[str, ...],
        on_failed: Callable[[str, int, str, bool], object],
        on_ended: Callable[[str, int], object],
    ) -> None:
        self.launcher = launcher
        self.board = board
        self.processes: dict[str, tuple[int, WorkerProcess]] = {}
        """Of each agent that has one: which incarnation it is, and the process."""
        self._nodes = nodes
        self._logs = logs
        self._keys = keys
        self._holds = holds
        self._orch_folders = orch_folders
        self._on_failed = on_failed
        self._on_ended = on_ended
        self._peers: dict[str, WorkerConnection] = {}
        self._launches: dict[str, asyncio.Task[WorkerProcess]] = {}
        self._causes: dict[str, str] = {}
        self._stuck: set[str] = set()
        self._late: set[str] = set()
        self._killed: set[str] = set()
        self.ooms = OomDetector()
        self._closed = False

    async def close(self) -> None:
        """End all of them, which takes some seconds at most: those that idle leave, the others are killed."""
        self._closed = True
        for id, (_, process) in self.processes.items():
            if self._nodes[id].status == "idle":
                self._peers[id].send("stop", EmptyBody())
            else:
                process.kill()
        for launching in self._launches.values():
            launching.cancel()
        ended = [process.ended for _, process in self.processes.values()]
        if ended:
            await asyncio.wait(ended, timeout=END_SECONDS)
        await self.launcher.stop()

    def hang_up(self) -> None:
        """End all lines, whatever became of the processes, and the socket with them."""
        for peer in self._peers.values():
            self.board.peers.forget(peer)
        self.board.close()

    def require_room(self) -> None:
        """Raise ConcurrencyLimitError unless there are descriptors for one more."""
        require_room(1 + sum(not peer.trusted for peer in self._peers.values()))

    def launch(self, node: AgentRecord) -> None:
        """Make a process for the agent."""
        id, incarnation = node.spec.id, node.incarnation
        self._late.discard(id)
        self._killed.discard(id)
        ident = f"{id}.{incarnation}.{new_id()}".encode()
        token = new_token()
        peer = self._peers[id] = self.board.peers.expect(id, incarnation, ident, token)
        request = LaunchRequest(
            agent_id=id,
            incarnation=incarnation,
            ident=ident,
            address=self.board.address,
            birth=WorkerBirth(
                token, self._keys(id), worker_paths(node.spec, self._orch_folders, peer.spool, self.board.address)
            ),
            template=node.spec.template,
            log=str(self.log(id)),
            spool=str(peer.spool),
        )
        launching = self._launches[id] = asyncio.get_running_loop().create_task(self._launch(node, request))
        launching.add_done_callback(partial(self._launched, peer))

    def peer(self, id: str) -> WorkerConnection | None:
        """Return the line to the agent's process, if it is up."""
        peer = self._peers.get(id)
        return peer if peer is not None and peer.trusted else None

    def spool(self, id: str) -> Path:
        """Return the folder through which large messages pass to and from the agent's process. Raises KeyError."""
        return self._peers[id].spool

    def agent_of(self, pid: int) -> str | None:
        """Return the id of the agent whose worker is the process `pid`, None when there is no such worker.

        A worker that is a thread of this process has no pid of its own.
        """
        if pid == os.getpid():
            return None
        for id, (_, process) in self.processes.items():
            if process.pid == pid and process.is_running():
                return id
        return None

    def send(self, id: str, kind: str, body: Struct, ref: str = "") -> None:
        """Send `body` to the agent's process. Raises OrchError when it cannot travel."""
        self._peers[id].send(kind, body, ref)

    def tell_all(self, kind: str, body: Struct) -> None:
        """Send `body` to every process that is up; one that does not get it is none the worse."""
        self.board.peers.tell_all(kind, body)

    def signal(self, id: str, incarnation: int, how: str) -> None:
        """Let the process `incarnation` of the agent `stop` when it may, or `kill` it, also one that is being made; a
        `late` one is killed since its time is over."""
        held, process = self.processes.get(id, (0, None))
        if how == "late":
            self._late.add(id)
        if process is None or held != incarnation:
            if how != "stop" and (launching := self._launches.get(id)):
                launching.cancel()
        elif how == "stop":
            self._peers[id].send("stop", EmptyBody())
        else:
            self._killed.add(id)
            process.kill()

    def end(self, id: str, cause: str) -> None:
        """Kill the process of an agent, and remember why."""
        self.set_cause(id, cause)
        self.processes[id][1].kill()

    def end_stuck(self, id: str) -> None:
        """Let the agent's process, which says nothing any more, write down where it is, and end."""
        incarnation, process = self.processes.get(id, (0, None))
        if process is not None and id not in self._stuck:
            self._stuck.add(id)
            self.set_cause(id, STUCK)
            process.terminate()
            asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self.signal, id, incarnation, "kill")

    def set_cause(self, id: str, cause: str) -> None:
        """Remember why the process of an agent is about to end."""
        self._causes[id] = cause

    def has_ended(self, id: str) -> bool:
        """Whether the agent's process is over, and not buried yet."""
        return self.processes[id][1].ended.done()

    def bury(self, id: str, incarnation: int) -> WorkerExit | None:
        """Forget a process that has ended; return how, None when that was done before."""
        held, process = self.processes.get(id, (0, None))
        if process is None or held != incarnation:
            return None
        del self.processes[id]
        self.board.peers.forget(self._peers.pop(id))
        code, detail = process.ended.result(), self._causes.pop(id, "")
        oom = self.ooms.claim() if code == -SIGKILL and not detail and id not in self._killed else ""
        stuck = id in self._stuck
        self._stuck.discard(id)
        if stuck or (not detail and code != 0 and self._nodes[id].status in ("starting", "busy")):
            said = read_tail(self.log(id))
            detail = "; ".join(filter(None, (detail, f"the end of its log:\n{said}" if said else "")))
        self._killed.discard(id)
        late = id in self._late
        self._late.discard(id)
        return WorkerExit(code, detail, late, oom)

    async def _launch(self, node: AgentRecord, request: LaunchRequest) -> WorkerProcess:
        await self._holds.over(node.spec)
        return await self.launcher.launch(request)

    def _launched(self, peer: WorkerConnection, launching: asyncio.Task[WorkerProcess]) -> None:
        id, incarnation = peer.agent_id, peer.incarnation
        del self._launches[id]
        failure = "there was no process in time" if launching.cancelled() else launching.exception()
        if failure is not None:
            self.board.peers.forget(self._peers.pop(id))
            if not self._closed:
                late = id in self._late
                self._late.discard(id)
                self._on_failed(id, incarnation, str(failure) or type(failure).__name__, late)
            return
        process = launching.result()
        self.processes[id] = (incarnation, process)
        process.ended.add_done_callback(partial(self._ended, id, incarnation))
        if self._nodes[id].status != "starting" or self._closed:
            process.kill()
        else:
            self.board.peers.confirm(peer, process.pid)

    def _ended(self, id: str, incarnation: int, ended: asyncio.Future[int | None]) -> None:
        if not self._closed and not ended.cancelled():
            self._on_ended(id, incarnation)

    def log(self, id: str) -> Path:
        """Return the file that the agent's processes write to when they have nobody to tell."""
        spec = self._nodes[id].spec
        return self._logs / f"{id}.log" if spec.persist else Path(f"{spec.folder}.log")
