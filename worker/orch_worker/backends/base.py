"""The protocol of a backend. A backend holds a conversation and returns one model response at a time."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Final, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from orch_protocol.agent.spec import ToolSpec
from orch_protocol.core.errors import BackendError, ConfigError
from orch_protocol.core.messages import Block, Message, StopReason, Text, ToolResult, Usage
from orch_protocol.policy.budget import BudgetAmounts

from ..conversation.stubs import insert_after_records
from ..conversation.tokens import PLAIN, CharsPerToken, TokenEstimator, clip

__all__ = [
    "CLIP_HINT",
    "DEFAULT_ANSWER_TOKENS",
    "MIN_ANSWER_TOKENS",
    "NOTHING",
    "ONE_REQUEST",
    "TYPICAL_ANSWER_TOKENS",
    "AssistantTurn",
    "Backend",
    "BackendInfo",
    "Conversation",
    "CostEstimate",
    "OnRetry",
    "OnText",
    "PromptPrefix",
    "RequestGate",
    "RequestOverride",
    "Retry",
    "check_backend",
    "lost_by",
    "stuck_in",
]

T = TypeVar("T")

OnText: TypeAlias = Callable[[str], None]
"""Called with each piece of text as the piece arrives. The function must not raise."""


class Retry(Struct, frozen=True):
    """Attempt number `attempt` failed with `error`. The request is sent again after `seconds`.

    Text streamed since the last response belongs to the failed attempt. The receiver must discard this text.
    """

    attempt: int
    seconds: float
    error: BackendError

    def __str__(self) -> str:
        return f"attempt {self.attempt} failed, the next one in {self.seconds:.1f} s: {self.error}"


OnRetry: TypeAlias = Callable[[Retry], None]
"""Called before a request is sent again. The function must not raise."""


class RequestGate(Protocol):
    """Limits concurrent requests to a provider that may reject them."""

    async def run_admitted(self, lane: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Wait until a request to the model `lane` is allowed. Then return the result of `attempt`."""


class AssistantTurn(Struct, frozen=True):
    """One model response, its stop reason and its usage."""

    message: Message
    stop_reason: StopReason
    usage: Usage = Usage()


class BackendInfo(Struct, frozen=True):
    """The provider and model of a backend. `context_limit` is in tokens; 0 means no limit.

    If `images` is False, the model does not accept images, and a prompt with images is an error.
    """

    provider: str
    model: str
    context_limit: int = 0
    images: bool = True


class RequestOverride(Struct, frozen=True):
    """Replacements for the messages, the system text or the tail of one request. None keeps the original."""

    messages: tuple[Message, ...] | None = None
    system: str | None = None
    tail: str | None = None


class PromptPrefix(Struct, frozen=True):
    """The unchanging parts at the beginning of an agent's requests. The provider can cache these parts.

    `system` is the unchanging beginning of the system text. "" means that the whole system text is unchanging.
    `context` is the text of the first message, which contains the project description. "" means that there is no
    message with a project description. `archives` is the list of archived turns, which each request contains after the
    last record of an archive. If `repeats` is False, no later request begins like this one, so nothing of it is worth a
    place in the provider's cache.
    """

    system: str = ""
    context: str = ""
    archives: str = ""
    repeats: bool = True


ONE_REQUEST: Final = PromptPrefix(repeats=False)
"""The prefix of a single request that no later request repeats."""


class CostEstimate(Struct, frozen=True):
    """An estimate of a request's cost: the cost with the shortest useful answer, with a typical answer, and the
    maximum.
    """

    minimum: BudgetAmounts
    expected: BudgetAmounts
    maximum: BudgetAmounts

    def with_calls(self, *, model_calls: int = 0, tool_calls: int = 0) -> CostEstimate:
        """Return the estimate plus the given numbers of calls."""
        calls = BudgetAmounts(model_calls=model_calls, tool_calls=tool_calls)
        return CostEstimate(self.minimum + calls, self.expected + calls, self.maximum + calls)


