"""Budgets from the shell: real processes, a model behind a socket, and the bill that it writes."""

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
    """A model server on a thread of its own that bills what it is asked for: USD 2 and 10 a million tokens."""

    def __init__(self) -> None:
        self.server = ModelServer(otherwise=self.work)
        self.billed: list[float] = []
        self.tokens = 3_000

    def work(self, request: Request) -> Answer:
        """Answer with so many tokens, or as many as are paid for, and never be done."""
        sent, most = len(request.raw) // 6, request.body.get("max_tokens", 10**6)
        said = min(most, self.tokens)
        self.billed.append((sent * IN + said * OUT) / 1e6)
        usage = {"input": sent, "output": said}
        if said == most:
            return say("and so on", stop="max_tokens", usage=usage)
        return call({"call": "list_files", "input": {}}, usage=usage)

    @property
    def bill(self) -> float:
        """What it wants for everything."""
        return sum(self.billed)


@pytest.fixture
def shop() -> Iterator[Shop]:
    """A shop that is open."""
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
    """A shell whose models cost money."""
    with opened(tmp_path) as made:
        made.home.mkdir()
        acme = {"api": "chat", "base_url": f"{shop.server.url}/v1", "keys": ["ACME_API_KEY"]}
        prices = {"prices": [{"input": IN, "output": OUT}]}
        known = {"providers": {"acme": acme}, "models": {"acme": {"large": prices}}}
        (made.home / "models.json").write_text(json.dumps(known))
        made.env |= {"ACME_API_KEY": "k", "ORCH_MODEL": MODEL, "ORCH_SUBAGENTS__ALLOW_NESTED": "true"}
        yield made


def spend(shell: Shell, ref: str) -> str:
    """Ask the agent until it is refused, and return why."""
    for _ in range(10):
        asked = shell.start("query", ref, "Go on", "--approve", "deny")
        _, said = asked.communicate(timeout=60)
        if asked.returncode == 5 and b"orch: " in said:
            return said.decode()
        assert asked.returncode in (0, 5), said.decode()  # 5 as well for an answer that it has cut short
    raise AssertionError("there is always something left")


def test_a_budget_from_the_shell(shell: Shell, shop: Shop) -> None:
    """Too little is exit code 5 before anything is asked; enough ends the turn in time; more lets it go on."""
    shell.run("run", "Read", "--max-cost", "0.01", code=5)
    assert shop.billed == []
    shell.run("spawn", "Read", "--max-cost", "0", code=2)
    unknown = shell.run("spawn", "Read", "--model", "acme:small", "--max-cost", "1", code=2).stderr.decode()
    assert "cannot set a budget for acme:small" in unknown

    shell.data("spawn", "Read", "--name", "reader", "--tools", "list_files", "--max-cost", "0.20")
    reply = shell.data("query", "reader", "Read everything", code=5)
    assert reply["stop_reason"] == "budget"
    assert "those below it spent $0.1" in reply["text"]
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
def test_children_race_for_the_last_cents(shell: Shell, shop: Shop, whose: str) -> None:
    """Each in its process, all at once: what is there is spent, and not a cent more."""
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
