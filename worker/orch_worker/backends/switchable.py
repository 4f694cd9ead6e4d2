"""A backend whose model may change in the middle of a conversation, which goes on with all that was said."""

from __future__ import annotations

from collections.abc import Sequence

from orch_protocol.agent.spec import ToolSpec
from orch_protocol.core.messages import Block, Message, ToolResult, Usage
from orch_protocol.policy.budget import BudgetAmounts

from ..conversation.tokens import TokenEstimator
from .base import (
    AssistantTurn,
    Backend,
    BackendInfo,
    Conversation,
    CostEstimate,
    OnRetry,
    OnText,
    PromptPrefix,
    RequestGate,
    RequestOverride,
    lost_by,
)

__all__ = ["SwitchableBackend"]


class SwitchableBackend:
    """Stands for the backend that answers now."""

    def __init__(self, backend: Backend) -> None:
        self._now = backend
        self._lost = Usage()
        self.system = ""
        self.tools: Sequence[ToolSpec] = ()

    async def move(self, to: Backend) -> None:
        """Let `to` go on with the conversation from the next response on."""
        left, self._now = self._now, to
        to.append_system(self.system, self.tools)
        to.load(left.transcript())
        to.on_retry, to.tail, to.instead, to.prefix = left.on_retry, left.tail, left.instead, left.prefix
        self._lost += lost_by(left)
        await left.close()

    @property
    def estimator(self) -> TokenEstimator | None:
        """What says how long texts are, where the backend of now has one."""
        return self._now.estimator if isinstance(self._now, Conversation) else None

    @property
    def on_retry(self) -> OnRetry | None:
        """Called before each repetition of a request."""
        return self._now.on_retry

    @on_retry.setter
    def on_retry(self, on_retry: OnRetry | None) -> None:
        self._now.on_retry = on_retry

    @property
    def tail(self) -> str:
        """What the next requests end with."""
        return self._now.tail

    @tail.setter
    def tail(self, tail: str) -> None:
        self._now.tail = tail

    @property
    def instead(self) -> RequestOverride | None:
        """What the next requests hold in place of what is in the conversation."""
        return self._now.instead

    @instead.setter
    def instead(self, instead: RequestOverride | None) -> None:
        self._now.instead = instead

    @property
    def prefix(self) -> PromptPrefix:
        """What of the next requests stays the same."""
        return self._now.prefix

    @prefix.setter
    def prefix(self, prefix: PromptPrefix) -> None:
        self._now.prefix = prefix

    @property
    def most(self) -> BudgetAmounts | None:
        """What the next response may take."""
        return self._now.most

    @most.setter
    def most(self, most: BudgetAmounts | None) -> None:
        self._now.most = most

    @property
    def gate(self) -> RequestGate | None:
        """What attempts at requests pass."""
        return self._now.gate

    @gate.setter
    def gate(self, gate: RequestGate | None) -> None:
        self._now.gate = gate

    def append_system(self, text: str, tools: Sequence[ToolSpec]) -> None:
        """Set the system text and the tools on offer."""
        self.system, self.tools = text, tools
        self._now.append_system(text, tools)

    def append_user(self, content: Sequence[Block]) -> None:
        """Add a user message."""
        self._now.append_user(content)

    def append_assistant(self, message: Message) -> None:
        """Add an assistant message."""
        self._now.append_assistant(message)

    def append_tool_result(self, results: Sequence[ToolResult]) -> None:
        """Add the results of the calls in the last assistant message."""
        self._now.append_tool_result(results)

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:
        """Return the next response, without adding it."""
        return await self._now.assistant_turn(on_text)

    def info(self) -> BackendInfo:
        """Return who answers now."""
        return self._now.info()

    def context_tokens(self) -> int:
        """Return about how many tokens the next request holds."""
        return self._now.context_tokens()

    def learn(self, entries: Sequence[object]) -> None:
        """Learn from the entries of a transcript how long what is said really is."""
        self._now.learn(entries)

    def quote(self, *, priced: bool) -> CostEstimate:
        """Return what the next response may take."""
        return self._now.quote(priced=priced)

    def lost(self) -> Usage:
        """Return what was used for requests of which no response tells."""
        lost, self._lost = self._lost + lost_by(self._now), Usage()
        return lost

    def transcript(self) -> Sequence[Message]:
        """Return the conversation."""
        return self._now.transcript()

    def load(self, messages: Sequence[Message], responses: int | None = None) -> None:
        """Replace the conversation."""
        self._now.load(messages, responses)

    def clear(self) -> None:
        """Forget the conversation."""
        self._now.clear()

    async def close(self) -> None:
        """Give up connections, if there are any."""
        await self._now.close()
