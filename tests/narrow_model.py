"""A model server in this process that refuses requests above its context window and may report wrong sizes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any, Final, Literal

from msgspec import Struct

from orch_worker.backends.formats.provider_error import ProviderError, ReportedError
from orch_worker.backends.formats.server_sent_events import EventDecoder

__all__ = ["REFUSALS", "REPORTS", "NarrowModel", "Refusal", "words"]

Refusal = Literal["both", "window", "none"]
REFUSALS: Final[dict[Refusal, str]] = {
    "both": "prompt is too long: {size} tokens > {window} maximum",
    "window": "This model's maximum context length is {window} tokens",
    "none": "prompt is too long",
}
"""The errors of servers that name the size and the window, the window, and no number."""
REPORTS: Final[dict[str, Callable[[int, int], int | None]]] = {
    "true": lambda size, _: size,
    "tiny": lambda _, __: 100,
    "zero": lambda _, __: 0,
    "missing": lambda _, __: None,
    "half": lambda size, _: size // 2,
    "third": lambda size, _: size // 3,
    "twice": lambda size, _: 2 * size,
    "tenfold": lambda size, _: 10 * size,
    "uncached": lambda size, before: max(1, size - before),
    "constant": lambda _, __: 3_000,
}
"""The reported input tokens of a request, from its size and the size of the request before it."""
NAMES: Final = [f"{a}{b}{c}" for a in "bcdfghklmnprstvw" for b in "aeiou" for c in ("n", "lt", "rd", "st", "p", "ck")]


def words(random: Random, characters: int) -> str:
    """Return text of about `characters` characters."""
    return " ".join(random.choices(NAMES, k=max(1, characters // 5)))[: max(1, characters)]


class NarrowModel(Struct):
    """A server with a window of `window` tokens of `ratio` characters.

    `report` and `refusal` are keys of REPORTS and REFUSALS. `think` returns the tools' names and arguments for a
    request, or a text. Use `client` in place of the client of an SDK.
    """

    window: int
    ratio: float
    report: str
    refusal: Refusal
    think: Callable[[dict[str, Any]], str | list[tuple[str, dict[str, Any]]]]
    sizes: list[int] = []
    """The sizes of accepted requests in tokens."""
    refused: list[int] = []
    """The sizes of refused requests."""

    def client(self, _: object) -> NarrowModel:
        """Return the client for a server."""
        return self

    async def open(self, body: bytes) -> _Stream:
        """Answer a request. Raise ReportedError if the request exceeds the window."""
        size = int(len(body) / self.ratio)
        if size > self.window:
            self.refused.append(size)
            message = REFUSALS[self.refusal].format(size=size, window=self.window)
            error = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
            raise ReportedError(ProviderError.read(error, 400))
        reported = REPORTS[self.report](size, self.sizes[-1] if self.sizes else 0)
        self.sizes.append(size)
        return _Stream(_events(self.think(json.loads(body)), len(self.sizes), reported))

    async def close(self) -> None:
        """Do nothing."""


class _Stream:
    """The response to a request."""

    def __init__(self, data: bytes) -> None:
        self.decoder = EventDecoder()
        self._data = data

    async def pieces(self) -> AsyncIterator[bytes]:
        yield self._data

    async def close(self) -> None:
        """Do nothing."""


def _events(answer: str | list[tuple[str, dict[str, Any]]], number: int, reported: int | None) -> bytes:
    usage = {"output_tokens": 5} | ({} if reported is None else {"input_tokens": reported})
    blocks: list[tuple[dict[str, Any], dict[str, Any]]]
    if isinstance(answer, str):
        blocks = [({"type": "text", "text": ""}, {"type": "text_delta", "text": answer})]
    else:
        blocks = [
            (
                {"type": "tool_use", "id": f"t{number}_{index}", "name": name, "input": {}},
                {"type": "input_json_delta", "partial_json": json.dumps(arguments)},
            )
            for index, (name, arguments) in enumerate(answer)
        ]
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": [], "usage": usage}}
    ]
    for index, (block, delta) in enumerate(blocks):
        events += [
            {"type": "content_block_start", "index": index, "content_block": block},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    stop = "end_turn" if isinstance(answer, str) else "tool_use"
    events += [
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)
