"""The client for the Messages API of Anthropic and compatible servers."""

from __future__ import annotations

from collections.abc import Mapping

import anthropic

from orch_protocol.agent.spec import BackendSpec

from ..formats.messages import MessagesFormat
from ..http.client import SdkClient, Server
from ..http.remote import RemoteBackend

__all__ = ["from_spec"]


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> RemoteBackend:
    """Return the backend for the model in `spec`."""
    return RemoteBackend(spec, keys, MessagesFormat(), _client)


def _client(server: Server) -> SdkClient:
    kind = anthropic.AsyncAnthropic
    return SdkClient(anthropic, kind, server, "/v1/messages", api_key=server.key, base_url=server.base_url)
