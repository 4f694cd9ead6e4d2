"""Errors of model servers that mean "the conversation is too long", and errors that look like them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from orch_protocol.core.errors import BackendError, ContextOverflowError, RateLimitError
from orch_worker.backends.formats.provider_error import ProviderError
from orch_worker.backends.http.failures import Endpoint, RequestSize, classify_error
from orch_worker.backends.http.overflow import WORDINGS
from orch_worker.backends.http.retry import RequestFailure

ENDPOINT = Endpoint("local", "m", "http://127.0.0.1:8080/v1")


class Refusal(Struct, frozen=True):
    """An error response, and the context window that it names (0 means none)."""

    server: str
    status: int
    body: Any
    window: int = 0


def error(message: str, kind: str = "invalid_request_error", **more: Any) -> dict[str, Any]:
    """Return an error in the format of most servers."""
    return {"error": {"message": message, "type": kind, **more}}


class Refusals(Struct, frozen=True):
    """Answers of servers to a too long conversation, and other errors with similar words."""

    too_long: tuple[Refusal, ...]
    other: tuple[Refusal, ...]


REFUSALS = msgspec.json.decode(Path(__file__).with_name("refusals.json").read_bytes(), type=Refusals)
TOO_LONG, OTHER = REFUSALS.too_long, REFUSALS.other


def failure_of(refusal: Refusal, size: RequestSize | None = None) -> RequestFailure:
    """Return the failure for the response of a server."""
    found = ProviderError.read(refusal.body, refusal.status)
    return classify_error(ENDPOINT, found) if size is None else classify_error(ENDPOINT, found, size)


@pytest.mark.parametrize("refusal", TOO_LONG, ids=lambda refusal: f"{refusal.server} {refusal.status}")
class TestTooLongConversations:
    """The answers of servers to a conversation that is too long."""

    def test_answer_is_a_context_overflow_without_a_retry(self, refusal: Refusal) -> None:
        """Each wording raises ContextOverflowError, which names the model and the window of the server."""
        failure = failure_of(refusal)
        assert type(failure.error) is ContextOverflowError
        assert not failure.transient
        assert "too long for m" in str(failure.error)
        assert failure.limit is None or failure.limit.window == refusal.window
        if refusal.window:
            assert f"context window of {refusal.window:,} tokens" in str(failure.error)

    def test_same_answer_inside_a_stream_is_a_context_overflow(self, refusal: Refusal) -> None:
        """An error within a stream, without a status, is recognized like a response with a status."""
        assert type(failure_of(Refusal(refusal.server, 0, refusal.body)).error) is ContextOverflowError


@pytest.mark.parametrize("refusal", OTHER, ids=lambda refusal: f"{refusal.server} {refusal.status}")
class TestOtherErrors:
    """Errors with similar words that are not about the length of the conversation."""

    def test_error_is_no_context_overflow(self, refusal: Refusal) -> None:
        """Limits of answers, of requests in a time, and of images do not shorten the conversation."""
        assert type(failure_of(refusal).error) is not ContextOverflowError

    def test_error_is_no_context_overflow_near_the_window(self, refusal: Refusal) -> None:
        """An error that names its cause is no context overflow even if the conversation is long."""
        assert type(failure_of(refusal, RequestSize(9_500, 10_000)).error) is not ContextOverflowError


def test_each_wording_has_an_example() -> None:
    """Each row of the table recognizes the answer of a server."""
    texts = [ProviderError.read(refusal.body, refusal.status).text for refusal in TOO_LONG]
    assert [row.pattern for row in WORDINGS if not any(row.find(text) for text in texts)] == []


def test_each_wording_has_a_source() -> None:
    """Each row of the table states where its wording comes from."""
    assert all(re.search(r"[a-z]", row.source) for row in WORDINGS)


@pytest.mark.parametrize(
    "body",
    ["", None, {}, "Bad Request", error("Bad request"), "<html><h1>400</h1></html>", error("It is beyond my capacity")],
)
@pytest.mark.parametrize("status", [400, 413, 422])
class TestUnexplainedErrors:
    """Errors that name no cause."""

    def test_long_conversation_is_a_context_overflow(self, body: Any, status: int) -> None:
        """If the request fills most of the window, an error without a cause is a context overflow."""
        failure = failure_of(Refusal("any", status, body), RequestSize(8_500, 10_000))
        assert type(failure.error) is ContextOverflowError

    def test_short_conversation_is_no_context_overflow(self, body: Any, status: int) -> None:
        """If the request is short, or the window is unknown, only the status 413 means a context overflow."""
        for size in (RequestSize(500, 10_000), RequestSize(500, 0), None):
            failure = failure_of(Refusal("any", status, body), size)
            assert (type(failure.error) is ContextOverflowError) == (status == 413)


@pytest.mark.parametrize("status", [401, 402, 403, 404, 408, 429, 500, 503])
def test_status_with_another_meaning_is_no_context_overflow(status: int) -> None:
    """Near the window, errors about keys, credit, models, load and servers keep their meaning."""
    failure = failure_of(Refusal("any", status, error("no")), RequestSize(9_900, 10_000))
    assert type(failure.error) is not ContextOverflowError


def test_request_above_the_rate_limit_is_not_retried() -> None:
    """A request that alone exceeds the tokens per minute is a rate limit, and waiting does not help."""
    failure = failure_of(next(refusal for refusal in OTHER if refusal.server == "Groq"))
    assert type(failure.error) is RateLimitError
    assert not failure.transient


def test_too_long_answer_names_the_setting() -> None:
    """If only the limit of answers is too high, the error names the settings of the model."""
    failure = failure_of(next(refusal for refusal in OTHER if refusal.server == "vLLM"))
    assert type(failure.error) is BackendError
    assert "`context` or `output` of this model in $ORCH_HOME/models.json" in str(failure.error)
    assert failure.limit is not None
    assert failure.limit.window == 8192
