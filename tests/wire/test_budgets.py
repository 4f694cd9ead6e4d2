"""Budgets with the real SDKs: the maximum length of answers, and requests that are not sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from orch import AsyncOrchestrator, Config, SubagentsConfig
from orch.testing import fake_world
from orch_protocol.agent.config import BudgetConfig
from orch_protocol.core.errors import BudgetExceededError, ConfigError
from orch_protocol.core.messages import Text, Usage
from orch_protocol.policy.budget import BudgetAmounts
from orch_worker.backends.base import MIN_ANSWER_TOKENS, CostEstimate
from orch_worker.backends.http.remote import RemoteBackend
from wire.api_backends import CHAT, MESSAGES, Peer, Talk
from wire.model_server import Answer, ModelServer, Request, call, fail, say
from wire.test_end_to_end import MODEL, environment

Begin = Callable[..., Talk]
HI = (Text("hi"),)
FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def longest(request: Request) -> int:
    """Return the maximum number of output tokens in the request."""
    [listed] = [request.body[field] for field in FIELDS if field in request.body]
    return int(listed)


def token(backend: RemoteBackend) -> float:
    """Return the price of an output token in USD."""
    price = backend.model.prices[0].output
    assert price is not None
    return price / 1e6


def covered(talk: Talk, tokens: int) -> float:
    """Limit the next response of `talk` to the cost of an answer with `tokens` tokens. Return the limit in USD."""
    usd = quote(talk).minimum.usd + (tokens - MIN_ANSWER_TOKENS) * token(talk.backend)
    talk.backend.reserved = BudgetAmounts(usd=usd)
    return usd


def quote(talk: Talk) -> CostEstimate:
    """Return the cost estimate of the next response."""
    return talk.backend.estimate_cost(priced=True)


class TestRequests:
    """Requests of a backend with a budget."""

    async def test_answer_length_is_limited_by_the_budget(self, server: ModelServer, talk: Talk) -> None:
        """The request limits the answer to the affordable tokens, and an answer cut at this limit has the stop reason
        `budget`.
        """
        server.script += [say("a long st", stop="max_tokens"), say("short")]
        talk.backend.append_user(HI)
        covered(talk, 1234)
        assert (await talk.turn()).stop_reason == "budget"
        assert longest(server.requests[0]) == 1234
        assert (await talk.ask()).stop_reason == "end_turn"

    async def test_sufficient_budget_does_not_change_the_request(
        self, server: ModelServer, begin: Begin, peer: Peer
    ) -> None:
        """With a sufficient budget, request and stop reason are the same as without a budget."""
        server.otherwise = lambda _: say("a long st", stop="max_tokens")
        rich, free = begin(peer), begin(peer)
        for talk in (rich, free):
            talk.backend.append_user(HI)
        rich.backend.reserved = quote(rich).maximum
        assert (await rich.turn()).stop_reason == (await free.turn()).stop_reason == "max_tokens"
        assert server.requests[0].raw == server.requests[1].raw

    async def test_budget_overrides_a_higher_user_limit(self, server: ModelServer, begin: Begin) -> None:
        """The request contains the lower of two limits: the limit of the budget or the limit of the user."""
        for body, tokens in (({"max_tokens": 50_000}, 2_000), ({"max_tokens": 1_500}, 1_500)):
            talk = begin(MESSAGES, body=body)
            talk.backend.append_user(HI)
            covered(talk, 2_000)
            await talk.turn()
            assert longest(server.requests[-1]) == tokens

    async def test_reported_usage_is_the_base_of_the_next_estimate(self, server: ModelServer, talk: Talk) -> None:
        """The next estimate consists of the reported usage and an estimate of the later messages."""
        server.otherwise = lambda _: say("ok", usage={"input": 7_000, "output": 3_000})
        await talk.ask()
        price = talk.backend.model.prices[0]
        sent = max(price.input or 0, price.cache_write or 0) / 1e6
        minimum = quote(talk).minimum.usd
        found = 7_000 * sent + MIN_ANSWER_TOKENS * token(talk.backend)
        assert found < minimum < found + 50 * sent
        talk.backend.append_user(HI)
        assert minimum < quote(talk).minimum.usd < minimum + 50 * sent

    async def test_failed_attempts_are_charged_to_the_same_reservation(self, server: ModelServer, begin: Begin) -> None:
        """The cost of a failed attempt shortens the answer of the retry, or prevents the retry."""
        broken = say("half", after=3, usage={"input": 100_000})
        server.script += [broken, say("whole"), broken, broken]
        talk = begin(MESSAGES)
        talk.backend.append_user(HI)
        limit = covered(talk, 30_000)
        lost = 100_000 * (talk.backend.model.prices[0].input or 0) / 1e6
        turn = await talk.turn()
        assert longest(server.requests[1]) == pytest.approx(30_000 - lost / token(talk.backend), abs=2)
        assert lost < turn.usage.cost_usd < limit
        talk.backend.append_user(HI)
        covered(talk, 15_000)
        with pytest.raises(BudgetExceededError, match=r"failed requests used \$0\.2"):
            await talk.turn()
        assert len(server.requests) == 3
        assert quote(talk).minimum.usd > lost  # the next response contains this cost
        talk.backend.reserved = None
        assert (await talk.turn()).usage.cost_usd > 2 * lost

    async def test_cancelled_request_is_charged(self, server: ModelServer, begin: Begin) -> None:
        """The usage that a cancelled request reported is part of the usage of the next response."""
        talk = begin(MESSAGES)
        heard = asyncio.Event()
        talk.backend.append_user(HI)
        server.script += [Answer(blocks=({"text": "x"},), after=4, how="stall", usage={"input": 50_000}), say("ok")]
        asking = asyncio.create_task(talk.backend.assistant_turn(lambda _: heard.set()))
        await heard.wait()
        asking.cancel()
        await asyncio.wait([asking])
        assert (await talk.turn()).usage.input_tokens > 50_000

    async def test_abandoned_request_is_charged_by_estimate(self, server: ModelServer, begin: Begin) -> None:
        """With a budget, the input and the received output of an abandoned request are estimated.

        The API of this test reports usage only at the end. Without a budget, nothing is estimated.
        """
        talk = begin(CHAT)
        heard = asyncio.Event()
        talk.backend.append_user((Text("words " * 3000),))
        server.otherwise = lambda _: Answer(blocks=({"text": "and more " * 500},), after=3, how="stall")
        lost = []
        for limit in (100_000, 0):
            heard.clear()
            talk.backend.reserved = None
            if limit:
                covered(talk, limit)
            asking = asyncio.create_task(talk.backend.assistant_turn(lambda _: heard.set()))
            await heard.wait()
            asking.cancel()
            await asyncio.wait([asking])
            lost += [talk.backend.lost(), talk.backend.lost()]
        assert lost[0].input_tokens > 3000
        assert lost[0].output_tokens > 0
        assert lost[0].cost_usd > 3000 * (talk.backend.model.prices[0].input or 0) / 1e6
        assert not lost[0].cost_known
        assert lost[1:] == [Usage()] * 3

    async def test_request_abandoned_before_sending_is_free(self, begin: Begin, peer: Peer) -> None:
        """A request that is cancelled during the TLS handshake costs nothing, because it was not sent."""
        called, gone = asyncio.Event(), asyncio.Event()

        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            called.set()
            await gone.wait()
            writer.transport.abort()

        async with await asyncio.start_server(mute, "127.0.0.1", 0) as server:
            lost = []
            for scheme in ("http", "https"):  # HTTPS sends no request before the TLS handshake
                called.clear()
                talk = begin(peer, base_url=f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}")
                talk.backend.append_user((Text("words " * 3000),))
                covered(talk, 100_000)
                asking = asyncio.create_task(talk.backend.assistant_turn())
                await called.wait()
                asking.cancel()
                await asyncio.wait([asking])
                lost.append(talk.backend.lost())
            gone.set()
        assert lost[0].input_tokens > 3000
        assert lost[1] == Usage()

    async def test_missing_usage_is_estimated_with_a_budget(self, server: ModelServer, begin: Begin) -> None:
        """With a budget, usage that the server does not report is estimated. Without a budget, the cost is 0."""
        server.otherwise = lambda _: say("words " * 1000, usage={"input": 0, "output": 0})
        talk = begin(CHAT)
        assert (await talk.ask()).usage.cost_usd == 0
        talk.backend.append_user(HI)
        covered(talk, 4_000)
        usage = (await talk.turn()).usage
        assert usage.cost_usd > 1000 * token(talk.backend)
        assert not usage.cost_known


class TestAgents:
    """Agents with budgets and a model at `server`."""

    async def test_uncovered_request_is_not_sent(self, server: ModelServer, tmp_path: Path) -> None:
        """If the budget does not cover the first request, the query fails. After the budget was raised, the query
        succeeds.
        """
        env = environment(server)
        async with AsyncOrchestrator(MODEL, home=tmp_path, env=env, **fake_world()) as root:
            agent = await root.spawn("x", max_cost=0.005)
            with pytest.raises(BudgetExceededError, match=r"\$0\.005 is left: agent 'agent-1'"):
                await agent.query("hi")
            assert server.requests == []
            await agent.resume(max_cost=0.10)
            assert (await agent.query("hi")).text == "done"

    async def test_long_task_ends_within_its_budget(self, server: ModelServer, tmp_path: Path) -> None:
        """A long task ends before its cost, as counted by the server, exceeds the budget."""
        billed: list[tuple[int, int]] = []

        def work(request: Request) -> Answer:
            sent, limit = len(request.raw) // 4, longest(request)
            found = min(limit, 6_000)
            billed.append((sent, found))
            usage = {"input": sent, "output": found}
            if found == limit:
                return say("and so on", stop="max_tokens", usage=usage)
            return call({"call": "list_files", "input": {}}, usage=usage)

        server.otherwise = work
        env = environment(server)
        async with AsyncOrchestrator(MODEL, home=tmp_path, env=env, **fake_world()) as root:
            agent = await root.spawn("x", tools=["list_files"], cwd=tmp_path, max_cost=0.50)
            reply = await agent.query("Read everything")
            state = await agent.state()
        bill = sum(sent * 2 + returned * 10 for sent, returned in billed) / 1e6
        assert reply.stop_reason == "budget"
        assert reply.usage.cost_usd == pytest.approx(bill)
        assert 0.45 < bill <= 0.50
        assert state.spent.usd == pytest.approx(bill)
        assert "agent 'agent-1' and its descendants spent $0.4" in reply.text
        assert server.refused == []

    async def test_cancelled_turn_counts_its_pending_request(self, server: ModelServer, tmp_path: Path) -> None:
        """The reply of a cancelled turn contains the usage of the pending request."""
        server.script.append(Answer(blocks=({"text": "x"},), after=4, how="stall", usage={"input": 50_000}))
        heard = asyncio.Event()
        env = environment(server)
        async with AsyncOrchestrator(MODEL, home=tmp_path, env=env, **fake_world()) as root:
            agent = await root.spawn("x", max_cost=2.50)
            asking = asyncio.create_task(agent.query("hi", on_event=lambda _: heard.set()))
            await heard.wait()
            await agent.cancel()
            reply = await asking
            assert reply.stop_reason == "cancelled"
            assert reply.usage.input_tokens >= 50_000
            assert (await agent.state()).spent.usd == pytest.approx(reply.usage.cost_usd)
            assert reply.usage.cost_usd > 0.09

    async def test_refused_request_costs_nothing(self, server: ModelServer, tmp_path: Path) -> None:
        """A turn whose first request is refused costs nothing, and no part of the budget stays reserved."""
        server.script.append(fail(401, "authentication_error", "invalid key"))
        env = environment(server)
        async with AsyncOrchestrator(MODEL, home=tmp_path, env=env, **fake_world()) as root:
            agent = await root.spawn("x", max_cost=0.50)
            with pytest.raises(Exception, match="set ANTHROPIC_API_KEY"):
                await agent.query("hi")
            assert root.supervisor.budgets.release_topics() == []
            assert (await agent.state()).spent.usd == 0.0

    async def test_price_override_makes_a_budget_possible(self, server: ModelServer, tmp_path: Path) -> None:
        """For a model without prices, a budget is an error that contains the setting to write in models.json.

        With this setting, the agent answers within the budget.
        """
        own = (
            '{"providers": {"acme": {"api": "chat", "base_url": "URL/v1", "keys": ["ACME_API_KEY"]}},'
            ' "models": {"acme": {"large": {PRICES}}}}'
        ).replace("URL", server.url)
        config = Config(model="acme:large", subagents=SubagentsConfig(max_cost_usd=0.5))
        text = ""
        for prices in ("", '"prices": [{"input": 1.0, "output": 20.0}]'):
            (tmp_path / "models.json").write_text(own.replace("PRICES", prices))
            env = {"ACME_API_KEY": "k"}
            async with AsyncOrchestrator(config=config, home=tmp_path, env=env, **fake_world()) as root:
                if not prices:
                    with pytest.raises(ConfigError) as raised:
                        await root.spawn("x")
                    text = str(raised.value)
                else:
                    assert (await (await root.spawn("x")).query("hi")).usage.cost_known
        assert '{"models": {"acme": {"large": {"prices": [{"input": USD, "output": USD}]}}}}' in text
        assert 20_000 < longest(server.requests[0]) < 25_000

    async def test_price_ceiling_makes_a_budget_possible(self, server: ModelServer, tmp_path: Path) -> None:
        """With `unknown_price`, each token of a model without prices costs the configured amount."""
        own = {"acme": {"api": "chat", "base_url": f"{server.url}/v1", "keys": ["ACME_API_KEY"]}}
        (tmp_path / "models.json").write_text(json.dumps({"providers": own}))
        config = Config(
            model="acme:large",
            subagents=SubagentsConfig(max_cost_usd=0.2),
            budget=BudgetConfig(unknown_price=20.0),
        )
        async with AsyncOrchestrator(config=config, home=tmp_path, env={"ACME_API_KEY": "k"}, **fake_world()) as root:
            agent = await root.spawn("x")
            usage = (await agent.query("hi")).usage
            assert usage.ceiling_usd == usage.cost_usd == (await agent.state()).spent.usd > 0
            assert not usage.cost_known
        assert longest(server.requests[0]) < 0.2 / 20e-6
