"""Anthropic's models on Amazon Bedrock. The SDK's client signs requests and decodes AWS event streams."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import quote

import anthropic

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError

from ..http.remote import ModelRequest, RemoteBackend
from ..http.transport import Deadlines, client_options, timeout
from ..models import filled
from .anthropic import MessagesApi

__all__ = ["BedrockApi", "from_spec"]

VERSION: Final = "bedrock-2023-05-31"
BEARER: Final = "AWS_BEARER_TOKEN_BEDROCK"


class BedrockApi(MessagesApi):
    """The API `POST /model/MODEL/invoke-with-response-stream` with the body of the Messages API.

    `settings` contains the region. For an API key, `settings` contains nothing else. Otherwise `settings` also contains
    an access key and the secret of this key.
    """

    def __init__(self, model: str, settings: Mapping[str, str], *, bearer: bool) -> None:
        self.path = f"/model/{quote(model, safe=':')}/invoke-with-response-stream"
        self._settings = settings
        self._bearer = bearer

    def request(self, request: ModelRequest) -> dict[str, Any]:
        """Return the body of the request. The path of the URL names the model."""
        body = super().request(request)
        del body["model"], body["stream"]
        return {"anthropic_version": VERSION} | body

    def client(self, key: str, base_url: str, headers: Mapping[str, str], deadlines: Deadlines) -> Any:
        """Return a client without retries."""
        given = self._settings
        account = {
            "aws_access_key": given.get("access_key"),
            "aws_secret_key": given.get("secret_key"),
            "aws_session_token": given.get("session_token"),
        }
        client = anthropic.AsyncAnthropicBedrock(
            aws_region=given["region"],
            base_url=base_url,
            max_retries=0,
            timeout=timeout(deadlines),
            http_client=anthropic.DefaultAsyncHttpxClient(**client_options(base_url)),
            **({"api_key": key} if self._bearer else account),
        )
        # The signature covers this header. The transport sets the header to the only encoding that it decodes.
        client._custom_headers = {"accept-encoding": "gzip", **headers}
        return client


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
    return RemoteBackend(spec, keys, BedrockApi(spec.model, settings, bearer=bearer))
