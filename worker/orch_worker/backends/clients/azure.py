"""OpenAI's models on Azure, through the SDK's client: the Chat Completions API of a deployment."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import openai

from orch_protocol.agent.spec import BackendSpec

from ..formats.chat import ChatFormat
from ..http.client import SdkClient, Server
from ..http.remote import RemoteBackend
from ..models import filled
from .openai import OpenAIClient

__all__ = ["from_spec"]

VERSION: Final = "2024-10-21"
"""The API version to use if OPENAI_API_VERSION is not set."""
API_KEY: Final = "AZURE_OPENAI_API_KEY"


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> RemoteBackend:
    """Return the backend for the deployment in `spec`."""
    version = filled(spec.options.get("settings") or {}, keys).get("api_version", VERSION)
    client = partial(_client, spec.model, version, has_key=bool(keys.get(API_KEY)))
    return RemoteBackend(spec, keys, ChatFormat(), client)


def _client(deployment: str, version: str, server: Server, *, has_key: bool) -> SdkClient:
    """Return a client for `deployment`. If `has_key` is False, the key is an access token."""
    given: dict[str, Any] = {"api_key": server.key} if has_key else {"azure_ad_token": server.key}
    return OpenAIClient(
        openai.AsyncAzureOpenAI,
        server,
        f"/deployments/{quote(deployment, safe='')}/chat/completions",
        azure_endpoint=server.base_url,
        api_version=version,
        **given,
    )
