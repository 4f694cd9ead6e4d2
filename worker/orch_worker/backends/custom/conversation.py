"""The conversation with a custom backend.

The conversation validates response items, prices requests and applies time limits.
"""

from __future__ import annotations

import asyncio
import re
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

from msgspec.structs import replace

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import BackendError, BackendTimeoutError, ConfigError, RateLimitError
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Block, StopReason, Text, Thinking, ToolUse, Usage, user
from orch_protocol.core.text import scrub

from ...conversation.tokens import CharsPerToken, TokenEstimator
from ...system.importing import create_object, load_subclass
from ...system.secrets import ApiKeys, mask_secrets
from ...system.threads import describe_exception
from ..base import OnText
from ..custom_classes import class_path
from ..custom_providers import is_object, registered_object
from ..formats.normalize_messages import ProviderRequirements, join_surrogates, normalize_messages, parse_input
from ..formats.reported_usage import CheckedUsage, ReportedUsage, checked
from ..http.metered import CompleteResponse, MeteredConversation, model_in, storable
from ..http.retry import RequestFailure
from ..model_families import ratios_of
from ..models import Model
from .contract import BackendOptions, BackendRequest, CustomBackend, ResponseItem, Stop, info_of
from .stream import End, ItemStream, check_respond

__all__ = ["CustomConversation", "from_spec"]

ANY_ID: Final = re.compile(r".+", re.DOTALL)
NAMES: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
MAX_CHARACTERS: Final = 32 << 20
"""Maximum number of characters of a response."""
MAX_USD: Final = 1e6
NOT_MODEL_STOPS: Final = frozenset({"max_turns", "cancelled", "timeout", "budget", "aborted"})
STOPS: Final = frozenset(get_args(StopReason)) - NOT_MODEL_STOPS


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> CustomConversation:
    """Return the conversation with the custom backend in `spec`. Raise ConfigError if the backend cannot be created."""
    return CustomConversation(spec, backend_of(spec, model_in(spec), keys))


# --- The object ---

_thread_backends = threading.local()
"""The backend objects of this thread. A worker has one thread for its conversations, so these share an object."""


def backend_of(spec: BackendSpec, model: Model, keys: Mapping[str, str]) -> CustomBackend:
    """Return the backend for `spec`: an object of this program, or a new instance of a class.

    Raise ConfigError if the backend cannot be created.
    """
    if is_object(spec):
        found: CustomBackend = registered_object(model.api)
        return found
    name = class_path(spec)
    options = BackendOptions(
        spec.model if name is None or name[0] != model.api else name[1],
        ApiKeys({name: keys[name] for name in model.keys if name in keys}),
        model.base_url,
        model.body,
    )
    backends: dict[str, CustomBackend] = _thread_backends.__dict__
    key = repr((model.api, options.model, sorted(options.keys.items()), options.base_url, options.body))
    if key not in backends:
        backends[key] = _create_backend(model.api, options)
    return backends[key]


def _create_backend(path: str, options: BackendOptions) -> CustomBackend:
    what = f"the backend {path}"
    kind: type[CustomBackend] = load_subclass(path, CustomBackend, what)
    if fault := check_respond(kind):
        raise ConfigError(f"{what} {fault}")
    return create_object(lambda: kind(options), what)


class _TokenCounter(TokenEstimator):
    """Counts tokens with the method of a custom backend. If this method fails, tokens are estimated from then on."""

    def __init__(self, name: str, count: Callable[[str], int], ratios: CharsPerToken) -> None:
        super().__init__(ratios)
        self._name = name
        self._count: Callable[[str], int] | None = count

    def raw_text(self, text: str) -> float:
        """Return the tokens of `text`."""
        if not text or self._count is None:
            return super().raw_text(text)
        try:
            tokens = self._count(text)
        except Exception as error:
            fault = f"raised {describe_exception(error)}"
        else:
            if isinstance(tokens, int) and 0 <= tokens <= len(text.encode("utf-8", "surrogatepass")):
                return float(tokens)
            fault = f"returned {tokens!r:.40} for {len(text)} characters"
        self._count = None
        print(f"{self._name}: count_tokens {fault}; tokens are estimated instead", flush=True)
        return super().raw_text(text)


# --- The conversation ---


