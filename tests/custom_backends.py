"""Custom backends for tests. One works, and each of the others fails in another way."""

# ruff: noqa: ARG002
from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from orch import BackendInfo, BackendOptions, BackendRequest, CustomBackend, Stop, Thinking, ToolUse, Usage
from orch_protocol.core.messages import text_of


class Echo(CustomBackend):
    """Streams the last message in two pieces, and reports usage."""

    async def respond(self, request: BackendRequest) -> AsyncIterator[Any]:
        last = text_of(request.messages[-1])
        yield Usage(input_tokens=7)
        yield "echo "
        yield last.rpartition("\n")[2].removeprefix("Query: ")
        yield Usage(input_tokens=7, output_tokens=3, cost_usd=0.25)


class Caller(CustomBackend):
    """Calls a tool once, in a plain generator, then quotes the tool's result."""

    def respond(self, request: BackendRequest) -> Iterator[Any]:
        last = request.messages[-1].content[0]
        if hasattr(last, "tool_use_id"):
            yield f"the tool returned {last.content[0].text}"
            return
        yield Thinking("let me ")
        yield Thinking("look")
        yield "Looking."
        yield ToolUse("c1", request.tools[0].name, {"x": 2})


class Words(CustomBackend):
    """Counts words as tokens, and reports a context window of 500 tokens."""

    def respond(self, request: BackendRequest) -> Iterator[Any]:
        yield f"{self.options.model} {sorted(self.options.keys)} {self.options.body}"

    def info(self) -> BackendInfo:
        return BackendInfo("tiny", "words", 500)

    def count_tokens(self, text: str) -> int:
        return len(text.split())


class Yields(CustomBackend):
    """Yields the given items. If an item is callable, calls it."""

    def __init__(self, *items: Any) -> None:
        super().__init__()
        self.items = items
        self.requests: list[BackendRequest] = []
        self.closed = threading.Event()

    async def respond(self, request: BackendRequest) -> AsyncIterator[Any]:
        self.requests.append(request)
        try:
            for item in self.items:
                yield await item() if isinstance(item, Callable) else item
        finally:
            self.closed.set()


class Blocks(CustomBackend):
    """Blocks its thread until `release` is set."""

    release = threading.Event()

    def respond(self, request: BackendRequest) -> Iterator[Any]:
        yield "begun"
        self.release.wait()
        yield "released"


class Unready(CustomBackend):
    """Cannot be created."""

    def __init__(self, options: BackendOptions | None = None) -> None:
        raise FileNotFoundError("weights.bin")

    def respond(self, request: BackendRequest) -> Iterator[Any]:
        yield Stop("end_turn")


class Coroutine(CustomBackend):
    """Is a coroutine function that does not yield."""

    async def respond(self, request: BackendRequest) -> Any:
        return "text"


class Empty(CustomBackend):
    """Does not define `respond`."""
