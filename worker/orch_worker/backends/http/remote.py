"""A conversation with a model somewhere else: one request, made again until it succeeds, in the words of a dialect."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from orch_protocol.agent.spec import BackendSpec, ToolSpec
from orch_protocol.core.errors import BackendError, BudgetExceededError, ConfigError
from orch_protocol.core.messages import INVALID_INPUT, Block, Message, StopReason, ToolUse, Usage
from orch_protocol.core.text import scrub
from orch_protocol.policy.budget import BudgetAmounts, amounts_of

from ...conversation.tokens import input_tokens
from ...system.secrets import mask_secrets
from ..base import AssistantTurn, BackendInfo, Conversation, CostEstimate, OnText, PromptPrefix
from ..cost_estimate import RequestCost, fare, narrowed
from ..model_families import ratios_of
from ..models import Model, cost, headers_for
from ..normalize_messages import whole
from ..registry import is_loopback
from ..thinking import thinking
from .failures import Endpoint, ProviderError, garbled, judge, oversized, redirected, silent, truncated, unreachable
from .reported_usage import CheckedUsage, ReportedUsage, checked
from .retry import RequestFailure, RetryPolicy, Sleep, persist
from .transport import (
    CrossOriginRedirectError,
    Deadlines,
    ResponseLimits,
    ResponseTooLargeError,
    ResponseWatch,
    cause,
    trouble,
)

__all__ = [
    "ModelRequest",
    "ProviderApi",
    "RemoteBackend",
    "ResponseReader",
    "ResponseStream",
    "StreamError",
    "encoded",
    "parse_input",
]

MOST_OUTPUT: Final = 64_000
NO_KEY: Final = "none"
PASSWORD: Final = re.compile(r"//[^/@]*@")
SENDABLE: Final = re.compile(r"[\t -~]*")
"""What the value of a header may be."""
CLOSE_SECONDS: Final = 2.0
CHARS_AN_ANSWER_TOKEN: Final = 8
"""More than any answer has: a text beyond this for each token that was asked for is no usual answer."""


class ModelRequest(Struct, frozen=True):
    """What is asked of a model, and the `tail` it ends with, which is no part of the conversation.

    What of it is the same in the requests after it is said by `prefix`.
    `most_output` is the most tokens it may answer with; 0 leaves that to the provider.
    """

    provider: str
    name: str
    model: Model
    system: str
    tools: tuple[ToolSpec, ...]
    messages: tuple[Message, ...]
    tail: str
    prefix: PromptPrefix
    most_output: int


class StreamError(Exception):
    """The provider said within a stream that something is wrong."""

    def __init__(self, complaint: ProviderError) -> None:
        super().__init__(complaint.text)
        self.complaint = complaint


class ResponseReader(Protocol):
    """One response as its events come in, as JSON data.

    `stop` is None until it is known, `done` false until the response is complete. `progress` grows with each event that
    adds to the response, unlike keep-alive messages. Raises LookupError, TypeError, AttributeError or ValueError for
    events of an unexpected shape.
    """

    usage: ReportedUsage
    stop: StopReason | None
    done: bool
    progress: int

    def feed(self, event: dict[str, Any]) -> str:
        """Take the next event in and return the text that it adds. Raises Complained."""

    def blocks(self) -> list[Block]:
        """Return what the response consists of."""


class CompleteResponse(Struct, frozen=True):
    """One whole response, as its provider sent it."""

    content: tuple[Block, ...]
    stop: StopReason
    usage: CheckedUsage


class ResponseStream(Protocol):
    """Events of an SDK, and the HTTP response they come in."""

    response: Any

    def __aiter__(self) -> AsyncIterator[Any]:
        """Iterate over the events."""

    async def close(self) -> None:
        """Give the response up."""


class ProviderApi(Protocol):
    """One API of one SDK."""

    def request(self, ask: ModelRequest) -> dict[str, Any]:
        """Return the body of the request, as JSON data."""

    def client(self, key: str, base_url: str, headers: Mapping[str, str], deadlines: Deadlines) -> Any:
        """Return a client that never tries anything twice."""

    async def open(self, client: Any, body: bytes) -> ResponseStream:
        """Send the encoded request and return the stream of its response."""

    def reading(self, provider: str) -> ResponseReader:
        """Return what reads one response."""

    def complaint(self, error: Exception) -> ProviderError | None:
        """Return what the provider said when `error` was raised; None if it said nothing."""


class RemoteBackend(Conversation):
    """A conversation with the model that `spec` names; its options are a `models.Model`, `keys` the secrets by name.

    The client is made by the first request, in the process and event loop that use it. Raises ConfigError when the
    options do not fit or no key is there.
    """

    def __init__(self, spec: BackendSpec, keys: Mapping[str, str], dialect: ProviderApi) -> None:
        super().__init__(ratios_of(spec))
        self.policy = RetryPolicy()
        self.limits = ResponseLimits()
        self.sleep: Sleep = asyncio.sleep
        try:
            self.model = thinking(msgspec.convert(spec.options, Model), spec.thinking)
        except msgspec.ValidationError as error:
            raise ConfigError(f"the options of {spec.provider}:{spec.model} do not fit: {error}") from error
        content = self.model.first_content_seconds
        # The Responses API sends nothing while a model reasons.
        quiet = self.model.api == "responses" and self.model.flags.reasoning
        self.deadlines = Deadlines(content=content, thinking=content if quiet else 0.0)
        key = next((keys[name] for name in self.model.keys if name in keys), None)
        if key is None and self.model.keys:
            raise ConfigError(f"{spec.provider}:{spec.model} needs a key: set {' or '.join(self.model.keys)}")
        self._key = NO_KEY if key is None else key
        self._headers = _headers(keys.get(self.model.headers_variable, ""))
        self._headers |= headers_for(self.model, keys, self._key)
        sent = {"key": self._key} | {f"header {name!r}": value for name, value in self._headers.items()}
        if wrong := [what for what, value in sent.items() if not SENDABLE.fullmatch(value)]:
            raise ConfigError(
                f"cannot send the {wrong[0]} of {spec.provider}:{spec.model}: the value must be one line of ASCII. "
                "Change the environment variable or models.json"
            )
        address = PASSWORD.sub("//", self.model.base_url)
        self._who = Endpoint(
            spec.provider,
            spec.model,
            address,
            self.model.keys,
            self.model.flags.local,
            is_loopback(address),
            self.model.base_url_variable,
        )
        self._dialect = dialect
        self._client: Any = None
        self._unclaimed = Usage()
        self._warned = False
        self._longest = min(self.model.output, MOST_OUTPUT, max(1, self.model.context // 2))
        self._shortened = False
        self.most_text = CHARS_AN_ANSWER_TOKEN * (self._longest or max(1, self.model.context // 2))

    def quote(self, *, priced: bool) -> CostEstimate:
        """Return what the next response may take. Raises ConfigError when its price is to be told and not known."""
        return self._fare(priced=priced).quote(amounts_of(self._unclaimed))

    def info(self) -> BackendInfo:
        """Return who answers."""
        return BackendInfo(self._who.provider, self._who.model, self.model.context)

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:
        """Return the next response. Its usage holds that of the failed attempts since the one before."""
        raw = self._raw_request()
        response = await persist(partial(self._passed, on_text), self.policy, self.on_retry, self.sleep)
        if not response.usage.problem:
            self.estimator.observe(raw, input_tokens(response.usage.usage))
        message = Message("assistant", response.content)
        stop = response.stop
        if stop == "end_turn" and any(isinstance(block, ToolUse) for block in message.content):
            stop = "tool_use"  # some servers say that they are done either way
        if stop == "max_tokens" and self._shortened:
            stop = "budget"
        usage, self._unclaimed = self._unclaimed + self._used(response.usage, message), Usage()
        return AssistantTurn(message, stop, usage)

    def lost(self) -> Usage:
        """Return what failed attempts used since the last response, and those that were given up."""
        lost, self._unclaimed = self._unclaimed, Usage()
        return lost

    async def close(self) -> None:
        """Give the connections up."""
        client, self._client = self._client, None
        if client is not None:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await client.close()
            except (TimeoutError, OSError):
                pass  # the other end is gone, or will notice

    def _ask(self) -> ModelRequest:
        if not self.messages:
            raise BackendError("there is nothing to answer: the conversation is empty")
        model, longest = self._covered()
        system, messages, tail = self._request()
        return ModelRequest(
            provider=self._who.provider,
            name=self._who.model,
            model=model,
            system=system,
            tools=self.tools,
            messages=tuple(messages),
            tail=tail if tail.strip() else "",
            prefix=self.prefix,
            most_output=longest,
        )

    def _covered(self) -> tuple[Model, int]:
        """Return the model and the length of answer to ask it for, as `most` covers them; 0 is as long as it likes.

        Raises BudgetExceededError when no answer is covered, which may be so after failed attempts.
        """
        self._shortened = False
        if self.most is None:
            return self.model, self._longest
        # What nobody counts nothing was put aside of; a response that costs something takes more than nothing.
        kinds = frozenset(kind for kind in ("usd", "tokens") if getattr(self.most, kind))
        fare, lost = self._fare(priced="usd" in kinds), amounts_of(self._unclaimed)
        left = BudgetAmounts(usd=max(0.0, self.most.usd - lost.usd), tokens=max(0.0, self.most.tokens - lost.tokens))
        tokens = fare.longest(left, kinds)
        if tokens == fare.most:
            return self.model, self._longest
        if not tokens:
            raise BudgetExceededError(
                f"failed requests used ${lost.usd:.6f} and {lost.tokens:g} tokens of the ${self.most.usd:.6f} and "
                f"{self.most.tokens:g} tokens reserved for this response: the remainder does not cover another request"
            )
        self._shortened = True
        return narrowed(self.model), tokens

    def _fare(self, *, priced: bool) -> RequestCost:
        try:
            sent = self.estimator.most_of_request(self._raw_request())
            return fare(self.model, sent, self._longest, priced=priced)
        except ConfigError as error:
            raise ConfigError(f"{self._who.provider}:{self._who.model} cannot have a budget: {error}") from error

    def _used(self, reported: CheckedUsage, message: Message) -> Usage:
        """Return what the response took; counts that its provider did not report, or not as a number, are estimated."""
        used = reported.usage
        # A budget must shrink: of one, a response of no tokens takes an estimate too.
        nothing = self.most is not None and not (input_tokens(used) or used.output_tokens)
        if not reported.problem and not nothing:
            return cost(self.model, used)
        if reported.problem and not self._warned:
            self._warned = True
            how = "are clamped" if reported.input_known and reported.output_known else "are estimated instead"
            print(
                f"{self._who.provider}:{self._who.model} at {self._who.base_url} reported unusable token counts "
                f"({reported.problem}): such counts {how} (shown once)",
                flush=True,
            )
        if nothing or not reported.input_known:
            used = msgspec.structs.replace(used, input_tokens=self._estimated_input(used))
        if nothing or not reported.output_known:
            used = msgspec.structs.replace(used, output_tokens=self._estimated_output(message))
        return msgspec.structs.replace(cost(self.model, used), cost_known=False)

    def _estimated_input(self, used: Usage) -> int:
        cached = used.cache_read_tokens + used.cache_write_tokens
        return max(0, min(self.context_tokens(), self.model.context) - cached)

    def _estimated_output(self, message: Message) -> int:
        return min(self.estimator.message(message), self.model.context)

    async def _passed(self, on_text: OnText | None) -> CompleteResponse:
        if self.gate is None:
            return await self._attempt(on_text)
        return await self.gate.through(f"{self._who.provider}:{self._who.model}", partial(self._attempt, on_text))

    async def _attempt(self, on_text: OnText | None) -> CompleteResponse:
        """Return one whole response. Raises Failure."""
        body = encoded(self._dialect.request(self._ask()))
        reading, ear = self._dialect.reading(self._who.provider), ResponseWatch(self.deadlines, self.limits)
        try:
            await self._read(body, reading, on_text, ear)
        except asyncio.CancelledError:
            self._claim(reading, sent=ear.sent)
            raise
        except Exception as error:
            if reading.stop is None:
                self._claim(reading)
                if (failure := self._failure(error, ear)) is None:
                    raise
                raise failure from None  # a traceback would show what the server said, word for word
            # The response is complete; an error that follows it does not matter.
        if reading.stop is None:
            self._claim(reading)
            raise truncated(self._who)
        try:
            content = _content(reading)
        except ValueError as error:
            self._claim(reading)
            raise garbled(self._who, error) from None
        return CompleteResponse(content, reading.stop, checked(reading.usage, self.model.context))

    async def _read(self, body: bytes, reading: ResponseReader, on_text: OnText | None, ear: ResponseWatch) -> None:
        if self._client is None:
            self._client = self._dialect.client(self._key, self.model.base_url, self._headers, self.deadlines)
        async with ear.listening():
            stream = await self._dialect.open(self._client, body)
            try:
                async for event in stream:
                    before = reading.progress
                    text = _fed(reading, event)
                    if reading.progress > before:
                        ear.content()
                    if text and on_text is not None:
                        on_text(whole(text))
                    if reading.done:
                        ear.last()
            finally:
                await stream.close()

    def _failure(self, error: Exception, ear: ResponseWatch) -> RequestFailure | None:
        if (large := cause(error, ResponseTooLargeError)) is not None:
            return oversized(self._who, large)
        if (elsewhere := cause(error, CrossOriginRedirectError)) is not None:
            return redirected(self._who, elsewhere)
        complaint = error.complaint if isinstance(error, StreamError) else self._dialect.complaint(error)
        if complaint is not None:
            # A server may repeat what it was sent, and what it says is shown, logged and kept.
            said = mask_secrets(complaint.text, (self._key, *self._headers.values()))
            return judge(self._who, msgspec.structs.replace(complaint, text=said))
        if isinstance(error, TimeoutError):
            return silent(self._who, self.deadlines.content if ear.content_missing else None)
        if (found := trouble(error)) is not None:
            what, problem = found
            return silent(self._who) if what == "silent" else unreachable(self._who, problem, refused=what == "refused")
        # Once a response began, an error that is none of the client's is one of what the server sent.
        return garbled(self._who, error) if ear.begun or isinstance(error, ValueError) else None

    def _claim(self, reading: ResponseReader, *, sent: bool = False) -> None:
        """Keep what an attempt used that came to nothing: it is paid for, as far as it was told.

        Of a budget it takes as much as its request holds and as was heard of the answer, where that is more than was
        told; if anything was heard, or when it was `sent` and given up.
        """
        told = checked(reading.usage, self.model.context).usage
        try:
            heard = _content(reading)
        except ValueError:
            heard = ()  # malformed: only what was reported counts
        used = cost(self.model, told)
        if self.most is not None and (heard or sent):
            answer = self.estimator.message(Message("assistant", heard)) if heard else 0
            asked = told.input_tokens if input_tokens(told) else self.context_tokens()
            least = msgspec.structs.replace(told, input_tokens=asked, output_tokens=max(told.output_tokens, answer))
            if least != told:
                used = msgspec.structs.replace(cost(self.model, least), cost_known=False)
        if used != Usage():
            self._unclaimed += used


def _fed(reading: ResponseReader, event: Any) -> str:
    """Feed `event` to `reading`. Raises ValueError saying which event is malformed, Complained."""
    if not isinstance(event, dict):
        raise ValueError(f"an event is {event!r:.80} instead of a JSON object")
    try:
        return reading.feed(event)
    except (LookupError, TypeError, AttributeError) as error:
        kind = event.get("type", event.get("object", ""))
        raise ValueError(f"an event of type {kind!r:.80} has an unexpected shape: {event!r:.200}") from error


def _content(reading: ResponseReader) -> tuple[Block, ...]:
    """Return what the response consists of. Raises ValueError when a block lacks a field or has one of a wrong type."""
    try:
        blocks = reading.blocks()
        msgspec.json.decode(msgspec.json.encode(blocks), type=list[Block])  # it is stored in this form
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError("a block of the response lacks a field, or has one of a wrong type") from error
    return tuple(blocks)


def encoded(body: dict[str, Any]) -> bytes:
    """Return `body` as JSON; what no encoding carries is replaced.

    SDKs take their arguments apart, copy them and encode them slowly, in every request: with a long conversation that
    costs more than everything else together. What is encoded already they send as it is.
    """
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return msgspec.json.encode(scrub(body))


def parse_input(text: str) -> dict[str, Any]:
    """Return the arguments of a call from their JSON text.

    What is no JSON object comes back whole under a name that no tool knows: the call is refused, and the model sees
    what it wrote.
    """
    if not text.strip():
        return {}
    try:
        value = scrub(json.loads(text))
        msgspec.json.encode(value)
    except (ValueError, OverflowError, RecursionError):
        value = text
    if value is None:
        return {}
    return value if isinstance(value, dict) else {INVALID_INPUT: whole(text)}


def _headers(text: str) -> dict[str, str]:
    """Return the headers that a variable holds, one `name: value` a line."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon and name.strip()}
