"""A conversation with a remote model. Each request is encoded for the API of the provider."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from orch_protocol.agent.spec import BackendSpec, ToolSpec
from orch_protocol.core.errors import BackendError, ConfigError
from orch_protocol.core.messages import Block, Message, StopReason
from orch_protocol.core.text import scrub

from ...system.secrets import mask_secrets
from ..base import OnText, PromptPrefix
from ..models import Model, filled
from ..normalize_messages import join_surrogates
from ..registry import is_loopback
from .failures import (
    Endpoint,
    ProviderError,
    classify_error,
    malformed_failure,
    oversized_failure,
    redirect_failure,
    timeout_failure,
    truncated_failure,
    unreachable_failure,
)
from .metered import MALFORMED_BLOCK, CompleteResponse, MeteredConversation, model_in, storable
from .reported_usage import ReportedUsage, checked
from .retry import RequestFailure
from .transport import (
    CrossOriginRedirectError,
    Deadlines,
    ResponseLimits,
    ResponseTooLargeError,
    ResponseWatch,
    cause,
    connection_failure,
)

__all__ = [
    "ModelRequest",
    "ProviderApi",
    "RemoteBackend",
    "ResponseReader",
    "ResponseStream",
    "StreamError",
    "encoded",
]

NO_KEY: Final = "none"
PASSWORD: Final = re.compile(r"//[^/@]*@")
SENDABLE: Final = re.compile(r"[\t -~]*")
"""The characters that are allowed in a header value."""
CLOSE_SECONDS: Final = 2.0


class ModelRequest(Struct, frozen=True):
    """One request to a model. `tail` is text at its end that is not part of the conversation.

    `prefix` describes the parts that later requests will repeat. `max_output_tokens` is the limit of the answer; 0
    means the provider's default.
    """

    provider: str
    name: str
    model: Model
    system: str
    tools: tuple[ToolSpec, ...]
    messages: tuple[Message, ...]
    tail: str
    prefix: PromptPrefix
    max_output_tokens: int


class StreamError(Exception):
    """The provider reported an error within a stream."""

    def __init__(self, provider_error: ProviderError) -> None:
        super().__init__(provider_error.text)
        self.provider_error = provider_error


class ResponseReader(Protocol):
    """Reads one response from its events, which are JSON data.

    `stop` is None until the stop reason is known; `done` is False until the response is complete. `progress` increases
    with each event that adds content, unlike keep-alive messages. The methods raise LookupError, TypeError,
    AttributeError or ValueError for malformed events.
    """

    usage: ReportedUsage
    stop: StopReason | None
    done: bool
    progress: int

    def feed(self, event: dict[str, Any]) -> str:
        """Process the next event, and return the text that the event adds.

        Raise StreamError if the event reports an error.
        """

    def blocks(self) -> list[Block]:
        """Return the blocks of the response."""


class ResponseStream(Protocol):
    """The events of an SDK's stream, and the HTTP response that contains them."""

    response: Any

    def __aiter__(self) -> AsyncIterator[Any]:
        """Iterate over the events."""

    async def close(self) -> None:
        """Close the response."""


class ProviderApi(Protocol):
    """One API of one SDK."""

    def request(self, request: ModelRequest) -> dict[str, Any]:
        """Return the request body as JSON data."""

    def client(self, key: str, base_url: str, headers: Mapping[str, str], deadlines: Deadlines) -> Any:
        """Return a client without retries."""

    async def open(self, client: Any, body: bytes) -> ResponseStream:
        """Send the encoded request and return the stream of its response."""

    def new_reader(self, provider: str) -> ResponseReader:
        """Return a reader for one response."""

    def provider_error(self, error: Exception) -> ProviderError | None:
        """Return the provider's error in `error`, or None if `error` contains no such error."""


