"""OpenAI's models on Azure, through the SDK's client: the Chat Completions API of a deployment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import openai

from orch_protocol.agent.spec import BackendSpec

from ..http.remote import RemoteBackend
from ..http.transport import Deadlines
from ..models import filled
from .openai import sdk_client
from .openai_chat import ChatCompletionsApi

__all__ = ["AzureApi", "from_spec"]

VERSION: Final = "2024-10-21"
"""The API version to use if OPENAI_API_VERSION is not set."""
API_KEY: Final = "AZURE_OPENAI_API_KEY"


class AzureApi(ChatCompletionsApi):
    """The API `POST /openai/deployments/DEPLOYMENT/chat/completions`.

    If `has_key` is False, the key is an access token.
    """

    def __init__(self, deployment: str, version: str, *, has_key: bool) -> None:
        super().__init__()
        self.path = f"/deployments/{quote(deployment, safe='')}/chat/completions"
        self._version = version
        self._has_key = has_key

    def client(self, key: str, base_url: str, headers: Mapping[str, str], deadlines: Deadlines) -> Any:
        """Return a client without retries."""
        given: dict[str, Any] = {"api_key": key} if self._has_key else {"azure_ad_token": key}
        return sdk_client(
            openai.AsyncAzureOpenAI,
            base_url,
            headers,
            deadlines,
            azure_endpoint=base_url,
            api_version=self._version,
            **given,
        )


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> RemoteBackend:
    """Return the backend for the deployment in `spec`."""
    version = filled(spec.options.get("settings") or {}, keys).get("api_version", VERSION)
    return RemoteBackend(spec, keys, AzureApi(spec.model, version, has_key=bool(keys.get(API_KEY))))
