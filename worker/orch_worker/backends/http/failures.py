"""Classifies failed requests: the error to raise, and whether a retry may help."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from orch_protocol.core.errors import (
    BackendError,
    BackendTimeoutError,
    ContextOverflowError,
    RateLimitError,
    TruncatedReplyError,
)

from ..formats.provider_error import ProviderError
from .overflow import NEAR, is_rate_limit, names_other_cause, reported_limit
from .retry import RequestFailure

__all__ = [
    "Endpoint",
    "RequestSize",
    "classify_error",
    "is_signature_refusal",
    "malformed_failure",
    "oversized_failure",
    "proxy_failure",
    "redirect_failure",
    "setting_failure",
    "timeout_failure",
    "truncated_failure",
    "unreachable_failure",
    "web_page_failure",
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
SIGNATURE: Final = re.compile(
    r"signature.{0,40}thinking|thinking.{0,100}(signature|cannot be modified)|thought signature|encrypted.content"
    r"|invalid .{0,3}data.{0,20}redacted_thinking"
    r"|'reasoning'.{0,40}(provided without|required)|item (with id )?'rs_",
    re.I | re.DOTALL,
)
"""Errors about reasoning that another model or another account created, or that was changed."""
NEVER_TOO_LONG: Final = frozenset({401, 402, 403, 404, 408, 429})
"""Statuses whose errors are about the context window only if their type says so."""
TOO_LARGE: Final = 413
BY_SIZE: Final = frozenset({400, TOO_LARGE, 422})
"""Statuses of an error without a known wording that means a too long conversation if the conversation is long."""
SERVER_OPTION: Final = re.compile(r"requires? (?:the )?(?P<option>--[a-z][\w-]*)", re.I)
"""An error of a model server that was started without an option that it needs, such as llama.cpp's `--jinja`."""
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
    versioned: bool = False
    """Whether the path of the address normally ends with /v1."""

    @property
    def setting(self) -> str:
        """The setting that defines the server's address, for error messages."""
        if self.provider == self.base_url:
            return "the address in the name of the model"
        file = f"base_url of provider {self.provider!r} in $ORCH_HOME/models.json"
        return f"{self.base_url_variable}, or {file}" if self.base_url_variable else file

    @property
    def misses_version(self) -> bool:
        """Whether the address of an API in the style of OpenAI has no path such as /v1."""
        return self.versioned and not urlsplit(self.base_url).path.strip("/")


class RequestSize(Struct, frozen=True):
    """The estimated size of a request, and the context window of its model, in tokens. A window of 0 is unknown."""

    tokens: int = 0
    window: int = 0

    @property
    def is_near_window(self) -> bool:
        """Whether the request fills most of the context window."""
        return 0 < self.window * NEAR <= self.tokens


UNKNOWN_SIZE: Final = RequestSize()


def classify_error(
    endpoint: Endpoint, provider_error: ProviderError, size: RequestSize = UNKNOWN_SIZE
) -> RequestFailure:
    """Return the failure for `provider_error`: the error to raise, and whether the failure is transient.

    `size` is the size of the request.
    """
    status, searched_text = provider_error.status, " ".join((*provider_error.kinds, provider_error.text))
    text = f"{endpoint.provider} said{f' {status}' if status >= 300 else ''}: {_shortened(provider_error.text)}"
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
    if (option := SERVER_OPTION.search(searched_text)) is not None:
        remedy = f"start the server at {endpoint.base_url} with {option['option']}"
        return RequestFailure(BackendError(f"{text} ({remedy})"), transient=False)
    if (too_long := _too_long(endpoint, provider_error, text, size)) is not None:
        return too_long
    if status == 404:
        remedy = f"is {endpoint.model!r} the right name, {endpoint.base_url} the right address?"
        if endpoint.misses_version:
            remedy += f" Most servers expect {endpoint.base_url.rstrip('/')}/v1: change {endpoint.setting}"
        return RequestFailure(BackendError(f"{text} ({remedy})"), transient=False)
    wait = _retry_after(provider_error.headers)
    retry_header = provider_error.headers.get("x-should-retry", "").lower()
    seems_transient = (
        status in BUSY or status >= 500 or (in_stream and not any(map(PERMANENT_KINDS.match, provider_error.kinds)))
    )
    transient = {"true": True, "false": False}.get(retry_header, seems_transient)
    if status == TOO_LARGE and is_rate_limit(searched_text):
        # The request alone exceeds the limit, so a retry cannot succeed.
        return RequestFailure(RateLimitError(text), transient=False)
    if status == 429 or RATE & set(provider_error.kinds):
        return RequestFailure(RateLimitError(text), transient=transient, wait=wait, rate_limited=True)
    if status in (408, 504) or "timeout_error" in provider_error.kinds:
        return RequestFailure(BackendTimeoutError(text), transient=transient, wait=wait)
    is_overloaded = status == OVERLOADED_STATUS or bool(OVERLOADED & set(provider_error.kinds))
    return RequestFailure(BackendError(text), transient=transient, wait=wait, rate_limited=is_overloaded)


