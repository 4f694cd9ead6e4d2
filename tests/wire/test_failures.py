"""Failures between a backend and a model, with the real SDKs: their error classes and retries."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable

import anthropic
import httpx2
import pytest

from orch_protocol.core.errors import (
    BackendError,
    BackendTimeoutError,
    ContextOverflowError,
    RateLimitError,
    TruncatedReplyError,
    error_from,
    error_info,
)
from orch_protocol.core.messages import text_of, tool_uses
from orch_worker.backends.http.retry import RetryPolicy
from orch_worker.backends.http.transport import Deadlines, ResponseWatch, http_client
from wire.api_backends import CHAT, MESSAGES, PEERS, RESPONSES, Peer, Talk
from wire.model_server import Answer, How, ModelServer, call, fail, say

Begin = Callable[..., Talk]
PARIS = {"call": "weather", "input": {"city": "Paris"}}

# Parts of requests that are not valid where the tests add them.
USER = {"role": "user", "content": [{"type": "text", "text": "x"}]}
CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "w", "input": {}}]}
RESULT = {"type": "tool_result", "tool_use_id": "x", "content": []}
STRAY = {"role": "tool", "tool_call_id": "x", "content": "y"}
OUTPUT = {"type": "function_call_output", "call_id": "x", "output": "y"}
REASONING = {"type": "reasoning", "id": "rs_0", "summary": [], "encrypted_content": "x"}


class TestProxies:
    """Proxies of the environment are used only for remote models."""

    async def test_loopback_server_is_reached_without_a_proxy(
        self, server: ModelServer, peer: Peer, begin: Begin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A proxy is not used for a loopback server, because local-only content could leave the machine."""
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        server.script += [say("here")]
        assert text_of((await begin(peer).ask()).message) == "here"

    async def test_remote_server_is_reached_through_the_proxy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A proxy is used for a remote host, even if the host name starts like a local name."""
        asked: list[bytes] = []

        async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readline())
            writer.close()

        async with await asyncio.start_server(proxy, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
            client = http_client(anthropic.DefaultAioHttpClient, "http://localhost.example")
            with pytest.raises(httpx2.TransportError):
                async with ResponseWatch(Deadlines()).listening():
                    await client.get("http://localhost.example/v1")
            await client.aclose()
        assert asked[0].startswith(b"GET http://localhost.example/v1 ")


class TestBrokenStreams:
    """Streams that end before the stop reason of the response."""

    @pytest.mark.parametrize("how", ["eof", "drop", "reset", "garbage"])
    async def test_broken_stream_is_retried(self, server: ModelServer, talk: Talk, how: How) -> None:
        """A stream that is closed, dropped, reset or malformed is retried with the same request, and its content is
        discarded.
        """
        server.script += [call(PARIS, text="first try", after=5, how=how), say("second try")]
        turn = await talk.ask()
        assert text_of(turn.message) == "second try"
        assert tool_uses(turn.message) == []
        assert (len(server.requests), len(talk.retries)) == (2, 1)
        assert server.requests[0].raw == server.requests[1].raw

    @pytest.mark.parametrize("after", [0, 1, 2, 3, 4, 5, 6])
    async def test_stream_ending_without_a_stop_reason_is_retried(
        self, server: ModelServer, talk: Talk, after: int
    ) -> None:
        """A stream that ends without a stop reason is retried, after any number of events."""
        server.script += [say("first try", after=after), say("second try")]
        turn = await talk.ask()
        assert text_of(turn.message) in ("first try", "second try")
        assert text_of(turn.message) == ("second try" if len(server.requests) == 2 else "first try")
        assert turn.stop_reason == "end_turn"

    async def test_stream_without_a_stop_reason_is_an_error_after_all_retries(
        self, server: ModelServer, talk: Talk
    ) -> None:
        """A response that never has a stop reason is an error after six attempts, and not half an answer."""
        server.otherwise = lambda _: say("half", after=3)
        with pytest.raises(TruncatedReplyError, match=r"without a stop reason \(asked 6 times\)"):
            await talk.ask()
        assert len(server.requests) == 6

    async def test_error_event_inside_a_stream_is_retried(self, server: ModelServer, talk: Talk) -> None:
        """A transient error in a stream with the status 200 is retried and reported."""
        server.script += [say("half", after=3, how="error", kind="overloaded_error"), say("whole")]
        assert text_of((await talk.ask()).message) == "whole"
        assert "something happened" in str(talk.retries[0].error)

    async def test_rate_limit_inside_a_stream_keeps_its_class(self, server: ModelServer, talk: Talk) -> None:
        """A rate limit in a stream raises RateLimitError after 20 attempts."""
        server.otherwise = lambda _: say("half", after=3, how="error", kind="rate_limit_error")
        with pytest.raises(RateLimitError, match=r"asked 20 times"):
            await talk.ask()
        assert len(server.requests) == 20

    async def test_permanent_error_inside_a_stream_is_not_retried(self, server: ModelServer, talk: Talk) -> None:
        """A permanent error in a stream is raised after one request, like a permanent error outside of a stream."""
        server.script.append(say("half", after=3, how="error", kind="invalid_request_error"))
        with pytest.raises(BackendError, match="something happened"):
            await talk.ask()
        assert len(server.requests) == 1

    async def test_unclassified_error_inside_a_stream_is_retried(self, server: ModelServer, begin: Begin) -> None:
        """An error of an unknown type in a stream is retried, because it may be transient."""
        server.script += [say("half", after=3, how="error", kind=""), say("whole")]
        assert text_of((await begin(CHAT).ask()).message) == "whole"

    async def test_failed_response_is_an_error_of_its_code(self, server: ModelServer, begin: Begin) -> None:
        """A response with the status `failed` is retried or raised, depending on its error code."""
        server.script += [
            say("half", stop="failed", kind="server_error"),
            say("half", stop="failed", kind="invalid_prompt", message="no"),
        ]
        talk = begin(RESPONSES)
        with pytest.raises(BackendError, match="no"):
            await talk.ask()
        assert (len(server.requests), len(talk.retries)) == (2, 1)

    async def test_hangup_before_the_first_byte_is_retried(self, server: ModelServer, talk: Talk) -> None:
        """Six attempts send six requests, because the SDK itself does not retry."""
        server.otherwise = lambda _: Answer(hangup=True)
        with pytest.raises(BackendError, match=r"connection to .* failed .*asked 6 times"):
            await talk.ask()
        assert len(server.requests) == 6

    async def test_complete_response_is_kept_after_a_broken_connection(self, server: ModelServer, begin: Begin) -> None:
        """If the connection breaks after the stop reason, the response is used without a retry."""
        server.script.append(say("all of it", after=8, how="drop"))
        assert text_of((await begin(MESSAGES).ask()).message) == "all of it"
        assert len(server.requests) == 1

    async def test_unclosed_stream_does_not_delay_the_turn(self, server: ModelServer, begin: Begin) -> None:
        """The response is returned after its last event, even if the server does not close the stream."""
        server.script.append(say("all of it", after=9, how="stall"))
        talk = begin(MESSAGES)
        talk.backend.deadlines = Deadlines(idle=0.05)
        assert text_of((await talk.ask()).message) == "all of it"
        assert len(server.requests) == 1


class TestRefusedRequests:
    """Error responses and refused connections."""

    @pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
    async def test_transient_errors_are_retried(self, server: ModelServer, talk: Talk, status: int) -> None:
        """A transient error is retried with one further request."""
        server.script += [fail(status), say("well")]
        assert text_of((await talk.ask()).message) == "well"
        assert len(server.requests) == 2

    @pytest.mark.parametrize("status", [400, 402, 403, 404, 413, 422])
    async def test_permanent_errors_are_not_retried(self, server: ModelServer, talk: Talk, status: int) -> None:
        """A permanent error is raised after one request, with its status and message."""
        server.script.append(fail(status, "invalid_request_error", "that is wrong"))
        with pytest.raises(BackendError, match=f"{status}: that is wrong"):
            await talk.ask()
        assert (len(server.requests), talk.retries) == (1, [])

    async def test_rejected_key_names_the_variable(self, server: ModelServer, peer: Peer, talk: Talk) -> None:
        """The error for a rejected key names the variable to set, without a retry."""
        talk.backend._key = "wrong"
        with pytest.raises(BackendError, match=rf"401: .*set {peer.provider.upper()}_API_KEY"):
            await talk.ask()
        assert len(server.requests) == 1

    async def test_unknown_model_is_named_with_the_address(self, server: ModelServer, talk: Talk, peer: Peer) -> None:
        """The error for an unknown model contains the name of the model and the address of the server."""
        server.script.append(fail(404, "not_found_error", "model: x"))
        with pytest.raises(BackendError, match=rf"is {peer.model!r} the right name, {server.url}"):
            await talk.ask()

    @pytest.mark.parametrize(
        ("status", "message"),
        [
            (400, "prompt is too long: 208310 tokens > 200000 maximum"),
            (400, "input length and `max_tokens` exceed context limit: 199000 + 20000 > 200000"),
            (400, "This model's maximum context length is 128000 tokens."),
            (400, "Your input exceeds the context window of this model."),
            (413, "Request exceeds the maximum size"),
        ],
    )
    async def test_context_overflow_has_its_own_error_class(
        self, server: ModelServer, talk: Talk, status: int, message: str
    ) -> None:
        """The messages of all providers for a context overflow raise ContextOverflowError, without a retry."""
        server.script.append(fail(status, "invalid_request_error", message))
        with pytest.raises(ContextOverflowError):
            await talk.ask()
        assert len(server.requests) == 1

    async def test_exhausted_credit_is_not_a_rate_limit(self, server: ModelServer, talk: Talk) -> None:
        """An exhausted quota is not retried although its status is 429, because waiting does not help."""
        server.script.append(fail(429, "insufficient_quota", "You exceeded your current quota"))
        with pytest.raises(BackendError, match="no credit is left"):
            await talk.ask()
        assert len(server.requests) == 1

    async def test_timeout_reported_by_the_server_is_a_timeout(self, server: ModelServer, talk: Talk) -> None:
        """The status 504 raises BackendTimeoutError after all retries."""
        server.otherwise = lambda _: fail(504)
        with pytest.raises(BackendTimeoutError):
            await talk.ask()

    async def test_retry_header_of_the_server_overrides_the_status(self, server: ModelServer, talk: Talk) -> None:
        """The header `x-should-retry` decides about a retry, and the status does not."""
        server.script += [fail(400, x_should_retry="true"), fail(500, x_should_retry="false")]
        with pytest.raises(BackendError, match="500"):
            await talk.ask()
        assert len(server.requests) == 2

    async def test_refused_connection_fails_after_one_retry(self, peer: Peer) -> None:
        """The error for a refused connection to loopback contains the address and names the variable that sets it."""
        async with ModelServer() as gone:
            talk = peer.talk(gone)
        setting = f"{peer.provider.upper()}_BASE_URL"
        with pytest.raises(
            BackendError, match=rf"connection to http://127\.0\.0\.1:\d+.* failed.*Start the server.*{setting}"
        ):
            await talk.ask()
        assert len(talk.retries) == 1
        await talk.backend.close()

    async def test_local_model_that_is_not_running_is_retried_once(self) -> None:
        """The error for a local server that does not listen asks whether the server is running."""
        async with ModelServer() as gone:
            talk = Peer("ollama", "qwen3", "/v1/chat/completions", "/v1").talk(gone)
        with pytest.raises(BackendError, match="is it running"):
            await talk.ask()
        assert len(talk.retries) == 1
        await talk.backend.close()

    async def test_password_in_a_url_is_redacted_in_errors(self, peer: Peer) -> None:
        """Errors and reported retries do not contain the password of the address."""
        async with ModelServer() as gone:
            address = gone.url.replace("//", "//me:secret@")
            talk = peer.talk(gone, base_url=address)
        with pytest.raises(BackendError, match="connection to http://127") as caught:
            await talk.ask()
        assert "secret" not in f"{caught.value}{talk.retries}"
        await talk.backend.close()

    async def test_backend_errors_are_serializable(self, server: ModelServer, talk: Talk) -> None:
        """A backend error has the same text after it was converted to data and back, or pickled."""
        server.script.append(fail(400, "invalid_request_error", "no"))
        with pytest.raises(BackendError) as caught:
            await talk.ask()
        error = caught.value
        assert str(error_from(error_info(error))) == str(error) == str(pickle.loads(pickle.dumps(error)))


class TestWaiting:
    """Delays before retries."""

    async def test_retry_delays_double_with_jitter(self, server: ModelServer, talk: Talk) -> None:
        """Each delay is random, between half of a limit and the limit. The limit doubles up to a maximum."""
        talk.backend.policy = RetryPolicy(attempts=8, first=1.0, max_seconds=10.0)
        server.otherwise = lambda _: fail(500)
        with pytest.raises(BackendError):
            await talk.ask()
        for wait, limit in zip(talk.waits, [1, 2, 4, 8, 10, 10, 10], strict=True):
            assert limit / 2 <= wait <= limit

    async def test_rate_limits_and_failures_have_separate_retries(self, server: ModelServer, talk: Talk) -> None:
        """After 18 rate limits and overload errors, another failure still has all six attempts."""
        server.script += [*(fail(429) for _ in range(9)), *(fail(529, "overloaded_error") for _ in range(9))]
        server.otherwise = lambda _: fail(500)
        with pytest.raises(BackendError, match=r"500.*asked 24 times"):
            await talk.ask()

    async def test_retry_after_is_obeyed(self, server: ModelServer, talk: Talk) -> None:
        """The server can request a delay in seconds, in milliseconds, or as a date relative to its clock."""
        now, then = "Fri, 20 Nov 2026 10:00:00 GMT", "Fri, 20 Nov 2026 10:00:42 GMT"
        server.script += [
            fail(429, retry_after="7"),
            fail(529, retry_after="60"),
            fail(429, retry_after_ms="1500"),
            fail(503, retry_after=then, date=now),
        ]
        await talk.ask()
        assert talk.waits == [7.0, 60.0, 1.5, 42.0]

    async def test_unreadable_retry_after_is_ignored(self, server: ModelServer, talk: Talk) -> None:
        """If the requested delay is not a number or is negative, the usual delay is used."""
        server.script += [fail(429, retry_after="soon"), fail(429, retry_after="-3")]
        await talk.ask()
        assert all(0 < wait <= 2 for wait in talk.waits)

    async def test_retry_after_above_a_minute_is_an_error(self, server: ModelServer, talk: Talk) -> None:
        """A requested delay of more than a minute is an immediate error that contains the delay."""
        server.script.append(fail(429, "rate_limit_error", retry_after="3600"))
        with pytest.raises(RateLimitError, match="wait 3600 s, more than 60 s"):
            await talk.ask()
        assert (talk.waits, len(server.requests)) == ([], 1)

    async def test_each_failed_attempt_is_reported(self, server: ModelServer, talk: Talk) -> None:
        """The report of a failed attempt contains its number, its error and the delay."""
        server.script += [fail(429, retry_after="2"), say("half", after=2, how="drop"), say("whole")]
        await talk.ask()
        assert [(retry.attempt, type(retry.error)) for retry in talk.retries] == [
            (1, RateLimitError),
            (2, BackendError),
        ]
        assert [retry.seconds for retry in talk.retries] == talk.waits

    async def test_usage_of_failed_attempts_is_counted(self, server: ModelServer, begin: Begin) -> None:
        """The usage of a failed attempt is added to the usage of the next complete response only."""
        used = {"input": 1000, "output": 7}
        server.script += [
            say("half", after=4, how="drop", usage=used),
            say("whole", usage=used),
            say("more", usage=used),
        ]
        talk = begin(MESSAGES)
        usage = (await talk.ask()).usage
        assert (usage.input_tokens, usage.output_tokens) == (2000, 8)
        assert (await talk.ask()).usage.input_tokens == 1000

    async def test_calls_of_a_broken_attempt_are_discarded(self, server: ModelServer, talk: Talk) -> None:
        """The conversation contains the calls of the complete response only."""
        server.script += [call(PARIS, PARIS, after=6, how="eof"), call(PARIS)]
        turn = await talk.ask()
        assert len(tool_uses(turn.message)) == 1
        assert len(talk.messages()) == 2


class TestDeadlines:
    """Deadlines for data from the server."""

    async def test_silence_before_the_first_byte_times_out(self, server: ModelServer, talk: Talk) -> None:
        """A request without a response raises BackendTimeoutError after its attempts."""
        talk.backend.policy = RetryPolicy(attempts=2)
        talk.backend.deadlines = Deadlines(first=0.25)
        server.otherwise = lambda _: Answer(gate=asyncio.Event())
        with pytest.raises(BackendTimeoutError, match="no data from"):
            await talk.ask()
        assert len(server.requests) == 2

    async def test_silence_in_mid_stream_times_out_and_is_retried(self, server: ModelServer, talk: Talk) -> None:
        """A stream that sends no more data is aborted and retried."""
        talk.backend.deadlines = Deadlines(first=30.0, idle=0.05)
        server.script += [say("half", after=3, how="stall"), say("whole")]
        assert text_of((await talk.ask()).message) == "whole"
        assert isinstance(talk.retries[0].error, BackendTimeoutError)

    async def test_first_byte_has_a_longer_deadline(self) -> None:
        """The deadline is long before the first byte, shorter between later bytes, and short after the last event."""
        now = asyncio.get_running_loop().time
        ear = ResponseWatch(Deadlines(first=1000.0, idle=500.0, content=2000.0))
        async with ear.listening():
            watch = ear._watch
            assert (watch.when() or 0.0) > now() + 900
            ear.bytes_arrived()
            assert now() + 400 < (watch.when() or 0.0) <= now() + 500
            ear.response_complete()
            assert (watch.when() or 0.0) <= now() + 2

    async def test_cancel_aborts_the_request(self, server: ModelServer, talk: Talk) -> None:
        """Cancelling a turn aborts its request without a retry, and the next request is answered."""
        server.script += [Answer(gate=asyncio.Event()), say("well")]
        asking = asyncio.create_task(talk.ask())
        await server.arrived.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert talk.retries == []
        assert text_of((await talk.turn()).message) == "well"

    async def test_cancel_during_a_retry_delay_stops_retrying(self, server: ModelServer, talk: Talk) -> None:
        """If a turn is cancelled during the delay before a retry, no further request is sent."""
        waiting = asyncio.Event()

        async def wait(_: float) -> None:
            waiting.set()
            await asyncio.Event().wait()

        talk.backend.sleep = wait
        server.otherwise = lambda _: fail(500)
        asking = asyncio.create_task(talk.ask())
        await waiting.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert len(server.requests) == 1


class TestTheServerIsStrict:
    """The test server refuses what real servers refuse, so that accepted requests are valid for real servers."""

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda body: body["messages"].append(USER), "alternate"),
            (lambda body: body["messages"][0].update(content=[{"type": "text", "text": " "}]), "non-empty"),
            (lambda body: body["messages"][0].update(content=[]), "non-empty"),
            (lambda body: body["messages"][0]["content"].insert(0, RESULT), "unexpected `tool_use_id`"),
            (lambda body: body["messages"].extend([CALL, USER]), "without `tool_result`"),
            (lambda body: body["messages"].append(CALL), "prefill"),
            (lambda body: body.update(temperature=0.5), "Extra inputs"),
            (lambda body: body.update(stream=False), "Streaming"),
        ],
    )
    async def test_test_server_refuses_invalid_anthropic_messages(
        self, server: ModelServer, begin: Begin, change: Callable[..., None], why: str
    ) -> None:
        """The test server refuses orphaned results, missing results and empty content.

        It also refuses roles that do not alternate, prefills, a temperature, and requests without streaming.
        """
        talk = begin(MESSAGES)
        await talk.ask()
        await self._refused(server, MESSAGES, change, why)

    @pytest.mark.parametrize(
        ("peer", "change", "why"),
        [
            ("chat", lambda body: body["messages"].append(STRAY), "tool_calls"),
            ("chat", lambda body: body["messages"].append({"role": "user", "content": ""}), "empty"),
            ("responses", lambda body: body.update(store=True), "store"),
            ("responses", lambda body: body["input"].append(OUTPUT), "No tool call found"),
            ("responses", lambda body: body["input"].append(REASONING), "could not be verified"),
        ],
    )
    async def test_test_server_refuses_invalid_openai_requests(
        self, server: ModelServer, begin: Begin, peer: str, change: Callable[..., None], why: str
    ) -> None:
        """The test server refuses invalid requests of the Chat Completions and Responses APIs."""
        await begin(PEERS[peer]).ask()
        await self._refused(server, PEERS[peer], change, why)

    async def _refused(self, server: ModelServer, peer: Peer, change: Callable[..., None], why: str) -> None:
        from wire.model_server import APIS
        from wire.rules import Refused

        body = server.requests[0].body
        APIS[peer.path].check(body, server.requests[0].headers, server.issued)
        change(body)
        with pytest.raises(Refused, match=why):
            APIS[peer.path].check(body, server.requests[0].headers, server.issued)