class Backend(Protocol):
    """A model and the conversation with it.

    The caller appends messages, including the responses from `assistant_turn`. Therefore, the conversation contains
    only recorded messages. Several user messages in a row are allowed. Each call of an assistant message must be
    followed by its result. The backend meets all further requirements of its provider.
    """

    on_retry: OnRetry | None
    is_watched: Callable[[], bool]
    """Whether a client watches the response while it arrives. If no client watches, text may be passed on later."""
    tail: str
    """Text at the end of the next requests, added to the user's last message.

    The text is for information that may change between requests. The text is not part of the conversation, so the
    cached prefix stays valid. Set the text before `assistant_turn`. "" means no text.
    """
    request_override: RequestOverride | None
    """Replacements for parts of the next requests. The conversation itself is unchanged."""
    prefix: PromptPrefix
    """The parts of the next requests that will not change."""
    reserved: BudgetAmounts | None
    """Limit for the next response, including repeated requests. None means no limit.

    A response that this limit cut off has the stop reason `budget`.
    """

    gate: RequestGate | None
    """If a gate is set, each attempt to send a request passes through the gate."""

    def append_system(self, text: str, tools: Sequence[ToolSpec]) -> None:
        """Set the system text and the available tools."""

    def append_user(self, content: Sequence[Block]) -> None:
        """Add a user message."""

    def append_assistant(self, message: Message) -> None:
        """Add an assistant message. The message may come from an earlier process."""

    def append_tool_result(self, results: Sequence[ToolResult]) -> None:
        """Add the results of the calls in the last assistant message, in call order."""

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:
        """Return the next response without adding it to the conversation.

        Raise BackendError if the request fails. After a cancellation, the method can be called again.
        """

    def info(self) -> BackendInfo:
        """Return the provider and the model."""

    def context_tokens(self) -> int:
        """Return the estimated tokens of the next request."""

    def learn(self, entries: Sequence[object]) -> None:
        """Correct the token estimates. `entries` of the transcript contain the usage that the provider reported."""

    def estimate_cost(self, *, priced: bool) -> CostEstimate:
        """Return an estimate for the next response. Raise ConfigError if `priced` is True and the price is unknown."""

    def lost(self) -> Usage:
        """Return the usage of abandoned requests that is not part of any response. Reset this usage to zero.

        Implementing this method is optional.
        """

    def stuck(self) -> str:
        """Return a description of an abandoned request that is still running, or "" if there is no such request.

        Only the end of the process ends such a request. Implementing this method is optional.
        """

    def check_prompt(self, prompts: Sequence[Message]) -> None:
        """Raise ContextOverflowError if a request with `prompts` alone surely does not fit in the context window.

        Implementing this method is optional.
        """

    def step_chars(self) -> int | None:
        """Return how many characters of results a step may add, so that the next request fits. None means no limit.

        Implementing this method is optional.
        """

    def shorten_results(self) -> bool:
        """Shorten the longest results until the conversation is loaded again. Return False if that is impossible.

        Implementing this method is optional.
        """

    def transcript(self) -> Sequence[Message]:
        """Return the conversation without the system text.

        The result is the internal list, so do not modify the result.
        """

    def load(self, messages: Sequence[Message], responses: int | None = None) -> None:
        """Replace the conversation.

        `responses` is the number of earlier responses of this agent. If `responses` is None, all assistant messages in
        `messages` count as responses of this agent.
        """

    def clear(self) -> None:
        """Clear the conversation. The system text and the tools stay."""

    async def close(self) -> None:
        """Close connections. The next `assistant_turn` opens new connections."""


def _unwatched() -> bool:
    return False


NO_OVERRIDE: Final = RequestOverride()
NOTHING: Final = Usage()
CLIP_HINT: Final = "the transcript has it all"
MIN_ANSWER_TOKENS: Final = 1_000
"""Minimum number of tokens of a useful answer."""
TYPICAL_ANSWER_TOKENS: Final = 8_000
"""Number of tokens that is sufficient for nearly all answers."""
DEFAULT_ANSWER_TOKENS: Final = 8192
"""Maximum number of answer tokens if an API requires a limit and the model's limit is unknown."""
OPTIONAL: Final = frozenset({"lost", "stuck", "check_prompt", "step_chars", "shorten_results"})
METHODS: Final = tuple(name for name in vars(Backend) if not name.startswith("_") and name not in OPTIONAL)


def check_backend(candidate: object) -> Backend:
    """Return `candidate` if it implements the protocol. Raise ConfigError with the names of missing methods."""
    if fault := _fault_of(type(candidate)):  # type: ignore[arg-type]
        raise ConfigError(f"{type(candidate).__name__} is not a Backend: {fault}")
    backend: Backend = candidate  # type: ignore[assignment]
    return backend


@cache
def _fault_of(kind: type) -> str:
    missing = [name for name in METHODS if not callable(getattr(kind, name, None))]
    if missing:
        return f"it lacks {', '.join(missing)}"
    return "" if inspect.iscoroutinefunction(kind.assistant_turn) else "its assistant_turn must be `async def`"  # type: ignore[attr-defined]


def lost_by(backend: Backend) -> Usage:
    """Return the usage of abandoned requests of `backend`. Reset this usage to zero."""
    lost = getattr(backend, "lost", None)
    used: Usage = lost() if lost is not None else NOTHING
    return used


def stuck_in(backend: Backend) -> str:
    """Return a description of an abandoned request of `backend` that is still running, or "" if there is no such
    request.
    """
    stuck = getattr(backend, "stuck", None)
    return str(stuck()) if stuck is not None else ""


