"""The contract of a backend: it holds a conversation and answers it, one model response at a time."""

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

from ..conversation.tokens import PLAIN, CharsPerToken, TokenEstimator, clip

__all__ = [
    "ENOUGH_ANSWER",
    "LEAST_ANSWER",
    "NOTHING",
    "UNKNOWN_ANSWER",
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
]

T = TypeVar("T")

OnText: TypeAlias = Callable[[str], None]
"""Called with each piece of text as it arrives. Must not raise."""


class Retry(Struct, frozen=True):
    """Attempt number `attempt` failed with `error`, and the next one begins in `seconds`, from the beginning.

    Text that was streamed since the last response belongs to the failed attempt, and counts for nothing.
    """

    attempt: int
    seconds: float
    error: BackendError

    def __str__(self) -> str:
        return f"attempt {self.attempt} failed, the next one in {self.seconds:.1f} s: {self.error}"


OnRetry: TypeAlias = Callable[[Retry], None]
"""Called before each repetition of a request. Must not raise."""


class RequestGate(Protocol):
    """What requests pass whose provider may refuse them for being too many."""

    async def through(self, lane: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what `attempt`, one request to the model `lane`, returns; it begins when it may."""


class AssistantTurn(Struct, frozen=True):
    """One model response, why it ended, and what it used."""

    message: Message
    stop_reason: StopReason
    usage: Usage = Usage()


class BackendInfo(Struct, frozen=True):
    """Who answers. `context_limit` is in tokens; 0 means there is none."""

    provider: str
    model: str
    context_limit: int = 0


class RequestOverride(Struct, frozen=True):
    """What one request holds in place of the conversation, the system text or the tail; None is that itself."""

    messages: tuple[Message, ...] | None = None
    system: str | None = None
    tail: str | None = None


class PromptPrefix(Struct, frozen=True):
    """What stays the same at the beginning of an agent's requests, so that it is worth to be cached.

    `system` is what the system text begins with, all of it when empty; `context` what the agent was told before its
    first question, a text of its own in the conversation, nothing when empty.
    """

    system: str = ""
    context: str = ""


class CostEstimate(Struct, frozen=True):
    """What something may take: when it is as short as can be, as long as most are, and at most."""

    least: BudgetAmounts
    enough: BudgetAmounts
    most: BudgetAmounts

    def with_calls(self, *, model_calls: int = 0, tool_calls: int = 0) -> CostEstimate:
        """Return this for so many calls, which are made however long they are."""
        calls = BudgetAmounts(model_calls=model_calls, tool_calls=tool_calls)
        return CostEstimate(self.least + calls, self.enough + calls, self.most + calls)


class Backend(Protocol):
    """A model and the conversation with it.

    The conversation is what the caller appends, the response of `assistant_turn` included: nothing is in it that was
    not recorded first. Several user messages in a row are legal, and so is a tool result for each call of the
    assistant message before; what a provider wants beyond that, its backend arranges.
    """

    on_retry: OnRetry | None
    tail: str
    """What the next requests end with, as the user's last words: what is true now and may not be so in the next one.

    It is in no conversation. A request without it begins like the one after, so what was cached of it stays good.
    Set it before `assistant_turn`; empty means nothing.
    """
    instead: RequestOverride | None
    """What the next requests hold in place of what is in the conversation, which stays as it is."""
    prefix: PromptPrefix
    """What of the next requests stays the same in those after them."""
    most: BudgetAmounts | None
    """What the next response may take, requests that are made again included; None is whatever it takes.

    One that is cut off because no longer one was covered has stop reason `budget`.
    """

    gate: RequestGate | None
    """What each attempt at a request passes, if its provider can have too many of them."""

    def append_system(self, text: str, tools: Sequence[ToolSpec]) -> None:
        """Set the system text and the tools on offer, instead of those set before."""

    def append_user(self, content: Sequence[Block]) -> None:
        """Add a user message."""

    def append_assistant(self, message: Message) -> None:
        """Add an assistant message: a response, or one of an earlier life."""

    def append_tool_result(self, results: Sequence[ToolResult]) -> None:
        """Add the results of the calls in the last assistant message, in call order."""

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:
        """Return the next response, without adding it. Raises BackendError; may be cancelled, and tried again."""

    def info(self) -> BackendInfo:
        """Return who answers."""

    def context_tokens(self) -> int:
        """Return about how many tokens the next request holds."""

    def learn(self, entries: Sequence[object]) -> None:
        """Learn from the entries of the agent's transcript how long what is said really is, by what was reported."""

    def quote(self, *, priced: bool) -> CostEstimate:
        """Return what the next response may take. Raises ConfigError when that cannot be said of its price, which only
        a `priced` one tells."""

    def lost(self) -> Usage:
        """Return what was used for requests that were given up and of which no response tells, and forget it.

        A backend without this method loses nothing, or does not know.
        """

    def transcript(self) -> Sequence[Message]:
        """Return the conversation, without the system text: the very one, to be read only."""

    def load(self, messages: Sequence[Message], responses: int | None = None) -> None:
        """Replace the conversation. `responses` is how many the agent itself has given before; None counts them all."""

    def clear(self) -> None:
        """Forget the conversation; the system text and the tools stay."""

    async def close(self) -> None:
        """Give up connections, if there are any. The next `assistant_turn` opens new ones."""


AS_IT_IS: Final = RequestOverride()
NOTHING: Final = Usage()
HINT: Final = "the transcript has it all"
LEAST_ANSWER: Final = 1_000
"""An answer of fewer tokens is not worth what is sent for it."""
ENOUGH_ANSWER: Final = 8_000
"""Nearly every answer has fewer tokens."""
UNKNOWN_ANSWER: Final = 8192
"""What a model is asked for that must be told how long its answer may be, where nobody knows how long it can."""
OPTIONAL: Final = frozenset({"lost"})
METHODS: Final = tuple(name for name in vars(Backend) if not name.startswith("_") and name not in OPTIONAL)


def check_backend(candidate: object) -> Backend:
    """Return `candidate` if it has every method of the contract. Raises ConfigError naming those that it lacks."""
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
    """Return what `backend` has lost, and let it forget that."""
    lost = getattr(backend, "lost", None)
    used: Usage = lost() if lost is not None else NOTHING
    return used


class Conversation:
    """The part of a backend that is the same for all: what was said, and how long it is.

    `ratios` are those of the model; plain ones where no provider would correct them.
    """

    def __init__(self, ratios: CharsPerToken = PLAIN) -> None:
        self.on_retry: OnRetry | None = None
        self.tail = ""
        self.instead: RequestOverride | None = None
        self.prefix = PromptPrefix()
        self.most: BudgetAmounts | None = None
        self.gate: RequestGate | None = None
        self.most_text: int | None = None
        """How many characters of a text of the assistant are sent again with the next requests; None: all."""
        self.system = ""
        self.tools: tuple[ToolSpec, ...] = ()
        self.messages: list[Message] = []
        self.estimator = TokenEstimator(ratios)
        self._raw_system = 0.0
        self._raw_messages = 0.0
        # Of the messages that were loaded, each with what it is estimated at: most are loaded again.
        self._loaded: dict[int, tuple[Message, float]] = {}

    def append_system(self, text: str, tools: Sequence[ToolSpec]) -> None:
        """Set the system text and the tools on offer."""
        self.system, self.tools = text, tuple(tools)
        shown = msgspec.json.encode([(tool.name, tool.description, tool.input_schema) for tool in tools]).decode()
        raw = self.estimator.raw_text
        self._raw_system = raw(text) + (raw(shown) if tools else 0)

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
        """Learn from the entries of a transcript how long what is said really is."""
        self.estimator.learn(entries)

    def context_tokens(self) -> int:
        """Return about how many tokens the next request holds."""
        return self.estimator.request(self._raw_request())

    def quote(self, *, priced: bool) -> CostEstimate:  # noqa: ARG002
        """Return what the request holds, and room for an answer: that it costs nothing."""
        sent = self.estimator.most_of_request(self._raw_request())
        least, enough = (BudgetAmounts(tokens=sent + answer) for answer in (LEAST_ANSWER, ENOUGH_ANSWER))
        return CostEstimate(least, enough, enough)

    def lost(self) -> Usage:
        """Return what was used for requests of which no response tells: nothing."""
        return NOTHING

    def transcript(self) -> Sequence[Message]:
        """Return the conversation."""
        return self.messages

    def load(self, messages: Sequence[Message], responses: int | None = None) -> None:  # noqa: ARG002
        """Replace the conversation."""
        messages = [self._shortened_text(message) for message in messages]
        self.messages = messages
        self._loaded = {id(message): (message, self._raw(message)) for message in messages}
        self._raw_messages = sum(map(self._raw, messages))
        self.estimator.changed()

    def clear(self) -> None:
        """Forget the conversation."""
        self.load(())

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    def _raw(self, message: Message) -> float:
        known = self._loaded.get(id(message))
        return self.estimator.raw(message) if known is None else known[1]

    def _shortened_text(self, message: Message) -> Message:
        """Return `message`; of longer texts of the assistant than any real answer only head and tail."""
        most = self.most_text
        long = most is not None and any(isinstance(block, Text) and len(block.text) > most for block in message.content)
        if most is None or not long or message.role != "assistant":
            return message
        blocks = (Text(clip(block.text, most, HINT)) if isinstance(block, Text) else block for block in message.content)
        return Message(message.role, tuple(blocks))

    def _append(self, message: Message) -> None:
        self.messages.append(message)
        self._raw_messages += self.estimator.raw(message)

    def _raw_request(self) -> float:
        """Return the estimate of the next request before correction."""
        if self.instead is None:
            return self._raw_system + self._raw_messages + self.estimator.raw_text(self.tail)
        system, messages, tail = self._request()
        said = self._raw_messages if messages is self.messages else sum(map(self._raw, messages))
        changed = self.estimator.raw_text(system) - self.estimator.raw_text(self.system)
        return self._raw_system + changed + said + self.estimator.raw_text(tail)

    def _request(self) -> tuple[str, Sequence[Message], str]:
        """Return what the next request holds: the system text, the messages and the tail."""
        instead = self.instead or AS_IT_IS
        return (
            self.system if instead.system is None else instead.system,
            self.messages if instead.messages is None else instead.messages,
            self.tail if instead.tail is None else instead.tail,
        )
