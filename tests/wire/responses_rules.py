"""The Responses API without stored state: the requests that it accepts, and the streams of its answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from wire.rules import NAME, bearer, encodable, halves, need, only, parts, sign, sse

FIELDS = frozenset(
    {"model", "input", "instructions", "tools", "tool_choice", "stream", "max_output_tokens", "store", "include"}
    | {"prompt_cache_key", "reasoning", "parallel_tool_calls", "text", "client_metadata"}
)
CALLS = ("function_call", "custom_tool_call")
OUTPUTS = tuple(f"{kind}_output" for kind in CALLS)
ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
INCOMPLETE = {"max_tokens": "max_output_tokens", "refusal": "content_filter"}


def error(kind: str, message: str) -> dict[str, Any]:
    """Return the body of an error."""
    return {"error": {"message": message, "type": kind, "param": None, "code": kind}}


def error_event(kind: str, message: str) -> bytes:
    """Return an error as an event of a stream."""
    return sse({"type": "error", "code": kind, "message": message, "param": None, "sequence_number": 9}, "error")


def check(body: dict[str, Any], headers: Mapping[str, str], issued: dict[str, Any]) -> None:
    """Refuse the requests that the real server refuses, and requests that store state on the server."""
    bearer(headers)
    encodable(body)
    only(body, FIELDS, "body")
    need(body.get("stream") is True, "Streaming is required")
    need(body.get("store", False) is False, "store must be false: nothing is kept here")
    need(body["input"], "input: [] is too short")
    for tool in [tool for tool in body.get("tools") or [] if tool["type"] == "function"]:
        strict = tool.get("strict") is False or _is_strict(tool["parameters"])
        need(strict, f"Invalid schema for function {tool['name']!r}: strict needs required fields")
    open_calls: list[str] = []
    calls: set[str] = set()
    reasoning = False
    for place, item in enumerate(body["input"]):
        where, kind = f"input[{place}]", item.get("type", "message")
        if kind in OUTPUTS:
            need(
                item["call_id"] in open_calls,
                f"No tool call found for function call output with call_id {item['call_id']}.",
            )
            open_calls.remove(item["call_id"])
            need(item["output"], f"{where}.output: must not be empty")
            continue
        output = kind in (*CALLS, "reasoning") or item.get("role") == "assistant"
        need(output or not open_calls, f"No tool output found for function call {open_calls}.")
        need(output or not reasoning, f"{where}: 'reasoning' was provided without its required following item.")
        if kind == "reasoning":
            same = _with_values(issued.get(item["id"], {})) == _with_values(item)
            own = issued.get(f"model/{item['id']}") == body["model"]
            need(same and own, f"The encrypted content for item {item['id']} could not be verified.")
        elif kind == "additional_tools":
            need(item["role"] == "developer" and item["tools"], f"{where}: developer tools expected")
        elif kind in CALLS:
            need(ID.fullmatch(item["call_id"]), f"{where}.call_id: invalid")
            need(NAME.fullmatch(item["name"]), f"Invalid '{where}.name': {item['name']!r} does not match pattern")
            need(item["call_id"] not in calls, f"{where}: Duplicate call_id {item['call_id']}")
            calls.add(item["call_id"])
            open_calls.append(item["call_id"])
            if kind == "function_call":
                need(isinstance(json.loads(item["arguments"]), dict), f"{where}.arguments: must be an object")
            else:
                need(isinstance(item["input"], str), f"{where}.input: must be a string")
        else:
            need(kind == "message", f"{where}.type: invalid value {kind!r}")
            _check_message(item, where, issued)
        reasoning = kind == "reasoning"
    need(not open_calls, f"No tool output found for function call {open_calls}.")
    need(not reasoning, "'reasoning' was provided without its required following item.")
    need(body["input"][-1].get("role") != "assistant", "the last item must not be the assistant's")


def _is_strict(schema: dict[str, Any]) -> bool:
    required = set(schema.get("required", ()))
    return schema.get("additionalProperties") is False and required == set(schema.get("properties", ()))


def _with_values(item: dict[str, Any]) -> dict[str, Any]:
    """Return `item` without the keys whose value is None."""
    return {key: value for key, value in item.items() if value is not None}


def _check_message(item: dict[str, Any], where: str, issued: dict[str, Any]) -> None:
    is_reply = item["role"] == "assistant"
    content = parts(item["content"], "output_text" if is_reply else "input_text")
    need(content, f"{where}.content: must not be empty")
    kinds = {"output_text", "refusal"} if is_reply else {"input_text", "input_image", "input_file"}
    for part in content:
        need(part["type"] in kinds, f"{where}.content[0].type: invalid value {part['type']!r}")
        need(part.get("text") != "", f"{where}.content[0].text: must not be empty")
    if is_reply:
        phase = issued.get(f"phase/{content[0].get('text')}")
        need(item.get("phase") == phase, f"{where}.phase: {item.get('phase')!r} is not what was sent ({phase!r})")


def events(answer: Any, body: dict[str, Any], server: Any) -> Iterator[bytes]:
    """Yield the events of the stream for `answer`."""
    response = {"id": f"resp_{server.number()}", "object": "response", "created_at": 1, "model": body["model"]}
    response |= {"output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "in_progress"}
    yield _event({"type": "response.created", "response": response})
    yield _event({"type": "response.in_progress", "response": response})
    items = []
    for index, block in enumerate(answer.blocks):
        item = _item(block, body, server)
        items.append(item)
        begun = item | {name: type(item[name])() for name in ("arguments", "content") if name in item}
        yield _event({"type": "response.output_item.added", "output_index": index, "item": begun})
        base = {"item_id": item["id"], "output_index": index, "content_index": 0}
        for piece in halves(block.get("text", "")):
            yield _event(base | {"type": "response.output_text.delta", "delta": piece, "logprobs": []})
        for piece in halves(block.get("refusal", "")):
            yield _event(base | {"type": "response.refusal.delta", "delta": piece})
        for piece in halves(item.get("arguments", "")):
            yield _event(base | {"type": "response.function_call_arguments.delta", "delta": piece})
        for piece in halves(item.get("input", "")):
            yield _event(base | {"type": "response.custom_tool_call_input.delta", "delta": piece})
        yield _event({"type": "response.output_item.done", "output_index": index, "item": item})
    ended = response | {"output": items, "usage": _usage(answer.usage), "status": "completed"}
    if answer.stop == "failed":
        failed = ended | {"status": "failed", "error": {"code": answer.kind, "message": answer.message}}
        yield _event({"type": "response.failed", "response": failed})
    elif answer.stop in INCOMPLETE:
        details = {"reason": INCOMPLETE[answer.stop]}
        short = ended | {"status": "incomplete", "incomplete_details": details}
        yield _event({"type": "response.incomplete", "response": short})
    else:
        yield _event({"type": "response.completed", "response": ended})


def whole(answer: Any, body: dict[str, Any], server: Any) -> dict[str, Any]:
    """Return `answer` as one body, for a request without streaming."""
    *_, last = events(answer, body, server)
    response: dict[str, Any] = json.loads(last.partition(b"data: ")[2])["response"]
    return response


def _item(block: dict[str, Any], body: dict[str, Any], server: Any) -> dict[str, Any]:
    number = server.number()
    if "text" in block or "refusal" in block:
        part = (
            {"type": "output_text", "text": block["text"], "annotations": []}
            if "text" in block
            else block | {"type": "refusal"}
        )
        item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [part]}
        if "phase" in block:
            server.issued[f"phase/{block['text']}"] = item["phase"] = block["phase"]
        return item
    if "thinking" in block:
        asked = "reasoning.encrypted_content" in body.get("include", [])
        item = {"type": "reasoning", "id": f"rs_{number}", "summary": [], "content": None}
        item["encrypted_content"] = sign(block["thinking"]) if asked else None
        server.issued |= {item["id"]: item, f"model/{item['id']}": body["model"]}
        return item
    if "custom" in block:
        made = {"type": "custom_tool_call", "id": f"ctc_{number}", "status": "completed", "name": block["custom"]}
        return made | {"call_id": f"call_{number}", "input": block["input"]}
    arguments = block["raw"] if "raw" in block else json.dumps(block.get("input", {}))
    call = {"type": "function_call", "id": f"fc_{number}", "status": "completed", "name": block["call"]}
    return call | {"call_id": block.get("id") or f"call_{number}", "arguments": arguments}


def _usage(used: dict[str, int]) -> dict[str, Any]:
    read, written = used.get("cache_read", 0), used.get("cache_write", 0)
    prompt, output = used.get("input", 10) + read + written, used.get("output", 5)
    return {
        "input_tokens": prompt,
        "output_tokens": output,
        "total_tokens": prompt + output,
        "input_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
        "output_tokens_details": {"reasoning_tokens": 0},
    }


def _event(data: dict[str, Any]) -> bytes:
    return sse(data, data["type"])


__all__ = ["check", "error", "error_event", "events", "whole"]
