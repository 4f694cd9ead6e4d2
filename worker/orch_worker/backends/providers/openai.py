"""The common part of OpenAI's two APIs, for OpenAI and for compatible servers.

Requests are stateless: the provider stores nothing, and each request contains the whole conversation with encrypted
reasoning.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import openai

from orch_protocol.core.messages import Image, Message, ToolResult, ToolUse, text_of
from orch_protocol.core.text import scrub

from ..http.failures import ProviderError
from ..http.remote import ModelRequest, ResponseStream
from ..http.transport import Deadlines, client_options, timeout
from ..models import Model
from ..normalize_messages import ProviderRequirements

__all__ = [
    "OpenAIApi",
    "arguments",
    "data_url",
    "functions",
    "is_openai",
    "own_fields",
    "provider_requirements",
    "result_text",
    "sdk_client",
]

FAILED: Final = "Error: "
HOST: Final = "openai.com"


def sdk_client(
    kind: Callable[..., Any], server: str, headers: Mapping[str, str], deadlines: Deadlines, **settings: Any
) -> Any:
    """Return a client of the SDK's class `kind` for `server`, without retries."""
    client = kind(
        default_headers=headers,
        max_retries=0,
        timeout=timeout(deadlines),
        http_client=openai.DefaultAsyncHttpxClient(**client_options(server)),
        **settings,
    )
    # Ignore settings from the environment, which may be for another server; send only `headers`.
    client.organization = client.project = None
    client._custom_headers = headers
    return client


class OpenAIApi:
    """The common part of both APIs. `path` is the URL path of requests."""

    path = ""

    def client(self, key: str, base_url: str, headers: Mapping[str, str], deadlines: Deadlines) -> Any:
        """Return a client without retries."""
        return sdk_client(openai.AsyncOpenAI, base_url, headers, deadlines, base_url=base_url, api_key=key)

    async def open(self, client: Any, body: bytes) -> ResponseStream:
        """Send the encoded request and return the stream of its response."""
        stream: ResponseStream = await client.post(
            self.path, content=body, cast_to=object, stream=True, stream_cls=openai.AsyncStream[object]
        )
        return stream

    def provider_error(self, error: Exception) -> ProviderError | None:
        """Return the error that the API reported, or None for other errors.

        An error within a stream has no status.
        """
        if not isinstance(error, openai.APIError) or isinstance(error, openai.APIConnectionError):
            return None
        body = error.body if isinstance(error.body, dict) else {}
        text = str(body.get("message") or error.message)
        kinds = tuple(map(str, filter(None, (error.type, error.code))))
        if isinstance(error, openai.APIStatusError):
            return ProviderError(text, error.status_code, kinds, error.response.headers)
        return ProviderError(text, 0, kinds)


def functions(request: ModelRequest) -> list[dict[str, Any]]:
    """Return the tools in the format of both APIs."""
    return [
        {"name": tool.name, "description": tool.description, "parameters": tool.input_schema} for tool in request.tools
    ]


def is_openai(model: Model) -> bool:
    """Return whether requests go to OpenAI itself rather than to a compatible server."""
    host = urlsplit(model.base_url).hostname or ""
    return host == HOST or host.endswith(f".{HOST}")


def own_fields(request: ModelRequest, *, store: bool) -> dict[str, Any]:
    """Return the fields that only OpenAI supports. Return {} for other servers, which may reject unknown fields.

    If `store` is True, the fields explicitly disable storage.
    """
    if not is_openai(request.model):
        return {}
    key = {"prompt_cache_key": cache_key(request)} if request.model.flags.prompt_cache_key else {}
    return key | ({"store": False} if store else {})


def provider_requirements(request: ModelRequest, ids: re.Pattern[str]) -> ProviderRequirements:
    """Return the requirements of the server. Only OpenAI is known to accept later system messages."""
    flags = request.model.flags
    return ProviderRequirements(
        request.provider, ids, images=flags.images, system=flags.system_messages or is_openai(request.model)
    )


def cache_key(request: ModelRequest) -> str:
    """Return a key for the prefix that similar agents share. The key causes their requests to use the same cache."""
    stable = request.prefix.system if request.system.startswith(request.prefix.system) else ""
    prefix = msgspec.json.encode((scrub(stable or request.system), scrub(msgspec.to_builtins(request.tools))))
    return hashlib.sha256(prefix).hexdigest()[:32]


def data_url(image: Image) -> str:
    """Return the image as a data URL."""
    return f"data:{image.media_type};base64,{image.data}"


def arguments(call: ToolUse) -> str:
    """Return the arguments of a call as JSON text."""
    return msgspec.json.encode(scrub(call.input)).decode()


def result_text(result: ToolResult) -> str:
    """Return the text of a result. An error gets a prefix, because the API has no field for errors."""
    text = text_of(Message("user", result.content))
    return f"{FAILED}{text}" if result.is_error and not text.startswith(FAILED) else text
