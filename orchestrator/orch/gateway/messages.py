"""The Anthropic Messages API in the gateway."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import DecodeError, MsgspecError

from orch_worker.backends.formats.lenient_json import decode_lenient
from orch_worker.backends.formats.messages import CAN_BE_MARKED, read_usage
from orch_worker.backends.formats.reported_usage import ReportedUsage
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

__all__ = ["MESSAGES"]

PATHS: Final[dict[str, Operation]] = {"/messages": "respond", "/messages/count_tokens": "count"}
SESSION_HEADERS: Final = ("x-claude-code-session-id", "x-session-id", "session_id", "session-id")
MARKER_NAME: Final = "cache_control"
MARKER_PATTERN: Final = re.compile(rb'"cache_control"\s*:')
ONE_HOUR_PATTERN: Final = re.compile(rb'"ttl"\s*:\s*"1h"')
MAX_MARKERS: Final = 4
CUT_OFF: Final = ("max_tokens", "model_context_window_exceeded", "refusal", "pause_turn")
"""Stop reasons of responses that are not complete, so that the input of a call may be cut off."""
COMPACTION_PATTERN: Final = re.compile(rb'"type"\s*:\s*"compaction"')


class _MessagesApi:
    format = "anthropic"
    conversation = "messages"
    instructions_first = False

    def operation(self, path: str) -> Operation | None:
        return next((PATHS[end] for end in PATHS if path.endswith(f"/v1{end}")), None)

    def accepts(self, fields: Fields, items: Sequence[bytes]) -> bool:  # noqa: ARG002
        # The server ignores what is before a block of its own compaction, so archiving would have no effect.
        return not any(b'"compaction"' in item and COMPACTION_PATTERN.search(item) for item in items)

    def session(self, headers: Mapping[str, str], fields: Fields) -> str:
        for name in SESSION_HEADERS:
            if value := headers.get(name):
                return value
        metadata = fields.get("metadata")
        user = metadata.get("user_id") if isinstance(metadata, dict) else None
        return user if isinstance(user, str) else ""

    def continued(self, fields: Fields) -> str:  # noqa: ARG002
        return ""

    def tool_names(self, fields: Fields) -> set[str]:
        tools = fields.get("tools")
        return {str(tool.get("name")) for tool in tools if isinstance(tool, dict)} if isinstance(tools, list) else set()

    def with_tools(
        self,
        fields: Mapping[str, bytes],  # noqa: ARG002
        items: Sequence[bytes],  # noqa: ARG002
        tools: Sequence[Any],  # noqa: ARG002
    ) -> list[bytes] | None:
        return None

    def without_markers(self, item: Any) -> Any:
        content = item.get("content")
        return item | {"content": [_unmarked(block) for block in content]} if isinstance(content, list) else item

    def identity(self, item: Any) -> Any:
        return [item["role"], [_block_identity(_unmarked(block)) for block in _blocks(item) if not _is_empty(block)]]

    def result_items(self, recalls: Sequence[RecallCall], texts: Sequence[str]) -> list[Any]:
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": text}
            for call, text in zip(recalls, texts, strict=True)
        ]
        return [{"role": "user", "content": results}]

    def join(self, results: Sequence[Any], item: Any) -> list[Any]:
        """All results of a response belong into one message, before other blocks."""
        if item["role"] != "user":
            return [*results, item]
        own = [block for result in results for block in result["content"]]
        return [item | {"content": [*own, *_blocks(item)]}]

    def with_instructions(self, item: bytes, instructions: Sequence[Any]) -> list[bytes]:
        """System messages follow a user message, and there is one at most. Other instructions precede its text."""
        system = [each for each in instructions if each["role"] == "system"]
        blocks = [block for each in instructions if each["role"] == "user" for block in _blocks(each)]
        result = [item]
        if blocks:
            message = decode_lenient(item)
            own = _blocks(message)
            results = sum(block.get("type") == "tool_result" for block in own)
            result = [encode_value(message | {"content": [*own[:results], *blocks, *own[results:]]})]
        if system:
            others = {name: value for each in system for name, value in each.items()}
            result.append(encode_value(others | {"content": [block for each in system for block in _blocks(each)]}))
        return result

    def call_ids(self, item: Any) -> list[str]:  # noqa: ARG002
        return []  # Each block is valid for itself.

    def unmerged(self, item: Any, last: Any) -> Any:  # noqa: ARG002
        return item

    def marked(
        self, fields: Mapping[str, bytes], items: Sequence[bytes], stable: int, *, recalled: bool
    ) -> list[bytes]:
        """The markers of the client stay. Archiving keeps the stable items, so their end gets a marker.

        The end of the request gets a marker if the client's markers were on archived messages, and after a recall,
        because the result is part of the next request too.
        """
        others = b"".join(fields.values())
        in_items = [len(MARKER_PATTERN.findall(item)) for item in items]
        free = MAX_MARKERS - len(MARKER_PATTERN.findall(others)) - sum(in_items) - (MARKER_NAME in fields)
        result = list(items)
        has_end = recalled or (not sum(in_items) and stable < len(items) - 1)
        if free > 0 and has_end and MARKER_NAME not in fields:
            result[-1], added = _marked(result[-1], {"type": "ephemeral"})
            free -= added
        if free > 0 and not in_items[stable]:
            # The server refuses a marker of one hour after a marker of five minutes.
            late = any(count and ONE_HOUR_PATTERN.search(item) for count, item in zip(in_items, items, strict=True))
            marker = {"type": "ephemeral", "ttl": "1h"} if late else {"type": "ephemeral"}
            result[stable], _ = _marked(result[stable], marker)
        return result

    def reported(self, usage: dict[str, Any]) -> ReportedUsage:
        return read_usage(usage)

    def rewriter(self, names: set[str]) -> _MessagesRewriter:
        return _MessagesRewriter(names)


def _blocks(item: Any) -> Any:
    """Return the blocks of a message. A text stands for a block with this text."""
    content = item["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _block_identity(block: Any) -> Any:
    """Return what clients keep of a block. They may drop fields, and write the number 1.0 as 1."""
    match block:
        case {"type": "tool_use"}:
            return {
                "type": "tool_use",
                "id": block["id"],
                "name": block["name"],
                "input": _number_identity(block["input"]),
            }
        case {"type": "text"}:
            return ["text", block["text"], block.get("citations") or None]
    return without_nulls(block)


def _number_identity(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _number_identity(each) for name, each in value.items()}
    return [_number_identity(each) for each in value] if isinstance(value, list) else value


def _unmarked(block: Any) -> Any:
    if not isinstance(block, dict):
        return block
    content = block.get("content")
    if block.get("type") == "tool_result" and isinstance(content, list):
        block = block | {"content": [_unmarked(part) for part in content]}
    return {name: value for name, value in block.items() if name != MARKER_NAME} if MARKER_NAME in block else block


def _is_empty(block: Any) -> bool:
    return bool(block.get("type") == "text" and not block.get("text"))


def _marked(item: bytes, marker: dict[str, str]) -> tuple[bytes, bool]:
    """Return the message `item` with `marker` on the last block that can carry it, and whether there is one."""
    try:
        message = decode_value(item)
    except (MsgspecError, UnicodeDecodeError, RecursionError):
        return item, False  # Its bytes would change.
    blocks = list(_blocks(message))
    for index in range(len(blocks) - 1, -1, -1):
        if blocks[index].get("type") in CAN_BE_MARKED and not _is_empty(blocks[index]):
            blocks[index] = blocks[index] | {MARKER_NAME: marker}
            return encode_value(message | {"content": blocks}), True
    return item, False


class _MessagesRewriter:
    response_id = ""

    def __init__(self, names: set[str]) -> None:
        self.ended = False
        self._names = names
        self._started = False
        self._first: dict[str, Any] | None = None
        self._last: dict[str, Any] = {}
        self._shown: list[dict[str, Any]] = []
        self._earlier_output = self._output = 0
        self.start()

    def start(self) -> None:
        self.ended = False
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, list[str]] = {}
        self._complete: set[int] = set()
        self._places: dict[int, int] = {}
        self._held: list[tuple[dict[str, Any], bytes]] = []
        self._stop: Any = None
        self._earlier_output, self._output = self._earlier_output + self._output, 0

    @property
    def is_complete(self) -> bool:
        return self.ended or self._stop is not None

    def feed(self, event: ServerSentEvent, raw: bytes) -> bytes:
        data = decode_value(event.data.encode())
        match data.get("type"):
            case "message_start":
                self._count(data["message"])
                if self._started:
                    return b""
                self._started = True
            case "content_block_start":
                index, block = data["index"], dict(data["content_block"])
                self._blocks[index] = block
                if _is_recall(block, self._names):
                    return b""
                self._places[index] = len(self._shown)
                self._shown.append(block)
                return self._moved(data, raw)
            case "content_block_delta":
                self._add(data["index"], data["delta"])
                return self._moved(data, raw)
            case "content_block_stop":
                self._end_block(data["index"])
                return self._moved(data, raw)
            case "message_delta":
                self._stop = data["delta"].get("stop_reason") or self._stop
                self._count(data)
                self._held.append((data, raw))
                return b""
            case "message_stop":
                self.ended = True
                self._held.append((data, raw))
                return b""
        return raw

    def read(self, body: dict[str, Any]) -> None:
        for index, block in enumerate(body["content"]):
            self._blocks[index] = block
            self._complete.add(index)
            if not _is_recall(block, self._names):
                self._shown.append(block)
        self._stop = body.get("stop_reason")
        self._count(body)
        self._first, self._last, self.ended = self._first or body, body, True

    def reply(self) -> Reply:
        content, recalls = [], []
        for index in sorted(self._blocks):
            block = self._blocks[index]
            if not _is_recall(block, self._names):
                content.append(block)
            elif self._stop not in CUT_OFF and index in self._complete:
                content.append(block)
                recalls.append(RecallCall(str(block["id"]), block["name"], parse_arguments(block.get("input"))))
        client_calls = any(block.get("type") == "tool_use" for block in content if not _is_recall(block, self._names))
        content = [block for block in content if not _is_empty(block)]
        return Reply([{"role": "assistant", "content": content}] if content else [], tuple(recalls), client_calls)

    def finish(self) -> bytes:
        return b"".join(self._at_end(data, raw) for data, raw in self._held)

    def body(self) -> dict[str, Any]:
        merged = self._last | {"content": self._shown} | {"id": (self._first or self._last).get("id")}
        usage = self._last.get("usage")
        if isinstance(usage, dict) and self._earlier_output:
            merged["usage"] = usage | {"output_tokens": self._earlier_output + self._output}
        if (reason := self._client_stop()) != self._stop:
            merged["stop_reason"] = reason
        return merged

    def visible(self) -> list[Any]:
        content = [block for block in self._shown if not _is_empty(block)]
        return [{"role": "assistant", "content": content}] if content else []

    def error_event(self, body: bytes) -> bytes:
        try:
            error = decode_value(body)
        except DecodeError:
            error = None
        if not isinstance(error, dict) or "error" not in error:
            error = {"type": "error", "error": {"type": "api_error", "message": body.decode(errors="replace")[:2000]}}
        return encode_event(error, "error")

    def _count(self, data: dict[str, Any]) -> None:
        usage = data.get("usage")
        output = usage.get("output_tokens") if isinstance(usage, dict) else None
        if isinstance(output, int):
            self._output = output

    def _client_stop(self) -> Any:
        """Return the stop reason for the client. If it sees no call, it must not wait for results."""
        calls = any(block.get("type") == "tool_use" for block in self._shown)
        return "end_turn" if self._stop == "tool_use" and not calls else self._stop

    def _at_end(self, data: dict[str, Any], raw: bytes) -> bytes:
        if data["type"] != "message_delta":
            return raw
        changed = data
        if self._earlier_output and isinstance(usage := data.get("usage"), dict):
            changed = changed | {"usage": usage | {"output_tokens": self._earlier_output + self._output}}
        if data["delta"].get("stop_reason") and self._client_stop() != self._stop:
            changed = changed | {"delta": data["delta"] | {"stop_reason": self._client_stop()}}
        return raw if changed is data else encode_event(changed, "message_delta")

    def _add(self, index: int, delta: dict[str, Any]) -> None:
        block = self._blocks[index]
        match delta.get("type"):
            case "input_json_delta":
                self._inputs.setdefault(index, []).append(delta["partial_json"])
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
            case _:
                for name, value in delta.items():
                    if name != "type":
                        is_text = isinstance(value, str) and isinstance(block.get(name), str)
                        block[name] = block[name] + value if is_text else value

    def _end_block(self, index: int) -> None:
        self._complete.add(index)
        if pieces := "".join(self._inputs.get(index, ())):
            self._blocks[index]["input"] = parse_arguments(pieces)

    def _moved(self, data: dict[str, Any], raw: bytes) -> bytes:
        """Return an event of a block with the block's index in the client's response."""
        place = self._places.get(data["index"])
        if place is None:
            return b""
        return raw if place == data["index"] else encode_event(data | {"index": place}, data["type"])


def _is_recall(block: Any, names: set[str]) -> bool:
    return bool(block.get("type") == "tool_use" and block.get("name") in names)


MESSAGES: Final = _MessagesApi()
