"""The control socket: one JSON line a request, one JSON line an answer, over an AF_UNIX stream.

`Request{id, method, params, version}` in, `Response{id, result | error}` out; answers come as they are ready, so
several requests may be under way on one connection. A line that is no request is answered with id 0. When a client
goes away its waits are dropped and everything else it asked for still happens: no agent stops because a shell did.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import (
    MessageTooLargeError,
    OrchError,
    ProtocolError,
    VersionMismatchError,
    error_info,
    outcome_of,
)
from orch_protocol.core.text import scrub
from orch_protocol.wire.control_socket import ControlRequest, ControlResponse
from orch_protocol.wire.frames import DECODE_ERRORS, VERSION

from ..client.peer_credentials import AgentOf, agent_of_peer, peer_of
from ..config.logs import logger

__all__ = ["ANY_VERSION", "MAX_LINE", "WAITS", "Client", "ControlServer", "DaemonLeaving", "Handler"]

MAX_LINE: Final = 64 << 20
MAX_IN_FLIGHT: Final = 256
MAX_UNREAD: Final = 1 << 20
ANY_VERSION: Final = frozenset({"daemon_status", "daemon_stop"})
"""What a client of another version may ask, so that it can replace the daemon."""
WAITS: Final = frozenset({"ask_all", "collect", "execute", "query", "wait", "watch"})
"""What ends when its asker is gone, because it would take the answer along."""
BACKLOG: Final = 1024
ACCEPT_PASSES: Final = 6
"""Passes of the event loop after which a connection that waited in the backlog has been met."""

log = logger("orch.daemon.control_socket")


class Client(Struct, frozen=True):
    """Who is at the other end, as the kernel says.

    `tell` sends an event of the request being handled, `credentials` are the variables that came with it. `agent_id` is
    the agent on whose behalf it asks, None for the user; `refused` says why it may not ask at all.
    """

    pid: int
    uid: int
    tell: Callable[[Any], None] = lambda _event: None
    agent_id: str | None = None
    refused: str = ""
    credentials: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Client(pid={self.pid}, uid={self.uid}, agent_id={self.agent_id})"


Handler = Callable[[str, msgspec.Raw, Client], Awaitable[Any]]


class DaemonLeaving(OrchError):
    """The request was not taken because the server is on its way out; it is safe to ask the next one."""


class ControlServer:
    """Answers requests on the socket at `path` with `handler(method, params, client)`.

    What the handler returns is sent as JSON; what it raises becomes an error response. Only processes of `uid` get in.
    `agent_of` names the agent of a worker's pid; see `peer_credentials`.
    """

    def __init__(
        self,
        path: str,
        handler: Handler,
        *,
        uid: int | None = None,
        version: int = VERSION,
        max_line: int = MAX_LINE,
        agent_of: AgentOf = lambda _pid: None,
    ) -> None:
        self._path = path
        self._handler = handler
        self._uid = os.getuid() if uid is None else uid
        self._version = version
        self.max_line = max_line
        self._agent_of = agent_of
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._leaving = False
        self._bound: tuple[int, int] | None = None
        """Device and inode of the socket's file."""

    async def start(self) -> None:
        """Listen. A socket file left at the path is removed first: whoever calls holds the lock that says it may."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self._path)
            os.chmod(self._path, 0o600)
            self._bound = _file(self._path)
            self._server = await asyncio.start_unix_server(
                self._connected, sock=listener, limit=self.max_line, backlog=BACKLOG
            )
        except BaseException:
            listener.close()
            raise

    async def leave(self) -> None:
        """Take no new request; those under way go on. Whoever asks from now on is told DaemonLeaving."""
        if self._leaving:
            return
        self._leaving = True
        # Where the folder was replaced, the socket there is another server's.
        if _file(self._path) == self._bound:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
        for _ in range(ACCEPT_PASSES):
            await asyncio.sleep(0)
        if self._server is not None:
            self._server.close()

    async def close(self, grace: float = 1.0) -> None:
        """Leave, give what is under way `grace` seconds, then end every connection."""
        await self.leave()
        if tasks := [task for connection in self._connections for task in connection.tasks]:
            await asyncio.wait(tasks, timeout=grace)
        await asyncio.gather(*[connection.end() for connection in list(self._connections)])

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(reader, writer, self)
        self._connections.add(connection)
        try:
            await connection.serve()
        finally:
            self._connections.discard(connection)

    def client_of(self, connected: socket.socket) -> Client:
        """Return who connected."""
        pid, uid = peer_of(connected)
        if uid != self._uid:
            return Client(pid, uid, refused=f"this daemon belongs to uid {self._uid}; uid {uid} may not ask it")
        try:
            return Client(pid, uid, agent_id=agent_of_peer(connected, self._agent_of))
        except ProtocolError as error:
            log.warning("refused", pid=pid, why=str(error))
            return Client(pid, uid, refused=str(error))

    def refusal(self, client: Client, request: ControlRequest | None = None, under_way: int = 0) -> OrchError | None:
        """Say why `client` may not ask, or `request` not be taken now."""
        if client.refused:
            return ProtocolError(client.refused)
        if self._leaving:
            return DaemonLeaving("the daemon is leaving and did not take this request: ask again")
        if under_way >= MAX_IN_FLIGHT:
            return ProtocolError(f"{under_way} requests are under way on this connection: wait for one of them")
        if request is not None and request.version != self._version and request.method not in ANY_VERSION:
            return VersionMismatchError(
                f"the client speaks version {request.version} of the protocol and this daemon version {self._version}: "
                "stop the daemon (orch daemon stop), or use the orch that started it"
            )
        return None

    async def answer(self, request: ControlRequest, client: Client) -> ControlResponse:
        """Return the response to `request`. No Exception gets out."""
        try:
            return ControlResponse(request.id, await self._handler(request.method, request.params, client))
        except OrchError as error:
            return _failed(request.id, error)
        except Exception as error:
            log.exception("request_failed", method=request.method)
            return _failed(request.id, error)


class _Connection:
    """One client: its lines are read in order, each request is a task, each answer is written whole."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: ControlServer) -> None:
        self._reader = reader
        self._writer = writer
        self._server = server
        self._reading = asyncio.current_task()
        self._client = server.client_of(writer.get_extra_info("socket"))
        self.tasks: dict[asyncio.Task[None], ControlRequest] = {}

    async def serve(self) -> None:
        """Answer lines until the client hangs up or the server ends; then drop the waits."""
        try:
            if refusal := self._server.refusal(self._client):
                await self._send(_failed(0, refusal))
                return
            while line := await self._line():
                await self._take(line)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            for task, request in self.tasks.items():
                if request.method in WAITS:
                    task.cancel()
            self._writer.close()

    async def end(self) -> None:
        """Drop everything under way, with an answer that says so, and say goodbye."""
        cut = dict(self.tasks)
        for task in cut:
            task.cancel()
        await asyncio.gather(*cut, return_exceptions=True)
        for task, request in cut.items():
            if task.cancelled() and not self._writer.is_closing():
                why = f"the daemon stopped before {request.method} was done: orch list shows what is left"
                self._writer.write(_encode(_failed(request.id, OrchError(why))))
        if (refusal := self._server.refusal(self._client)) and not self._writer.is_closing():
            self._writer.write(_encode(_failed(0, refusal)))
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _take(self, line: bytes) -> None:
        try:
            request = _decoder.decode(line)
        except DECODE_ERRORS as error:
            await self._send(_failed(0, ProtocolError(f"not a request ({len(line)} bytes): {error}")))
            return
        if refusal := self._server.refusal(self._client, request, len(self.tasks)):
            await self._send(_failed(request.id, refusal))
            return
        task = asyncio.create_task(self._run(request))
        self.tasks[task] = request
        task.add_done_callback(self.tasks.pop)

    async def _run(self, request: ControlRequest) -> None:
        client = msgspec.structs.replace(
            self._client, tell=partial(self._tell, request.id), credentials=request.credentials
        )
        await self._send(await self._server.answer(request, client))

    def _tell(self, id: int, event: Any) -> None:
        """Send an event; one that the client is too slow to read is left out."""
        if not self._writer.is_closing() and self._writer.transport.get_write_buffer_size() < MAX_UNREAD:
            self._writer.write(_encode(ControlResponse(id, event=event)))

    async def _send(self, response: ControlResponse) -> None:
        """Write one line. That nobody reads it is no error."""
        try:
            self._writer.write(_encode(response))
            await self._writer.drain()
        except ConnectionError:
            pass

    async def _line(self) -> bytes:
        """Return the next line that is not blank, or nothing at the end. One that is too long is skipped, and said."""
        skipped = False
        while True:
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                return b""
            except asyncio.LimitOverrunError as overrun:
                await self._reader.readexactly(overrun.consumed)
                skipped = True
                continue
            if skipped:
                most = f"a request may have {self._server.max_line} bytes: put the text into a file and name that"
                await self._send(_failed(0, MessageTooLargeError(most)))
                skipped = False
            elif line.strip():
                return line


_decoder = msgspec.json.Decoder(ControlRequest)
_encoder = msgspec.json.Encoder()


def _file(path: str) -> tuple[int, int] | None:
    """Return what tells the file at `path` from every other, None when there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _failed(id: int, error: Exception) -> ControlResponse:
    """Return `error` as a response. Its `exit_code` spares the client a table of classes."""
    info = error_info(error)
    code = error.exit_code if isinstance(error, OrchError) else OrchError.exit_code
    outcome = outcome_of(info)
    ended = {"outcome": outcome} if outcome != OrchError.outcome else {}
    return ControlResponse(id, error={"type": info.type, "message": info.message, "exit_code": str(code)} | ended)


def _encode(response: ControlResponse) -> bytes:
    try:
        return _encoder.encode(response) + b"\n"
    except UnicodeEncodeError:
        return _encoder.encode(scrub(msgspec.to_builtins(response))) + b"\n"
