"""The common rules of all APIs: refusals, and values that must come back unchanged."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any


class Refused(Exception):
    """The request is refused, with an HTTP status and the API's name of the error."""

    def __init__(self, message: str, status: int = 400, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names of tools and of calls that the APIs of OpenAI accept."""


def need(condition: object, message: str) -> None:
    """Refuse the request unless `condition` is true."""
    if not condition:
        raise Refused(message)


def sign(text: str) -> str:
    """Return a signature of `text` that only this server can create."""
    return (
        "sig/" + hashlib.sha256(f"a secret of the server\n{text}".encode("utf-8", "surrogatepass")).hexdigest() + "=="
    )


def bearer(headers: Mapping[str, str]) -> None:
    """Refuse a request without a key or with a wrong key."""
    key = headers.get("authorization", "").removeprefix("Bearer ") or headers.get("x-api-key", "")
    if not key.strip() or key == "wrong":
        raise Refused("invalid x-api-key", 401, "authentication_error")


def only(given: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Refuse a request with names that the API does not define."""
    for name in given:
        need(name in known, f"{where}.{name}: Extra inputs are not permitted")


def check_compatible(body: Mapping[str, Any]) -> None:
    """Refuse requests with fields that only OpenAI accepts, or with a system message after the first message."""
    for name in ("store", "prompt_cache_key"):
        need(name not in body, f"body.{name}: Extra inputs are not permitted")
    for message in (body.get("messages") or body.get("input") or [])[1:]:
        need(message.get("role") not in ("system", "developer"), "System message must be at the beginning.")


def encodable(value: Any) -> None:
    """Refuse text that cannot be encoded."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Refused("The request body is not valid JSON: no low surrogate in string") from error


def parts(content: Any, kind: str = "text") -> Any:
    """Return `content` as a list of parts. A plain string is a short form of such a list."""
    return [{"type": kind, "text": content}] if isinstance(content, str) else content


def sse(data: Any, event: str | None = None) -> bytes:
    """Return one server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {event}\n" if event else "").encode() + f"data: {text}\n\n".encode()


def halves(text: str) -> tuple[str, ...]:
    """Return `text` in two pieces, as a stream sends it."""
    middle = len(text) // 2
    return tuple(piece for piece in (text[:middle], text[middle:]) if piece)
