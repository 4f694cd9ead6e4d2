"""A handle on one agent, for asynchronous programs. It holds an id and nothing else: any number may exist."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from orch_protocol.errors import OrchError, QueryTimeoutError
from orch_protocol.messages import Reply
from orch_protocol.services import AgentRow, Collect, Kill, QueryAgent, Ref, Resume, Show, Shown

from .services import check_seconds
from .services.asking import answer, ask

if TYPE_CHECKING:
    from .aio import AsyncOrchestrator
    from .nodes import Node

__all__ = ["AsyncSubagent"]


class AsyncSubagent:
    """One agent. Every method may raise AgentError; see `orch_protocol.errors`."""

    def __init__(self, orchestrator: AsyncOrchestrator, id: str) -> None:
        self._orchestrator = orchestrator
        self.id = id

    def __repr__(self) -> str:
        try:
            return f"<{type(self).__name__} {self.id} {self.name!r}>"
        except OrchError:  # its orchestrator is closed
            return f"<{type(self).__name__} {self.id}>"

    @property
    def seq(self) -> int:
        """Its sequence number."""
        return self._node.spec.seq

    @property
    def name(self) -> str:
        """Its name."""
        return self._node.spec.name

    @property
    def pid(self) -> int | None:
        """The process id of its worker, None while it has none."""
        return self._node.pid

    async def query(self, prompt: str, *, timeout: float | None = None) -> Reply:  # noqa: ASYNC109
        """Ask and wait for the reply, at most `timeout` seconds; then QueryTimeoutError, and the agent works on."""
        reply: Reply = await self._call("query", QueryAgent(self.id, prompt, timeout))
        return reply

    def submit(self, prompt: str) -> asyncio.Future[Reply]:
        """Ask now and return a future of the reply. The answer can be collected as well, once."""
        root = self._orchestrator.supervisor
        query_id = ask(root, self._node, None, QueryAgent(self.id, prompt))
        reply = asyncio.ensure_future(answer(root, self._node, query_id))
        reply.add_done_callback(_retrieve)
        return reply

    async def collect(self, *, timeout: float | None = None, again: bool = False) -> Reply | None:  # noqa: ASYNC109
        """Take the reply to the last query, once; None when it is not there within `timeout` seconds."""
        try:
            reply: Reply = await self._call("collect", Collect(self.id, timeout, again))
        except QueryTimeoutError:
            return None
        return reply

    async def state(self) -> AgentRow:
        """Return what the agent is and does just now."""
        row: AgentRow = await self._call("state", Ref(self.id))
        return row

    async def show(self, messages: int = 20) -> Shown:
        """Return the agent with the last `messages` messages of its transcript."""
        shown: Shown = await self._call("show", Show(self.id, messages))
        return shown

    async def ping(self, payload: bytes = b"", *, timeout: float = 10.0) -> None:  # noqa: ASYNC109
        """Return once the agent's process has answered; AgentDiedError when it has none or keeps silent."""
        check_seconds(timeout)
        await self._orchestrator.supervisor.ping(self._node, payload, timeout)

    async def kill(self) -> None:
        """End the agent and everything below it. Its transcript stays, and `resume` brings it back."""
        await self._call("kill", Kill((self.id,)))

    async def resume(self) -> None:
        """Let the agent answer again after a kill."""
        await self._call("resume", Resume(self.id))

    @property
    def _node(self) -> Node:
        return self._orchestrator.supervisor.tree.nodes[self.id]

    async def _call(self, method: str, params: Any) -> Any:
        return await self._orchestrator._call(method, params)


def _retrieve(reply: asyncio.Future[Reply]) -> None:
    """Nobody need look at the future: a failure can be collected too, and is no news to the event loop."""
    if not reply.cancelled():
        reply.exception()