class RemoteBackend(MeteredConversation):
    """A conversation with the model in `spec`.

    The options of `spec` are a `models.Model`. `keys` maps names to secrets. The first request creates the client in
    the process and event loop that use it. Raise ConfigError if the options are invalid or no key is set.
    """

    def __init__(self, spec: BackendSpec, keys: Mapping[str, str], api: ProviderApi) -> None:
        super().__init__(spec, model_in(spec))
        self.limits = ResponseLimits()
        content = self.model.first_content_seconds
        # The Responses API sends no data while a model reasons.
        reasons_silently = self.model.api == "responses" and self.model.flags.reasoning
        self.deadlines = Deadlines(content=content, thinking=content if reasons_silently else 0.0)
        key = next((keys[name] for name in self.model.keys if name in keys), None)
        if key is None and self.model.keys:
            raise ConfigError(f"{spec.provider}:{spec.model} needs a key: set {' or '.join(self.model.keys)}")
        self._key = NO_KEY if key is None else key
        self._headers = _headers(keys.get(self.model.headers_variable, ""))
        self._headers |= filled(self.model.headers, keys, self._key)
        header_values = {"key": self._key} | {f"header {name!r}": value for name, value in self._headers.items()}
        if invalid := [what for what, value in header_values.items() if not SENDABLE.fullmatch(value)]:
            raise ConfigError(
                f"cannot send the {invalid[0]} of {spec.provider}:{spec.model}: the value must be one line of ASCII. "
                "Change the environment variable or models.json"
            )
        address = PASSWORD.sub("//", self.model.base_url)
        self._server_address = f" at {address}"
        self._endpoint = Endpoint(
            spec.provider,
            spec.model,
            address,
            self.model.keys,
            self.model.flags.local,
            is_loopback(address),
            self.model.base_url_variable,
        )
        self._api = api
        self._client: Any = None

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await client.close()
            except (TimeoutError, OSError):
                pass  # The server closes the connection itself.

    def _make_request(self) -> ModelRequest:
        if not self.messages:
            raise BackendError("there is nothing to answer: the conversation is empty")
        model, max_output_tokens = self._affordable_limit()
        system, messages, tail = self._request()
        return ModelRequest(
            provider=self._endpoint.provider,
            name=self._endpoint.model,
            model=model,
            system=system,
            tools=self.tools,
            messages=tuple(messages),
            tail=tail if tail.strip() else "",
            prefix=self.prefix,
            max_output_tokens=max_output_tokens,
        )

    async def _attempt(self, on_text: OnText | None) -> CompleteResponse:
        """Return one complete response. Raise RequestFailure if the request fails."""
        body = encoded(self._api.request(self._make_request()))
        reader, watch = self._api.new_reader(self._endpoint.provider), ResponseWatch(self.deadlines, self.limits)
        try:
            await self._read(body, reader, on_text, watch)
        except asyncio.CancelledError:
            self._count_failed_usage(reader, sent=watch.sent)
            raise
        except Exception as error:
            if reader.stop is None:
                self._count_failed_usage(reader)
                if (failure := self._failure(error, watch)) is None:
                    raise
                # A chained traceback would show the server's message, which may contain the key.
                raise failure from None
            # The response is complete, so an error that follows does not matter.
        if reader.stop is None:
            self._count_failed_usage(reader)
            raise truncated_failure(self._endpoint)
        try:
            content = _content(reader)
        except ValueError as error:
            self._count_failed_usage(reader)
            raise malformed_failure(self._endpoint, error) from None
        return CompleteResponse(content, reader.stop, checked(reader.usage, self.model.context))

    async def _read(self, body: bytes, reader: ResponseReader, on_text: OnText | None, watch: ResponseWatch) -> None:
        if self._client is None:
            self._client = self._api.client(self._key, self.model.base_url, self._headers, self.deadlines)
        async with watch.listening():
            stream = await self._api.open(self._client, body)
            try:
                async for event in stream:
                    progress_before = reader.progress
                    text = _feed_event(reader, event)
                    if reader.progress > progress_before:
                        watch.content_arrived()
                    if text and on_text is not None:
                        on_text(join_surrogates(text))
                    if reader.done:
                        watch.response_complete()
            finally:
                await stream.close()

    def _failure(self, error: Exception, watch: ResponseWatch) -> RequestFailure | None:
        if (size_error := cause(error, ResponseTooLargeError)) is not None:
            return oversized_failure(self._endpoint, size_error)
        if (redirect := cause(error, CrossOriginRedirectError)) is not None:
            return redirect_failure(self._endpoint, redirect)
        provider_error = error.provider_error if isinstance(error, StreamError) else self._api.provider_error(error)
        if provider_error is not None:
            # A server may repeat the API key in its message. The message is shown and logged.
            text = mask_secrets(provider_error.text, (self._key, *self._headers.values()))
            return classify_error(self._endpoint, msgspec.structs.replace(provider_error, text=text))
        if isinstance(error, TimeoutError):
            return timeout_failure(self._endpoint, self.deadlines.content if watch.content_missing else None)
        if (found := connection_failure(error)) is not None:
            failure_kind, problem = found
            return (
                timeout_failure(self._endpoint)
                if failure_kind == "silent"
                else unreachable_failure(self._endpoint, problem, refused=failure_kind == "refused")
            )
        # After the response began, an exception that does not come from the client was caused by invalid data.
        return malformed_failure(self._endpoint, error) if watch.begun or isinstance(error, ValueError) else None

    def _count_failed_usage(self, reader: ResponseReader, *, sent: bool = False) -> None:
        """Count the usage of a failed attempt."""
        try:
            received = _content(reader)
        except ValueError:
            received = ()  # The data is malformed, so count only the reported usage.
        self._count_failed_attempt(checked(reader.usage, self.model.context).usage, received, sent=sent)


def _feed_event(reader: ResponseReader, event: Any) -> str:
    """Pass `event` to `reader`, and return the added text. Raise StreamError, or ValueError for a malformed event."""
    if not isinstance(event, dict):
        raise ValueError(f"an event is {event!r:.80} instead of a JSON object")
    try:
        return reader.feed(event)
    except (LookupError, TypeError, AttributeError) as error:
        kind = event.get("type", event.get("object", ""))
        raise ValueError(f"an event of type {kind!r:.80} has an unexpected shape: {event!r:.200}") from error


def _content(reader: ResponseReader) -> tuple[Block, ...]:
    """Return the blocks of the response. Raise ValueError if a block lacks a field or a field has a wrong type."""
    try:
        return storable(reader.blocks())
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(MALFORMED_BLOCK) from error


def encoded(body: dict[str, Any]) -> bytes:
    """Return `body` as JSON bytes. Characters that cannot be encoded are replaced.

    SDKs copy and encode their arguments slowly for each request. In long conversations, this work takes most of the
    time. SDKs send bytes without encoding them again.
    """
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return msgspec.json.encode(scrub(body))


def _headers(text: str) -> dict[str, str]:
    """Return the headers in `text`, which is the value of a variable.

    Each line of `text` has the form `name: value`.
    """
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon and name.strip()}
