"""Imports the provider SDKs and uses them, so that the first request of each forked worker is fast.

A first request spends half of its time on imports, and half on parsing CA certificates. Therefore, `warm` sends
requests of the needed APIs over the loopback interface to a forked child process. The child ends before `warm` returns.
The TLS context is created once and shared by all clients.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import traceback
from collections.abc import Iterable
from typing import Any, Final, NoReturn

import msgspec

from orch_protocol.agent.spec import BackendSpec, ToolSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Text

from ...system import linux
from ...system.importing import load
from ..models import Api, Model
from ..registry import make_backend
from .transport import ssl_context

__all__ = ["warm"]

SECONDS: Final = 5.0
RUNS: Final = 10
"""Number of requests of each API. Python specializes a function after eight calls. A worker that specializes functions
itself writes to pages that it shares with the zygote: its first request takes 20 % more CPU time.
"""
EVENT_STREAM: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
CALL: Final = {"id": "fc_1", "type": "function_call", "call_id": "c", "name": "t", "arguments": "{}"}
COUNTS: Final = {"input_tokens": 1, "output_tokens": 1}
DETAILS: Final = {"input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}, "output_tokens_details": {}}
STREAMS: Final[dict[Api, tuple[dict[str, Any], ...]]] = {
    "messages": (
        {"type": "message_start", "message": {"id": "m", "usage": COUNTS}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": COUNTS},
        {"type": "message_stop"},
    ),
    "chat": (
        {"id": "x", "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]},
        {"id": "x", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}},
    ),
    "responses": (
        {"type": "response.created", "response": {"id": "r", "status": "in_progress"}},
        {"type": "response.output_text.delta", "delta": "x"},
        {"type": "response.output_item.done", "output_index": 0, "item": CALL},
        {"type": "response.completed", "response": {"id": "r", "usage": COUNTS | DETAILS}},
    ),
}
PATHS: Final[dict[bytes, Api]] = {b"/messages": "messages", b"/chat/completions": "chat", b"/responses": "responses"}


CLOUDS: Final[dict[Api, tuple[Api, str]]] = {
    "bedrock": ("messages", "anthropic:AsyncAnthropicBedrock"),
    "vertex": ("messages", "anthropic:AsyncAnthropicVertex"),
    "azure": ("chat", "openai:AsyncAzureOpenAI"),
}
"""The API that a cloud offers, and the client of the cloud, which is only imported because it needs credentials."""


def warm(apis: Iterable[Api]) -> None:
    """Create the TLS context, and make streamed requests of each of the `apis`.

    If the loopback interface is not available, requests work, but the first request is slower. If the certificates
    cannot be read, requests that need certificates report this error.
    """
    try:
        ssl_context()
    except ConfigError:
        pass  # Servers without TLS can be used.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        parent = os.getpid()
        server = os.fork()
        if server == 0:
            _serve(listener, parent)
        try:
            asyncio.run(_call(f"http://127.0.0.1:{listener.getsockname()[1]}", apis))
        except Exception:
            traceback.print_exc()
        finally:
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)


async def _call(url: str, apis: Iterable[Api]) -> None:
    for api in apis:
        if api in CLOUDS:
            api, client = CLOUDS[api]
            load(client)
        for _ in range(RUNS):
            options = msgspec.to_builtins(Model(api=api, base_url=url, context=1000))
            backend = make_backend(BackendSpec("loopback", "x", options), {})
            backend.append_system("x", (ToolSpec("t", "x", {"type": "object"}),))
            backend.append_user((Text("x"),))
            async with asyncio.timeout(SECONDS):
                await backend.assistant_turn()
            await backend.close()


def _events(path: bytes) -> bytes:
    """Return the event stream that answers a request to `path`."""
    api = next(api for end, api in PATHS.items() if end in path)
    lines = [f"event: {event.get('type', 'x')}\ndata: {json.dumps(event)}\n\n" for event in STREAMS[api]]
    return "".join([*lines, "data: [DONE]\n\n" if api == "chat" else ""]).encode()


def _serve(listener: socket.socket, parent: int) -> NoReturn:
    try:
        linux.die_with_parent(parent)
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as request:
                path = request.readline()
                length = 0
                while header := request.readline().strip().lower():
                    if header.startswith(b"content-length:"):
                        length = int(header.partition(b":")[2])
                request.read(length)
                connection.sendall(EVENT_STREAM + _events(path))
    finally:
        os._exit(1)
