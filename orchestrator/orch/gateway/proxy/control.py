"""The control socket of the proxy, in its process: one JSON line per request, one per response.

A request is `{"verb": NAME, "arguments": [TEXT, ...]}`, where the arguments may be left out. A response is
`{"result": ...}` or `{"error": TEXT}`. A connection that sent "attach" counts as attached until it is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ...config import paths

__all__ = ["LEAVING", "SOCKET", "ControlServer"]

SOCKET: Final = "proxy.sock"
LEAVING: Final = "the proxy is ending"
MAX_LINE: Final = 1 << 16
ATTACH: Final = "attach"
STATUS: Final = "status"
STOP: Final = "stop"
RECEIPT: Final = "receipt"

Verb = Callable[..., Awaitable[Any]]
"""A function whose arguments are texts."""


class ControlServer:
    """Answers requests on the socket in `folder` with `verbs`, which contain at least "status" and "stop".

    `detached` is called when the last attached connection is closed. The caller holds the lock of the folder.
    """

    def __init__(self, folder: Path, verbs: Mapping[str, Verb], detached: Callable[[], None]) -> None:
        self._folder = folder
        self._verbs = verbs
        self._detached = detached
        self._writers: set[asyncio.StreamWriter] = set()
        self._path = ""
        self._server: asyncio.Server | None = None
        self.attached = 0
        """The number of attached connections."""
        self.leaving = False

    async def start(self) -> None:
        """Listen. A socket that a killed process left is replaced. Raises StoreError or OSError."""
        self._path = paths.socket_path(self._folder, SOCKET)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self._path)
            os.chmod(self._path, 0o600)
            self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=MAX_LINE)
        except BaseException:
            listener.close()
            raise
        paths.link_socket(self._folder, self._path, SOCKET)

    def leave(self) -> None:
        """Remove the socket and refuse further requests. Connections stay open."""
        if self.leaving or self._server is None:
            return
        self.leaving = True
        self._server.close()
        for path in {self._path, str(self._folder / SOCKET)}:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def close(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        is_attached = False
        try:
            while line := await reader.readline():
                verb, arguments = _request_of(line)
                writer.write(msgspec.json.encode(await self._answer(verb, arguments)) + b"\n")
                if verb == ATTACH and not self.leaving and not is_attached:
                    is_attached = True
                    self.attached += 1
                await writer.drain()
        except (ConnectionError, ValueError, asyncio.CancelledError):
            pass  # The client has closed the connection or sent a line that is too long, or the proxy ends.
        finally:
            self._writers.discard(writer)
            writer.close()
            if is_attached:
                self.attached -= 1
                if not self.attached:
                    self._detached()

    async def _answer(self, verb: str, arguments: list[str]) -> dict[str, Any]:
        if self.leaving:
            return {"error": LEAVING}
        found = self._verbs.get(STATUS if verb == ATTACH else verb)
        if found is None:
            return {"error": f"unknown verb {verb!r}; available: {', '.join([*self._verbs, ATTACH])}"}
        try:
            return {"result": await found(*arguments)}
        except TypeError as error:
            return {"error": f"wrong arguments of {verb!r}: {error}"}


def _request_of(line: bytes) -> tuple[str, list[str]]:
    try:
        request = msgspec.json.decode(line, type=dict[str, Any])
        return str(request.get("verb")), list(map(str, request.get("arguments", ())))
    except (msgspec.DecodeError, TypeError):
        return "", []
