"""Turns that are paid for: what is put aside, what is settled, and how a turn ends when money does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.errors import BackendError, BudgetExceededError
from orch_protocol.messages import Reply, Usage, text_of
from orch_protocol.services import Empty, Reserve, Reserved, Settle
from orch_protocol.spec import Limits
from orch_worker.backends.scripted import ScriptedBackend
from orch_worker.loop import run_turn
from orch_worker.purse import Purse
from orch_worker.tools.base import ToolContext, tool
from paid import MOST, Paid, price
from talk import Talk, assert_valid


class Bank:
    """A root that has so many dollars, and grants all of what is asked for or less."""

    def __init__(self, usd: float) -> None:
        self.left = usd
        self.asked: list[Any] = []

    async def __call__(self, service: str, params: Any, seconds: float | None = None) -> Any:  # noqa: ARG002
        self.asked.append(params)
        if isinstance(params, Settle):
            self.left -= params.usd
            return Empty()
        if self.left < params.least:
            raise BudgetExceededError(f"${self.left:g} is left; raise it")
        usd = min(params.most, self.left)
        return Reserved(str(len(self.asked)), usd, "" if usd == params.most else "no more than that was left")


class Paying(Talk):
    """A talk whose turns are paid from a bank."""

    def __init__(self, bank: Bank, *args: Any, budgeted: bool = True) -> None:
        super().__init__(*args)
        self.bank = bank
        self.purse = Purse(ToolContext(Path("/"), call_root=bank))
        self.purse.budgeted = budgeted

    async def ask(self, prompt: str = "go", limits: Limits | None = None) -> Reply:
        """Run one turn."""
        reply = await run_turn(
            query_id="q1",
            agent_id="a1",
            prompt=prompt,
            backend=self.backend,
            toolbox=self.box,
            record=self.record,
            limits=limits or Limits(),
            report=lambda *_: None,
            brake=self.brake,
            purse=self.purse,
        )
        await asyncio.sleep(0)  # what is settled last is told to nobody who waits
        return reply


@tool
def look() -> str:
    """Look."""
    return "seen"


async def test_each_response_is_covered_before_and_settled_after() -> None:
    """What it may cost is put aside, what it cost is told; nothing else is asked of the root."""
    bank = Bank(100.0)
    talk = Paying(bank, Paid([{"text": "$3", "tool": "look"}, price(0.5)]), look)
    reply = await talk.ask()
    assert (reply.stop_reason, reply.usage.cost_usd) == ("end_turn", 3.5)
    want = Reserve(1.0, 2.0, MOST)
    assert bank.asked == [want, Settle("1", 3.0), want, Settle("3", 0.5)]


async def test_the_root_hears_what_was_spent_before_any_tool_runs() -> None:
    """An agent that a tool asks may need the money."""
    bank = Bank(100.0)
    at_tool: list[float] = []

    @tool
    async def peek() -> str:
        at_tool.append(bank.left)
        return "seen"

    await Paying(bank, Paid([{"text": "$3", "tool": "peek"}, "done"]), peek).ask()
    assert at_tool == [97.0]


async def test_a_turn_stops_when_the_next_response_is_not_covered() -> None:
    """The calls before it are answered, the reply says so in the root's words, and the agent can go on with more."""
    bank = Bank(6.5)
    talk = Paying(bank, Paid([{"text": "$3", "tool": "look"}, {"text": "so far $3", "tool": "look"}, "done"]), look)
    reply = await talk.ask()
    assert (reply.stop_reason, reply.steps, reply.tool_calls) == ("budget", 2, 2)
    assert reply.text == "so far $3\n\n[The turn was stopped after 2 steps: $0.5 is left; raise it.]"
    assert_valid(talk.recorded)
    bank.left = 10.0
    assert (await talk.ask("go on")).text == "done"


async def test_a_first_response_that_is_not_covered_is_an_error() -> None:
    """Nothing was done that a reply could tell of."""
    talk = Paying(Bank(0.5), Paid(["done"]))
    with pytest.raises(BudgetExceededError, match=r"\$0\.5 is left; raise it"):
        await talk.ask()
    assert [text_of(message) for message in talk.recorded] == ["go"]


async def test_a_response_that_money_cut_short_ends_the_turn() -> None:
    """The reply says what there was."""
    talk = Paying(Bank(2.5), Paid([price(5, "a long story ")]))
    reply = await talk.ask()
    assert (reply.stop_reason, reply.usage.cost_usd) == ("budget", 2.5)
    assert reply.text.endswith("[The turn was stopped after 1 steps: no more than that was left.]")


async def test_calls_of_a_response_that_money_cut_short_are_not_run() -> None:
    """They may be incomplete."""
    talk = Paying(Bank(2.5), Paid([{"text": "$5", "tool": "look"}, "done"]), look)
    reply = await talk.ask()
    assert (reply.stop_reason, reply.tool_calls) == ("budget", 0)
    assert "Not run" in talk.texts()[0]
    assert_valid(talk.recorded)


@pytest.mark.parametrize(("backend", "budgeted"), [(Paid(["done"]), False), (ScriptedBackend(["done"]), True)])
async def test_without_a_budget_or_a_price_nothing_is_asked(backend: ScriptedBackend, budgeted: bool) -> None:
    """Such a turn costs no word with the root."""
    bank = Bank(0.0)
    assert (await Paying(bank, backend, budgeted=budgeted).ask()).text == "done"
    assert bank.asked == []


async def test_a_budget_that_is_no_more_leaves_no_bound() -> None:
    """What the last turn was granted does not bind the next one, which nobody counts."""
    bank = Bank(2.0)
    backend = Paid([price(1.5), price(5)])
    talk = Paying(bank, backend)
    await talk.ask()
    talk.purse.budgeted = False
    assert (await talk.ask()).stop_reason == "end_turn"
    assert backend.covered == [2.0, None]


async def test_a_request_that_failed_settles_nothing() -> None:
    """Its turn is over, and with it what was put aside."""
    bank = Bank(10.0)
    with pytest.raises(BackendError):
        await Paying(bank, Paid([{"error": "BackendError"}])).ask()
    assert bank.asked == [Reserve(1.0, 2.0, MOST)]


async def test_a_root_that_takes_no_settlement_is_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    """The turn goes on; the root counts what is on record when it is over."""

    class Deaf(Bank):
        async def __call__(self, service: str, params: Any, seconds: float | None = None) -> Any:
            if isinstance(params, Settle):
                raise BackendError("not now")
            return await super().__call__(service, params, seconds)

    assert (await Paying(Deaf(10.0), Paid(["done"])).ask()).usage == Usage(10, 10, cost_usd=1.0)
    assert "not settled: not now" in capsys.readouterr().out
