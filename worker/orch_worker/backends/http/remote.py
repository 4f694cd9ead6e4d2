"""A conversation with a remote model. A format encodes the requests and reads the responses; a client sends them."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import BackendError, ConfigError
from orch_protocol.core.messages import INVALID_INPUT, Block, StopReason, ToolUse
from orch_protocol.core.text import scrub

from ...system.secrets import mask_key_shapes, mask_passwords, mask_secrets
from ..base import OnText
from ..formats.error_body import is_web_page, parsed, read_error_body
from ..formats.format import ApiFormat, ModelRequest, ResponseReader
from ..formats.normalize_messages import join_surrogates, signatures_in, without_signatures
from ..formats.provider_error import ProviderError, ReportedError
from ..formats.reported_usage import checked
from ..models import filled, is_loopback, names_address
from .client import SdkClient, Server
from .failures import (
    Endpoint,
    RequestSize,
    classify_error,
    is_signature_refusal,
    malformed_failure,
    oversized_failure,
    proxy_failure,
    redirect_failure,
    setting_failure,
    timeout_failure,
    truncated_failure,
    unreachable_failure,
    web_page_failure,
)
from .metered import MALFORMED_BLOCK, CompleteResponse, MeteredConversation, model_in, storable
from .proxies import proxy_of
from .retry import RequestFailure
from .transport import (
    CrossOriginRedirectError,
    Deadlines,
    ResponseLimits,
    ResponseTooLargeError,
    ResponseWatch,
    cause,
    connection_failure,
    refusal_of_proxy,
    unsendable_request,
)

__all__ = ["RemoteBackend", "encoded", "headers_in"]

NO_KEY: Final = "none"
HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
SENDABLE: Final = re.compile(r"[\t -~]*")
"""The characters that are allowed in a header value."""
EVENT_LINE: Final = re.compile(r"^(data|event|id|retry)?:", re.M)
"""A line of a stream of server-sent events."""
CLOSE_SECONDS: Final = 2.0
DRAIN_SECONDS: Final = 0.1
"""How long the rest of a response may take after the end mark of its stream."""
ERROR_FIELDS: Final = frozenset({"error", "errors", "detail", "message", "msg"})
"""Fields that only an error has, if it is sent instead of a stream."""


class RemoteBackend(MeteredConversation):
    """A conversation with the model in `spec`.

    The options of `spec` are a `models.Model`. `keys` maps names to secrets. The first request creates the client in
    the process and event loop that use it. Raise ConfigError if the options are invalid or no key is set.
    """

    def __init__(
        self, spec: BackendSpec, keys: Mapping[str, str], format: ApiFormat, new_client: Callable[[Server], SdkClient]
    ) -> None:
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
        self._headers = headers_in(keys.get(self.model.headers_variable, ""), self.model.headers_variable)
        self._headers |= filled(self.model.headers, keys, self._key)
        if invalid_names := [name for name in self._headers if not HEADER_NAME.fullmatch(name)]:
            raise ConfigError(
                f"cannot send the header {invalid_names[0]!r:.40} of {spec.provider}:{spec.model}: this name is not "
                "valid. Change `headers` in $ORCH_HOME/models.json"
            )
        header_values = {"key": self._key} | {f"header {name!r}": value for name, value in self._headers.items()}
        if invalid := [what for what, value in header_values.items() if not SENDABLE.fullmatch(value)]:
            raise ConfigError(
                f"cannot send the {invalid[0]} of {spec.provider}:{spec.model}: the value must be one line of ASCII. "
                "Change the environment variable or models.json"
            )
        address = mask_passwords(self.model.base_url)
        self._server_address = f" at {address}"
        self._endpoint = Endpoint(
            address if names_address(spec) else spec.provider,
            self._name,
            address,
            self.model.keys,
            self.model.flags.local,
            is_loopback(address),
            self.model.base_url_variable,
            self.model.api in ("chat", "responses"),
        )
        self._format = format
        self._new_client = new_client
        self._client: SdkClient | None = None
        self._refused_signatures: frozenset[str] = frozenset()
        """Signatures of reasoning blocks that the provider refused. Requests do not contain these blocks."""
        self._warned_of_stop = False

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
        if self._refused_signatures:
            messages = without_signatures(messages, self._refused_signatures)
        return ModelRequest(
            provider=self._provider,
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
        body = encoded(self._format.request(self._make_request()))
        reader = self._format.new_reader(self._provider)
        watch = ResponseWatch(self.deadlines, self.limits, self.is_watched)
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
                if self._refuses_signatures(error):
                    failure = RequestFailure(failure.error, transient=True, wait=0.0)
                elif failure.limit is not None:
                    self._learn_limit(failure, failure.limit)
                # A chained traceback would show the server's message, which may contain the key.
                raise failure from None
            # The response is complete, so an error that follows does not matter.
        try:
            content = _content(reader)
        except ValueError as error:
            self._count_failed_usage(reader)
            if reader.stop is None:
                raise self._unfinished(watch) from None
            raise malformed_failure(self._endpoint, error) from None
        stop = self._stop_with_calls(reader, content)
        if stop is None:
            self._count_failed_usage(reader)
            raise self._unfinished(watch)
        return CompleteResponse(content, stop, checked(reader.usage, self.model.context))

    def _unfinished(self, watch: ResponseWatch) -> RequestFailure:
        """Return the failure for a response without a stop reason."""
        failure = self._failure_without_events(watch.head) or truncated_failure(self._endpoint)
        if failure.limit is not None:
            self._learn_limit(failure, failure.limit)
        return failure

    def _stop_with_calls(self, reader: ResponseReader, content: Sequence[Block]) -> StopReason | None:
        """Return the stop reason. It is "tool_use" after an unknown reason if the response has a complete call.

        The arguments of a complete call are a JSON object. A response without a reason must have only complete calls,
        because otherwise the response was probably cut off.
        """
        complete = [block.input.keys() != {INVALID_INPUT} for block in content if isinstance(block, ToolUse)]
        if reader.unknown_stop and reader.stop == "error":
            usable = any(complete)
        else:
            usable = reader.stop is None and reader.done and all(complete)
        if not complete or not usable:
            return reader.stop
        if not self._warned_of_stop:
            self._warned_of_stop = True
            how = f"with the unknown reason {reader.unknown_stop!r:.80}" if reader.unknown_stop else "without a reason"
            print(
                f"{self._full_name}{self._server_address} ended a response {how}: calls whose arguments are complete "
                "run (shown once)",
                flush=True,
            )
        return "tool_use"

    def _refuses_signatures(self, error: Exception) -> bool:
        """Return whether the provider refused reasoning in the request, which is left out from now on.

        A provider refuses the reasoning of another model, for example in an imported conversation.
        """
        if not isinstance(error, ReportedError) or not is_signature_refusal(error.provider_error):
            return False
        signatures = signatures_in(self._request()[1], self._provider, self._name) - self._refused_signatures
        if not signatures:
            return False
        self._refused_signatures |= signatures
        print(
            f"{self._full_name}{self._server_address} refused signed reasoning in the conversation: requests no longer "
            f"contain these {len(signatures)} reasoning blocks",
            flush=True,
        )
        return True

    async def _read(self, body: bytes, reader: ResponseReader, on_text: OnText | None, watch: ResponseWatch) -> None:
        if self._client is None:
            self._client = self._new_client(Server(self.model.base_url, self._key, self._headers, self.deadlines))
        async with watch.listening():
            stream = await self._client.open(body)
            try:
                pieces = stream.pieces()
                async for piece in pieces:
                    progress_before, texts = reader.progress, list[str]()
                    try:
                        texts += map(reader.feed, stream.decoder.feed(piece))
                    finally:
                        # The text before an invalid event counts, too.
                        if reader.progress > progress_before:
                            watch.content_arrived()
                        if on_text is not None and (text := "".join(texts)):
                            on_text(join_surrogates(text))
                    if reader.done:
                        watch.response_complete()
                    if reader.ended:
                        await _drain(pieces)
            finally:
                await stream.close()

    def _failure(self, error: Exception, watch: ResponseWatch) -> RequestFailure | None:
        if (size_error := cause(error, ResponseTooLargeError)) is not None:
            return oversized_failure(self._endpoint, size_error)
        if (redirect := cause(error, CrossOriginRedirectError)) is not None:
            return redirect_failure(self._endpoint, redirect)
        if isinstance(error, ReportedError):
            return self._reported_failure(error.provider_error)
        if (invalid := unsendable_request(error)) is not None:
            return setting_failure(self._endpoint, invalid)
        if isinstance(error, TimeoutError):
            return timeout_failure(self._endpoint, self.deadlines.content if watch.content_missing else None)
        if (found := connection_failure(error)) is not None:
            proxy = str(proxy_of(self.model.base_url, os.environ))
            if (refusal := refusal_of_proxy(error)) is not None:
                return proxy_failure(self._endpoint, refusal, proxy)
            return (
                timeout_failure(self._endpoint)
                if found.kind == "silent"
                else unreachable_failure(self._endpoint, found.reason, refused=found.kind == "refused", proxy=proxy)
            )
        # After the response began, an exception that does not come from the client was caused by invalid data.
        return malformed_failure(self._endpoint, error) if watch.begun or isinstance(error, ValueError) else None

    def _reported_failure(self, provider_error: ProviderError) -> RequestFailure:
        size = RequestSize(self.context_tokens(), self.window)
        masked = msgspec.structs.replace(provider_error, text=self._masked(provider_error.text))
        return classify_error(self._endpoint, masked, size)

    def _failure_without_events(self, head: bytes) -> RequestFailure | None:
        """Return the failure for a response that is not a stream. `head` is its beginning.

        Return None if `head` contains no error.
        """
        text = head.decode(errors="replace").lstrip("\ufeff \t\r\n")
        if is_web_page(text):
            return web_page_failure(self._endpoint, self._masked(read_error_body(text).text))
        body = parsed(text) if text[:1] in ("{", "[") else None
        if isinstance(body, dict) and not ERROR_FIELDS & body.keys():
            return None
        if body is not None:
            return self._reported_failure(ProviderError.read(body))
        if not text or "\ufffd" in text or EVENT_LINE.search(text):
            return None
        return malformed_failure(self._endpoint, ValueError(f"instead of events, {self._masked(text)!r:.500}"))

    def _masked(self, text: str) -> str:
        # A server may repeat keys in its message. The message is shown and logged.
        return mask_passwords(mask_key_shapes(mask_secrets(text, (self._key, *self._headers.values()))))

    def _count_failed_usage(self, reader: ResponseReader, *, sent: bool = False) -> None:
        """Count the usage of a failed attempt."""
        try:
            received = _content(reader)
        except ValueError:
            received = ()  # The data is malformed, so count only the reported usage.
        self._count_failed_attempt(checked(reader.usage, self.model.context).usage, received, sent=sent)


async def _drain(pieces: AsyncIterator[bytes]) -> None:
    """Read the rest of a response after the end mark of its stream, so that the connection can be reused."""
    with suppress(Exception):  # The response is complete.
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in pieces:
                pass


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


def headers_in(text: str, variable: str) -> dict[str, str]:
    """Return the headers in `text`, which is the value of `variable`.

    Each line of `text` has the form `name: value`. Raise ConfigError for any other line. The error does not show the
    value of a header.
    """
    headers: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not line.strip():
            continue
        if not colon or not HEADER_NAME.fullmatch(name):
            problem = f"{name[:40]!r} is not the name of a header" if colon else "it has no colon"
            raise ConfigError(
                f"{variable} is invalid in line {number}: {problem}. Write one header per line, as `Name: value`, "
                "without quotes or braces"
            )
        headers[name] = value
    return headers
