"""The client for OpenAI's two APIs, for OpenAI and for compatible servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import openai

from orch_protocol.agent.spec import BackendSpec

from ..formats.chat import ChatFormat
from ..formats.responses import ResponsesFormat
from ..http.client import SdkClient, Server
from ..http.remote import RemoteBackend

__all__ = ["OpenAIClient", "from_spec"]


class OpenAIClient(SdkClient):
    """Sends requests to OpenAI or a compatible server."""

    def __init__(self, kind: Callable[..., Any], server: Server, path: str, **settings: Any) -> None:
        super().__init__(openai, kind, server, path, **settings)
        # Ignore settings from the environment, which may be for another server.
        self.sdk.organization = self.sdk.project = None


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> RemoteBackend:
    """Return the backend for the model in `spec`."""
    if spec.options.get("api") == "responses":
        return RemoteBackend(spec, keys, ResponsesFormat(), partial(_client, "/responses"))
    reasoning_field = (spec.options.get("flags") or {}).get("reasoning_field", "")
    return RemoteBackend(spec, keys, ChatFormat(reasoning_field), partial(_client, "/chat/completions"))


def _client(path: str, server: Server) -> SdkClient:
    return OpenAIClient(openai.AsyncOpenAI, server, path, base_url=server.base_url, api_key=server.key)
