"""What a hook knows of the agent, and may do besides what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orch_protocol.messages import Message

__all__ = ["HookContext"]


class HookContext:
    """What a hook knows of the agent, and may do besides what it returns.

    `state` is the hook's own while the process lives, `turn_state` until the turn ends. `cwd` is the agent's folder.
    """

    def __init__(
        self,
        hook: str,
        *,
        agent_id: str,
        depth: int,
        cwd: Path,
        say: Callable[[str, bool], None],
        messages: Callable[[], Sequence[Message]] = tuple,
    ) -> None:
        self.hook = hook
        self.agent_id = agent_id
        self.depth = depth
        self.cwd = cwd
        self.state: dict[str, Any] = {}
        self.turn_state: dict[str, Any] = {}
        self._say = say
        self._messages = messages
        self._turn = ""

    def enter(self, turn: str) -> None:
        """The turn with this id is under way: what was kept for another one is forgotten."""
        if turn != self._turn:
            self._turn, self.turn_state = turn, {}

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
