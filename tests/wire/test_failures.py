"""What goes wrong between here and a model, with the real SDKs: what it is called, and what is tried again."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable

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
from orch_worker.backends.http.transport import Deadlines, ResponseWatch, client_options
from wire.api_backends import CHAT, MESSAGES, PEERS, RESPONSES, Peer, Talk
from wire.model_server import Answer, How, ModelServer, call, fail, say

Begin = Callable[..., Talk]
PARIS = {"call": "weather", "input": {"city": "Paris"}}

# Parts of requests that no server takes where they are put.
USER = {"role": "user", "content": [{"type": "text", "text": "x"}]}
CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "w", "input": {}}]}
RESULT = {"type": "tool_result", "tool_use_id": "x", "content": []}
STRAY = {"role": "tool", "tool_call_id": "x", "content": "y"}
OUTPUT = {"type": "function_call_output", "call_id": "x", "output": "y"}
REASONING = {"type": "reasoning", "id": "rs_0", "summary": [], "encrypted_content": "x"}


class TestProxies:
    """What the environment says of proxies is for models elsewhere."""

    async def test_a_server_of_this_machine_is_asked_by_no_proxy(
        self, server: ModelServer, peer: Peer, begin: Begin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is for a local model alone would leave this machine with it."""
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        server.script += [say("here")]
        assert text_of((await begin(peer).ask()).message) == "here"

    async def test_a_server_elsewhere_is_asked_by_the_proxy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also one with a name that only begins like that of this machine."""
        asked: list[bytes] = []

        async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readline())
            writer.close()

        async with await asyncio.start_server(proxy, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
            client = httpx2.AsyncClient(**client_options("http://localhost.example"))
            with pytest.raises(httpx2.TransportError):
                async with ResponseWatch(Deadlines()).listening():
                    await client.get("http://localhost.example/v1")
            await client.aclose()
        assert asked[0].startswith(b"GET http://localhost.example/v1 ")


class TestBrokenStreams:
    """A stream that ends before it said why the response does."""

    @pytest.mark.parametrize("how", ["eof", "drop", "reset", "garbage"])
    async def test_a_broken_stream_is_asked_for_again(self, server: ModelServer, talk: Talk, how: How) -> None:
        """Whether it ends cleanly, is dropped, reset or turns to garbage: the response of the next attempt counts."""
        server.script += [call(PARIS, text="first try", after=5, how=how), say("second try")]
        turn = await talk.ask()
        assert text_of(turn.message) == "second try"
        assert tool_uses(turn.message) == []
        assert (len(server.requests), len(talk.retries)) == (2, 1)
        assert server.requests[0].raw == server.requests[1].raw

    @pytest.mark.parametrize("after", [0, 1, 2, 3, 4, 5, 6])
    async def test_wherever_it_breaks(self, server: ModelServer, talk: Talk, after: int) -> None:
        """After any number of events, a clean end is no end unless a stop reason came."""
        server.script += [say("first try", after=after), say("second try")]
        turn = await talk.ask()
        assert text_of(turn.message) in ("first try", "second try")
        assert text_of(turn.message) == ("second try" if len(server.requests) == 2 else "first try")
        assert turn.stop_reason == "end_turn"

    async def test_clean_ends_all_the_way(self, server: ModelServer, talk: Talk) -> None:
        """A stream that never says why it ends is an error in the end, not half an answer."""
        server.otherwise = lambda _: say("half", after=3)
        with pytest.raises(TruncatedReplyError, match=r"without a stop reason \(asked 6 times\)"):
            await talk.ask()
        assert len(server.requests) == 6

    async def test_error_inside_a_stream(self, server: ModelServer, talk: Talk) -> None:
        """An error told in the middle of a stream with status 200 is asked again."""
        server.script += [say("half", after=3, how="error", kind="overloaded_error"), say("whole")]
        assert text_of((await talk.ask()).message) == "whole"
        assert "something happened" in str(talk.retries[0].error)

    async def test_rate_limit_inside_a_stream(self, server: ModelServer, talk: Talk) -> None:
        """A rate limit keeps its class in the middle of a stream too."""
        server.otherwise = lambda _: say("half", after=3, how="error", kind="rate_limit_error")
        with pytest.raises(RateLimitError, match=r"asked 20 times"):
            await talk.ask()
        assert len(server.requests) == 20

    async def test_lasting_error_inside_a_stream(self, server: ModelServer, talk: Talk) -> None:
        """What would fail again is not asked again, wherever it was told."""
        server.script.append(say("half", after=3, how="error", kind="invalid_request_error"))
        with pytest.raises(BackendError, match="something happened"):
            await talk.ask()
        assert len(server.requests) == 1

    async def test_error_without_a_kind(self, server: ModelServer, begin: Begin) -> None:
        """An error in a stream of which nothing is known may pass."""
        server.script += [say("half", after=3, how="error", kind=""), say("whole")]
        assert text_of((await begin(CHAT).ask()).message) == "whole"

    async def test_failed_response(self, server: ModelServer, begin: Begin) -> None:
        """A response that ends as failed is an error of its code."""
        server.script += [
            say("half", stop="failed", kind="server_error"),
            say("half", stop="failed", kind="invalid_prompt", message="no"),
        ]
        talk = begin(RESPONSES)
        with pytest.raises(BackendError, match="no"):
            await talk.ask()
        assert (len(server.requests), len(talk.retries)) == (2, 1)

    async def test_hangup_before_a_byte(self, server: ModelServer, talk: Talk) -> None:
        """A line that is closed without a word is dialled again, once an attempt: the SDK does not retry by itself."""
        server.otherwise = lambda _: Answer(hangup=True)
        with pytest.raises(BackendError, match=r"connection to .* failed .*asked 6 times"):
            await talk.ask()
        assert len(server.requests) == 6

    async def test_a_response_that_is_whole_is_kept(self, server: ModelServer, begin: Begin) -> None:
        """Once the stop reason is there nothing is asked again, however the connection ends."""
        server.script.append(say("all of it", after=8, how="drop"))
        assert text_of((await begin(MESSAGES).ask()).message) == "all of it"
        assert len(server.requests) == 1

    async def test_a_stream_that_is_not_closed(self, server: ModelServer, begin: Begin) -> None:
        """A server that says everything and then holds the line does not hold the turn."""
        server.script.append(say("all of it", after=9, how="stall"))
        talk = begin(MESSAGES)
        talk.backend.deadlines = Deadlines(idle=0.05)
        assert text_of((await talk.ask()).message) == "all of it"
        assert len(server.requests) == 1


class TestRefusedRequests:
    """Errors instead of streams."""

    @pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
    async def test_passing_errors(self, server: ModelServer, talk: Talk, status: int) -> None:
        """Overload, limits and failures of the server pass; each attempt is one request."""
        server.script += [fail(status), say("well")]
        assert text_of((await talk.ask()).message) == "well"
        assert len(server.requests) == 2

    @pytest.mark.parametrize("status", [400, 402, 403, 404, 413, 422])
    async def test_lasting_errors(self, server: ModelServer, talk: Talk, status: int) -> None:
        """A request that is wrong is made once."""
        server.script.append(fail(status, "invalid_request_error", "that is wrong"))
        with pytest.raises(BackendError, match=f"{status}: that is wrong"):
            await talk.ask()
        assert (len(server.requests), talk.retries) == (1, [])

    async def test_wrong_key(self, server: ModelServer, peer: Peer, talk: Talk) -> None:
        """A key that is not taken is an error that names the variable to set."""
        talk.backend._key = "wrong"
        with pytest.raises(BackendError, match=rf"401: .*set {peer.provider.upper()}_API_KEY"):
            await talk.ask()
        assert len(server.requests) == 1

    async def test_unknown_model(self, server: ModelServer, talk: Talk, peer: Peer) -> None:
        """A model that the provider does not have is named, with the address."""
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
    async def test_context_overflow(self, server: ModelServer, talk: Talk, status: int, message: str) -> None:
        """A conversation that is too long has a class of its own, whatever the words."""
        server.script.append(fail(status, "invalid_request_error", message))
        with pytest.raises(ContextOverflowError):
            await talk.ask()
        assert len(server.requests) == 1

    async def test_spent_credit_is_no_rate_limit(self, server: ModelServer, talk: Talk) -> None:
        """Waiting does not fill an account."""
        server.script.append(fail(429, "insufficient_quota", "You exceeded your current quota"))
        with pytest.raises(BackendError, match="no credit is left"):
            await talk.ask()
        assert len(server.requests) == 1

    async def test_timeouts_of_the_server(self, server: ModelServer, talk: Talk) -> None:
        """A timeout that the server reports is a timeout."""
        server.otherwise = lambda _: fail(504)
        with pytest.raises(BackendTimeoutError):
            await talk.ask()

    async def test_a_server_that_says_whether_to_retry(self, server: ModelServer, talk: Talk) -> None:
        """What the server says of retrying beats what the status suggests."""
        server.script += [fail(400, x_should_retry="true"), fail(500, x_should_retry="false")]
        with pytest.raises(BackendError, match="500"):
            await talk.ask()
        assert len(server.requests) == 2

    async def test_nobody_there(self, peer: Peer) -> None:
        """A refused connection on loopback fails after one retry, with the address and where it is set."""
        async with ModelServer() as gone:
            talk = peer.talk(gone)
        setting = f"{peer.provider.upper()}_BASE_URL"
        with pytest.raises(
            BackendError, match=rf"connection to http://127\.0\.0\.1:\d+.* failed.*Start the server.*{setting}"
        ):
            await talk.ask()
        assert len(talk.retries) == 1
        await talk.backend.close()

    async def test_nobody_there_on_this_machine(self) -> None:
        """A local model that is not running is asked once more."""
        async with ModelServer() as gone:
            talk = Peer("ollama", "qwen3", "/v1/chat/completions", "/v1").talk(gone)
        with pytest.raises(BackendError, match="is it running"):
            await talk.ask()
        assert len(talk.retries) == 1
        await talk.backend.close()

    async def test_a_password_in_an_address_is_not_told(self, peer: Peer) -> None:
        """An address may hold a password; what people read does not."""
        async with ModelServer() as gone:
            address = gone.url.replace("//", "//me:secret@")
            talk = peer.talk(gone, base_url=address)
        with pytest.raises(BackendError, match="connection to http://127") as caught:
            await talk.ask()
        assert "secret" not in f"{caught.value}{talk.retries}"
        await talk.backend.close()

    async def test_errors_cross_processes(self, server: ModelServer, talk: Talk) -> None:
        """What is raised is ours alone: it can be told as data, and pickled."""
        server.script.append(fail(400, "invalid_request_error", "no"))
        with pytest.raises(BackendError) as caught:
            await talk.ask()
        error = caught.value
        assert str(error_from(error_info(error))) == str(error) == str(pickle.loads(pickle.dumps(error)))


class TestWaiting:
    """How long is waited before asking again."""

    async def test_waits_grow(self, server: ModelServer, talk: Talk) -> None:
        """Each wait is about twice the one before, up to a limit, and none is exactly what others wait."""
        talk.backend.policy = RetryPolicy(attempts=8, first=1.0, most=10.0)
        server.otherwise = lambda _: fail(500)
        with pytest.raises(BackendError):
            await talk.ask()
        for wait, most in zip(talk.waits, [1, 2, 4, 8, 10, 10, 10], strict=True):
            assert most / 2 <= wait <= most

    async def test_to_be_one_too_many_is_counted_apart(self, server: ModelServer, talk: Talk) -> None:
        """Rate limits and overload pass, other failures may not: who met many of the one has all tries of the other."""
        server.script += [*(fail(429) for _ in range(9)), *(fail(529, "overloaded_error") for _ in range(9))]
        server.otherwise = lambda _: fail(500)
        with pytest.raises(BackendError, match=r"500.*asked 24 times"):
            await talk.ask()

    async def test_retry_after_is_obeyed(self, server: ModelServer, talk: Talk) -> None:
        """The wait that a provider names is the wait, in seconds, milliseconds, or as a date by its own clock."""
        now, then = "Fri, 20 Nov 2026 10:00:00 GMT", "Fri, 20 Nov 2026 10:00:42 GMT"
        server.script += [
            fail(429, retry_after="7"),
            fail(529, retry_after="60"),
            fail(429, retry_after_ms="1500"),
            fail(503, retry_after=then, date=now),
        ]
        await talk.ask()
        assert talk.waits == [7.0, 60.0, 1.5, 42.0]

    async def test_retry_after_that_says_nothing(self, server: ModelServer, talk: Talk) -> None:
        """A header that cannot be read is as good as none."""
        server.script += [fail(429, retry_after="soon"), fail(429, retry_after="-3")]
        await talk.ask()
        assert all(0 < wait <= 2 for wait in talk.waits)

    async def test_retry_after_has_a_limit(self, server: ModelServer, talk: Talk) -> None:
        """Nobody waits for more than a minute: the caller hears at once how long it would be."""
        server.script.append(fail(429, "rate_limit_error", retry_after="3600"))
        with pytest.raises(RateLimitError, match="wait 3600 s, more than 60 s"):
            await talk.ask()
        assert (talk.waits, len(server.requests)) == ([], 1)

    async def test_each_attempt_is_reported(self, server: ModelServer, talk: Talk) -> None:
        """Whoever watches hears of each failed attempt, why, and how long until the next."""
        server.script += [fail(429, retry_after="2"), say("half", after=2, how="drop"), say("whole")]
        await talk.ask()
        assert [(retry.attempt, type(retry.error)) for retry in talk.retries] == [
            (1, RateLimitError),
            (2, BackendError),
        ]
        assert [retry.seconds for retry in talk.retries] == talk.waits

    async def test_what_failed_attempts_used_is_accounted_for(self, server: ModelServer, begin: Begin) -> None:
        """Tokens of a response that never was whole are paid for, so they are in the usage of the one that is."""
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

    async def test_nothing_is_done_twice(self, server: ModelServer, talk: Talk) -> None:
        """Calls of a broken attempt are never seen by anybody: a response is whole, or it is not there."""
        server.script += [call(PARIS, PARIS, after=6, how="eof"), call(PARIS)]
        turn = await talk.ask()
        assert len(tool_uses(turn.message)) == 1
        assert len(talk.messages()) == 2


class TestDeadlines:
    """Silence ends."""

    async def test_silence_before_the_first_byte(self, server: ModelServer, talk: Talk) -> None:
        """A server that takes a request and says nothing is given up."""
        talk.backend.policy = RetryPolicy(attempts=2)
        talk.backend.deadlines = Deadlines(first=0.25)
        server.otherwise = lambda _: Answer(gate=asyncio.Event())
        with pytest.raises(BackendTimeoutError, match="nothing was heard"):
            await talk.ask()
        assert len(server.requests) == 2

    async def test_silence_in_the_middle(self, server: ModelServer, talk: Talk) -> None:
        """A stream that stops moving is given up, and asked for again."""
        talk.backend.deadlines = Deadlines(first=30.0, idle=0.05)
        server.script += [say("half", after=3, how="stall"), say("whole")]
        assert text_of((await talk.ask()).message) == "whole"
        assert isinstance(talk.retries[0].error, BackendTimeoutError)

    async def test_the_first_byte_may_take_longer(self) -> None:
        """Until something was heard one deadline counts, then another, and none for long when all was said."""
        now = asyncio.get_running_loop().time
        ear = ResponseWatch(Deadlines(first=1000.0, idle=500.0, content=2000.0))
        async with ear.listening():
            watch = ear._watch
            assert (watch.when() or 0.0) > now() + 900
            ear.hear()
            assert now() + 400 < (watch.when() or 0.0) <= now() + 500
            ear.last()
            assert (watch.when() or 0.0) <= now() + 2

    async def test_cancelling_ends_the_request(self, server: ModelServer, talk: Talk) -> None:
        """A turn that is cancelled leaves no request behind, and the next one is answered."""
        server.script += [Answer(gate=asyncio.Event()), say("well")]
        asking = asyncio.create_task(talk.ask())
        await server.arrived.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert talk.retries == []
        assert text_of((await talk.turn()).message) == "well"

    async def test_cancelling_ends_a_wait(self, server: ModelServer, talk: Talk) -> None:
        """A turn that is cancelled while it waits to ask again asks no more."""
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
    """The server of these tests refuses what real ones refuse, so that what passes here passes there."""

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
    async def test_messages(self, server: ModelServer, begin: Begin, change: Callable[..., None], why: str) -> None:
        """Orphans, silence, broken alternation, prefills and tuning are refused."""
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
    async def test_the_others(
        self, server: ModelServer, begin: Begin, peer: str, change: Callable[..., None], why: str
    ) -> None:
        """The same holds for the other APIs, each in its words."""
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
