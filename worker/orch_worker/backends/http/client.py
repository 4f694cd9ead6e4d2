"""Sends requests through the client of an SDK, which authenticates them. The SDK does not parse the responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, Protocol

from msgspec import Struct

from ..formats.provider_error import ProviderError, ReportedError
from ..formats.server_sent_events import EventDecoder, ServerSentEvent
from .transport import Deadlines, http_client, timeout

__all__ = ["ResponseStream", "SdkClient", "Server"]


class Server(Struct, frozen=True):
    """The address of a server, the key and the headers to send, and the timeouts."""

    base_url: str
    key: str
    headers: Mapping[str, str]
    deadlines: Deadlines


class Decoder(Protocol):
    """Decodes the bytes of one response."""

    def feed(self, piece: bytes) -> Iterable[ServerSentEvent]:
        """Return the events that `piece`, the next bytes, completes."""


class ResponseStream:
    """The response to a request, and the decoder of its bytes."""

    def __init__(self, stream: Any, decoder: Decoder) -> None:
        self.decoder = decoder
        self._stream = stream

    def pieces(self) -> AsyncIterator[bytes]:
        """Return an iterator over the bytes of the response."""
        pieces: AsyncIterator[bytes] = self._stream.response.aiter_raw()
        return pieces

    async def close(self) -> None:
        """Close the response."""
        await self._stream.close()


class SdkClient:
    """Sends requests to `path` of `server`, without retries.

    `module` is the SDK, `kind` its class of clients, and `settings` are options of this class.
    """

    def __init__(
        self,
        module: ModuleType,
        kind: Callable[..., Any],
        server: Server,
        path: str,
        new_decoder: Callable[[], Decoder] = EventDecoder,
        **settings: Any,
    ) -> None:
        self.sdk = kind(
            default_headers=server.headers,
            max_retries=0,
            timeout=timeout(server.deadlines),
            http_client=http_client(module.DefaultAioHttpClient, server.base_url),
            **settings,
        )
        # Ignore header variables of the environment, because they may be for another server.
        self.sdk._custom_headers = server.headers
        self._module = module
        self._path = path
        self._new_decoder = new_decoder

    async def open(self, body: bytes) -> ResponseStream:
        """Send the encoded request and return its response. Raise ReportedError if the response is an error."""
        stream_class = self._module.AsyncStream[object]
        try:
            stream = await self.sdk.post(self._path, content=body, cast_to=object, stream=True, stream_cls=stream_class)
        except self._module.APIStatusError as error:
            raise ReportedError(ProviderError.read(error.body, error.status_code, error.response.headers)) from None
        return ResponseStream(stream, self._new_decoder())

    async def close(self) -> None:
        """Close the connections."""
        await self.sdk.close()
