"""The Messages API: the requests that it accepts, and the streams of its answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from wire.rules import Refused, bearer, encodable, halves, need, only, parts, sign, sse

FIELDS = frozenset(
    {"model", "max_tokens", "messages", "system", "tools", "tool_choice", "stream", "thinking", "metadata"}
    | {"cache_control", "output_config", "stop_sequences", "service_tier"}
)
BETA_FIELDS = {"context_management": "context-management-"}
"""Fields of the body that the server accepts with a beta header, and the beginning of its value."""
BETA_MESSAGE_FIELDS = {"output_config": "per-turn-control-", "clear_at": "system-message-clear-at-"}
"""The same for fields of messages with the role system."""
JOINED_BETA = "claude-code-20250219"
"""The beta header of Claude Code, which sends several user messages in a row. The real server joins them."""
ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
MARKABLE = {"text", "image", "tool_use", "tool_result"}
BLOCKS = {
    "text": {"text", "cache_control"},
    "image": {"source", "cache_control"},
    "tool_use": {"id", "name", "input", "cache_control"},
    "tool_result": {"tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"thinking", "signature"},
    "redacted_thinking": {"data"},
    "server_thing": {"data", "nothing"},
}


def error(kind: str, message: str) -> dict[str, Any]:
    """Return the body of an error."""
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def error_event(kind: str, message: str) -> bytes:
    """Return an error as an event of a stream."""
    return sse(error(kind, message), "error")


def check(body: dict[str, Any], headers: Mapping[str, str], issued: dict[str, Any]) -> None:
    """Refuse the requests that the real server refuses."""
    bearer(headers)
    need(headers.get("anthropic-version"), "anthropic-version: header is required")
    encodable(body)
    betas = [value.strip() for value in headers.get("anthropic-beta", "").split(",")]
    only(body, FIELDS | _allowed(BETA_FIELDS, betas), "body")
    need(isinstance(body.get("max_tokens"), int) and body["max_tokens"] >= 1, "max_tokens: Field required")
    need(body.get("stream") is True, "Streaming is required")
    markers = [*_marked(parts(body.get("system") or [])), *_marked(body.get("tools") or [])]
    for part in parts(body.get("system") or []):
        _block(part, "system", {"text"}, issued)
    names = [tool["name"] for tool in body.get("tools") or []]
    need(len(set(names)) == len(names), "tools: Tool names must be unique")
    for tool in body.get("tools") or []:
        need(tool["input_schema"].get("type") == "object", "tools.0.input_schema.type: Field required")
    messages = body["messages"]
    need(messages, "messages: at least one message is required")
    _check_messages(messages, issued, _allowed(BETA_MESSAGE_FIELDS, betas), joins=JOINED_BETA in betas)
    for block in (block for message in messages for block in parts(message["content"])):
        if block["type"] in ("thinking", "redacted_thinking"):
            own = issued.get(f"model/{block.get('signature') or block.get('data')}") == body.get("model")
            need(own, f"messages.1.content.0: Invalid `signature` in `{block['type']}` block")
    if (body.get("thinking") or {}).get("type") == "enabled":
        _check_begins_with_thinking(messages)
    for message in messages:
        markers += _marked(parts(message["content"]))
    need(len(markers) <= 4, f"A maximum of 4 blocks with cache_control may be provided. Found {len(markers)}.")


def _allowed(fields: Mapping[str, str], betas: list[str]) -> set[str]:
    return {name for name, beta in fields.items() if any(value.startswith(beta) for value in betas)}


def _check_messages(
    messages: list[dict[str, Any]], issued: dict[str, Any], system_fields: set[str], *, joins: bool
) -> None:
    """Refuse wrong messages. `joins` is whether the client lets the server join user messages."""
    need(messages[0]["role"] == "user", 'messages: first message must use the "user" role')
    need(messages[-1]["role"] != "assistant", "This model does not support assistant message prefill.")
    calls: list[str] = []
    seen: set[str] = set()
    last = before = ""
    for place, message in enumerate(messages):
        where, role, content = f"messages.{place}", message["role"], parts(message["content"])
        only(message, {"role", "content"} | (system_fields if role == "system" else set()), where)
        need(role in ("user", "assistant", "system"), f"{where}.role: Input should be 'user', 'assistant' or 'system'")
        is_joined = joins and role == last == "user"
        need(
            role != last or role == "system" or is_joined,
            f'{where}: roles must alternate between "user" and "assistant"',
        )
        need(role != "system" or before == "user", f"{where}: a system message must follow a user message")
        need(
            isinstance(content, list) and (content or message.get("output_config")),
            f"{where}.content: must have non-empty content",
        )
        kinds = {"user": {"text", "image", "tool_result"}, "system": {"text"}}.get(role, set(BLOCKS) - {"tool_result"})
        for block in content:
            _block(block, where, kinds, issued)
        results = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        for id in results:
            need(id in calls, f"{where}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: {id}")
        need(len(set(results)) == len(results), f"{where}: each tool_use must have a single result")
        for id in calls:
            need(
                id in results,
                f"{where}: `tool_use` ids were found without `tool_result` blocks immediately after: {id}",
            )
        types = [block["type"] for block in content]
        need("tool_result" not in types[len(results) :], f"{where}: tool_result blocks must come first")
        calls = [block["id"] for block in content if block["type"] == "tool_use"]
        for id in calls:
            need(ID.fullmatch(id), f"{where}.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
            need(id not in seen, f"{where}: `tool_use` ids must be unique")
            seen.add(id)
        last = role if role != "system" else last
        before = role
    need(not calls, "`tool_use` ids were found without `tool_result` blocks")


def _check_begins_with_thinking(messages: list[dict[str, Any]]) -> None:
    """Refuse an unfinished series of calls without thinking at its beginning."""
    first: list[dict[str, Any]] = []
    for message in reversed(messages):
        content = parts(message["content"])
        if message["role"] == "assistant":
            first = content
        elif message["role"] == "user" and not any(block["type"] == "tool_result" for block in content):
            break
    kind = first[0]["type"] if first else "thinking"
    need(
        kind in ("thinking", "redacted_thinking"),
        f"messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{kind}`. When `thinking` "
        "is enabled, a final `assistant` message must start with a thinking block",
    )


def _block(block: dict[str, Any], where: str, kinds: set[str], issued: dict[str, Any]) -> None:
    kind = block["type"]
    need(kind in kinds, f"{where}.content.0: {kind!r} is not permitted here")
    given = block.keys() - ({"citations"} if block.get("citations", 0) is None else set())
    only(dict.fromkeys(given), BLOCKS[kind] | {"type"}, f"{where}.content.0.{kind}")
    match kind:
        case "text":
            need(block["text"].strip(), f"{where}: text content blocks must be non-empty")
        case "thinking":
            genuine = (
                block["signature"] == sign(block["thinking"]) and issued.get(block["signature"]) == block["thinking"]
            )
            need(genuine, f"{where}.content.0: Invalid `signature` in `thinking` block")
        case "redacted_thinking":
            need(
                issued.get(block["data"]) == block, f"{where}.content.0: `redacted_thinking` blocks cannot be modified"
            )
        case "server_thing":
            need(issued.get("server_thing") == block, f"{where}.content.0: `server_thing` blocks cannot be modified")
        case "tool_use":
            need(
                NAME.fullmatch(block["name"]),
                f"{where}.content.0.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'",
            )
            need(
                isinstance(block["input"], dict),
                f"{where}.content.0.tool_use.input: Input should be a valid dictionary",
            )
        case "tool_result":
            for part in parts(block["content"]):
                _block(part, f"{where}.tool_result", {"text", "image"}, issued)


def _marked(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    marked = [part for part in parts if "cache_control" in part]
    for part in marked:
        need(part["cache_control"].get("type") == "ephemeral", "cache_control.type: Input should be 'ephemeral'")
        need(part.get("type", "text") in MARKABLE, f"cache_control cannot be set for {part} blocks")
    return marked


def events(answer: Any, body: dict[str, Any], server: Any) -> Iterator[bytes]:
    """Yield the events of the stream for `answer`."""
    counts = _counts(answer) | {"output_tokens": 1}
    start = _message(body, server) | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": counts}
    yield _event({"type": "message_start", "message": start})
    yield _event({"type": "ping"})
    for index, block in enumerate(answer.blocks):
        begun, deltas = _wire_block(block, body, server)
        yield _event({"type": "content_block_start", "index": index, "content_block": begun})
        for delta in deltas:
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _event({"type": "content_block_stop", "index": index})
    end = {"stop_reason": _stop(answer), "stop_sequence": None}
    fields = {"output_tokens": _counts(answer)["output_tokens"]}
    yield _event({"type": "message_delta", "delta": end, "usage": fields})
    yield _event({"type": "message_stop"})


def whole(answer: Any, body: dict[str, Any], server: Any) -> dict[str, Any]:
    """Return `answer` as one body, for a request without streaming."""
    content = []
    for block in answer.blocks:
        begun, deltas = _wire_block(block, body, server)
        for delta in deltas:
            for key in ("text", "thinking", "signature"):
                begun |= {key: begun[key] + delta[key]} if key in delta else {}
        content.append(begun | ({"input": block.get("input", {})} if "call" in block else {}))
    end = {"content": content, "stop_reason": _stop(answer), "stop_sequence": None, "usage": _counts(answer)}
    return _message(body, server) | end


def _message(body: dict[str, Any], server: Any) -> dict[str, Any]:
    return {"id": f"msg_{server.number()}", "type": "message", "role": "assistant", "model": body["model"]}


def _stop(answer: Any) -> str:
    called = any("call" in block for block in answer.blocks)
    return str(answer.stop or ("tool_use" if called else "end_turn"))


def _counts(answer: Any) -> dict[str, int]:
    used = answer.usage
    return {
        "input_tokens": used.get("input", 10),
        "cache_read_input_tokens": used.get("cache_read", 0),
        "cache_creation_input_tokens": used.get("cache_write", 0),
        "output_tokens": used.get("output", 5),
    }


def _wire_block(
    block: dict[str, Any], body: dict[str, Any], server: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the block as the stream begins it, and the deltas of the block."""
    if "text" in block:
        deltas = [{"type": "text_delta", "text": piece} for piece in halves(block["text"])]
        return {"type": "text", "text": "", "citations": None}, deltas
    if "thinking" in block:
        signature = sign(block["thinking"])
        server.issued |= {signature: block["thinking"], f"model/{signature}": body["model"]}
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in halves(block["thinking"])]
        deltas.append({"type": "signature_delta", "signature": signature})
        return {"type": "thinking", "thinking": "", "signature": ""}, deltas
    if "redacted" in block:
        made = {"type": "redacted_thinking", "data": sign(block["redacted"])}
        server.issued |= {made["data"]: made, f"model/{made['data']}": body["model"]}
        return made, []
    if "other" in block:
        made = {"type": "server_thing", "data": block["other"], "nothing": None}
        server.issued["server_thing"] = made
        return made, []
    text = block.get("raw") if "raw" in block else json.dumps(block.get("input", {}))
    use = {"type": "tool_use", "id": block.get("id") or f"toolu_{server.number()}", "name": block["call"], "input": {}}
    return use, [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *halves(text or ""))]


def _event(data: dict[str, Any]) -> bytes:
    return sse(data, data["type"])


__all__ = ["Refused", "check", "error", "error_event", "events", "whole"]