class Conversation:
    """The common part of all backends: the conversation and its token estimate.

    `ratios` are the numbers of characters per token for the model. Keep the default for a provider that reports no
    token counts.
    """

    def __init__(self, ratios: CharsPerToken = PLAIN) -> None:
        self.on_retry: OnRetry | None = None
        self.is_watched: Callable[[], bool] = _unwatched
        self.tail = ""
        self.request_override: RequestOverride | None = None
        self.prefix = PromptPrefix()
        self.reserved: BudgetAmounts | None = None
        self.gate: RequestGate | None = None
        self.max_text_chars: int | None = None
        """Maximum number of characters of an assistant text in later requests. None means no limit."""
        self.system = ""
        self.tools: tuple[ToolSpec, ...] = ()
        self.messages: list[Message] = []
        self.estimator = TokenEstimator(ratios)
        self._raw_system = 0.0
        self._raw_messages = 0.0
        # Token estimates of loaded messages, kept because most messages will be loaded again.
        self._loaded: dict[int, tuple[Message, float]] = {}

    def append_system(self, text: str, tools: Sequence[ToolSpec]) -> None:
        """Set the system text and the available tools."""
        self.system, self.tools = text, tuple(tools)
        tools_text = msgspec.json.encode([(tool.name, tool.description, tool.input_schema) for tool in tools]).decode()
        raw = self.estimator.raw_text
        self._raw_system = raw(text) + (raw(tools_text) if tools else 0)

    def append_user(self, content: Sequence[Block]) -> None:
        """Add a user message."""
        self._append(Message("user", tuple(content)))

    def append_assistant(self, message: Message) -> None:
        """Add an assistant message."""
        self._append(self._shortened_text(message))

    def append_tool_result(self, results: Sequence[ToolResult]) -> None:
        """Add the results of the calls in the last assistant message."""
        self._append(Message("user", tuple(results)))

    def learn(self, entries: Sequence[object]) -> None:
        """Correct the token estimates with the entries of a transcript."""
        self.estimator.learn(entries)

    def context_tokens(self) -> int:
        """Return the estimated tokens of the next request."""
        return self.estimator.request(self._raw_request())

    def estimate_cost(self, *, priced: bool) -> CostEstimate:  # noqa: ARG002
        """Return the number of tokens of the request plus an answer. The price is 0."""
        sent = self.estimator.max_request_tokens(self._raw_request())
        minimum, expected = (
            BudgetAmounts(tokens=sent + answer) for answer in (MIN_ANSWER_TOKENS, TYPICAL_ANSWER_TOKENS)
        )
        return CostEstimate(minimum, expected, expected)

    def lost(self) -> Usage:
        """Return zero usage, because no request is abandoned."""
        return NOTHING

    def stuck(self) -> str:
        """Return "", because no abandoned request is running."""
        return ""

    def transcript(self) -> Sequence[Message]:
        """Return the conversation."""
        return self.messages

    def load(self, messages: Sequence[Message], responses: int | None = None) -> None:  # noqa: ARG002
        """Replace the conversation."""
        self._set_messages([self._shortened_text(message) for message in messages])

    def _set_messages(self, messages: list[Message]) -> None:
        self.messages = messages
        self._loaded = {id(message): (message, self._raw(message)) for message in messages}
        self._raw_messages = sum(map(self._raw, messages))
        self.estimator.changed()

    def clear(self) -> None:
        """Clear the conversation."""
        self.load(())

    async def close(self) -> None:
        """Do nothing, because there is no connection."""

    def _raw(self, message: Message) -> float:
        loaded = self._loaded.get(id(message))
        return self.estimator.raw(message) if loaded is None else loaded[1]

    def _shortened_text(self, message: Message) -> Message:
        """Return `message`. If an assistant text is longer than any normal answer, its middle is cut out."""
        limit = self.max_text_chars
        long = limit is not None and any(
            isinstance(block, Text) and len(block.text) > limit for block in message.content
        )
        if limit is None or not long or message.role != "assistant":
            return message
        blocks = (
            Text(clip(block.text, limit, CLIP_HINT)) if isinstance(block, Text) else block for block in message.content
        )
        return Message(message.role, tuple(blocks))

    def _append(self, message: Message) -> None:
        self.messages.append(message)
        self._raw_messages += self.estimator.raw(message)

    def _raw_request(self) -> float:
        """Return the uncorrected token estimate for the next request."""
        if self.request_override is None:
            added = (self.tail, self.prefix.archives)
            return self._raw_system + self._raw_messages + sum(self.estimator.raw_text(text) for text in added if text)
        system, messages, tail = self._request()
        raw_tokens = self._raw_messages if messages is self.messages else sum(map(self._raw, messages))
        changed = self.estimator.raw_text(system) - self.estimator.raw_text(self.system)
        return self._raw_system + changed + raw_tokens + self.estimator.raw_text(tail)

    def _request(self) -> tuple[str, Sequence[Message], str]:
        """Return the system text, the messages and the tail of the next request."""
        override = self.request_override or NO_OVERRIDE
        return (
            self.system if override.system is None else override.system,
            insert_after_records(self._messages_to_send(), self.prefix.archives),
            self.tail if override.tail is None else override.tail,
        )

    def _messages_to_send(self) -> Sequence[Message]:
        """Return the messages of the next request without the list of archived turns."""
        override = self.request_override or NO_OVERRIDE
        return self.messages if override.messages is None else override.messages
