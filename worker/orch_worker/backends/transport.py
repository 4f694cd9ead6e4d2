"""The HTTP client under the SDKs: one TLS context for all, deadlines by the bytes that arrive, and what was lost."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Final, Literal

import httpx2
from msgspec import Struct

__all__ = ["Deadlines", "Ear", "listening", "ssl_context", "timeout", "trouble"]

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
    """Hears every byte of a response, also those that an SDK keeps to itself, such as pings."""

    def __init__(self, deadlines: Deadlines, watch: asyncio.Timeout) -> None:
        self._seconds = deadlines.idle
        self._watch = watch

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


@asynccontextmanager
async def listening(deadlines: Deadlines) -> AsyncIterator[Ear]:
    """Yield an Ear; raises TimeoutError when it hears nothing for too long."""
    async with asyncio.timeout(deadlines.first) as watch:
        yield Ear(deadlines, watch)


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
