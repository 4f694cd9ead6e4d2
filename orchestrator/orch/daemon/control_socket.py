"""The control socket. Each request and each response is one line of JSON over an AF_UNIX stream.

A client sends `Request{id, method, params, version}` and gets `Response{id, result | error}`. Responses are sent when
they are ready, so several requests may be in progress on one connection. An invalid line is answered with id 0. When a
client disconnects, requests that only wait are canceled. All other requests continue, so closing a shell does not stop
an agent. Agents that were spawned or resumed with `ends_with_connection` end; see `daemon`.
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
from orch_worker.system.memory_limit import with_memory_limit

from ..client.peer_credentials import AgentOf, agent_of_peer, peer_of
from ..config.logs import logger

__all__ = ["ANY_VERSION", "MAX_LINE", "WAITING_METHODS", "Client", "ControlServer", "DaemonLeaving", "Handler"]

MAX_LINE: Final = 64 << 20
MAX_IN_FLIGHT: Final = 256
MAX_UNREAD: Final = 1 << 20
ANY_VERSION: Final = frozenset({"daemon_status", "daemon_stop"})
"""Methods that a client with another protocol version may call. The client needs them to replace the daemon."""
WAITING_METHODS: Final = frozenset({"ask_all", "collect", "execute", "query", "wait", "watch"})
"""Methods that are canceled when the client disconnects. Otherwise these methods would consume the reply."""
BACKLOG: Final = 1024
ACCEPT_PASSES: Final = 6
"""The number of event loop iterations after which all connections in the backlog have been accepted."""

log = logger("orch.daemon.control_socket")


class Client(Struct, frozen=True):
    """The process at the other end of a connection, as reported by the kernel.

    `send_event` sends an event of the current request. `credentials` are the variables that came with this request.
    `run` is the run that the request is about; "" means the daemon's own run. `agent_id` is the agent on whose behalf
    the client acts; None means the user. `refused` is the reason why the client may not use the daemon, or "" if it
    may. `disconnected` is done when the client has disconnected. It stays pending if the server closes the connection
    because the server is shutting down.
    """

    pid: int
    uid: int
    send_event: Callable[[Any], None] = lambda _event: None
    agent_id: str | None = None
    refused: str = ""
    credentials: dict[str, str] = {}
    run: str = ""
    disconnected: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"Client(pid={self.pid}, uid={self.uid}, agent_id={self.agent_id})"


Handler = Callable[[str, msgspec.Raw, Client], Awaitable[Any]]


class DaemonLeaving(OrchError):
    """The request was not accepted because the server is shutting down.

    The client can safely send the request again.
    """


class ControlServer:
    """Answers requests on the socket at `path` with `handler(method, params, client)`.

    The handler's result is sent as JSON; its exception becomes an error response. Only processes of `uid` may connect.
    `agent_of` returns the agent of a worker's pid; see `peer_credentials`.
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
        self.leaving = False
        """Whether the server is shutting down."""
        self._socket_id: tuple[int, int] | None = None
        """The device and inode of the socket file."""

    async def start(self) -> None:
        """Start listening. Remove an old socket file at the path; the caller must hold the lock of the folder.

        A second call has no effect.
        """
        if self._server is not None:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self._path)
            os.chmod(self._path, 0o600)
            self._socket_id = _file(self._path)
            self._server = await asyncio.start_unix_server(
                self._handle_connection, sock=listener, limit=self.max_line, backlog=BACKLOG
            )
        except BaseException:
            listener.close()
            raise

    async def leave(self) -> None:
        """Stop accepting requests. Requests in progress continue. New requests fail with DaemonLeaving."""
        if self.leaving:
            return
        self.leaving = True
        # If the folder was replaced, its socket belongs to another server.
        if _file(self._path) == self._socket_id:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
        for _ in range(ACCEPT_PASSES):
            await asyncio.sleep(0)
        if self._server is not None:
            self._server.close()

    async def close(self, grace: float = 1.0) -> None:
        """Call `leave`, wait at most `grace` seconds for requests in progress, then close every connection."""
        await self.leave()
        if tasks := [task for connection in self._connections for task in connection.tasks]:
            await asyncio.wait(tasks, timeout=grace)
        await asyncio.gather(*[connection.end() for connection in list(self._connections)])

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(reader, writer, self)
        self._connections.add(connection)
        try:
            await connection.serve()
        finally:
            self._connections.discard(connection)

    def client_of(self, connected: socket.socket) -> Client:
        """Return the client of a connection."""
        pid, uid = peer_of(connected)
        if uid != self._uid:
            return Client(pid, uid, refused=f"this daemon belongs to uid {self._uid}; uid {uid} may not use it")
        try:
            return Client(pid, uid, agent_id=agent_of_peer(connected, self._agent_of))
        except ProtocolError as error:
            log.warning("refused", pid=pid, why=str(error))
            return Client(pid, uid, refused=str(error))

    def refusal(
        self, client: Client, request: ControlRequest | None = None, running_requests: int = 0
    ) -> OrchError | None:
        """Return the reason to refuse `client` or its `request`. Return None if there is no reason.

        Possible reasons are that the client has no right to send requests, or that the server cannot accept the request
        now.
        """
        if client.refused:
            return ProtocolError(client.refused)
        if self.leaving:
            return DaemonLeaving("daemon is shutting down and did not accept the request; retry")
        if running_requests >= MAX_IN_FLIGHT:
            return ProtocolError(f"{running_requests} requests are under way on this connection: wait for one of them")
        if request is not None and request.version != self._version and request.method not in ANY_VERSION:
            return VersionMismatchError(
                f"the client speaks version {request.version} of the protocol and this daemon version {self._version}: "
                "stop the daemon (orch daemon stop), or use the orch that started it"
            )
        return None

    async def answer(self, request: ControlRequest, client: Client) -> ControlResponse:
        """Return the response to `request`. Exceptions become error responses."""
        try:
            return ControlResponse(request.id, await self._handler(request.method, request.params, client))
        except OrchError as error:
            return _error_response(request.id, error)
        except Exception as error:
            log.exception("request_failed", method=request.method)
            return _error_response(request.id, error)


