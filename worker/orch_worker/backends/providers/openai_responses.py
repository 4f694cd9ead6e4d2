"""The Responses API: items in and items out, reasoning among them, and no state at the provider."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.messages import Block, Image, Message, Opaque, StopReason, Text, ToolResult, ToolUse
from orch_protocol.core.text import scrub

from ..http.failures import ProviderError
from ..http.remote import ModelRequest, RemoteBackend, ResponseReader, StreamError, parse_input
from ..http.reported_usage import ReportedUsage
from ..normalize_messages import arrange, whole
from .openai import OpenAIApi, arguments, data_url, functions, own_fields, provider_requirements, result_text

__all__ = ["ResponsesApi", "from_spec"]

IDS: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
INCOMPLETE: Final[dict[str, StopReason]] = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}


class ResponsesApi(OpenAIApi):
    """The dialect of `POST /responses`."""

    path = "/responses"

    def request(self, ask: ModelRequest) -> dict[str, Any]:
        """Return the body of the request."""
        flags = ask.model.flags
        wire: list[dict[str, Any]] = []
        for message in arrange(ask.messages, provider_requirements(ask, IDS)):
            wire += _items(message)
        if ask.tail:
            wire.append({"type": "message", "role": "user", "content": list(_input_parts([Text(ask.tail)]))})
        request = {
            "model": ask.name,
            "instructions": ask.system if ask.system.strip() else "",
            "input": wire,
            "tools": [{"type": "function", "strict": False, **function} for function in functions(ask)],
            "max_output_tokens": ask.most_output,
            "include": ["reasoning.encrypted_content"] if flags.reasoning else [],
            "stream": True,
        }
        kept = {name: value for name, value in request.items() if value}
        return kept | own_fields(ask, store=True) | ask.model.body

    def reading(self, provider: str) -> ResponseReader:
        """Return what reads one response."""
        return _ResponsesReader(provider)


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> RemoteBackend:
    """Return the backend for the model that `spec` names."""
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
    held: list[dict[str, Any]] = []
    phase: dict[str, Any] = {}
    for block in blocks:
        if isinstance(block, Opaque):
            if block.raw.get("type") == "message":
                phase = {"phase": block.raw["phase"]}
            else:
                held.append(block.raw)
            continue
        # Reasoning is refused without the item that it led to, as in a response that was cut off.
        yield from held
        held = []
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


class _ResponsesReader:
    """Reads events as plain JSON data: the SDK's types would turn a wrong value into a plausible one."""

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
        """Return what the response consists of, in order."""
        return [block for _, item in sorted(self._items.items()) for block in self._blocks(item)]

    def _blocks(self, item: dict[str, Any]) -> Iterator[Block]:
        if item["type"] == "function_call":
            yield ToolUse(item["call_id"], item["name"], parse_input(item["arguments"]))
        elif item["type"] == "message":
            text = "".join(part.get("text") or part.get("refusal") or "" for part in item["content"])
            if not text:
                return
            if item.get("phase"):
                # Which part of the work a text belongs to is for the provider alone, and must come back to it.
                yield Opaque(self._provider, {"type": "message", "phase": item["phase"]})
            yield Text(whole(text))
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

    def _count(self, told: Any) -> None:
        if not isinstance(told, dict):
            self.usage = ReportedUsage(told, told, inclusive=True)
            return
        details = told.get("input_tokens_details")
        details = details if isinstance(details, dict) else {}
        self.usage = ReportedUsage(
            input=told.get("input_tokens"),
            output=told.get("output_tokens"),
            cache_read=details.get("cached_tokens"),
            cache_write=details.get("cache_write_tokens"),
            inclusive=True,
        )


def _complaint(error: dict[str, Any]) -> ProviderError:
    code = error.get("code")
    return ProviderError(str(error.get("message") or "error"), 0, (str(code),) if code else ())
