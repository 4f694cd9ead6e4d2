"""What a provider bills for an agent's requests, and what `orch replay` prints for the same session."""

from __future__ import annotations

import itertools
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orch import ArchivalConfig, AsyncOrchestrator, Config, Limits, SummaryConfig
from orch.replay.readers import read_recordings
from orch.replay.report import ModelPrice, ReplayPricing, replay
from orch.testing import fake_world
from orch_worker.backends.prices import Prices
from wire.billing_server import AutomaticCache, Billing, Charge, MarkedCache, tokens_in
from wire.model_server import Answer, ModelServer, Request, call, say

MODELS = {"messages": "anthropic:claude-sonnet-4-5", "chat": "openai:gpt-4o", "responses": "openai:gpt-5"}
PRICES = {
    "messages": Prices(),
    "chat": Prices(read=0.5, write=1.0, output=4.0),
    "responses": Prices(read=0.1, write=1.0, output=8.0),
}
TOOLS = ("read_file", "list_files", "grep_files", "write_file", "replace_in_file", "bash", "git_diff", "git_log")
SUMMARY = '{"outcome": "All parts were read.", "key_findings": ["' + "The parts say so, and it counts. " * 16 + '"]}'
CHAPTERS = (6, 5, 30, 6, 4)
"""The number of files that are read in each turn. The third turn is long enough to be archived in phases."""


PROMPT = 600
"""The maximum number of tokens of a summary's prompt and of the last answer, which no request has contained."""