class _Connection:
    """The connection of one client.

    Lines are read in order, each request is a task, and each response is written at once.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: ControlServer) -> None:
        self._reader = reader
        self._writer = writer
        self._server = server
        self._reading = asyncio.current_task()
        self._disconnected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._client = msgspec.structs.replace(
            server.client_of(writer.get_extra_info("socket")), disconnected=self._disconnected
        )
        self.tasks: dict[asyncio.Task[None], ControlRequest] = {}

    async def serve(self) -> None:
        """Process lines until the client disconnects or the server closes. Then cancel requests that only wait."""
        try:
            if refusal := self._server.refusal(self._client):
                await self._send(_error_response(0, refusal))
                return
            while line := await self._line():
                await self._start_request(line)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            for task, request in self.tasks.items():
                if request.method in WAITING_METHODS:
                    task.cancel()
            if not self._server.leaving:
                self._disconnected.set_result(None)
            self._writer.close()

    async def end(self) -> None:
        """Cancel all requests with an error response, and close the connection."""
        interrupted = dict(self.tasks)
        for task in interrupted:
            task.cancel()
        await asyncio.gather(*interrupted, return_exceptions=True)
        for task, request in interrupted.items():
            if task.cancelled() and not self._writer.is_closing():
                why = f"the daemon stopped before {request.method} was done: orch list shows the remaining agents"
                self._writer.write(_encode(_error_response(request.id, OrchError(why))))
        if (refusal := self._server.refusal(self._client)) and not self._writer.is_closing():
            self._writer.write(_encode(_error_response(0, refusal)))
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _start_request(self, line: bytes) -> None:
        try:
            request = _decoder.decode(line)
        except DECODE_ERRORS as error:
            await self._send(_error_response(0, ProtocolError(f"not a request ({len(line)} bytes): {error}")))
            return
        if refusal := self._server.refusal(self._client, request, len(self.tasks)):
            await self._send(_error_response(request.id, refusal))
            return
        task = asyncio.create_task(self._run(request))
        self.tasks[task] = request
        task.add_done_callback(self.tasks.pop)

    async def _run(self, request: ControlRequest) -> None:
        client = msgspec.structs.replace(
            self._client,
            send_event=partial(self._send_event, request.id),
            credentials=request.credentials,
            run=request.run,
        )
        await self._send(await self._server.answer(request, client))

    def _send_event(self, id: int, event: Any) -> None:
        """Send an event. If the client reads too slowly, the event is not sent."""
        if not self._writer.is_closing() and self._writer.transport.get_write_buffer_size() < MAX_UNREAD:
            self._writer.write(_encode(ControlResponse(id, event=event)))

    async def _send(self, response: ControlResponse) -> None:
        """Write one line. If the client has disconnected, do nothing."""
        try:
            self._writer.write(_encode(response))
            await self._writer.drain()
        except ConnectionError:
            pass

    async def _line(self) -> bytes:
        """Return the next line that is not blank.

        Return b"" at the end. A line that is too long is skipped and reported.
        """
        is_too_long = False
        while True:
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                return b""
            except asyncio.LimitOverrunError as overrun:
                await self._reader.readexactly(overrun.consumed)
                is_too_long = True
                continue
            if is_too_long:
                limit = f"a request may have at most {self._server.max_line} bytes"
                error = MessageTooLargeError(f"{limit}: put the text into a file and pass its path")
                await self._send(_error_response(0, error))
                is_too_long = False
            elif line.strip():
                return line


_decoder = msgspec.json.Decoder(ControlRequest)
_encoder = msgspec.json.Encoder()


def _file(path: str) -> tuple[int, int] | None:
    """Return the device and inode of the file at `path`. Return None if the file does not exist."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _error_response(id: int, error: Exception) -> ControlResponse:
    """Return `error` as a response.

    The response contains the `exit_code`, so that clients need no table of error classes.
    """
    info = error_info(error)
    info = msgspec.structs.replace(info, message=with_memory_limit(info.message))
    code = error.exit_code if isinstance(error, OrchError) else OrchError.exit_code
    outcome = outcome_of(info)
    extra_fields = {"outcome": outcome} if outcome != OrchError.outcome else {}
    return ControlResponse(
        id, error={"type": info.type, "message": info.message, "exit_code": str(code)} | extra_fields
    )


def _encode(response: ControlResponse) -> bytes:
    try:
        return _encoder.encode(response) + b"\n"
    except UnicodeEncodeError:
        return _encoder.encode(scrub(msgspec.to_builtins(response))) + b"\n"
