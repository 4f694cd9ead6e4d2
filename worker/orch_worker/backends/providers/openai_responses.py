"""The Responses API. Input and output consist of items, including reasoning. The provider stores nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.messages import Block, Image, Message, Opaque, StopReason, Text, ToolResult, ToolUse
from orch_protocol.core.text import scrub

from ..http.failures import ProviderError
from ..http.remote import ModelRequest, RemoteBackend, ResponseReader, StreamError
from ..http.reported_usage import ReportedUsage
from ..normalize_messages import join_surrogates, normalize_messages, parse_input, text_of_part
from .openai import OpenAIApi, arguments, data_url, functions, own_fields, provider_requirements, result_text

__all__ = ["ResponsesApi", "from_spec"]

IDS: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
INCOMPLETE: Final[dict[str, StopReason]] = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}


class ResponsesApi(OpenAIApi):
    """The API `POST /responses`."""

    path = "/responses"

    def request(self, request: ModelRequest) -> dict[str, Any]:
        """Return the body of the request."""
        flags = request.model.flags
        wire: list[dict[str, Any]] = []
        for message in normalize_messages(request.messages, provider_requirements(request, IDS)):
            wire += _items(message)
        if request.tail:
            wire.append({"type": "message", "role": "user", "content": list(_input_parts([Text(request.tail)]))})
        fields = {
            "model": request.name,
            "instructions": request.system if request.system.strip() else "",
            "input": wire,
            "tools": [{"type": "function", "strict": False, **function} for function in functions(request)],
            "max_output_tokens": request.max_output_tokens,
            "include": ["reasoning.encrypted_content"] if flags.reasoning else [],
            "stream": True,
        }
        kept = {name: value for name, value in fields.items() if value}
        return kept | own_fields(request, store=True) | request.model.body

    def new_reader(self, provider: str) -> ResponseReader:
        """Return a reader for one response."""
        return _ResponsesReader(provider)


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> RemoteBackend:
    """Return the backend for the model in `spec`."""
    return RemoteBackend(spec, keys, ResponsesApi())


def _items(message: Message) -> Iterator[dict[str, Any]]:
    if message.role == "assistant":
        yield from _output_items(message.content)
        return
    parts: list[dict[str, Any]] = []
    for block in message.content:
        if isinstance(block, ToolResult):
            yield {"type": "function_call_output", "call_id": block.tool_use_id, "output": _output(block)}
        else:
            parts += _input_parts([block])
    if parts:
        yield {"type": "message", "role": message.role, "content": parts}


def _output_items(blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    pending: list[dict[str, Any]] = []
    phase: dict[str, Any] = {}
    for block in blocks:
        if isinstance(block, Opaque):
            if block.raw.get("type") == "message":
                phase = {"phase": block.raw["phase"]}
            else:
                pending.append(block.raw)
            continue
        # The API rejects reasoning without the item that follows the reasoning, for example after a truncated response.
        yield from pending
        pending = []
        if isinstance(block, ToolUse):
            yield {"type": "function_call", "call_id": block.id, "name": block.name, "arguments": arguments(block)}
        elif isinstance(block, Text):
            content = [{"type": "output_text", "text": block.text}]
            yield {"type": "message", "role": "assistant", "content": content, **phase}
            phase = {}


def _output(result: ToolResult) -> str | list[dict[str, Any]]:
    if not any(isinstance(part, Image) for part in result.content):
        return result_text(result)
    return list(_input_parts(result.content))


def _input_parts(blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    for block in blocks:
        if isinstance(block, Text):
            yield {"type": "input_text", "text": block.text}
        elif isinstance(block, Image):
            yield {"type": "input_image", "image_url": data_url(block), "detail": "auto"}
        elif isinstance(block, Opaque):
            yield _own_part(block.raw)


def _own_part(raw: Any) -> dict[str, Any]:
    """Return a part of a user message. A part of Chat Completions is converted, or replaced by a text."""
    match raw:
        case {"type": "image_url", "image_url": dict(image)}:
            return {"type": "input_image", "image_url": image.get("url"), "detail": image.get("detail", "auto")}
        case {"type": "file", "file": dict(file)}:
            return {"type": "input_file", **file}
        case {"type": "input_text" | "input_image" | "input_file"}:
            return dict(raw)
    return {"type": "input_text", "text": text_of_part(raw)}


class _ResponsesReader:
    """Reads events as plain JSON data, because the SDK's types would convert wrong values to plausible values."""

    def __init__(self, provider: str) -> None:
        self.usage = ReportedUsage(inclusive=True)
        self.stop: StopReason | None = None
        self.done = False
        self.progress = 0
        self._provider = provider
        self._items: dict[int, dict[str, Any]] = {}

    def feed(self, event: dict[str, Any]) -> str:
        kind = str(event.get("type"))
        match kind:
            case "response.output_item.added":
                self.progress += 1
            case "response.output_item.done":
                self._items[event["output_index"]] = event["item"]
                self.progress += 1
            case "response.completed" | "response.incomplete":
                self._end(event["response"])
                self.progress += 1
            case "response.failed":
                self._count(event["response"].get("usage"))
                raise StreamError(_complaint(event["response"].get("error") or {"message": "it failed"}))
            case "error":
                raise StreamError(_complaint(event))
        if not kind.endswith(".delta"):
            return ""
        delta = event["delta"]
        self.progress += bool(delta)
        return str(delta) if kind in ("response.output_text.delta", "response.refusal.delta") else ""

    def blocks(self) -> list[Block]:
        """Return the blocks of the response, in order."""
        return [block for _, item in sorted(self._items.items()) for block in self._blocks(item)]

    def _blocks(self, item: dict[str, Any]) -> Iterator[Block]:
        if item["type"] == "function_call":
            yield ToolUse(item["call_id"], item["name"], parse_input(item["arguments"]))
        elif item["type"] == "message":
            text = "".join(part.get("text") or part.get("refusal") or "" for part in item["content"])
            if not text:
                return
            if item.get("phase"):
                # The phase of a text matters only to the provider. Each request must contain the phase unchanged.
                yield Opaque(self._provider, {"type": "message", "phase": item["phase"]})
            yield Text(join_surrogates(text))
        else:
            yield Opaque(self._provider, scrub(item))

    def _end(self, response: dict[str, Any]) -> None:
        self._count(response.get("usage"))
        self.done = True
        if response.get("status") == "incomplete":
            reason = (response.get("incomplete_details") or {}).get("reason") or "max_output_tokens"
            self.stop = INCOMPLETE.get(reason, "error")
        elif any(part.get("type") == "refusal" for item in self._items.values() for part in item.get("content") or ()):
            self.stop = "refusal"
        else:
            self.stop = "end_turn"

    def _count(self, reported: Any) -> None:
        if not isinstance(reported, dict):
            self.usage = ReportedUsage(reported, reported, inclusive=True)
            return
        details = reported.get("input_tokens_details")
        details = details if isinstance(details, dict) else {}
        self.usage = ReportedUsage(
            input=reported.get("input_tokens"),
            output=reported.get("output_tokens"),
            cache_read=details.get("cached_tokens"),
            cache_write=details.get("cache_write_tokens"),
            inclusive=True,
        )


def _complaint(error: dict[str, Any]) -> ProviderError:
    code = error.get("code")
    return ProviderError(str(error.get("message") or "error"), 0, (str(code),) if code else ())