class CustomConversation(MeteredConversation):
    """A conversation with `backend`. `spec` describes the backend."""

    def __init__(self, spec: BackendSpec, backend: CustomBackend) -> None:
        model, about = model_in(spec), info_of(backend)
        if about.context_limit:
            model = replace(model, context=about.context_limit)
        if not about.images:
            model = replace(model, flags=replace(model.flags, images=False))
        super().__init__(spec, model)
        if type(backend).count_tokens is not CustomBackend.count_tokens:
            self.estimator = _TokenCounter(self._full_name, backend.count_tokens, ratios_of(spec))
        self._backend = backend
        self._thinking = spec.thinking
        self._abandoned: asyncio.Task[None] | None = None

    def stuck(self) -> str:
        """Return a description of an abandoned response that has not ended, or "" if there is none."""
        running = self._abandoned is not None and not self._abandoned.done()
        return f"respond of {self._full_name}" if running else ""

    async def _attempt(self, on_text: OnText | None) -> CompleteResponse:
        if stuck := self.stuck():
            raise RequestFailure(BackendError(f"{stuck} was abandoned and has not ended"), transient=False)
        response = _Response(self._provider)
        stream = ItemStream(self._backend, self._make_request())
        try:
            while not isinstance(item := await self._next(stream), End):
                text = response.add(item)
                if text and on_text is not None:
                    on_text(text)
            content = storable(response.blocks())
        except asyncio.CancelledError:
            self._count_failed_attempt(self._checked(response).usage, response.received(), sent=True)
            raise
        except Exception as error:
            self._count_failed_attempt(self._checked(response).usage, response.received())
            raise self._failure(error) from None
        finally:
            await stream.close()
            self._abandoned = stream.task
        self._warned = self._warned or response.usage is None  # From then on, users expect estimates.
        return CompleteResponse(content, response.stop, self._checked(response))

    async def _next(self, stream: ItemStream) -> ResponseItem | End:
        seconds = self.model.first_content_seconds
        try:
            async with asyncio.timeout(seconds) as deadline:
                return await stream.next()
        except TimeoutError:
            if not deadline.expired():
                raise
            raise BackendTimeoutError(
                f"respond yielded nothing for {seconds:g} s (first_content_seconds in $ORCH_HOME/models.json)"
            ) from None

    def _make_request(self) -> BackendRequest:
        if not self.messages:
            raise BackendError("there is nothing to answer: the conversation is empty")
        _, max_output_tokens = self._affordable_limit()
        system, messages, tail = self._request()
        sent = (*messages, user(tail)) if tail.strip() else tuple(messages)
        flags = self.model.flags
        requirements = ProviderRequirements(
            self._provider, ANY_ID, NAMES, self._name, images=flags.images, system=flags.system_messages
        )
        return BackendRequest(
            system,
            tuple(normalize_messages(sent, requirements)),
            self.tools,
            max_output_tokens,
            self._thinking,
            threading.Event(),
        )

    def _checked(self, response: _Response) -> CheckedUsage:
        """Return the reported usage. A valid `cost_usd` is used instead of listed prices."""
        reported = response.usage or Usage()
        if response.usage is None:
            return checked(ReportedUsage(), self.model.context)
        counts = (
            reported.input_tokens,
            reported.output_tokens,
            reported.cache_read_tokens,
            reported.cache_write_tokens,
        )
        usage = checked(ReportedUsage(*counts), self.model.context)
        usd = reported.cost_usd
        if not isinstance(usd, int | float) or not 0 <= usd <= MAX_USD:  # This condition also rejects NaN.
            return replace(usage, problem=usage.problem or f"cost_usd: {type(usd).__name__} out of range")
        return replace(usage, usage=replace(usage.usage, cost_usd=float(usd), cost_known=bool(reported.cost_known)))

    def _failure(self, error: Exception) -> RequestFailure:
        kind, message = BackendError, f"respond raised {describe_exception(error)}"
        if isinstance(error, BackendError):
            kind, message = type(error), str(error)
        else:
            traceback.print_exception(error)
        text = mask_secrets(f"{self._full_name}: {message}", self._backend.options.keys.values())
        is_rate_limit = isinstance(error, RateLimitError)
        return RequestFailure(kind(text), transient=is_rate_limit, rate_limited=is_rate_limit)


class _Response:
    """A response while its items arrive. `usage` is the last usage that the backend reported."""

    def __init__(self, provider: str) -> None:
        self.usage: Usage | None = None
        self._provider = provider
        self._blocks: list[Block] = []
        self._pieces: list[str] = []
        """The pieces of text since the last block."""
        self._stop: StopReason | None = None
        self._ids: set[str] = set()
        self._size = 0

    @property
    def stop(self) -> StopReason:
        """The stop reason."""
        return self._stop or ("tool_use" if self._ids else "end_turn")

    def add(self, item: ResponseItem) -> str:
        """Add an item, and return its text. Raise BackendError for an invalid item."""
        match item:
            case str(text) | Text(str(text)):
                self._grow(len(text))
                self._pieces.append(text)
                return join_surrogates(text)
            case Thinking(str(thinking), signature):
                self._grow(len(thinking))
                self._add_thinking(thinking, signature)
            case ToolUse(id, str(name), input) if name and isinstance(input, dict | str):
                self._add_call(id, name, input)
            case Usage():
                self.usage = item
            case Stop(reason) if reason in STOPS:
                self._stop = reason
            case Stop(reason):
                raise BackendError(f"respond yielded the stop reason {reason!r:.40}; it must be one of {sorted(STOPS)}")
            case _:
                raise BackendError(
                    f"respond yielded an invalid item of type {type(item).__name__}: it must be a str, Thinking, "
                    "ToolUse, Usage or Stop with valid fields"
                )
        return ""

    def blocks(self) -> list[Block]:
        """Return the blocks received so far."""
        self._end_text()
        return self._blocks

    def received(self) -> tuple[Block, ...]:
        """Return the blocks received so far, or none if they are invalid."""
        try:
            return storable(self.blocks())
        except ValueError:
            return ()

    def _end_text(self) -> None:
        if text := join_surrogates("".join(self._pieces)):
            self._blocks.append(Text(text))
        self._pieces.clear()

    def _add_thinking(self, thinking: str, signature: str | None) -> None:
        self._end_text()
        last = self._blocks[-1] if self._blocks else None
        if isinstance(last, Thinking) and last.signature is None:
            self._blocks.pop()
            thinking = last.thinking + thinking
        self._blocks.append(Thinking(join_surrogates(thinking), signature, self._provider))

    def _add_call(self, id: str, name: str, input: dict[str, Any] | str) -> None:
        self._end_text()
        if isinstance(input, str):
            self._grow(len(input))
            input = parse_input(input)
        if not isinstance(id, str) or not id or id in self._ids:
            id = f"call_{new_id()}"
        self._ids.add(id)
        self._blocks.append(ToolUse(join_surrogates(id), join_surrogates(name), scrub(input)))

    def _grow(self, characters: int) -> None:
        self._size += characters
        if self._size > MAX_CHARACTERS:
            raise BackendError(f"the response has more than {MAX_CHARACTERS:,} characters")
