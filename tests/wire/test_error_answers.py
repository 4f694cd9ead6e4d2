"""Error answers of servers of all kinds, with the real SDKs: the text that is shown, and what orch learns from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from orch_protocol.core.errors import BackendError, ContextOverflowError
from orch_protocol.core.messages import text_of
from wire.api_backends import CHAT, MESSAGES, PEERS, Peer, Talk
from wire.model_server import Answer, ModelServer, fail, say

Begin = Callable[..., Talk]
HTML = b"<!doctype html><html><head><title>502 Bad Gateway</title></head><body><p>cloud edge</p></body></html>"


def answer(status: int, body: bytes | Any, kind: str = "application/json") -> Answer:
    """Return an answer with this body, which is sent as it is or as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(status=status, raw=(raw,), headers={"content-type": kind})


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ({"error": "the model needs a license"}, "application/json", "the model needs a license"),
        ({"detail": [{"loc": ["body", "n"], "msg": "field required"}]}, "application/json", "body.n: field required"),
        ({"message": "no such region"}, "application/json", "no such region"),
        (["one", "two"], "application/json", "one; two"),
        ("just a string", "application/json", "just a string"),
        (b"upstream is away", "text/plain", "upstream is away"),
        (b"{broken", "application/json", "{broken"),
        (HTML, "text/html", "502 Bad Gateway: cloud edge"),
        (b"", "application/json", "Bad Request (the response has no message)"),
    ],
)
async def test_text_of_each_error_body_is_shown(
    server: ModelServer, talk: Talk, body: Any, kind: str, text: str
) -> None:
    """The message of an error is the text of the server, in each shape, after one request."""
    server.script.append(answer(400, body, kind))
    with pytest.raises(BackendError) as caught:
        await talk.ask()
    assert str(caught.value) == f"{talk.backend.info().provider} said 400: {text}"
    assert len(server.requests) == 1


async def test_keys_in_an_error_are_masked(server: ModelServer, begin: Begin) -> None:
    """The key of the request, other keys and passwords in addresses are not shown."""
    secret = "sk-ant-abcdefghijklmnopqrstuvwx"
    text = f"header Authorization: Bearer abcdefgh12345678, key {secret}, proxy http://me:hunter22@proxy:3128"
    for body in (text.encode(), {"error": text}, f"<html><body>{text}</body></html>".encode()):
        server.script.append(answer(400, body))
        with pytest.raises(BackendError) as caught:
            await begin(MESSAGES).ask()
        shown = str(caught.value)
        assert not any(part in shown for part in (secret, "abcdefgh12345678", "hunter22"))
        assert "header Authorization" in shown


class TestAnswersWithStatus200:
    """Answers that are no stream although their status is 200."""

    async def test_transient_error_is_retried(self, server: ModelServer, talk: Talk) -> None:
        """A JSON error is classified by its code and its text is shown."""
        body = json.dumps({"error": {"message": "The model is overloaded", "code": 503}}).encode()
        server.script += [Answer(raw=(body,)), say("well")]
        assert text_of((await talk.ask()).message) == "well"
        assert "said 503: The model is overloaded" in str(talk.retries[0].error)

    async def test_permanent_error_is_not_retried(self, server: ModelServer, talk: Talk) -> None:
        """A JSON error with the code 400 is raised after one request."""
        body = json.dumps({"error": {"message": "no such option", "code": 400}}).encode()
        server.script.append(Answer(raw=(body,)))
        with pytest.raises(BackendError, match="said 400: no such option"):
            await talk.ask()
        assert len(server.requests) == 1

    async def test_web_page_names_the_setting(self, server: ModelServer, peer: Peer, talk: Talk) -> None:
        """A web page means that the address is wrong: the error shows its title and names the setting."""
        server.script.append(Answer(raw=(HTML,), headers={"content-type": "text/html"}))
        with pytest.raises(
            BackendError, match=rf"sent a web page: 502 Bad Gateway: cloud edge.*{peer.provider.upper()}_BASE_URL"
        ):
            await talk.ask()
        assert len(server.requests) == 1

    async def test_plain_text_is_shown(self, server: ModelServer, talk: Talk) -> None:
        """A plain text is shown in the error."""
        server.otherwise = lambda _: Answer(raw=(b"backend restarting",))
        with pytest.raises(BackendError, match="instead of events, 'backend restarting'"):
            await talk.ask()


class TestErrorsInStreams:
    """Errors that chat servers send as an event."""

    @pytest.mark.parametrize(
        "event",
        [
            {"error": {"message": "upstream: prompt is too long: 9000 tokens > 8192 maximum", "code": 400}},
            {"error": "the request exceeds the available context size"},
            {"object": "error", "message": "Context size has been exceeded.", "code": 400},
            {"choices": [{"index": 0, "finish_reason": "error", "error": {"message": "context_length_exceeded"}}]},
        ],
    )
    async def test_overflow_in_a_stream_is_recognized(self, server: ModelServer, begin: Begin, event: Any) -> None:
        """An overflow that a gateway reports within a stream raises ContextOverflowError, without a retry."""
        server.script.append(Answer(raw=(f"data: {json.dumps(event)}\n\n".encode(),)))
        with pytest.raises(ContextOverflowError):
            await begin(CHAT).ask()
        assert len(server.requests) == 1

    async def test_error_of_a_choice_is_retried(self, server: ModelServer, begin: Begin) -> None:
        """A transient error of a choice is retried like any other error in a stream."""
        choice = {"index": 0, "delta": {}, "finish_reason": "error", "error": {"code": 502, "message": "idle"}}
        server.script += [Answer(raw=(f"data: {json.dumps({'choices': [choice]})}\n\n".encode(),)), say("well")]
        assert text_of((await begin(CHAT).ask()).message) == "well"
        assert len(server.requests) == 2


