"""The common part of the formats of OpenAI's two APIs, for OpenAI and for compatible servers.

Requests are stateless: the provider stores nothing, and each request contains the whole conversation with encrypted
reasoning.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Block, Image, Message, Opaque, Text, ToolResult, ToolUse, text_of
from orch_protocol.core.text import scrub

from ...conversation.tokens import strings
from ..models import Model
from .format import ModelRequest, ResponseReader
from .normalize_messages import ProviderRequirements
from .provider_error import ProviderError, ReportedError
from .reported_usage import ReportedUsage
from .server_sent_events import ServerSentEvent

__all__ = [
    "OpenAIReader",
    "arguments",
    "compact_json",
    "data_url",
    "decode_part",
    "decode_result",
    "is_openai",
    "own_fields",
    "parse_arguments",
    "provider_requirements",
    "result_text",
]

FAILED: Final = "Error: "
HOST: Final = "openai.com"
NAMES: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
END: Final = "[DONE]"


class OpenAIReader(ResponseReader):
    """The common part of the readers of both APIs: the end mark, and errors that any event may contain."""

    def __init__(self, provider: str) -> None:
        super().__init__(provider)
        self.usage = ReportedUsage(inclusive=True)

    def feed(self, event: ServerSentEvent) -> str:
        if self.ended or event.data.startswith(END):
            self.ended = True
            return ""
        value = json.loads(event.data)
        if isinstance(value, dict) and (error := value.get("error")):
            raise ReportedError(ProviderError.read(error))
        return self._add_value(value)


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
        request.provider,
        ids,
        NAMES,
        request.name,
        images=flags.images,
        system=flags.system_messages or is_openai(request.model),
    )


def cache_key(request: ModelRequest) -> str:
    """Return a key for the prefix that similar agents share. The key causes their requests to use the same cache."""
    stable = request.prefix.system if request.system.startswith(request.prefix.system) else ""
    prefix = msgspec.json.encode((scrub(stable or request.system), scrub(msgspec.to_builtins(request.tools))))
    return hashlib.sha256(prefix).hexdigest()[:32]


def data_url(image: Image) -> str:
    """Return the image as a data URL."""
    return f"data:{image.media_type};base64,{image.data}"


def decode_part(raw: Any, provider: str) -> Block:
    """Return a part of a message's content. Raise ConfigError if it is not valid.

    A part that is neither text nor a data URL of an image belongs to `provider`.
    """
    match raw:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return Text(text)
        case {"type": "refusal", "refusal": str(text)}:
            return Text(text)
        case {"type": "image_url", "image_url": {"url": str(url)}} | {"type": "input_image", "image_url": str(url)} if (
            url.startswith("data:image/") and ";base64," in url
        ):
            kind, _, data = url.removeprefix("data:").partition(";base64,")
            return Image("image/jpeg" if kind == "image/jpg" else kind, data)
        case {"type": str()}:
            return Opaque(provider, raw)
    raise ConfigError(f"a part of a message's content must be an object with a type; got {raw!r:.60}")


def decode_result(id: str, content: Any) -> Message:
    """Return the result `content` of the call `id`. A part that is neither text nor an image becomes text."""
    parts = content if isinstance(content, list) else [content] if content is not None else []
    if isinstance(content, str):
        parts = [{"type": "text", "text": content}]
    blocks = (decode_part(part, "") for part in parts)
    shown = tuple(
        block if isinstance(block, (Text, Image)) else Text("\n".join(strings(part)))
        for block, part in zip(blocks, parts, strict=True)
    )
    return Message("user", (ToolResult(id, shown),))


def parse_arguments(given: Any) -> dict[str, Any]:
    """Return the tool arguments in `given`, which a model wrote as JSON. Some servers return them as an object.

    If `given` is neither an object nor its JSON text, return it under the key "arguments". Return {} for None.
    """
    if given is None or isinstance(given, dict):
        return given or {}
    try:
        parsed = msgspec.json.decode(given) if isinstance(given, str) else None
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {"arguments": given}


def compact_json(input: dict[str, Any]) -> str:
    """Return tool arguments as JSON text.

    Unlike `arguments`, the text never changes: archives contain only the difference between it and the original text.
    """
    return json.dumps(input, ensure_ascii=False, separators=(",", ":"))


def arguments(call: ToolUse) -> str:
    """Return the arguments of a call as JSON text for a request."""
    return msgspec.json.encode(scrub(call.input)).decode()


def result_text(result: ToolResult) -> str:
    """Return the text of a result. An error gets a prefix, because the API has no field for errors."""
    text = text_of(Message("user", result.content))
    return f"{FAILED}{text}" if result.is_error and not text.startswith(FAILED) else text
