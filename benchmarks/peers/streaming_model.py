"""A model that streams an answer at a steady rate, by the Messages API.

Usage: streaming_model.py CHUNKS PER_SECOND [CERTIFICATE KEY]. The server answers each line on stdin with `{"url": U}`.
It is a separate process and does not examine requests. The header x-first-ms is the time to the first byte.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import threading
from typing import Any

from model_server import MESSAGES

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def encoded(*events: dict[str, Any]) -> bytes:
    """Return one HTTP chunk with `events`."""
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()
    return b"%x\r\n%s\r\n" % (len(body), body)


FIRST, DELTA, LAST = encoded(*MESSAGES[:2]), encoded(MESSAGES[2]), encoded(*MESSAGES[-3:]) + b"0\r\n\r\n"


class Server:
    """Serves on a port of the loopback interface as soon as `url` is set."""

    def __init__(self, chunks: int, per_second: float, certificate: list[str]) -> None:
        self.url = ""
        self._chunks, self._seconds = chunks, 1 / per_second
        self._context = None
        if certificate:
            self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._context.load_cert_chain(*certificate)
        self._answers: dict[asyncio.StreamWriter, tuple[int, asyncio.Event]] = {}
        self._ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        self._ready.wait()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0, backlog=512, ssl=self._context)
        host, port = server.sockets[0].getsockname()
        self.url = f"{'http' if self._context is None else 'https'}://{host}:{port}"
        self._ready.set()
        while True:
            self._send_chunks()
            await asyncio.sleep(self._seconds)

    def _send_chunks(self) -> None:
        for writer, (left, ended) in list(self._answers.items()):
            if left and not writer.is_closing():
                writer.write(DELTA)
                self._answers[writer] = left - 1, ended
                continue
            del self._answers[writer]
            if not writer.is_closing():
                writer.write(LAST)
            ended.set()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(":") for line in lines)}
                await reader.readexactly(int(headers["content-length"]))
                await asyncio.sleep(int(headers.get("x-first-ms", "0")) / 1000)
                ended = asyncio.Event()
                writer.write(HEAD + FIRST)
                self._answers[writer] = self._chunks, ended
                await ended.wait()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


if __name__ == "__main__":
    served = Server(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
    for _ in sys.stdin:
        print(json.dumps({"url": served.url}), flush=True)
