"""Budgets over the wire, with the real SDKs: how long answers may be, and requests that are not made."""

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
from orch_worker.backends.base import LEAST_ANSWER, CostEstimate
from orch_worker.backends.http.remote import RemoteBackend
from wire.api_backends import CHAT, MESSAGES, Peer, Talk
from wire.model_server import Answer, ModelServer, Request, call, fail, say
from wire.test_end_to_end import MODEL, environment

Begin = Callable[..., Talk]
HI = (Text("hi"),)
FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def longest(request: Request) -> int:
    """Return how many tokens the request lets the model answer with."""
    [said] = [request.body[field] for field in FIELDS if field in request.body]
    return int(said)


def token(backend: RemoteBackend) -> float:
    """Return what a token of an answer costs."""
    price = backend.model.prices[0].output
    assert price is not None
    return price / 1e6


def covered(talk: Talk, tokens: int) -> float:
    """Let the next response of the talk cost no more than it does with an answer of so many tokens, and return that."""
    usd = quote(talk).least.usd + (tokens - LEAST_ANSWER) * token(talk.backend)
    talk.backend.most = BudgetAmounts(usd=usd)
    return usd


def quote(talk: Talk) -> CostEstimate:
    """Return what the next response may take."""
    return talk.backend.quote(priced=True)


class TestRequests:
    """What a backend asks for when there is only so much money."""

    async def test_an_answer_is_as_long_as_the_money(self, server: ModelServer, talk: Talk) -> None:
        """The request says how many tokens are paid for; one that is cut off there was stopped by the budget."""
        server.script += [say("a long st", stop="max_tokens"), say("short")]
        talk.backend.append_user(HI)
        covered(talk, 1234)
        assert (await talk.turn()).stop_reason == "budget"
        assert longest(server.requests[0]) == 1234
        assert (await talk.ask()).stop_reason == "end_turn"

    async def test_money_enough_changes_nothing(self, server: ModelServer, begin: Begin, peer: Peer) -> None:
        """The request is the very one that is made without a budget, and so is what it means to be cut off."""
        server.otherwise = lambda _: say("a long st", stop="max_tokens")
        rich, free = begin(peer), begin(peer)
        for talk in (rich, free):
            talk.backend.append_user(HI)
        rich.backend.most = quote(rich).most
        assert (await rich.turn()).stop_reason == (await free.turn()).stop_reason == "max_tokens"
        assert server.requests[0].raw == server.requests[1].raw

    async def test_the_users_own_bound_gives_way(self, server: ModelServer, begin: Begin) -> None:
        """A body that lets answers be longer than is paid for is overruled; one that is stricter is not."""
        for body, tokens in (({"max_tokens": 50_000}, 2_000), ({"max_tokens": 1_500}, 1_500)):
            talk = begin(MESSAGES, body=body)
            talk.backend.append_user(HI)
            covered(talk, 2_000)
            await talk.turn()
            assert longest(server.requests[-1]) == tokens

    async def test_the_providers_count_is_what_the_next_estimate_begins_with(
        self, server: ModelServer, talk: Talk
    ) -> None:
        """What was counted once is not guessed again; what came since is."""
        server.otherwise = lambda _: say("ok", usage={"input": 7_000, "output": 3_000})
        await talk.ask()
        price = talk.backend.model.prices[0]
        sent = max(price.input or 0, price.cache_write or 0) / 1e6
        least = quote(talk).least.usd
        told = 7_000 * sent + LEAST_ANSWER * token(talk.backend)
        assert told < least < told + 50 * sent
        talk.backend.append_user(HI)
        assert least < quote(talk).least.usd < least + 50 * sent

    async def test_failed_attempts_are_paid_from_the_same_money(self, server: ModelServer, begin: Begin) -> None:
        """What is left pays for a shorter answer; when it pays for none, the request is not made again."""
        broken = say("half", after=3, usage={"input": 100_000})
        server.script += [broken, say("whole"), broken, broken]
        talk = begin(MESSAGES)
        talk.backend.append_user(HI)
        most = covered(talk, 30_000)
        lost = 100_000 * (talk.backend.model.prices[0].input or 0) / 1e6
        turn = await talk.turn()
        assert longest(server.requests[1]) == pytest.approx(30_000 - lost / token(talk.backend), abs=2)
        assert lost < turn.usage.cost_usd < most
        talk.backend.append_user(HI)
        covered(talk, 15_000)
        with pytest.raises(BudgetExceededError, match=r"failed requests used \$0\.2"):
            await talk.turn()
        assert len(server.requests) == 3
        assert quote(talk).least.usd > lost  # it is owed, and the next response tells of it
        talk.backend.most = None
        assert (await talk.turn()).usage.cost_usd > 2 * lost

    async def test_a_cancelled_request_is_paid(self, server: ModelServer, begin: Begin) -> None:
        """What the provider told of it by then is part of the next response's usage."""
        talk = begin(MESSAGES)
        heard = asyncio.Event()
        talk.backend.append_user(HI)
        server.script += [Answer(blocks=({"text": "x"},), after=4, how="stall", usage={"input": 50_000}), say("ok")]
        asking = asyncio.create_task(talk.backend.assistant_turn(lambda _: heard.set()))
        await heard.wait()
        asking.cancel()
        await asyncio.wait([asking])
        assert (await talk.turn()).usage.input_tokens > 50_000

    async def test_a_request_that_is_given_up_takes_what_was_sent_and_heard(
        self, server: ModelServer, begin: Begin
    ) -> None:
        """Where usage is told at the end alone, and that never came; once, and without a budget nothing is made up."""
        talk = begin(CHAT)
        heard = asyncio.Event()
        talk.backend.append_user((Text("words " * 3000),))
        server.otherwise = lambda _: Answer(blocks=({"text": "and more " * 500},), after=3, how="stall")
        lost = []
        for most in (100_000, 0):
            heard.clear()
            talk.backend.most = None
            if most:
                covered(talk, most)
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

    async def test_a_request_that_is_given_up_takes_nothing_before_it_was_sent(self, begin: Begin, peer: Peer) -> None:
        """A budget is charged for what somebody may have read, also when not a word was said to it yet."""
        called, gone = asyncio.Event(), asyncio.Event()

        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            called.set()
            await gone.wait()
            writer.transport.abort()

        async with await asyncio.start_server(mute, "127.0.0.1", 0) as server:
            lost = []
            for scheme in ("http", "https"):  # with the latter nothing leaves before the other end has shown who it is
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

    async def test_a_provider_that_tells_nothing_is_paid_by_guess(self, server: ModelServer, begin: Begin) -> None:
        """A budget must shrink; without one nothing is made up."""
        server.otherwise = lambda _: say("words " * 1000, usage={"input": 0, "output": 0})
        talk = begin(CHAT)
        assert (await talk.ask()).usage.cost_usd == 0
        talk.backend.append_user(HI)
        covered(talk, 4_000)
        usage = (await talk.turn()).usage
        assert usage.cost_usd > 1000 * token(talk.backend)
        assert not usage.cost_known


