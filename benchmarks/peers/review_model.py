"""A model for bench_first_use.py that speaks the Chat Completions API over the loopback interface.

It answers `Review number N` with a typed value, as JSON or as a call of the tool that takes the value. It answers a
question `What is in FILE?` with a call of `read_file`, and the result with a text. Each answer takes DELAY_SECONDS.

Each line on stdin is answered with one line: the address `url`, the items of all requests in `sent` and of the answered
ones in `answered`, the bytes of all requests in `size`, and the number of connections in `open`. `{"reset": true}`
forgets the requests. After `{"hold": H}`, requests after the first H are not answered until the next line without it.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from typing import Any

DELAY_SECONDS = 0.05
ITEM = re.compile(r"Review number (\d+)")
FILE = re.compile(r"What is in (\S+)\?")


def completion(body: dict[str, Any], size: int) -> tuple[str | None, dict[str, Any]]:
    """Return the item that a request is about, if any, and the message that answers the request."""
    last = body["messages"][-1]
    text = last["content"] if isinstance(last["content"], str) else json.dumps(last["content"])
    tools = [tool["function"]["name"] for tool in body.get("tools", ())]
    calls = []
    item = None
    if items := ITEM.findall(json.dumps(body["messages"])):
        item = items[-1]
        value: dict[str, Any] = {"verdict": f"reviewed {item}"}
        if "response_format" in body:
            names = list(body["response_format"]["json_schema"]["schema"]["properties"])
            value = value if names == ["verdict"] else {names[0]: value}
        text = json.dumps(value)
        calls = [(name, text) for name in tools if name.startswith("final_result")]
    elif last["role"] == "tool" or not (files := FILE.findall(text)):
        text = "It says that all is quiet."
    else:
        calls = [("read_file", json.dumps({"path": files[-1]}))]
    if not calls:
        return item, {"role": "assistant", "content": text}
    functions = [
        {"id": f"call_{size}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for name, arguments in calls
    ]
    return item, {"role": "assistant", "content": None, "tool_calls": functions}


def response(body: dict[str, Any], message: dict[str, Any], size: int) -> bytes:
    """Return the HTTP response with `message`, streamed if the request asks for it."""
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    usage = {"prompt_tokens": size // 4, "completion_tokens": 20, "total_tokens": size // 4 + 20}
    common = {"id": "c_1", "created": 1, "model": body["model"]}
    if body.get("stream"):
        for index, called in enumerate(message.get("tool_calls", ())):
            called["index"] = index
        chunk = common | {"object": "chat.completion.chunk"}
        events = [
            chunk | {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
            chunk | {"choices": [], "usage": usage},
        ]
        kind = "text/event-stream"
        data = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode() + b"data: [DONE]\n\n"
    else:
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        kind = "application/json"
        data = json.dumps(common | {"object": "chat.completion", "choices": [choice], "usage": usage}).encode()
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


class Server:
    """Serves on a port of the loopback interface as soon as `url` is set."""

    def __init__(self) -> None:
        self.url = ""
        self.hold: int | None = None
        self.open = 0
        self.reset()
        self._ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        self._ready.wait()

    def reset(self) -> None:
        """Forget all requests."""
        self.sent: list[str | None] = []
        self.answered: list[str | None] = []
        self.size = 0

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0, limit=1 << 24)
        host, port = server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}/v1"
        self._ready.set()
        await server.serve_forever()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                if not first.startswith("POST"):
                    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                    continue
                length = next(line for line in lines if line.lower().startswith("content-length:"))
                raw = await reader.readexactly(int(length.partition(":")[2]))
                body = json.loads(raw)
                item, message = completion(body, len(raw))
                self.sent.append(item)
                self.size += len(raw)
                number = len(self.sent)
                await asyncio.sleep(DELAY_SECONDS)
                # Another thread changes `hold`.
                while self.hold is not None and number > self.hold and not reader.at_eof():  # noqa: ASYNC110
                    await asyncio.sleep(DELAY_SECONDS)
                writer.write(response(body, message, len(raw)))
                await writer.drain()
                if not reader.at_eof():  # else the client was killed
                    self.answered.append(item)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


if __name__ == "__main__":
    served = Server()
    for line in sys.stdin:
        asked = json.loads(line)
        served.hold = asked.get("hold")
        if asked.get("reset"):
            served.reset()
        state = {name: getattr(served, name) for name in ("url", "sent", "answered", "size", "open")}
        print(json.dumps(state), flush=True)
