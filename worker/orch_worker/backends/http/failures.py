"""Classifies failed requests: the error to raise, and whether a retry may help."""

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
    "classify_error",
    "malformed_failure",
    "oversized_failure",
    "redirect_failure",
    "timeout_failure",
    "truncated_failure",
    "unreachable_failure",
]

# Failures are classified by status code. An error within a stream (status 200) is classified by its error type.
BUSY: Final = frozenset({408, 409, 425, 429})
PERMANENT_KINDS: Final = re.compile(
    r"invalid|not_found|permission|authentication|billing|unsupported|empty_|failed_to_|image_|data_residency|\w*policy"
    r"|validationException|accessDenied|resourceNotFound"
)
RATE: Final = frozenset({"rate_limit_error", "rate_limit_exceeded", "throttlingException"})
OVERLOADED: Final = frozenset({"overloaded_error", "server_overloaded"})
OVERLOADED_STATUS: Final = 529
NO_CREDIT: Final = re.compile(
    r"insufficient_quota|billing|credit balance|spend(ing)? limit|exceeded your current quota", re.I
)
OVERFLOW: Final = re.compile(
    r"context_length_exceeded|prompt is too long|maximum context length|context window|exceeds? the context"
    r"|exceed(s|ed)? context limit|input is too long|too many (input )?tokens|request_too_large"
    r"|exceeded model token limit",
    re.I,
)
MAX_MESSAGE_CHARS: Final = 2000
REFUSED_ATTEMPTS: Final = 2


class Endpoint(Struct, frozen=True):
    """The server and model of a request, for error messages."""

    provider: str
    model: str
    base_url: str
    keys: tuple[str, ...] = ()
    local: bool = False
    loopback: bool = False
    base_url_variable: str = ""

    @property
    def setting(self) -> str:
        """The setting that defines the server's address, for error messages."""
        file = f"base_url of provider {self.provider!r} in $ORCH_HOME/models.json"
        return f"{self.base_url_variable}, or {file}" if self.base_url_variable else file


class ProviderError(Struct, frozen=True):
    """An error reported by a provider.

    `status` is 200 or 0 if the error was part of a stream. `kinds` are the provider's error types.
    """

    text: str
    status: int = 0
    kinds: tuple[str, ...] = ()
    headers: Mapping[str, str] = {}


def classify_error(endpoint: Endpoint, provider_error: ProviderError) -> RequestFailure:
    """Return the failure for `provider_error`: the error to raise, and whether the failure is transient."""
    status, searched_text = provider_error.status, " ".join((*provider_error.kinds, provider_error.text))
    text = f"{endpoint.provider} said{f' {status}' if status >= 300 else ''}: {provider_error.text[:MAX_MESSAGE_CHARS]}"
    in_stream = status < 300
    if status in (401, 403) or (in_stream and {"authentication_error", "permission_error"} & set(provider_error.kinds)):
        remedy = (
            f"set {' or '.join(endpoint.keys)} to a key that may use {endpoint.model}"
            if endpoint.keys
            else "an API key is required"
        )
        return RequestFailure(BackendError(f"{text} ({remedy})"), transient=False)
    if NO_CREDIT.search(searched_text) and status in (0, 200, 400, 402, 429):
        return RequestFailure(
            BackendError(f"{text} (no credit is left: see your account at {endpoint.provider})"), transient=False
        )
    if status == 413 or (status in (0, 200, 400, 422) and OVERFLOW.search(searched_text)):
        return RequestFailure(
            ContextOverflowError(f"{text} (the conversation is too long for {endpoint.model})"), transient=False
        )
    if status == 404:
        return RequestFailure(
            BackendError(f"{text} (is {endpoint.model!r} the right name, {endpoint.base_url} the right address?)"),
            transient=False,
        )
    wait = _retry_after(provider_error.headers)
    retry_header = provider_error.headers.get("x-should-retry", "").lower()
    seems_transient = (
        status in BUSY or status >= 500 or (in_stream and not any(map(PERMANENT_KINDS.match, provider_error.kinds)))
    )
    transient = {"true": True, "false": False}.get(retry_header, seems_transient)
    if status == 429 or RATE & set(provider_error.kinds):
        return RequestFailure(RateLimitError(text), transient=transient, wait=wait, rate_limited=True)
    if status in (408, 504) or "timeout_error" in provider_error.kinds:
        return RequestFailure(BackendTimeoutError(text), transient=transient, wait=wait)
    is_overloaded = status == OVERLOADED_STATUS or bool(OVERLOADED & set(provider_error.kinds))
    return RequestFailure(BackendError(text), transient=transient, wait=wait, rate_limited=is_overloaded)


