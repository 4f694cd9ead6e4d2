"""A backend whose model can change during a conversation. The conversation stays the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    stuck_in,
)

__all__ = ["SwitchableBackend"]


class SwitchableBackend:
    """Delegates all calls to the current backend."""

    def __init__(self, backend: Backend) -> None:
        self._current = backend
        self._lost = Usage()
        self.system = ""
        self.tools: Sequence[ToolSpec] = ()

    async def switch_to(self, backend: Backend) -> None:
        """Continue the conversation with `backend` from the next response on."""
        previous, self._current = self._current, backend
        backend.append_system(self.system, self.tools)
        backend.load(previous.transcript())
        backend.on_retry, backend.is_watched, backend.tail, backend.request_override, backend.prefix = (
            previous.on_retry,
            previous.is_watched,
            previous.tail,
            previous.request_override,
            previous.prefix,
        )
        self._lost += lost_by(previous)
        await previous.close()

    @property
    def estimator(self) -> TokenEstimator | None:
        """The token estimator of the current backend, or None if the backend has no estimator."""
        return self._current.estimator if isinstance(self._current, Conversation) else None

    @property
    def on_retry(self) -> OnRetry | None:
        """Called before a request is sent again."""
        return self._current.on_retry

    @on_retry.setter
    def on_retry(self, on_retry: OnRetry | None) -> None:
        self._current.on_retry = on_retry

    @property
    def is_watched(self) -> Callable[[], bool]:
        """Whether a client watches the response while it arrives."""
        return self._current.is_watched

    @is_watched.setter
    def is_watched(self, is_watched: Callable[[], bool]) -> None:
        self._current.is_watched = is_watched

    @property
    def tail(self) -> str:
        """The text at the end of the next requests."""
        return self._current.tail

    @tail.setter
    def tail(self, tail: str) -> None:
        self._current.tail = tail

    @property
    def request_override(self) -> RequestOverride | None:
        """Replacements for parts of the next requests."""
        return self._current.request_override

    @request_override.setter
    def request_override(self, request_override: RequestOverride | None) -> None:
        self._current.request_override = request_override

    @property
    def prefix(self) -> PromptPrefix:
        """The parts of the next requests that will not change."""
        return self._current.prefix

    @prefix.setter
    def prefix(self, prefix: PromptPrefix) -> None:
        self._current.prefix = prefix

    @property
    def reserved(self) -> BudgetAmounts | None:
        """The budget limit for the next response."""
        return self._current.reserved

    @reserved.setter
    def reserved(self, reserved: BudgetAmounts | None) -> None:
        self._current.reserved = reserved

    @property
    def gate(self) -> RequestGate | None:
        """The gate for requests."""
        return self._current.gate

    @gate.setter
    def gate(self, gate: RequestGate | None) -> None:
        self._current.gate = gate

    def append_system(self, text: str, tools: Sequence[ToolSpec]) -> None:
        """Set the system text and the available tools."""
        self.system, self.tools = text, tools
        self._current.append_system(text, tools)

    def append_user(self, content: Sequence[Block]) -> None:
        """Add a user message."""
        self._current.append_user(content)

    def append_assistant(self, message: Message) -> None:
        """Add an assistant message."""
        self._current.append_assistant(message)

    def append_tool_result(self, results: Sequence[ToolResult]) -> None:
        """Add the results of the calls in the last assistant message."""
        self._current.append_tool_result(results)

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:
        """Return the next response without adding it to the conversation."""
        return await self._current.assistant_turn(on_text)

    def info(self) -> BackendInfo:
        """Return the current provider and model."""
        return self._current.info()

    def context_tokens(self) -> int:
        """Return the estimated tokens of the next request."""
        return self._current.context_tokens()

    def learn(self, entries: Sequence[object]) -> None:
        """Correct the token estimates with the entries of a transcript."""
        self._current.learn(entries)

    def estimate_cost(self, *, priced: bool) -> CostEstimate:
        """Return an estimate for the next response."""
        return self._current.estimate_cost(priced=priced)

    def lost(self) -> Usage:
        """Return the usage of abandoned requests. Reset this usage to zero."""
        lost, self._lost = self._lost + lost_by(self._current), Usage()
        return lost

    def stuck(self) -> str:
        """Return a description of an abandoned request that is still running, or "" if there is no such request."""
        return stuck_in(self._current)

    def check_prompt(self, prompts: Sequence[Message]) -> None:
        """Raise ContextOverflowError if a request with `prompts` alone surely does not fit in the context window."""
        if (check := getattr(self._current, "check_prompt", None)) is not None:
            check(prompts)

    def step_chars(self) -> int | None:
        """Return how many characters of results a step may add. None means no limit."""
        count = getattr(self._current, "step_chars", None)
        return count() if count is not None else None

    def shorten_results(self) -> bool:
        """Shorten the longest results until the conversation is loaded again. Return False if that is impossible."""
        shorten = getattr(self._current, "shorten_results", None)
        return shorten is not None and bool(shorten())

    def transcript(self) -> Sequence[Message]:
        """Return the conversation."""
        return self._current.transcript()

    def load(self, messages: Sequence[Message], responses: int | None = None) -> None:
        """Replace the conversation."""
        self._current.load(messages, responses)

    def clear(self) -> None:
        """Clear the conversation."""
        self._current.clear()

    async def close(self) -> None:
        """Close connections."""
        await self._current.close()