def is_signature_refusal(provider_error: ProviderError) -> bool:
    """Return whether the provider refused signed or encrypted reasoning that the request contains."""
    text = " ".join((*provider_error.kinds, provider_error.text))
    return provider_error.status in (0, 200, 400, 422) and bool(SIGNATURE.search(text))


def _too_long(endpoint: Endpoint, provider_error: ProviderError, text: str, size: RequestSize) -> RequestFailure | None:
    """Return the failure if the request, or the answer that it asks for, does not fit in the context window."""
    status = provider_error.status
    searched_text = " ".join((*provider_error.kinds, provider_error.text))
    kinds = provider_error.kinds
    limit = reported_limit("" if status in NEVER_TOO_LONG else searched_text, kinds, provider_error.fields)
    if limit is not None and limit.answer:
        remedy = f"the limit of answers is too high for {endpoint.model}: set `context` or `output` of this model"
        return RequestFailure(
            BackendError(f"{text} ({remedy} in $ORCH_HOME/models.json)"), transient=False, limit=limit
        )
    unexplained = status in BY_SIZE and not names_other_cause(searched_text)
    if limit is None and not (unexplained and (status == TOO_LARGE or size.is_near_window)):
        return None
    window = f", which has a context window of {limit.window:,} tokens" if limit is not None and limit.window else ""
    error = ContextOverflowError(f"{text} (the conversation is too long for {endpoint.model}{window})")
    return RequestFailure(error, transient=False, limit=limit)


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


def web_page_failure(endpoint: Endpoint, page: str) -> RequestFailure:
    """Return the failure for a web page instead of a response: the address is not that of a model server."""
    message = f"{endpoint.provider}: {endpoint.base_url} sent a web page: {_shortened(page)} (check {endpoint.setting})"
    return RequestFailure(BackendError(message), transient=False)


def setting_failure(endpoint: Endpoint, error: BaseException) -> RequestFailure:
    """Return the failure for a request that cannot be sent, because its address or a header is not valid."""
    message = f"{endpoint.provider}: cannot send a request to {endpoint.base_url}: {error}: check {endpoint.setting}"
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


def proxy_failure(endpoint: Endpoint, error: BaseException, proxy: str) -> RequestFailure:
    """Return the failure for a connection that `proxy` refused because of its credentials."""
    message = f"{endpoint.provider}: {proxy} refused the connection to {endpoint.base_url}: {error}"
    return RequestFailure(BackendError(message), transient=False)


def unreachable_failure(endpoint: Endpoint, reason: str, *, refused: bool, proxy: str = "") -> RequestFailure:
    """Return the failure for a connection that was refused (`refused`) or lost. `proxy` describes the proxy, if any.

    If a local server refuses the connection, the server is probably not running, so the request is retried only once.
    """
    through = f" through {proxy}" if proxy else ""
    message = f"{endpoint.provider}: the connection to {endpoint.base_url}{through} failed ({reason})"
    if refused and (endpoint.local or endpoint.loopback):
        message += f": is it running? Start the server, or check {endpoint.setting}"
        return RequestFailure(BackendError(message), transient=True, attempts=REFUSED_ATTEMPTS)
    return RequestFailure(BackendError(message), transient=True)


def _shortened(text: str) -> str:
    text = text.strip()
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]}..."


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
