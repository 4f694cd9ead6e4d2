"""Headers that the proxy passes on, and error bodies in the formats of the APIs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from multidict import CIMultiDict

from ..api import encode_value
from .access import TOKEN_HEADER
from .upstreams import ANTHROPIC

__all__ = ["error_body", "passed_on", "request_headers"]

HOP_BY_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te"),
        *("trailer", "transfer-encoding", "upgrade"),
    }
)
"""Headers about one connection. RFC 9110, section 7.6.1."""
NOT_SENT: Final = ("host", "expect", TOKEN_HEADER)


def passed_on(raw_headers: Iterable[tuple[bytes, bytes]]) -> CIMultiDict[str]:
    """Return the headers of a message without those that are about its connection. Repeated headers stay repeated."""
    headers: CIMultiDict[str] = CIMultiDict((_text(name), _text(value)) for name, value in raw_headers)
    listed = {name.strip().lower() for value in headers.getall("connection", []) for name in value.split(",")}
    for name in {*HOP_BY_HOP, *listed}:
        headers.popall(name, None)
    return headers


def request_headers(raw_headers: Iterable[tuple[bytes, bytes]]) -> CIMultiDict[str]:
    """Return the headers for the server. The token of the proxy is not among them."""
    headers = passed_on(raw_headers)
    for name in NOT_SENT:
        headers.popall(name, None)
    return headers


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")  # aiohttp sends headers as UTF-8.


def error_body(api: str, kind: str, message: str) -> bytes:
    """Return the body of an error in the format of the server `api`."""
    error: dict[str, Any] = {"type": kind, "message": message}
    if api == ANTHROPIC:
        return encode_value({"type": "error", "error": error})
    return encode_value({"error": error | {"param": None, "code": None}})