class TestAgents:
    """Agents with budgets, whose model is the server."""

    async def test_no_request_is_made_that_is_not_covered(self, server: ModelServer, tmp_path: Path) -> None:
        """Not the first one either: then the query is an error, and the server hears nothing."""
        env = environment(server)
        async with AsyncOrchestrator(MODEL, home=tmp_path, env=env, **fake_world()) as root:
            agent = await root.spawn("x", max_cost=0.005)
            with pytest.raises(BudgetExceededError, match=r"\$0\.005 is left: agent 'agent-1'"):
                await agent.query("hi")
            assert server.requests == []
            await agent.resume(max_cost=0.10)
            assert (await agent.query("hi")).text == "done"

    async def test_a_long_job_ends_within_its_budget(self, server: ModelServer, tmp_path: Path) -> None:
        """Answers get shorter as the money goes, and no more is spent than there is, by the server's own bill."""
        billed: list[tuple[int, int]] = []

        def work(request: Request) -> Answer:
            sent, most = len(request.raw) // 4, longest(request)
            said = min(most, 6_000)
            billed.append((sent, said))
            usage = {"input": sent, "output": said}
            if said == most:
                return say("and so on", stop="max_tokens", usage=usage)
            return call({"call": "list_files", "input": {}}, usage=usage)

        server.otherwise = work
        env = environment(server)
        async with AsyncOrchestrator(MODEL, home=tmp_path, env=env, **fake_world()) as root:
            agent = await root.spawn("x", tools=["list_files"], cwd=tmp_path, max_cost=0.50)
            reply = await agent.query("Read everything")
            state = await agent.state()
        bill = sum(sent * 2 + said * 10 for sent, said in billed) / 1e6
        assert reply.stop_reason == "budget"
        assert reply.usage.cost_usd == pytest.approx(bill)
        assert 0.45 < bill <= 0.50
        assert state.spent.usd == pytest.approx(bill)
        assert "agent 'agent-1' and those below it spent $0.4" in reply.text
        assert server.refused == []

    async def test_a_turn_that_is_cancelled_counts_the_request_under_way(
        self, server: ModelServer, tmp_path: Path
    ) -> None:
        """In its own reply: there may be no turn after it."""
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

    async def test_a_turn_that_fails_counts_what_it_told(self, server: ModelServer, tmp_path: Path) -> None:
        """A model that cannot be reached spends nothing, and holds nothing afterwards."""
        server.script.append(fail(401, "authentication_error", "invalid key"))
        env = environment(server)
        async with AsyncOrchestrator(MODEL, home=tmp_path, env=env, **fake_world()) as root:
            agent = await root.spawn("x", max_cost=0.50)
            with pytest.raises(Exception, match="set ANTHROPIC_API_KEY"):
                await agent.query("hi")
            assert root.supervisor.budgets.holders() == []
            assert (await agent.state()).spent.usd == 0.0

    async def test_a_price_of_ones_own_makes_a_budget_possible(self, server: ModelServer, tmp_path: Path) -> None:
        """The error says what to write; written, the agent is spawned and bounded by it."""
        own = (
            '{"providers": {"acme": {"api": "chat", "base_url": "URL/v1", "keys": ["ACME_API_KEY"]}},'
            ' "models": {"acme": {"large": {PRICES}}}}'
        ).replace("URL", server.url)
        config = Config(model="acme:large", subagents=SubagentsConfig(max_cost_usd=0.5))
        told = ""
        for prices in ("", '"prices": [{"input": 1.0, "output": 20.0}]'):
            (tmp_path / "models.json").write_text(own.replace("PRICES", prices))
            env = {"ACME_API_KEY": "k"}
            async with AsyncOrchestrator(config=config, home=tmp_path, env=env, **fake_world()) as root:
                if not prices:
                    with pytest.raises(ConfigError) as raised:
                        await root.spawn("x")
                    told = str(raised.value)
                else:
                    assert (await (await root.spawn("x")).query("hi")).usage.cost_known
        assert '{"models": {"acme": {"large": {"prices": [{"input": USD, "output": USD}]}}}}' in told
        assert 20_000 < longest(server.requests[0]) < 25_000

    async def test_a_ceiling_makes_a_budget_possible_too(self, server: ModelServer, tmp_path: Path) -> None:
        """Without a known price each token costs what is configured: that bounds the answer, and is told."""
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
