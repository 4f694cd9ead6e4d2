"""The Chat Completions API: the requests that it accepts, and the streams of its answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from wire.rules import NAME, bearer, encodable, halves, need, only, sse

FIELDS = frozenset(
    {"model", "messages", "tools", "tool_choice", "stream", "stream_options", "max_completion_tokens", "max_tokens"}
    | {"store", "prompt_cache_key", "reasoning_effort", "parallel_tool_calls"}
)
FINISHES = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length", "refusal": "content_filter"}


def error(kind: str, message: str) -> dict[str, Any]:
    """Return the body of an error."""
    return {"error": {"message": message, "type": kind, "param": None, "code": kind}}


def error_event(kind: str, message: str) -> bytes:
    """Return an error as an event of a stream."""
    return sse(error(kind, message))


def check(body: dict[str, Any], headers: Mapping[str, str], issued: dict[str, Any]) -> None:
    """Refuse the requests that the real servers refuse."""
    bearer(headers)
    encodable(body)
    only(body, FIELDS, "body")
    need(body.get("stream") is True, "Streaming is required")
    need(body["messages"], "messages: [] is too short")
    open_calls: list[str] = []
    seen: set[str] = set()
    for place, message in enumerate(body["messages"]):
        where, role, content = f"messages[{place}]", message["role"], message.get("content")
        need(role in ("system", "developer", "user", "assistant", "tool"), f"{where}.role: invalid value")
        if role == "tool":
            id = message["tool_call_id"]
            need(
                id in open_calls,
                f"{where}: messages with role 'tool' must be a response to a preceding 'tool_calls': {id}",
            )
            open_calls.remove(id)
            need(isinstance(content, str), f"{where}.content: expected a string")
            continue
        need(not open_calls, f"An assistant message with 'tool_calls' must be followed by tool messages: {open_calls}")
        if role != "assistant":
            need(content, f"{where}.content: must not be empty")
            continue
        calls = message.get("tool_calls") or []
        need("tool_calls" not in message or calls, f"{where}.tool_calls: [] is too short")
        need(content is not None or calls, f"{where}.content: expected a string, got null")
        for each in calls:
            need(len(each["id"]) <= 40, f"{where}.tool_calls[0].id: string too long. Expected maximum length 40")
            need(each["id"] not in seen, f"{where}: ids of tool calls must be unique")
            seen.add(each["id"])
            open_calls.append(each["id"])
            name = each["function"]["name"]
            need(
                NAME.fullmatch(name), f"Invalid '{where}.tool_calls[0].function.name': {name!r} does not match pattern"
            )
            need(isinstance(json.loads(each["function"]["arguments"]), dict), f"{where}: arguments must be an object")
        reasoning = next((issued[key] for each in calls if (key := f"reasoning/{each['id']}") in issued), None)
        found = message.get("reasoning_content")
        if reasoning is not None:
            need(found == reasoning, f"{where}: reasoning_content is missing or altered in assistant tool call message")
        elif calls and body["model"].startswith("kimi"):
            need(found, f"thinking is enabled but reasoning_content is missing in assistant tool call message {where}")
    need(not open_calls, f"An assistant message with 'tool_calls' must be followed by tool messages: {open_calls}")
    need(body["messages"][-1]["role"] != "assistant", "the last message must not be the assistant's")


def events(answer: Any, body: dict[str, Any], server: Any) -> Iterator[bytes]:
    """Yield the events of the stream for `answer`."""
    id = f"chatcmpl-{server.number()}"
    base = {"id": id, "object": "chat.completion.chunk", "created": 1, "model": body["model"]}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return sse(base | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    yield chunk({"role": "assistant", "content": ""})
    reasoning = "".join(block["thinking"] for block in answer.blocks if "thinking" in block)
    calls = [block for block in answer.blocks if "call" in block]
    ids = [block.get("id") or f"call_{server.number()}" for block in calls]
    for piece in halves(reasoning):
        yield chunk({"reasoning_content": piece})
    if reasoning:
        server.issued |= {f"reasoning/{id}": reasoning for id in ids}
    for block in answer.blocks:
        for piece in halves(block.get("text", "")):
            yield chunk({"content": piece})
        for piece in halves(block.get("refusal", "")):
            yield chunk({"refusal": piece})
    texts = [block["raw"] if "raw" in block else json.dumps(block.get("input", {})) for block in calls]
    for index, block in enumerate(calls):
        function = {"name": block["call"], "arguments": ""}
        yield chunk({"tool_calls": [{"index": index, "id": ids[index], "type": "function", "function": function}]})
    for turn in range(2):  # parallel calls are streamed in alternating pieces
        for index, text in enumerate(texts):
            for piece in halves(text)[turn : turn + 1]:
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    stop = answer.stop or ("tool_use" if calls else "end_turn")
    yield chunk({}, FINISHES.get(stop, stop))
    if (body.get("stream_options") or {}).get("include_usage"):
        yield sse(base | {"choices": [], "usage": _usage(answer.usage)})
    yield sse("[DONE]")


def whole(answer: Any, body: dict[str, Any], server: Any) -> dict[str, Any]:
    """Return `answer` as one body, for a request without streaming."""
    calls = [
        {
            "id": block.get("id") or f"call_{server.number()}",
            "type": "function",
            "function": {"name": block["call"], "arguments": json.dumps(block.get("input", {}))},
        }
        for block in answer.blocks
        if "call" in block
    ]
    text = "".join(block.get("text", "") for block in answer.blocks)
    message: dict[str, Any] = {"role": "assistant", "content": text or None, "refusal": None}
    if reasoning := "".join(block.get("thinking", "") for block in answer.blocks):
        message["reasoning_content"] = reasoning
        server.issued |= {f"reasoning/{call['id']}": reasoning for call in calls}
    if calls:
        message["tool_calls"] = calls
    stop = answer.stop or ("tool_use" if calls else "end_turn")
    choice = {"index": 0, "message": message, "finish_reason": FINISHES.get(stop, stop), "logprobs": None}
    base = {"id": f"chatcmpl-{server.number()}", "object": "chat.completion", "created": 1, "model": body["model"]}
    return base | {"choices": [choice], "usage": _usage(answer.usage)}


def _usage(used: dict[str, int]) -> dict[str, Any]:
    read, written = used.get("cache_read", 0), used.get("cache_write", 0)
    prompt, output = used.get("input", 10) + read + written, used.get("output", 5)
    details = {"cached_tokens": read, "cache_write_tokens": written}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": details,
    }


__all__ = ["check", "error", "error_event", "events", "whole"]
