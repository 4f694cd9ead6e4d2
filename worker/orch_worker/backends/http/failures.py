"""What a provider's complaint means: which error it is, and whether asking again may help."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final

from msgspec import Struct

from orch_protocol.core.errors import (
    BackendError,
    BackendTimeoutError,
    ContextOverflowError,
    RateLimitError,
    TruncatedReplyError,
)

from .retry import RequestFailure

__all__ = [
    "Endpoint",
    "ProviderError",
    "garbled",
    "judge",
    "oversized",
    "redirected",
    "silent",
    "truncated",
    "unreachable",
]

# By status code, and by the word for it where a stream had begun and the status was 200.
BUSY: Final = frozenset({408, 409, 425, 429})
FINAL: Final = re.compile(
    r"invalid|not_found|permission|authentication|billing|unsupported|empty_|failed_to_|image_|data_residency|\w*policy"
)
RATE: Final = frozenset({"rate_limit_error", "rate_limit_exceeded"})
OVERLOADED: Final = frozenset({"overloaded_error", "server_overloaded"})
OVERLOADED_STATUS: Final = 529
SPENT: Final = re.compile(
    r"insufficient_quota|billing|credit balance|spend(ing)? limit|exceeded your current quota", re.I
)
OVERFLOW: Final = re.compile(
    r"context_length_exceeded|prompt is too long|maximum context length|context window|exceeds? the context"
    r"|exceed(s|ed)? context limit|input is too long|too many (input )?tokens|request_too_large"
    r"|exceeded model token limit",
    re.I,
)
LONGEST: Final = 2000
REFUSED_ATTEMPTS: Final = 2


class Endpoint(Struct, frozen=True):
    """Whom was asked, for messages to people."""

    provider: str
    model: str
    base_url: str
    keys: tuple[str, ...] = ()
    local: bool = False
    loopback: bool = False
    base_url_variable: str = ""

    @property
    def setting(self) -> str:
        """Where the address is set, for messages."""
        file = f"base_url of provider {self.provider!r} in $ORCH_HOME/models.json"
        return f"{self.base_url_variable}, or {file}" if self.base_url_variable else file


class ProviderError(Struct, frozen=True):
    """What a provider said. `status` 200 or 0: it said so within a stream. `kinds` are its own words for it."""

    text: str
    status: int = 0
    kinds: tuple[str, ...] = ()
    headers: Mapping[str, str] = {}


def judge(who: Endpoint, complaint: ProviderError) -> RequestFailure:
    """Return the error that a complaint is, and whether it passes."""
    status, words = complaint.status, " ".join((*complaint.kinds, complaint.text))
    said = f"{who.provider} said{f' {status}' if status >= 300 else ''}: {complaint.text[:LONGEST]}"
    in_stream = status < 300
    if status in (401, 403) or (in_stream and {"authentication_error", "permission_error"} & set(complaint.kinds)):
        how = f"set {' or '.join(who.keys)} to a key that may use {who.model}" if who.keys else "it wants a key"
        return RequestFailure(BackendError(f"{said} ({how})"), transient=False)
    if SPENT.search(words) and status in (0, 200, 400, 402, 429):
        return RequestFailure(
            BackendError(f"{said} (no credit is left: see your account at {who.provider})"), transient=False
        )
    if status == 413 or (status in (0, 200, 400, 422) and OVERFLOW.search(words)):
        return RequestFailure(
            ContextOverflowError(f"{said} (the conversation is too long for {who.model})"), transient=False
        )
    if status == 404:
        return RequestFailure(
            BackendError(f"{said} (is {who.model!r} the right name, {who.base_url} the right address?)"),
            transient=False,
        )
    wait = _retry_after(complaint.headers)
    again = complaint.headers.get("x-should-retry", "").lower()
    passing = status in BUSY or status >= 500 or (in_stream and not any(map(FINAL.match, complaint.kinds)))
    transient = {"true": True, "false": False}.get(again, passing)
    if status == 429 or RATE & set(complaint.kinds):
        return RequestFailure(RateLimitError(said), transient=transient, wait=wait, crowded=True)
    if status in (408, 504) or "timeout_error" in complaint.kinds:
        return RequestFailure(BackendTimeoutError(said), transient=transient, wait=wait)
    crowded = status == OVERLOADED_STATUS or bool(OVERLOADED & set(complaint.kinds))
    return RequestFailure(BackendError(said), transient=transient, wait=wait, crowded=crowded)


def truncated(who: Endpoint) -> RequestFailure:
    """Return that the stream ended as if all were well, without saying why the response ends."""
    message = f"{who.provider}: the stream of {who.model} ended without a stop reason"
    return RequestFailure(TruncatedReplyError(message), transient=True)


def garbled(who: Endpoint, error: Exception) -> RequestFailure:
    """Return that a response is malformed."""
    what = str(error) if isinstance(error, ValueError) else "it has an unexpected shape"
    message = f"{who.provider}: {who.base_url} sent a malformed response for {who.model}: {what[:LONGEST]}"
    return RequestFailure(BackendError(message), transient=True)


def oversized(who: Endpoint, error: Exception) -> RequestFailure:
    """Return that a response exceeds a size limit; the next one would too."""
    message = f"{who.provider}: {who.base_url} sent {error}: {who.model} was stopped; ask for a shorter answer"
    return RequestFailure(BackendError(message), transient=False)


def redirected(who: Endpoint, error: Exception) -> RequestFailure:
    """Return that the server redirects to another origin, to which the key is not sent."""
    message = f"{who.provider}: {error}, which is not followed: if that is the right server, set {who.setting}"
    return RequestFailure(BackendError(message), transient=False)


def silent(who: Endpoint, content_seconds: float | None = None) -> RequestFailure:
    """Return that nothing arrived for too long, or nothing but keep-alive messages for `content_seconds`."""
    if content_seconds is not None:
        what = f"sent no content for {content_seconds:g} s (first_content_seconds in $ORCH_HOME/models.json)"
        return RequestFailure(
            BackendTimeoutError(f"{who.provider}: {who.model} at {who.base_url} {what}"), transient=True
        )
    message = f"{who.provider}: nothing was heard of {who.model} at {who.base_url} for too long"
    return RequestFailure(BackendTimeoutError(message), transient=True)


def unreachable(who: Endpoint, error: BaseException, *, refused: bool) -> RequestFailure:
    """Return that the connection was not made (`refused`), or was lost.

    A server of this machine that refuses is not running: it is asked once more, and no longer.
    """
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    message = f"{who.provider}: the connection to {who.base_url} failed ({what})"
    if refused and (who.local or who.loopback):
        message += f": is it running? Start the server, or check {who.setting}"
        return RequestFailure(BackendError(message), transient=True, attempts=REFUSED_ATTEMPTS)
    return RequestFailure(BackendError(message), transient=True)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the provider asks to wait."""
    try:
        if milliseconds := headers.get("retry-after-ms"):
            return max(0.0, float(milliseconds) / 1000)
        if text := headers.get("retry-after"):
            return max(0.0, float(text)) if text[0].isdigit() else _until(text, headers.get("date", ""))
    except (ValueError, TypeError):
        pass  # a header that says nothing
    return None


def _until(text: str, now: str) -> float | None:
    # By the provider's own clock, which is the one that the date was read from.
    return max(0.0, (parsedate_to_datetime(text) - parsedate_to_datetime(now)).total_seconds()) if now else None
