"""Anthropic's models on Amazon Bedrock. The SDK's client signs requests and decodes AWS event streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Final
from urllib.parse import quote

import anthropic
from anthropic.lib.bedrock._stream_decoder import AWSEventStreamDecoder
from msgspec.structs import replace

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError

from ..formats.messages import MessagesFormat
from ..formats.server_sent_events import ServerSentEvent
from ..http.client import SdkClient, Server
from ..http.remote import RemoteBackend
from ..models import filled

__all__ = ["MessageDecoder", "from_spec"]

VERSION: Final = "bedrock-2023-05-31"
BEARER: Final = "AWS_BEARER_TOKEN_BEDROCK"
PRELUDE_BYTES: Final = 12
"""Size of the beginning of a message, which starts with the size of the message as a number of 4 bytes."""
MIN_BYTES: Final = 16
"""Size of a message without headers and without content."""


class MessageDecoder:
    """Decodes the messages of an AWS event stream, whose bytes arrive in pieces of any size."""

    def __init__(self) -> None:
        self._decoder = AWSEventStreamDecoder()
        self._bytes = bytearray()

    def feed(self, piece: bytes) -> Iterator[ServerSentEvent]:
        """Yield the events that `piece` completes. Raise an exception of the SDK's decoder for invalid bytes."""
        self._bytes += piece
        while len(self._bytes) >= PRELUDE_BYTES:
            size = max(int.from_bytes(self._bytes[:4]), MIN_BYTES)
            message = bytes(self._bytes[:size])
            # The decoder also checks the prelude of an incomplete message.
            for event in self._decoder.iter_bytes(iter([message])):
                yield ServerSentEvent(event.event or "", event.data)
            if len(message) < size:
                return
            del self._bytes[:size]


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> RemoteBackend:
    """Return the backend for the model in `spec`.

    Raise ConfigError if botocore is missing or the access key is incomplete.
    """
    settings = filled(spec.options.get("settings") or {}, keys)
    bearer = bool(keys.get(BEARER))
    if find_spec("boto3") is None:
        raise ConfigError(f"{spec.provider} needs boto3: pip install 'orch-agents[bedrock]'")
    if "region" not in settings:
        raise ConfigError(f"{spec.provider}:{spec.model} needs AWS_REGION")
    if not bearer and "secret_key" not in settings:
        raise ConfigError(f"{spec.provider}:{spec.model} needs AWS_SECRET_ACCESS_KEY beside AWS_ACCESS_KEY_ID")
    return RemoteBackend(
        spec, keys, MessagesFormat(VERSION, {"model", "stream"}), partial(_client, spec.model, settings, bearer=bearer)
    )


def _client(model: str, settings: Mapping[str, str], server: Server, *, bearer: bool) -> SdkClient:
    """Return a client for `model`.

    `settings` contains the region. For an API key (`bearer`), `settings` contains nothing else. Otherwise `settings`
    also contains an access key and the secret of this key.
    """
    account = {
        "aws_access_key": settings.get("access_key"),
        "aws_secret_key": settings.get("secret_key"),
        "aws_session_token": settings.get("session_token"),
    }
    return SdkClient(
        anthropic,
        anthropic.AsyncAnthropicBedrock,
        # The signature covers this header. The transport sets the header to the only encoding that it decodes.
        replace(server, headers={"accept-encoding": "gzip", **server.headers}),
        f"/model/{quote(model, safe=':')}/invoke-with-response-stream",
        MessageDecoder,
        aws_region=settings["region"],
        base_url=server.base_url,
        **({"api_key": server.key} if bearer else account),
    )
