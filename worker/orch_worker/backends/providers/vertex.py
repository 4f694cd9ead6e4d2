"""Anthropic's models on Google Vertex AI. The SDK's client refreshes access tokens."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import quote

import anthropic

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import BackendError, ConfigError

from ...system.threads import describe_exception
from ..http.remote import ModelRequest, RemoteBackend
from ..http.transport import Deadlines, client_options, timeout
from ..models import filled
from .anthropic import MessagesApi

__all__ = ["VertexApi", "from_spec"]

VERSION: Final = "vertex-2023-10-16"
SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
TOKEN: Final = "CLOUDSDK_AUTH_ACCESS_TOKEN"
FILE: Final = "GOOGLE_APPLICATION_CREDENTIALS"


class VertexApi(MessagesApi):
    """The API `POST .../publishers/anthropic/models/MODEL:streamRawPredict` with the body of the Messages API.

    `file` is the path of a credentials file. "" means that the key is an access token.
    """

    def __init__(self, model: str, region: str, project: str, file: str) -> None:
        place = f"/projects/{quote(project, safe='')}/locations/{quote(region, safe='')}"
        self.path = f"{place}/publishers/anthropic/models/{quote(model, safe='@')}:streamRawPredict"
        self._region = region
        self._project = project
        self._file = file

    def request(self, request: ModelRequest) -> dict[str, Any]:
        """Return the body of the request. The path of the URL names the model."""
        body = super().request(request)
        del body["model"]
        return {"anthropic_version": VERSION} | body

    def client(self, key: str, base_url: str, headers: Mapping[str, str], deadlines: Deadlines) -> Any:
        """Return a client without retries. Raise BackendError if the credentials file cannot be used."""
        usual = base_url == f"https://{self._region}-aiplatform.googleapis.com/v1"
        client = anthropic.AsyncAnthropicVertex(
            region=self._region,
            project_id=self._project,
            base_url=None if usual else base_url,  # The SDK knows the addresses of multi-region endpoints.
            max_retries=0,
            timeout=timeout(deadlines),
            http_client=anthropic.DefaultAsyncHttpxClient(**client_options(base_url)),
            **({"credentials": _credentials(self._file)} if self._file else {"access_token": key}),
        )
        client._custom_headers = headers
        return client


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> RemoteBackend:
    """Return the backend for the model in `spec`. Raise ConfigError if google-auth or a required setting is missing."""
    settings = filled(spec.options.get("settings") or {}, keys)
    file = "" if keys.get(TOKEN) else keys.get(FILE, "")
    if missing := [name for name in ("region", "project") if name not in settings]:
        variables = {"region": "CLOUD_ML_REGION", "project": "ANTHROPIC_VERTEX_PROJECT_ID"}
        raise ConfigError(f"{spec.provider}:{spec.model} needs {variables[missing[0]]}")
    if file and (find_spec("google") is None or find_spec("google.auth") is None):
        raise ConfigError(f"{FILE} needs google-auth: pip install 'orch-agents[vertex]'")
    return RemoteBackend(spec, keys, VertexApi(spec.model, settings["region"], settings["project"], file))


def _credentials(file: str) -> Any:
    try:
        return import_module("google.auth").load_credentials_from_file(file, scopes=[SCOPE])[0]
    except Exception as error:
        raise BackendError(f"cannot use the credentials in {FILE}: {describe_exception(error)}") from error
