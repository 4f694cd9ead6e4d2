"""The APIs of models in clouds: the paths and bodies of Bedrock, Vertex and Azure, and the event stream of AWS."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar
from urllib.parse import unquote

from wire import chat_rules, messages_rules
from wire.rules import Refused, need

BEDROCK = re.compile(r"/model/([^/]+)/invoke-with-response-stream")
VERTEX = re.compile(r"/projects/p1/locations/[\w-]+/publishers/anthropic/models/([^/:]+):streamRawPredict")
AZURE = re.compile(r"/openai/deployments/([^/]+)/chat/completions")


class Vertex:
    """The Messages API with the model in the path and the version in the body."""

    version = "vertex-2023-10-16"
    headers: ClassVar[Mapping[str, str]] = {}

    def __init__(self, model: str) -> None:
        self.model = unquote(model)

    def error(self, kind: str, message: str) -> dict[str, Any]:
        return messages_rules.error(kind, message)

    def error_event(self, kind: str, message: str) -> bytes:
        return messages_rules.error_event(kind, message)

    def check(self, body: dict[str, Any], headers: Mapping[str, str], issued: dict[str, Any]) -> None:
        """Refuse the requests that the real server refuses."""
        need(body.get("anthropic_version") == self.version, "anthropic_version: Field required")
        need("model" not in body, "model: Extra inputs are not permitted")
        rest = {name: value for name, value in body.items() if name != "anthropic_version"}
        messages_rules.check(rest | {"model": self.model}, {**headers, "anthropic-version": self.version}, issued)

    def events(self, answer: Any, body: dict[str, Any], server: Any) -> Iterator[bytes]:
        return messages_rules.events(answer, body | {"model": self.model}, server)


class Bedrock(Vertex):
    """The Messages API with another version and the event stream of AWS."""

    version = "bedrock-2023-05-31"
    headers: ClassVar[Mapping[str, str]] = {"content-type": "application/vnd.amazon.eventstream"}

    def error(self, kind: str, message: str) -> dict[str, Any]:
        return {"message": message, "__type": kind}

    def error_event(self, kind: str, message: str) -> bytes:
        return frame({":exception-type": kind, ":message-type": "exception"}, {"message": message})

    def check(self, body: dict[str, Any], headers: Mapping[str, str], issued: dict[str, Any]) -> None:
        need("stream" not in body, "stream: Extra inputs are not permitted")
        if not headers.get("authorization", "").startswith(("Bearer ", "AWS4-HMAC-SHA256 ")):
            raise Refused("The security token included in the request is invalid.", 403, "UnrecognizedClientException")
        super().check(body | {"stream": True}, headers, issued)

    def events(self, answer: Any, body: dict[str, Any], server: Any) -> Iterator[bytes]:
        for event in super().events(answer, body, server):
            data = event.decode().partition("data: ")[2].strip()
            payload = {"bytes": base64.b64encode(data.encode()).decode()}
            yield frame({":event-type": "chunk", ":message-type": "event"}, payload)


class Azure:
    """The Chat Completions API with the deployment in the path."""

    headers: ClassVar[Mapping[str, str]] = {}

    def __init__(self, deployment: str) -> None:
        self.deployment = unquote(deployment)

    def error(self, kind: str, message: str) -> dict[str, Any]:
        return chat_rules.error(kind, message)

    def error_event(self, kind: str, message: str) -> bytes:
        return chat_rules.error_event(kind, message)

    def check(self, body: dict[str, Any], headers: Mapping[str, str], issued: dict[str, Any]) -> None:
        """Refuse the requests that the real server refuses."""
        if not (headers.get("api-key") or headers.get("authorization", "").removeprefix("Bearer ")):
            raise Refused("Access denied due to missing subscription key.", 401, "401")
        need("store" not in body, "Unrecognized request argument supplied: store")
        chat_rules.check(body, {**headers, "authorization": "Bearer x"}, issued)

    def events(self, answer: Any, body: dict[str, Any], server: Any) -> Iterator[bytes]:
        yield b'data: {"choices": [], "object": "", "prompt_filter_results": [{"prompt_index": 0}]}\n\n'
        yield from chat_rules.events(answer, body, server)


def at(path: str) -> Any:
    """Return the rules for `path`, or None."""
    for pattern, rules in ((BEDROCK, Bedrock), (VERTEX, Vertex), (AZURE, Azure)):
        if (found := pattern.fullmatch(path)) is not None:
            return rules(found[1])
    return None


def frame(headers: Mapping[str, str], payload: dict[str, Any]) -> bytes:
    """Return one message of an AWS event stream."""
    head = b""
    for name, value in {**headers, ":content-type": "application/json"}.items():
        head += struct.pack(">B", len(name)) + name.encode() + struct.pack(">BH", 7, len(value)) + value.encode()
    body = json.dumps(payload).encode()
    prelude = struct.pack(">II", 12 + len(head) + len(body) + 4, len(head))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + head + body
    return message + struct.pack(">I", zlib.crc32(message))
