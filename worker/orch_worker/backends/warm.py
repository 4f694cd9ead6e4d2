"""The provider SDKs, imported and used once, so that every worker forked afterwards makes its first call warm.

Half of a first call's time goes into the transport's own imports and half into parsing the CA bundle. So one call of
each SDK runs over loopback against a server in a forked child that is gone before this returns, and `ssl_context` is
made once, for every client to share.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import traceback
from functools import cache
from typing import Any, Final, NoReturn

import anthropic
import httpx2
import openai

from .. import kernel

__all__ = ["ssl_context", "warm"]

SECONDS: Final = 5.0
EVENT_STREAM: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
ANTHROPIC_STREAM: Final = (
    b'event: ping\ndata: {"type": "ping"}\n\nevent: message_stop\ndata: {"type": "message_stop"}\n\n'
)
OPENAI_STREAM: Final = (
    b'data: {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "x", "choices": []}\n\n'
    b"data: [DONE]\n\n"
)


@cache
def ssl_context() -> ssl.SSLContext:
    """Return the one context that verifies providers' certificates, made by the SDKs' own rules."""
    return httpx2.create_ssl_context()


def warm() -> None:
    """Make the context and one streamed call with each SDK. A machine without loopback only loses the head start."""
    ssl_context()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        parent = os.getpid()
        server = os.fork()
        if server == 0:
            _serve(listener, parent)
        try:
            asyncio.run(_call(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        except Exception:
            traceback.print_exc()
        finally:
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)


async def _call(url: str) -> None:
    message: list[Any] = [{"role": "user", "content": "x"}]
    options: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": SECONDS}
    async with httpx2.AsyncClient(verify=ssl_context(), trust_env=False) as http:
        claude = anthropic.AsyncAnthropic(base_url=url, http_client=http, **options)
        async for _ in await claude.messages.create(model="x", max_tokens=1, messages=message, stream=True):
            pass
        gpt = openai.AsyncOpenAI(base_url=url, http_client=http, **options)
        async for _ in await gpt.chat.completions.create(model="x", messages=message, stream=True):
            pass


def _serve(listener: socket.socket, parent: int) -> NoReturn:
    try:
        kernel.die_with_parent(parent)
        while True:
            line, _ = listener.accept()
            with line, line.makefile("rb") as request:
                path = request.readline()
                length = 0
                while header := request.readline().strip().lower():
                    if header.startswith(b"content-length:"):
                        length = int(header.partition(b":")[2])
                request.read(length)
                line.sendall(EVENT_STREAM + (ANTHROPIC_STREAM if b"/v1/messages" in path else OPENAI_STREAM))
    finally:
        os._exit(1)
