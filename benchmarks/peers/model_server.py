"""A model that always returns the same text. It streams over the loopback interface by the Messages API and the Chat
Completions API.

The server answers each line on stdin with `{"url": U, "last": B}`. U is its address, and B the body of the last
request. The server is a separate process, does not examine requests, and sends a whole answer at once. The measured
time is therefore the time of the programs that send requests.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

PIECES = 20
WORD = "word "

USAGE = {"input_tokens": 100, "output_tokens": PIECES}
MESSAGES: tuple[dict[str, Any], ...] = (
    {
        "type": "message_start",
        "message": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": USAGE,
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    *PIECES * ({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": WORD}},),
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": USAGE},
    {"type": "message_stop"},
)


def chunk(delta: dict[str, str], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """Return one event of a chat completion."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
    return {"id": "c_1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}


CHAT: tuple[dict[str, Any], ...] = (
    chunk({"role": "assistant", "content": ""}),
    *PIECES * (chunk({"content": WORD}),),
    chunk({}, "stop"),
    chunk({}) | {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": PIECES, "total_tokens": 120}},
)


def answer(path: str) -> bytes:
    """Return the whole response to a request to `path`."""
    if path.endswith("/messages"):
        body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in MESSAGES)
    else:
        body = "".join(f"data: {json.dumps(event)}\n\n" for event in CHAT) + "data: [DONE]\n\n"
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + body).encode()


ANSWERS = {path: answer(path) for path in ("/v1/messages", "/v1/chat/completions")}


class Server:
    """Serves on a port of the loopback interface as soon as `url` is set."""

    def __init__(self) -> None:
        self.last = b"null"
        self.url = ""
        self._ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        self._ready.wait()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        self._ready.set()
        await server.serve_forever()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                length = next(line for line in lines if line.lower().startswith("content-length:"))
                self.last = await reader.readexactly(int(length.partition(":")[2]))
                writer.write(ANSWERS[first.split()[1].partition("?")[0]])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


if __name__ == "__main__":
    served = Server()
    for _ in sys.stdin:
        print(json.dumps({"url": served.url, "last": json.loads(served.last)}), flush=True)
