"""OpenAI's SDK, and what its two APIs have in common: for OpenAI, and for everybody who speaks like it.

Stateless either way: nothing is stored at the provider, and the whole conversation is in every request, encrypted
reasoning included.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
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
]

FAILED: Final = "Error: "
HOST: Final = "openai.com"


class OpenAIApi:
    """What both dialects share. `path` is where requests of the API go."""

    path = ""

    def client(self, key: str, base_url: str, headers: Mapping[str, str], deadlines: Deadlines) -> Any:
        """Return a client that never tries anything twice."""
        client = openai.AsyncOpenAI(
            api_key=key,
            base_url=base_url,
            default_headers=headers,
            max_retries=0,
            timeout=timeout(deadlines),
            http_client=openai.DefaultAsyncHttpxClient(**client_options(base_url)),
        )
        # What they took from the environment of the program may be for somebody else: all that is sent is in `headers`.
        client.organization = client.project = None
        client._custom_headers = headers
        return client

    async def open(self, client: Any, body: bytes) -> ResponseStream:
        """Send the encoded request and return the stream of its response."""
        stream: ResponseStream = await client.post(
            self.path, content=body, cast_to=object, stream=True, stream_cls=openai.AsyncStream[object]
        )
        return stream

    def complaint(self, error: Exception) -> ProviderError | None:
        """Return what the API said; within a stream it comes without a status."""
        if not isinstance(error, openai.APIError) or isinstance(error, openai.APIConnectionError):
            return None
        body = error.body if isinstance(error.body, dict) else {}
        text = str(body.get("message") or error.message)
        kinds = tuple(map(str, filter(None, (error.type, error.code))))
        if isinstance(error, openai.APIStatusError):
            return ProviderError(text, error.status_code, kinds, error.response.headers)
        return ProviderError(text, 0, kinds)


def functions(ask: ModelRequest) -> list[dict[str, Any]]:
    """Return the tools on offer, as both APIs describe them."""
    return [{"name": tool.name, "description": tool.description, "parameters": tool.input_schema} for tool in ask.tools]


def is_openai(model: Model) -> bool:
    """Whether requests go to OpenAI itself rather than to a server with a compatible API."""
    host = urlsplit(model.base_url).hostname or ""
    return host == HOST or host.endswith(f".{HOST}")


def own_fields(ask: ModelRequest, *, store: bool) -> dict[str, Any]:
    """Return the fields that only OpenAI knows: {} for other servers, which may refuse unknown fields.

    `store` says whether to state that nothing is to be stored.
    """
    if not is_openai(ask.model):
        return {}
    key = {"prompt_cache_key": cache_key(ask)} if ask.model.flags.prompt_cache_key else {}
    return key | ({"store": False} if store else {})


def provider_requirements(ask: ModelRequest, ids: re.Pattern[str]) -> ProviderRequirements:
    """Return what the server takes. Only OpenAI is known to take system messages after the first one."""
    flags = ask.model.flags
    return ProviderRequirements(
        ask.provider, ids, images=flags.images, system=flags.system_messages or is_openai(ask.model)
    )


def cache_key(ask: ModelRequest) -> str:
    """Return a name for the prefix that agents of a kind share, so that their requests go to where it is cached."""
    stable = ask.prefix.system if ask.system.startswith(ask.prefix.system) else ""
    prefix = msgspec.json.encode((scrub(stable or ask.system), scrub(msgspec.to_builtins(ask.tools))))
    return hashlib.sha256(prefix).hexdigest()[:32]


def data_url(image: Image) -> str:
    """Return the image as an address that holds it."""
    return f"data:{image.media_type};base64,{image.data}"


def arguments(call: ToolUse) -> str:
    """Return the arguments of a call as JSON text."""
    return msgspec.json.encode(scrub(call.input)).decode()


def result_text(result: ToolResult) -> str:
    """Return the text of a result; there is no other place to say that it is an error."""
    text = text_of(Message("user", result.content))
    return f"{FAILED}{text}" if result.is_error and not text.startswith(FAILED) else text
