"""OpenAI's Responses API in the gateway."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from orch_worker.backends.formats.reported_usage import ReportedUsage
from orch_worker.backends.formats.responses import read_usage
from orch_worker.backends.formats.server_sent_events import ServerSentEvent

from .api import (
    Fields,
    Operation,
    RecallCall,
    Reply,
    decode_value,
    encode_event,
    encode_value,
    parse_arguments,
    without_nulls,
)
from .openai import OpenAiApi, error_event, session_of

__all__ = ["RESPONSES"]

PATHS: Final[dict[str, Operation]] = {"/responses": "respond", "/responses/input_tokens": "count"}
STORED: Final = ("previous_response_id", "conversation", "background", "prompt")
"""Fields with which the server adds to the conversation, or answers later."""
UNKNOWN_CONTENT: Final = re.compile(rb'"type"\s*:\s*"(compaction|compaction_summary|item_reference)"')
"""Items that stand for others, which only the server knows."""
TOOLS_ITEM: Final = re.compile(rb'"type"\s*:\s*"additional_tools"')
TOOLS_ITEM_START: Final = 200
"""The maximum position of the type in an item that defines tools."""
OUTPUT_TYPES: Final = {"output_text": "text", "input_text": "text"}
ENDS: Final = ("response.completed", "response.incomplete", "response.failed")
OUTSIDE_CONVERSATION: Final = ("id", "status")
"""Fields of items that clients without stored state leave out."""


class _ResponsesApi(OpenAiApi):
    format = "responses"
    conversation = "input"

    def operation(self, path: str) -> Operation | None:
        return next((PATHS[end] for end in PATHS if path.endswith(end)), None)

    def accepts(self, fields: Fields, items: Sequence[bytes]) -> bool:
        return not any(fields.get(name) for name in STORED) and not any(map(UNKNOWN_CONTENT.search, items))

    def session(self, headers: Mapping[str, str], fields: Fields) -> str:
        return session_of(headers, fields)

    def tool_names(self, fields: Fields) -> set[str]:
        tools = fields.get("tools")
        return {str(tool.get("name")) for tool in tools if isinstance(tool, dict)} if isinstance(tools, list) else set()

    def with_tools(
        self, fields: Mapping[str, bytes], items: Sequence[bytes], tools: Sequence[Any]
    ) -> list[bytes] | None:
        places = [index for index, item in enumerate(items) if TOOLS_ITEM.search(item, 0, TOOLS_ITEM_START)]
        if "tools" in fields or not places:
            return None
        own = {"type": "additional_tools", "role": "developer", "tools": list(tools)}
        return [*items[: places[-1] + 1], encode_value(own), *items[places[-1] + 1 :]]

    def without_markers(self, item: Any) -> Any:
        return item

    def identity(self, item: Any) -> Any:
        kind = item.get("type", "message")
        if kind == "message":
            content = item["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else map(_part_identity, content)
            return [item["role"], list(parts)]
        if kind == "function_call":
            return [kind, item["call_id"], item["name"], item["arguments"]]
        if kind == "reasoning" and item.get("encrypted_content"):
            return [kind, item["encrypted_content"]]
        return without_nulls({name: value for name, value in item.items() if name not in OUTSIDE_CONVERSATION})

    def result_items(self, recalls: Sequence[RecallCall], texts: Sequence[str]) -> list[Any]:
        return [
            {"type": "function_call_output", "call_id": call.id, "output": text}
            for call, text in zip(recalls, texts, strict=True)
        ]

    def reported(self, usage: dict[str, Any]) -> ReportedUsage:
        return read_usage(usage)

    def rewriter(self, names: set[str]) -> _ResponsesRewriter:
        return _ResponsesRewriter(names)


def _part_identity(part: Any) -> Any:
    if part.get("type") in OUTPUT_TYPES:
        return {"type": "text", "text": part["text"]}
    return without_nulls(part)


class _ResponsesRewriter:
    def __init__(self, names: set[str]) -> None:
        self.ended = False
        self._names = names
        self._shown: list[dict[str, Any]] = []
        self._last: dict[str, Any] = {}
        self._sequence = 0
        self._rounds = 0
        self._earlier_output = self._output = 0
        self.start()

    def start(self) -> None:
        self.ended = False
        self._items: dict[int, dict[str, Any]] = {}
        self._hidden: set[int] = set()
        self._places: dict[int, int] = {}
        self._held: list[tuple[dict[str, Any], bytes]] = []
        self._status: Any = None
        self._earlier_output, self._output = self._earlier_output + self._output, 0
        self._started = len(self._shown)
        self._rounds += 1

    @property
    def is_complete(self) -> bool:
        return self.ended

    def feed(self, event: ServerSentEvent, raw: bytes) -> bytes:
        data = decode_value(event.data.encode())
        kind = data.get("type")
        if kind in ENDS:
            self._end(data["response"])
            self._held.append((data, raw))
            return b""
        if "response" in data and self._rounds > 1:
            return b""  # The client has seen the beginning of the first response.
        if "output_index" not in data:
            return self._numbered(data, raw)
        index = data["output_index"]
        if kind == "response.output_item.added" and self._is_recall(data["item"]):
            self._hidden.add(index)
        if kind == "response.output_item.done":
            self._items[index] = data["item"]
        if index in self._hidden:
            return b""
        if index not in self._places:
            self._places[index] = len(self._shown)
            self._shown.append({})
        place = self._places[index]
        if kind == "response.output_item.done":
            self._shown[place] = data["item"]
        return self._numbered(data if place == index else data | {"output_index": place}, raw)

    def read(self, body: dict[str, Any]) -> None:
        self._end(body)
        self._items = dict(enumerate(body["output"]))
        self._hidden = {index for index, item in self._items.items() if self._is_recall(item)}
        self._shown += [item for item in body["output"] if not self._is_recall(item)]

    def reply(self) -> Reply:
        answered = self._status == "completed"
        items = [item for _, item in sorted(self._items.items()) if answered or not self._is_recall(item)]
        recalls = tuple(
            RecallCall(item["call_id"], item["name"], parse_arguments(item.get("arguments")))
            for item in items
            if self._is_recall(item)
        )
        calls = any(str(item["type"]).endswith("_call") and "call_id" in item for item in self._shown[self._started :])
        return Reply(items, recalls, calls)

    def finish(self) -> bytes:
        return b"".join(
            self._numbered(data if self._is_plain() else data | {"response": self.body()}, raw)
            for data, raw in self._held
        )

    def body(self) -> dict[str, Any]:
        # The server keeps the whole exchange under the id of its last response.
        merged = self._last | {"output": self._shown}
        usage = self._last.get("usage")
        if isinstance(usage, dict) and self._earlier_output:
            output = self._earlier_output + self._output
            merged["usage"] = usage | {"output_tokens": output}
            if isinstance(usage.get("total_tokens"), int):
                merged["usage"]["total_tokens"] = usage["total_tokens"] + self._earlier_output
        return merged

    def visible(self) -> list[Any]:
        return [] if any(not item for item in self._shown) else self._shown

    def error_event(self, body: bytes) -> bytes:
        return error_event(body, "error")

    @property
    def response_id(self) -> str:
        return str(self._last.get("id") or "")

    def _is_recall(self, item: Any) -> bool:
        return bool(item.get("type") == "function_call" and item.get("name") in self._names)

    def _is_plain(self) -> bool:
        return self._rounds == 1 and not self._hidden

    def _end(self, response: dict[str, Any]) -> None:
        self._last, self._status, self.ended = response, response.get("status"), True
        usage = response.get("usage")
        output = usage.get("output_tokens") if isinstance(usage, dict) else None
        self._output = output if isinstance(output, int) else 0

    def _numbered(self, data: dict[str, Any], raw: bytes) -> bytes:
        """Return an event with the next sequence number, because hidden events had numbers too."""
        if self._is_plain():
            self._sequence = max(self._sequence, data.get("sequence_number", 0) + 1)
            return raw
        if "sequence_number" in data:
            data = data | {"sequence_number": self._sequence}
            self._sequence += 1
        return encode_event(data, data["type"])


RESPONSES: Final = _ResponsesApi()
