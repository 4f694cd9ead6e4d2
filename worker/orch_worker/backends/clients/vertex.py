"""Anthropic's models on Google Vertex AI. The SDK's client refreshes access tokens."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import quote

import anthropic

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import BackendError, ConfigError

from ...system.threads import describe_exception
from ..formats.messages import MessagesFormat
from ..http.client import SdkClient, Server
from ..http.remote import RemoteBackend
from ..models import filled

__all__ = ["from_spec"]

VERSION: Final = "vertex-2023-10-16"
SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
TOKEN: Final = "CLOUDSDK_AUTH_ACCESS_TOKEN"
FILE: Final = "GOOGLE_APPLICATION_CREDENTIALS"


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> RemoteBackend:
    """Return the backend for the model in `spec`. Raise ConfigError if google-auth or a required setting is missing."""
    settings = filled(spec.options.get("settings") or {}, keys)
    file = "" if keys.get(TOKEN) else keys.get(FILE, "")
    if missing := [name for name in ("region", "project") if name not in settings]:
        variables = {"region": "CLOUD_ML_REGION", "project": "ANTHROPIC_VERTEX_PROJECT_ID"}
        raise ConfigError(f"{spec.provider}:{spec.model} needs {variables[missing[0]]}")
    if file and (find_spec("google") is None or find_spec("google.auth") is None):
        raise ConfigError(f"{FILE} needs google-auth: pip install 'orch-agents[vertex]'")
    client = partial(_client, spec.model, settings["region"], settings["project"], file)
    return RemoteBackend(spec, keys, MessagesFormat(VERSION, {"model"}), client)


def _client(model: str, region: str, project: str, file: str, server: Server) -> SdkClient:
    """Return a client for `model`. Raise BackendError if the credentials file cannot be used.

    `file` is the path of a credentials file. "" means that the key is an access token.
    """
    usual = server.base_url == f"https://{region}-aiplatform.googleapis.com/v1"
    place = f"/projects/{quote(project, safe='')}/locations/{quote(region, safe='')}"
    return SdkClient(
        anthropic,
        anthropic.AsyncAnthropicVertex,
        server,
        f"{place}/publishers/anthropic/models/{quote(model, safe='@')}:streamRawPredict",
        region=region,
        project_id=project,
        base_url=None if usual else server.base_url,  # The SDK knows the addresses of multi-region endpoints.
        **({"credentials": _credentials(file)} if file else {"access_token": server.key}),
    )


def _credentials(file: str) -> Any:
    try:
        return import_module("google.auth").load_credentials_from_file(file, scopes=[SCOPE])[0]
    except Exception as error:
        raise BackendError(f"cannot use the credentials in {FILE}: {describe_exception(error)}") from error