class Reader:
    """A model that reads the parts of each chapter one by one, and then answers. It writes the requested summaries."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self._words = words(random.Random(5), 300)
        self._steps = [part for parts in CHAPTERS for part in (*[True] * parts, False)]
        self._part = itertools.count()

    def __call__(self, request: Request) -> tuple[Answer, int]:
        """Return the answer to `request` and its number of tokens."""
        if not request.body.get("tools") or b"Call no tools" in request.raw:
            self.kinds.append("within" if request.body.get("tools") else "apart")
            return say(SUMMARY), tokens_in(SUMMARY.encode())
        self.kinds.append("step")
        text = " ".join(self._words[: 20 if self._steps and self._steps[0] else 60])
        if not self._steps or not self._steps.pop(0):
            return say(text), tokens_in(text.encode())
        reading = {"call": "read_file", "input": {"path": f"part_{next(self._part)}.txt"}}
        return call(reading, text=text), tokens_in(text.encode()) + 20


def words(chance: random.Random, count: int) -> list[str]:
    """Return random words."""
    return ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(count)]


async def billed(folder: Path, api: str, archival: ArchivalConfig) -> tuple[Billing, Reader, Path]:
    """Let an agent read the chapters. Return what it was billed for, its model, and its session file."""
    chance = random.Random(3)
    known = words(chance, 400)
    for part in range(sum(CHAPTERS)):
        (folder / f"part_{part}.txt").write_text(" ".join(chance.choices(known, k=chance.randint(200, 700))))
    model = Reader()
    cache = MarkedCache() if api == "messages" else AutomaticCache()
    billing = Billing(cache, PRICES[api], model, clock=itertools.count(0, 5).__next__)
    async with ModelServer(otherwise=billing) as server:
        env = {
            "ANTHROPIC_API_KEY": "k1",
            "ANTHROPIC_BASE_URL": server.url,
            "OPENAI_API_KEY": "k2",
            "OPENAI_BASE_URL": f"{server.url}/v1",
        }
        config = Config(archival=archival)
        async with AsyncOrchestrator(MODELS[api], config=config, home=folder / "home", env=env, **fake_world()) as root:
            agent = await root.spawn("Read", tools=TOOLS, cwd=folder, context="none", limits=Limits(max_turns=200))
            for chapter in range(len(CHAPTERS)):
                await agent.query(f"Read chapter {chapter}, and say what it is about.")
            await agent.query("Thanks.")
            session = Path((await agent.state()).folder) / "session.jsonl"
        assert server.refused == []
    return billing, model, session


@pytest.mark.parametrize("api", MODELS)
async def test_agent_is_billed_what_replay_prints(tmp_path: Path, api: str) -> None:
    """The bill of an agent with archival differs by less than 3 % from the replay of its session.

    Requests for summaries read the conversation from the cache, unless that is dearer, and write nothing.
    """
    archival = ArchivalConfig(enabled=True, async_=False, summary=SummaryConfig(style="structured"))
    billing, model, session = await billed(tmp_path, api, archival)
    charges = list(zip(model.kinds, billing.charges, strict=True))
    within = [charge for kind, charge in charges if kind == "within"]
    assert len(within) >= 3
    assert all(charge.read and charge.fresh < PROMPT for charge in within)
    assert not any(charge.written for kind, charge in charges if kind != "step")
    assert "apart" not in model.kinds or PRICES[api].read > 0.1
    price = ModelPrice(prices=PRICES[api])
    pricing = ReplayPricing(price=price, summary_tokens=tokens_in(SUMMARY.encode()), items=0)
    outcome = replay(read_recordings(session), "balanced-summaries", pricing, tmp_path / "replayed")
    assert outcome.collapses >= 3
    assert billing.units == pytest.approx(outcome.bill.units, rel=0.03)


async def test_summaries_of_another_model_are_not_written_to_the_cache(tmp_path: Path) -> None:
    """A request that nothing repeats has no cache marker, so it costs the price of uncached input."""
    summary = SummaryConfig("structured", "anthropic:claude-haiku-4-5")
    archival = ArchivalConfig(enabled=True, async_=False, profile="economy", summary=summary)
    billing, model, _ = await billed(tmp_path, "messages", archival)
    apart = [charge for kind, charge in zip(model.kinds, billing.charges, strict=True) if kind == "apart"]
    assert apart
    assert all(charge.fresh and not charge.written and not charge.read for charge in apart)


async def test_step_with_many_calls_is_read_from_the_cache(tmp_path: Path) -> None:
    """After a step of more than 20 blocks, the next request still reads all earlier blocks from the cache."""
    (tmp_path / "a.txt").write_text("the port is known " * 400)
    calls = [{"call": "read_file", "input": {"path": "a.txt"}}] * 15
    answers = iter([call(calls[0]), call(*calls), call(*calls), say("done")])
    billing = Billing(MarkedCache(), Prices(), lambda _: (next(answers), 10), clock=itertools.count().__next__)
    async with ModelServer(otherwise=billing) as server:
        env = {"ANTHROPIC_API_KEY": "k1", "ANTHROPIC_BASE_URL": server.url}
        async with AsyncOrchestrator(MODELS["messages"], home=tmp_path / "home", env=env, **fake_world()) as root:
            agent = await root.spawn("Read", tools=["read_file"], cwd=tmp_path, context="none")
            await agent.query("Read it 30 times.")
    for before, after in pairwise(billing.charges[1:]):
        assert after.read == before.read + before.written


class TestCaches:
    """The caches of the billing server charge as the providers document."""

    def test_marked_cache_reads_up_to_a_marker(self) -> None:
        """The marked prefix is written once and then read. The rest is neither."""
        cache = MarkedCache()
        assert cache.charge(request(8, 4), 0) == Charge(0, 5 * PART, 3 * PART)
        assert cache.charge(request(9, 6), 0) == Charge(5 * PART, 2 * PART, 2 * PART)
        assert cache.charge(request(9), 0) == Charge(0, 0, 9 * PART)

    def test_marked_cache_looks_back_20_blocks(self) -> None:
        """An entry more than 20 blocks before a marker is not found, unless another marker is near it."""
        for markers, read in (((23,), 5 * PART), ((24,), 0), ((5, 40), 5 * PART)):
            cache = MarkedCache()
            cache.charge(request(5, 4), 0)
            assert cache.charge(request(41, *markers), 0).read == read, markers

    def test_marked_cache_forgets_after_5_minutes(self) -> None:
        """Each use extends the life of an entry."""
        cache = MarkedCache()
        reads = [cache.charge(request(5, 4), now).read for now in (0, 300, 600, 901)]
        assert reads == [0, 5 * PART, 5 * PART, 0]

    def test_marked_cache_does_not_keep_short_prefixes(self) -> None:
        """A prefix of less than 1024 tokens is not cached."""
        cache = MarkedCache()
        assert cache.charge(request(2, 1), 0) == cache.charge(request(2, 1), 0) == Charge(0, 0, 2 * PART)

    def test_automatic_cache_has_steps_of_128_tokens(self) -> None:
        """The shared beginning is read in whole steps, if it has 1024 tokens, for five minutes."""
        cache = AutomaticCache()
        assert cache.charge(request(6), 0).read == 0
        read = cache.charge(request(7), 300).read
        assert read % 128 == 0
        assert 0 <= 6 * PART - read < 256
        assert cache.charge(request(7), 601).read == 0
        assert cache.charge(request(2), 602).read == 0


PART = 300


def request(parts: int, *markers: int) -> dict[str, Any]:
    """Return a request with `parts` blocks of 300 tokens. The blocks with the indexes `markers` have a cache marker."""
    empty = '{"text": "", "type": "text"}'
    blocks = [
        {"type": "text", "text": f"{part:04d}" * (PART - len(empty) // 4)}
        | ({"cache_control": {"type": "ephemeral"}} if part in markers else {})
        for part in range(parts)
    ]
    return {"model": "m", "messages": [{"role": "user", "content": blocks}]}
