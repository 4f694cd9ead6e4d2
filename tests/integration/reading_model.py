"""A scripted model for real coding assistants. It reads files with the tools of the assistant, as the prompt says."""

from __future__ import annotations

import json
import re
from typing import Any

from wire.model_server import Answer, Request, call, say

__all__ = ["answer"]

ORDER = re.compile(r"Please (read|recall|delegate): (.*)")
FILE = re.compile(r"\bpart-\d\d\.txt\b")
FOLDER = re.compile(r"(?:working directory: |<cwd>)([^\n<]+)", re.IGNORECASE)


def answer(request: Request) -> Answer:
    """Return the next call or the final answer for the last order of the user, with the size of the request."""
    answer = _answer(request)
    answer.usage = {"input": 100, "cache_read": len(request.raw) // 4, "output": 50}
    return answer


def _answer(request: Request) -> Answer:
    body = request.body
    items: list[dict[str, Any]] = body.get("messages") or body["input"]
    start, kind, order = next(
        (index, *match.groups())
        for index in range(len(items) - 1, -1, -1)
        if items[index].get("role") == "user" and (match := ORDER.search(_text(items[index], "text")))
    )
    later = items[start + 1 :]
    names = _tool_names(body)
    if kind == "recall":
        if later and _is_result(items[-1]):
            return say(f"Recalled: {'found' if order.strip() in _text(items[-1]) else 'nothing'}")
        return call({"call": "search_archive", "input": {"query": order.strip()}})
    if kind == "delegate":
        task = {"description": "Read a part", "prompt": f"Please read: {order}", "subagent_type": "general-purpose"}
        done = any("Agent" in json.dumps(item) for item in later)
        return say("Delegated.") if done else call({"call": "Agent", "input": task | {"run_in_background": False}})
    files = FILE.findall(order)
    read = [name for item in later if item.get("role") != "user" for name in FILE.findall(json.dumps(_call_in(item)))]
    waiting = files[files.index(read[-1]) + 1 :] if read else files
    if not waiting:
        return say(f"I have read {len(files)} files.")
    return Answer(blocks=({"text": f"Reading {waiting[0]}."}, _read(waiting[0], names, json.dumps(body))))


def _read(name: str, names: set[str], body: str) -> dict[str, Any]:
    """Return the call that reads a file in the assistant's way."""
    if "Read" in names:
        folder = FOLDER.search(body.replace("\\n", "\n"))
        assert folder
        return {"call": "Read", "input": {"file_path": f"{folder[1].strip()}/{name}"}}
    if "read" in names:
        return {"call": "read", "input": {"path": name}}
    if "exec_command" in names:
        return {"call": "exec_command", "input": {"cmd": f"cat {name}"}}
    script = f'const done = await tools.exec_command({{cmd: "cat {name}"}}); text(done.output);'
    return {"custom": "exec", "input": script}


def _tool_names(body: dict[str, Any]) -> set[str]:
    return {str(tool.get("name")) for tool in body.get("tools") or []}


def _is_result(item: dict[str, Any]) -> bool:
    return item.get("type") == "function_call_output" or '"tool_result"' in json.dumps(item)


def _call_in(item: dict[str, Any]) -> Any:
    """Return the arguments of the calls in an item of the model."""
    blocks = item.get("content")
    calls = [block.get("input") for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    return [*calls, item.get("arguments"), item.get("input")]


def _text(item: dict[str, Any], *names: str) -> str:
    """Return the texts of an item, or only those in parts with the fields `names`."""
    content = item.get("content") or item.get("output") or ""
    if isinstance(content, str):
        return content
    fields = names or ("text", "content")
    parts = [part[name] for part in content for name in fields if part.get(name)]
    return "\n".join(part if isinstance(part, str) else json.dumps(part) for part in parts)