class TestReportedWindow:
    """Context windows that servers name in errors."""

    async def test_named_window_replaces_a_larger_one(self, server: ModelServer, talk: Talk) -> None:
        """The window of the server is remembered, and answers get at most half of it."""
        believed = talk.backend.info().context_limit
        server.script.append(fail(400, "invalid_request_error", "prompt is too long: 9000 tokens > 8192 maximum"))
        with pytest.raises(ContextOverflowError, match="has a context window of 8,192 tokens"):
            await talk.ask()
        assert talk.backend.info().context_limit == 8192 < believed
        await talk.turn()
        assert max(value for value in server.requests[-1].body.values() if isinstance(value, int)) <= 4096

    async def test_size_that_a_server_names_corrects_the_estimate(self, server: ModelServer, talk: Talk) -> None:
        """The refused request has the named size, although the server reported less before."""
        server.script += [
            say("well", usage={"input": 3_000}),
            fail(400, "invalid_request_error", "prompt is too long: 9000 tokens > 8192 maximum"),
        ]
        await talk.ask("why " * 4_000)
        with pytest.raises(ContextOverflowError):
            await talk.ask()
        assert talk.backend.context_tokens() == 9_000

    async def test_small_report_is_reported_once(
        self, server: ModelServer, begin: Begin, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Sizes are estimated if the server reports only tokens that were not cached."""
        server.otherwise = lambda _: say("well", usage={"input": 100})
        talk = begin(CHAT)
        for _ in range(3):
            await talk.ask("why " * 4_000)
        assert talk.backend.context_tokens() > 5_000
        assert capsys.readouterr().out.count("reported 100 input tokens for a request of about") == 1

    async def test_refusal_without_numbers_bounds_the_window(self, server: ModelServer, begin: Begin) -> None:
        """Requests stay smaller than the refused one until a larger request succeeds."""
        talk = begin(CHAT)
        believed = talk.backend.info().context_limit
        server.script.append(fail(400, "invalid_request_error", "prompt is too long"))
        with pytest.raises(ContextOverflowError):
            await talk.ask("why " * 4_000)
        talk.backend.clear()
        await talk.ask("why " * 2_000)
        assert talk.backend.info().context_limit < 8_000
        await talk.ask("why " * 4_000)
        assert talk.backend.info().context_limit == believed

    async def test_larger_window_is_not_learned(self, server: ModelServer, begin: Begin) -> None:
        """A configured window that is smaller than that of the server stays."""
        talk = begin(CHAT, context=8_000)
        server.script.append(fail(400, "invalid_request_error", "prompt is too long: 300000 tokens > 200000 maximum"))
        with pytest.raises(ContextOverflowError):
            await talk.ask()
        assert talk.backend.info().context_limit == 8_000

    async def test_larger_request_that_succeeds_resets_the_window(self, server: ModelServer, begin: Begin) -> None:
        """If the server accepts a larger request later, its old window is forgotten."""
        talk = begin(CHAT)
        believed = talk.backend.info().context_limit
        server.script += [
            fail(400, "invalid_request_error", "prompt is too long: 9000 tokens > 8192 maximum"),
            say("well", usage={"input": 20_000}),
        ]
        with pytest.raises(ContextOverflowError):
            await talk.ask("why " * 20_000)
        await talk.turn()
        assert talk.backend.info().context_limit == believed

    async def test_too_long_answer_limit_is_lowered_once(self, server: ModelServer, begin: Begin) -> None:
        """If only the requested answer is too long, the request is repeated with a shorter limit."""
        text = (
            "'max_tokens' or 'max_completion_tokens' is too large: 16384. This model's maximum context length is 8192 "
            "tokens and your request has 500 input tokens (16384 > 8192 - 500)."
        )
        server.script += [fail(400, "BadRequestError", text), say("well")]
        talk = begin(CHAT)
        assert text_of((await talk.ask()).message) == "well"
        limits = [max(value for value in each.body.values() if isinstance(value, int)) for each in server.requests]
        assert limits[1] == 4096 < limits[0]
        server.otherwise = lambda _: fail(400, "BadRequestError", text)
        with pytest.raises(BackendError, match="`context` or `output` of this model") as caught:
            await talk.ask()
        assert type(caught.value) is BackendError
        assert len(server.requests) == 3


async def test_missing_option_of_the_server_is_not_retried(server: ModelServer, talk: Talk) -> None:
    """A server that was started without an option is not asked again, and the error names the option."""
    server.script.append(fail(500, "server_error", "tools param requires --jinja flag"))
    with pytest.raises(BackendError, match=rf"start the server at {server.url}.* with --jinja"):
        await talk.ask()
    assert len(server.requests) == 1


@pytest.mark.parametrize("peer", [PEERS["chat"]])
async def test_error_without_cause_near_the_window_is_an_overflow(
    server: ModelServer, begin: Begin, peer: Peer
) -> None:
    """A server that explains nothing refused a long request because of its length."""
    server.script += [answer(400, b""), answer(400, b"")]
    with pytest.raises(ContextOverflowError):
        await begin(peer, context=4_000).ask("word " * 3_900)
    with pytest.raises(BackendError) as caught:
        await begin(peer, context=4_000).ask("word")
    assert type(caught.value) is BackendError
