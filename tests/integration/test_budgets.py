"""Budgets of commands, with real processes and a model server that bills each request."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from integration.command_shell import Shell, opened
from wire.model_server import Answer, ModelServer, Request, call, say

IN, OUT = 2.0, 10.0
MODEL = "acme:large"


class Shop:
    """A model server in a separate thread that bills USD 2 for a million input tokens and 10 for a million output
    tokens.
    """

    def __init__(self) -> None:
        self.server = ModelServer(otherwise=self.work)
        self.billed: list[float] = []
        self.tokens = 3_000

    def work(self, request: Request) -> Answer:
        """Answer with `tokens` output tokens or fewer, and call a tool, so that the turn does not end."""
        sent, limit = len(request.raw) // 6, request.body.get("max_tokens", 10**6)
        found = min(limit, self.tokens)
        self.billed.append((sent * IN + found * OUT) / 1e6)
        usage = {"input": sent, "output": found}
        if found == limit:
            return say("and so on", stop="max_tokens", usage=usage)
        return call({"call": "list_files", "input": {}}, usage=usage)

    @property
    def bill(self) -> float:
        """The sum of all bills in USD."""
        return sum(self.billed)


@pytest.fixture
def shop() -> Iterator[Shop]:
    """A running model server that must not refuse any request."""
    made, ready = Shop(), Future[asyncio.Event]()

    async def serve() -> None:
        closed = asyncio.Event()
        async with made.server:
            ready.set_result(closed)
            await closed.wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    closed = ready.result(10)
    yield made
    loop.call_soon_threadsafe(closed.set)
    thread.join()
    loop.close()
    assert made.server.refused == []


@pytest.fixture
def shell(tmp_path: Path, shop: Shop) -> Iterator[Shell]:
    """A shell whose default model costs money."""
    with opened(tmp_path) as made:
        made.home.mkdir()
        acme = {"api": "chat", "base_url": f"{shop.server.url}/v1", "keys": ["ACME_API_KEY"]}
        prices = {"prices": [{"input": IN, "output": OUT}]}
        known = {"providers": {"acme": acme}, "models": {"acme": {"large": prices}}}
        (made.home / "models.json").write_text(json.dumps(known))
        made.env |= {"ACME_API_KEY": "k", "ORCH_MODEL": MODEL, "ORCH_SUBAGENTS__ALLOW_NESTED": "true"}
        yield made


def spend(shell: Shell, ref: str) -> str:
    """Query the agent until its budget is used up, and return the error message."""
    for _ in range(10):
        asked = shell.start("query", ref, "Go on", "--approve", "deny")
        _, output = asked.communicate(timeout=60)
        if asked.returncode == 5 and b"orch: " in output:
            return output.decode()
        assert asked.returncode in (0, 5), output.decode()  # 5 also for an answer that the budget cut short
    raise AssertionError("there is always something left")


def test_budget_flag_limits_an_agent(shell: Shell, shop: Shop) -> None:
    """A budget that is too small exits with 5 before any request. Another one ends the turn in time, and more continues
    it.
    """
    shell.run("run", "Read", "--max-cost", "0.01", code=5)
    assert shop.billed == []
    shell.run("spawn", "Read", "--max-cost", "0", code=2)
    unknown = shell.run("spawn", "Read", "--model", "acme:small", "--max-cost", "1", code=2).stderr.decode()
    assert "cannot set a budget for acme:small" in unknown

    shell.data("spawn", "Read", "--name", "reader", "--tools", "list_files", "--max-cost", "0.20")
    reply = shell.data("query", "reader", "Read everything", code=5)
    assert reply["stop_reason"] == "budget"
    assert "its descendants spent $0.1" in reply["text"]
    assert "orch resume 2 --max-cost USD" in reply["text"]
    assert 0.18 < shop.bill <= 0.20
    assert reply["usage"]["cost_usd"] == pytest.approx(shop.bill)
    [row] = shell.data("list")
    assert (row["budget"], row["spent"]["usd"]) == ({"max_cost_usd": 0.2}, pytest.approx(shop.bill))
    assert f"${shop.bill:.4f} of $0.2000 used" in shell.run("show", "reader").stdout.decode()
    assert "the next request may cost" in spend(shell, "reader")
    assert 0.18 < shop.bill <= 0.20

    shell.run("daemon", "stop")
    assert "the next request may cost" in spend(shell, "reader")
    assert 0.18 < shop.bill <= 0.20
    shell.run("resume", "reader", "--max-cost", "$0.30")
    assert "the next request may cost" in spend(shell, "reader")
    assert 0.28 < shop.bill <= 0.30
    assert shell.data("list")[0]["spent"]["usd"] == pytest.approx(shop.bill)


@pytest.mark.parametrize("whose", ["parent", "root"])
def test_racing_children_never_exceed_the_budget(shell: Shell, shop: Shop, whose: str) -> None:
    """Children that work at the same time in separate processes use up the budget and do not exceed it."""
    racers = 4
    task = {"tool": "spawn_subagent", "input": {"task": "Read", "tools": ["list_files"]}}
    asked = [{"tool": "query_subagent", "input": {"id": f"{2 + n}", "prompt": "Read"}} for n in range(racers)]
    script = shell.script({"tools": [task] * racers}, {"tools": asked}, "over")
    if whose == "root":
        shell.env["ORCH_BUDGET__MAX_COST_USD"] = "0.50"
    budget = ["--max-cost", "0.50"] if whose == "parent" else []
    tools = "spawn_subagent,query_subagent,list_files"
    shell.data("spawn", "Lead", "--script", script, "--tools", tools, *budget)
    assert shell.data("query", "1", "Go")["text"] == "over"
    rows = shell.data("list")
    assert len(rows) == racers + 1
    assert 0.40 < shop.bill <= 0.50
    assert rows[0]["spent"]["usd"] == pytest.approx(shop.bill)
    assert sum(row["spent"]["usd"] for row in rows[1:]) == pytest.approx(shop.bill)
    assert "the next request may cost" in spend(shell, "2")
    assert 0.48 < shop.bill <= 0.50
