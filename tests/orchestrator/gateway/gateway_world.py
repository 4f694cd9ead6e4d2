"""Clients of the three APIs, a strict model server without a network, and a gateway between them."""

from __future__ import annotations

import json
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orch import ArchivalConfig
from orch.gateway.core import Exchange, Gateway
from orch.gateway.store import FileStore
from wire import chat_rules, messages_rules, responses_rules
from wire.model_server import Answer, call, say

TIGHT = ArchivalConfig(profile="economy", high_tokens=1500, low_tokens=400, rollup_tokens=500, prompt_tokens=60)
RECALLS = ("search_archive", "read_archive")
HEADERS = {"authorization": "Bearer key", "anthropic-version": "2023-06-01"}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
ARCHIVE_ID = re.compile(r"subagent_id: ([0-9a-f]{12})")


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """Return the JSON data of each event in a stream."""
    lines = [line.removeprefix(b"data: ") for line in stream.splitlines() if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


class Client(ABC):
    """A client that keeps its whole conversation, and answers the calls of its own tools."""

    path = ""
    field = "messages"
    rules: Any

    def __init__(self, session: str = "s1", **fields: Any) -> None:
        self.items: list[Any] = []
        self.headers = HEADERS | ({"x-session-id": session} if session else {})
        self.fields = fields
        self.results = self.prompts = 0
        self.name = "anyone"
        """Part of each result, so that results of two clients differ."""

    def body(self, *, stream: bool = True) -> bytes:
        """Return the body of the next request."""
        fields = {"model": "m", "tools": [self.tool("read_file")], "stream": stream} | self.fields
        return json.dumps(fields | {self.field: self.items}).encode()

    def result(self) -> str:
        """Return the result of a call. Each is different, as results of real tools are."""
        self.results += 1
        return f"result {self.results} of {self.name}.\n" + "a line of the file\n" * 40

    @abstractmethod
    def tool(self, name: str) -> Any:
        """Return the definition of a tool."""

    def say(self, text: str) -> None:
        """Add a prompt."""
        self.items.append({"role": "user", "content": text})

    @abstractmethod
    def read_stream(self, stream: bytes) -> list[str]:
        """Add a streamed response and the results of its calls. Return the names of the called tools."""

    @abstractmethod
    def read_body(self, body: Any) -> list[str]:
        """Add a response and the results of its calls. Return the names of the called tools."""


class MessagesClient(Client):
    """A client of the Messages API that moves cache markers, as Claude Code does."""

    path = "/v1/messages"
    rules = messages_rules

    def body(self, *, stream: bool = True) -> bytes:
        items = [dict(item) for item in self.items]
        if self.fields.get("system") and isinstance(items[-1]["content"], list):
            last = items[-1]["content"]
            items[-1]["content"] = [*last[:-1], last[-1] | {"cache_control": {"type": "ephemeral"}}]
        fields = {"model": "m", "max_tokens": 100, "tools": [self.tool("read_file")], "stream": stream} | self.fields
        return json.dumps(fields | {"messages": items}).encode()

    def tool(self, name: str) -> Any:
        return {"name": name, "description": name, "input_schema": SCHEMA}

    def read_stream(self, stream: bytes) -> list[str]:
        message: dict[str, Any] = {}
        inputs: dict[int, str] = {}
        for event in events_of(stream):
            match event["type"]:
                case "message_start":
                    assert not message
                    message = event["message"]
                case "content_block_start":
                    assert event["index"] == len(message["content"])
                    message["content"].append(event["content_block"])
                case "content_block_delta":
                    block, delta = message["content"][event["index"]], event["delta"]
                    if delta["type"] == "input_json_delta":
                        inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
                    for name in ("text", "thinking", "signature"):
                        block |= {name: block[name] + delta[name]} if name in delta else {}
                case "message_delta":
                    message |= event["delta"] | {"usage": message["usage"] | event["usage"]}
        for index, text in inputs.items():
            message["content"][index]["input"] = json.loads(text or "{}")
        return self.read_body(message)

    def read_body(self, body: Any) -> list[str]:
        self.last = body
        content = [{name: value for name, value in block.items() if name != "citations"} for block in body["content"]]
        if content:
            self.items.append({"role": "assistant", "content": content})
        calls = [block for block in content if block["type"] == "tool_use"]
        assert (body["stop_reason"] == "tool_use") == bool(calls)
        if calls:
            results = [{"type": "tool_result", "tool_use_id": each["id"], "content": self.result()} for each in calls]
            self.items.append({"role": "user", "content": results})
        return [each["name"] for each in calls]


class ChatClient(Client):
    """A client of the Chat Completions API."""

    path = "/v1/chat/completions"
    rules = chat_rules

    def tool(self, name: str) -> Any:
        return {"type": "function", "function": {"name": name, "description": name, "parameters": SCHEMA}}

    def read_stream(self, stream: bytes) -> list[str]:
        assert stream.endswith(b"data: [DONE]\n\n")
        message: dict[str, Any] = {"content": ""}
        calls: list[Any] = []
        finish = None
        chunks = events_of(stream)
        assert len({chunk["id"] for chunk in chunks}) == 1
        for chunk in chunks:
            for choice in chunk["choices"]:
                delta = choice["delta"]
                for name in ("role", "content", "reasoning_content"):
                    message |= {name: message.get(name, "") + delta[name]} if delta.get(name) else {}
                for piece in delta.get("tool_calls", ()):
                    if piece["index"] == len(calls):
                        calls.append({"id": piece["id"], "type": "function", "function": dict(piece["function"])})
                    else:
                        calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
                finish = choice["finish_reason"] or finish
        message = message | ({"tool_calls": calls} if calls else {})
        return self.read_body({"choices": [{"message": message, "finish_reason": finish}]})

    def read_body(self, body: Any) -> list[str]:
        self.last = body
        (choice,) = body["choices"]
        message = {name: value for name, value in choice["message"].items() if value is not None}
        assert message["role"] == "assistant"
        calls = message.get("tool_calls", [])
        assert (choice["finish_reason"] == "tool_calls") == bool(calls)
        if message.get("content") or calls:
            self.items.append({"content": None} | message)
        for each in calls:
            self.items.append({"role": "tool", "tool_call_id": each["id"], "content": self.result()})
        return [each["function"]["name"] for each in calls]


class ResponsesClient(Client):
    """A client of the Responses API without stored state, as Codex."""

    path = "/v1/responses"
    field = "input"
    rules = responses_rules

    def __init__(self, session: str = "s1", **fields: Any) -> None:
        super().__init__(session, **({"store": False, "include": ["reasoning.encrypted_content"]} | fields))

    def tool(self, name: str) -> Any:
        return {"type": "function", "name": name, "strict": False, "description": name, "parameters": SCHEMA}

    def read_stream(self, stream: bytes) -> list[str]:
        events = events_of(stream)
        assert sum(event["type"] == "response.created" for event in events) == 1
        done = {event["output_index"]: event["item"] for event in events if event["type"].endswith("item.done")}
        *_, last = events
        assert last["type"] == "response.completed"
        assert [done[index] for index in range(len(done))] == last["response"]["output"]
        return self.read_body(last["response"])

    def read_body(self, body: Any) -> list[str]:
        self.last = body
        for item in body["output"]:
            plain = {name: value for name, value in item.items() if value is not None}
            if item["type"] != "reasoning":
                plain = {name: value for name, value in plain.items() if name not in ("id", "status")}
            self.items.append(plain)
        calls = [item for item in body["output"] if item["type"] == "function_call"]
        for each in calls:
            self.items.append({"type": "function_call_output", "call_id": each["call_id"], "output": self.result()})
        return [each["name"] for each in calls]


CLIENTS: dict[str, type[Client]] = {
    "messages": MessagesClient,
    "chat": ChatClient,
    "responses": ResponsesClient,
}


class World:
    """A gateway over a folder, and a model. `answer` returns the model's answer to the body of a request."""

    def __init__(self, folder: Path, answer: Callable[[Any], Answer] | None = None, **options: Any) -> None:
        self.folder = folder
        self.warnings: list[str] = []
        self.answer = answer or (lambda _: say("Done. " * 20))
        self.issued: dict[str, Any] = {}
        self.sent: list[bytes] = []
        """The bodies of all requests to the server."""
        self._number = 0
        self._options = {"config": TIGHT} | options
        self.gateway = self._open()

    def restart(self) -> None:
        """Close the gateway and open another one over the same folder."""
        self.gateway.close()
        self.gateway = self._open()

    def number(self) -> int:
        """Return the next number for an id."""
        self._number += 1
        return self._number

    def send(self, client: Client, *, stream: bool = True) -> list[str]:
        """Send the next request of `client`. Return the names of the tools that the client has called then."""
        exchange = self.gateway.begin(client.path, client.headers, client.body(stream=stream))
        if stream:
            return client.read_stream(self.stream(exchange, client))
        return client.read_body(json.loads(self.whole(exchange, client)))

    def stream(self, exchange: Exchange, client: Client, size: int = 100) -> bytes:
        """Return the stream that the client gets. The gateway gets pieces of `size` bytes."""
        received = b""
        while True:
            sent = b"".join(client.rules.events(self._answered(exchange.request, client), self._body(), self))
            if not exchange.reads:
                return received + sent
            for start in range(0, len(sent), size):
                received += exchange.feed(sent[start : start + size])
            received += exchange.end()
            if not exchange.again:
                return received

    def whole(self, exchange: Exchange, client: Client) -> bytes:
        """Return the body that the client gets."""
        while True:
            whole = client.rules.whole(self._answered(exchange.request, client), self._body(), self)
            sent = json.dumps(whole).encode()
            if not exchange.reads:
                return sent
            received = exchange.read(sent)
            if not exchange.again:
                return received

    def conversations(self) -> list[Path]:
        """Return the folders of conversations."""
        return [path for path in self.folder.iterdir() if path.is_dir() and path.name != "receipts"]

    def turns(self, client: Client, count: int) -> None:
        """Let `client` have `count` turns of a prompt, calls and an answer, without the gateway."""
        for turn in range(count):
            client.say(f"Prompt {turn}. " + "Look at this part. " * 10)
            while client.read_stream(self.stream(Exchange(client.body()), client)):
                pass

    def last(self, client: Client) -> list[Any]:
        """Return the items of the last request to the server."""
        items: list[Any] = self._body()[client.field]
        return items

    def _open(self) -> Gateway:
        options = dict(self._options)
        mode = options.pop("mode", "on")
        clock = options.pop("clock", time.time)
        return Gateway(FileStore(self.folder, **options), mode, warn=self.warnings.append, clock=clock)

    def _body(self) -> Any:
        return json.loads(self.sent[-1])

    def _answered(self, request: bytes, client: Client) -> Answer:
        self.sent.append(request)
        body = self._body()
        client.rules.check(body | {"stream": True}, client.headers, self.issued)
        return self.answer(body)


class Worker:
    """A model that calls a tool a few times in each turn, and sometimes a recall tool, alone or beside other calls."""

    def __init__(self, seed: int = 1, recalls: float = 0.0, steps: int = 3, thinks: float = 0.5) -> None:
        self.chance = random.Random(seed)
        self.recalls = recalls
        self.thinks = thinks
        self.steps = steps
        self.left = 0
        self.recalled = self.mixed = 0

    def __call__(self, body: Any) -> Answer:
        """Return the next response."""
        chance = self.chance
        thinking = f"I wonder {chance.random()}." if chance.random() < self.thinks else ""
        if has_recall_tools(body) and chance.random() < self.recalls:
            ours = {"call": "search_archive", "input": {"query": f"result {chance.randint(1, 9)}"}}
            self.recalled += 1
            if chance.random() < 0.4:
                self.mixed += 1
                theirs = {"call": "read_file", "input": {"path": f"{chance.random()}.py"}}
                return call(*chance.choice([(ours, theirs), (theirs, ours)]), thinking=thinking)
            return call(ours, text=chance.choice(["", f"Let me search {chance.random()}."]), thinking=thinking)
        if self.left == 0:
            self.left = chance.randint(1, self.steps)
        self.left -= 1
        if not self.left:
            return say(f"Done {chance.random()}: " + "all is well. " * chance.randint(1, 20))
        calls = [
            {"call": "read_file", "input": {"path": f"{chance.random()}.py"}} for _ in range(chance.choice([1, 1, 2]))
        ]
        return call(*calls, text=chance.choice(["", f"Let me see {chance.random()}."]), thinking=thinking)


def has_recall_tools(body: Any) -> bool:
    """Return whether a request offers the recall tools."""
    return b'"search_archive"' in json.dumps(body.get("tools", [])).encode()


def without_markers(value: Any) -> Any:
    """Return JSON data without cache markers. A marked text is a list of one block; it becomes a plain text again."""
    if isinstance(value, dict):
        value = {name: without_markers(each) for name, each in value.items() if name != "cache_control"}
        match value.get("content"):
            case [{"type": "text", "text": text, **rest}] if not rest:
                value["content"] = text
        return value
    return [without_markers(each) for each in value] if isinstance(value, list) else value


def archives_in(items: Any) -> set[str]:
    """Return the ids of the archives whose records are in `items`."""
    return set(ARCHIVE_ID.findall(json.dumps(items)))
