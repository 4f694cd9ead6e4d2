"""The HTTP client under the SDKs: one TLS context for all, deadlines by the bytes that arrive, and what was lost."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Final, Literal

import httpx2
from msgspec import Struct

from ..registry import is_loopback

__all__ = ["Deadlines", "Ear", "client_options", "ssl_context", "timeout", "trouble"]

SEND_SECONDS: Final = 60.0
LAST_SECONDS: Final = 2.0


class Deadlines(Struct, frozen=True):
    """How long a provider may be silent, in seconds: until it is connected, until its first byte, between bytes."""

    connect: float = 10.0
    first: float = 120.0
    idle: float = 60.0


@cache
def ssl_context() -> ssl.SSLContext:
    """Return the one context that verifies providers' certificates, made by the SDKs' own rules."""
    return httpx2.create_ssl_context()


def timeout(deadlines: Deadlines) -> httpx2.Timeout:
    """Return the client's own limits. That for reading is an `Ear`'s: it differs before and after the first byte."""
    return httpx2.Timeout(connect=deadlines.connect, read=None, write=SEND_SECONDS, pool=deadlines.connect)


def trouble(error: BaseException | None) -> tuple[Literal["silent", "refused", "lost"], BaseException] | None:
    """Return what became of a connection, and the exception that tells; None if `error` is about something else."""
    while error is not None:
        if isinstance(error, httpx2.TimeoutException):
            return "silent", error
        if isinstance(error, httpx2.ConnectError):
            return "refused", error
        if isinstance(error, httpx2.TransportError):
            return "lost", error
        error = error.__cause__
    return None


class Ear:
    """Hears every byte of a response, also those that an SDK keeps to itself, such as pings.

    `sent` is true as soon as anything of the request may have left: it is not only being connected.
    """

    def __init__(self, deadlines: Deadlines) -> None:
        self.sent = False
        self._connected: Any = None
        self._seconds = deadlines.idle
        self._watch = asyncio.timeout(deadlines.first)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Listen to the request that the block makes; raises TimeoutError when it hears nothing for too long. Once."""
        async with self._watch:
            _listening.set(self)
            try:
                yield
            finally:
                # Cancelled between that and a connection of its own, the client would leave it open.
                if self._connected is not None and not self.sent:
                    await self._connected.aclose()

    def on(self, response: httpx2.Response) -> None:
        """Listen to `response`, whose body was not read yet."""
        response.stream = _Heard(response.stream, self)

    def hear(self) -> None:
        """There was a sign of life."""
        if not self._watch.expired():
            self._watch.reschedule(asyncio.get_running_loop().time() + self._seconds)

    def last(self) -> None:
        """All was said: the stream has a moment left to end by itself, which keeps its connection."""
        self._seconds = min(self._seconds, LAST_SECONDS)
        self.hear()

    async def follow(self, step: str, info: dict[str, Any]) -> None:
        """The client has come to that step of the request."""
        if step == "connection.connect_tcp.complete":
            self._connected = info["return_value"]
        elif step.endswith(".send_request_headers.started"):
            self.sent = True


_listening: ContextVar[Ear] = ContextVar("listening")


async def _begun(request: httpx2.Request) -> None:
    request.extensions = {**request.extensions, "trace": _listening.get().follow}


def client_options(base_url: str) -> dict[str, Any]:
    """Return what a client of the server at `base_url` is made with, so that an `Ear` hears when requests are sent.

    Proxies of the environment are not for servers of this machine: what stays here does not go through one elsewhere.
    """
    direct = dict.fromkeys(("all://", "http://", "https://")) if is_loopback(base_url) else {}
    return {"verify": ssl_context(), "event_hooks": {"request": [_begun]}, "mounts": direct}


class _Heard(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, ear: Ear) -> None:
        self._stream = stream
        self._ear = ear

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)  # an SDK looks here for what it hung on to its own stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._ear.hear()
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