def truncated_failure(endpoint: Endpoint) -> RequestFailure:
    """Return the failure for a stream that ended without a stop reason."""
    message = f"{endpoint.provider}: the stream of {endpoint.model} ended without a stop reason"
    return RequestFailure(TruncatedReplyError(message), transient=True)


def malformed_failure(endpoint: Endpoint, error: Exception) -> RequestFailure:
    """Return the failure for a malformed response."""
    what = str(error) if isinstance(error, ValueError) else "it has an unexpected shape"
    source = f"{endpoint.provider}: {endpoint.base_url}"
    message = f"{source} sent a malformed response for {endpoint.model}: {what[:MAX_MESSAGE_CHARS]}"
    return RequestFailure(BackendError(message), transient=True)


def oversized_failure(endpoint: Endpoint, error: Exception) -> RequestFailure:
    """Return the failure for a response that exceeds a size limit.

    The failure is permanent, because the next response would exceed the limit too.
    """
    message = (
        f"{endpoint.provider}: {endpoint.base_url} sent {error}: {endpoint.model} was stopped; ask for a shorter answer"
    )
    return RequestFailure(BackendError(message), transient=False)


def redirect_failure(endpoint: Endpoint, error: Exception) -> RequestFailure:
    """Return the failure for a redirect to another origin. The key is not sent to that origin."""
    message = (
        f"{endpoint.provider}: {error}, which is not followed: if that is the right server, set {endpoint.setting}"
    )
    return RequestFailure(BackendError(message), transient=False)


def timeout_failure(endpoint: Endpoint, content_seconds: float | None = None) -> RequestFailure:
    """Return the failure for a timeout.

    Either no data arrived in time, or only keep-alive messages arrived for `content_seconds`.
    """
    if content_seconds is not None:
        what = f"sent no content for {content_seconds:g} s (first_content_seconds in $ORCH_HOME/models.json)"
        return RequestFailure(
            BackendTimeoutError(f"{endpoint.provider}: {endpoint.model} at {endpoint.base_url} {what}"), transient=True
        )
    message = f"{endpoint.provider}: no data from {endpoint.model} at {endpoint.base_url} for too long"
    return RequestFailure(BackendTimeoutError(message), transient=True)


def unreachable_failure(endpoint: Endpoint, error: BaseException, *, refused: bool) -> RequestFailure:
    """Return the failure for a connection that was refused (`refused`) or lost.

    If a local server refuses the connection, the server is probably not running, so the request is retried only once.
    """
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    message = f"{endpoint.provider}: the connection to {endpoint.base_url} failed ({what})"
    if refused and (endpoint.local or endpoint.loopback):
        message += f": is it running? Start the server, or check {endpoint.setting}"
        return RequestFailure(BackendError(message), transient=True, attempts=REFUSED_ATTEMPTS)
    return RequestFailure(BackendError(message), transient=True)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the waiting time in seconds that the provider requests.

    Return None if the headers contain no valid time.
    """
    try:
        if milliseconds := headers.get("retry-after-ms"):
            return max(0.0, float(milliseconds) / 1000)
        if text := headers.get("retry-after"):
            return max(0.0, float(text)) if text[0].isdigit() else _seconds_until(text, headers.get("date", ""))
    except (ValueError, TypeError):
        pass  # The header is malformed.
    return None


def _seconds_until(text: str, now: str) -> float | None:
    # The time is relative to the provider's own clock.
    return max(0.0, (parsedate_to_datetime(text) - parsedate_to_datetime(now)).total_seconds()) if now else None
