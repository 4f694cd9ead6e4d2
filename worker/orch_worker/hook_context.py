"""What a hook knows of the agent, and may do besides what it returns."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from orch_protocol.messages import Message
from orch_protocol.recall import SearchArchive
from orch_protocol.services import QueryAgent, Spawn
from orch_protocol.spec import AgentSpec

__all__ = ["HookContext"]

Call = Callable[[str, Struct], Awaitable[Any]]
"""Asks the root for a service, as the agent."""


class HookContext:
    """What a hook knows of the agent, and may do besides what it returns.

    `config` is how the agent was spawned, `cwd` its folder. `state` is the hook's own while the process lives,
    `turn_state` until the turn ends. `spawn` and `search_archive` ask the root, by the agent's own rights: a plain
    function waits for them, an async one awaits what they return. Made on the thread of the event loop.
    """

    def __init__(
        self,
        hook: str,
        spec: AgentSpec,
        *,
        say: Callable[[str, bool], None],
        call: Call,
        tell: Callable[[str], None],
        messages: Callable[[], Sequence[Message]] = tuple,
        opened: Callable[[HookContext], None] = lambda _: None,
    ) -> None:
        self.hook = hook
        self.config = spec
        self.agent_id = spec.id
        self.depth = spec.depth
        self.cwd = Path(spec.cwd)
        self.state: dict[str, Any] = {}
        self._turn_state: dict[str, Any] | None = None
        self._opened = opened
        self._say = say
        self._call = call
        self._tell = tell
        self._messages = messages
        self._turn = ""
        self._measured: deque[tuple[str, float]] = deque()
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def enter(self, turn: str) -> None:
        """The turn with this id is under way: what was kept for another one is forgotten."""
        if turn != self._turn:
            self._turn = turn
            self.forget()

    @property
    def turn_state(self) -> dict[str, Any]:
        """Return what the hook keeps until the turn ends."""
        if self._turn_state is None:  # few hooks keep anything: no turn is to clear it for all of them
            self._turn_state = {}
            self._opened(self)
        return self._turn_state

    def forget(self) -> None:
        """The turn ends, or another one begins: what was kept for it is forgotten."""
        self._turn_state = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return the conversation as it is now. To be read only; empty for a hook that runs in the root."""
        return tuple(self._messages())

    def log(self, text: str) -> None:
        """Write a line to the log of the process that the hook runs in."""
        print(f"hook {self.hook}: {text}", flush=True)

    def steer(self, text: str) -> None:
        """Say `text` to the agent: it hears it before its next model request."""
        self._say(text, False)

    def follow_up(self, text: str) -> None:
        """Say `text` to the agent when it would stop."""
        self._say(text, True)

    def notify(self, text: str) -> None:
        """Tell whoever watches the turn `text`, and write it to the log."""
        self.log(text)
        self._tell(text)

    def metric(self, name: str, value: float = 1.0) -> None:
        """Add `value` to the figure `name` of this hook, which `orch hooks list --json` shows."""
        self._measured.append((str(name), float(value)))

    def measured(self) -> dict[str, float]:
        """Return what was added up since this was asked last."""
        sums: dict[str, float] = {}
        while self._measured:  # a hook in a thread may be adding to it
            name, value = self._measured.popleft()
            sums[name] = sums.get(name, 0.0) + value
        return sums

    def spawn(self, task: str, prompt: str | None = None, *, preset: str | None = None) -> Any:
        """Start a subagent of the agent, ask it `prompt` without waiting for the answer, and return its id.

        Raises ToolNotGrantedError unless the agent may spawn, and to ask it query, subagents itself.
        """
        return self._asked(self._spawned(task, prompt, preset))

    async def _spawned(self, task: str, prompt: str | None, preset: str | None) -> str:
        id: str = (await self._call("spawn", Spawn(task, preset=preset))).id
        if prompt is not None:
            await self._call("submit", QueryAgent(id, prompt))
        return id

    def search_archive(self, query: str, limit: int = 10) -> Any:
        """Return the places in the agent's archives that fit `query` best, as `o.search_archive` does.

        Raises ToolNotGrantedError unless the agent may search them itself.
        """
        return self._asked(self._found(SearchArchive(query, limit)))

    async def _found(self, asked: SearchArchive) -> Any:
        return await self._call("search_archive", asked)

    def _asked(self, asking: Coroutine[Any, Any, Any]) -> Any:
        if threading.get_ident() == self._thread:
            return asking
        return asyncio.run_coroutine_threadsafe(asking, self._loop).result()
