"""Turns that are paid for: what is put aside, what is settled, and how a turn ends when money does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_doubles import Talk, assert_valid
from orch_protocol.agent.spec import Limits
from orch_protocol.core.errors import BackendError, BudgetExceededError
from orch_protocol.core.messages import Reply, Usage, text_of
from orch_protocol.policy.budget import (
    BudgetAmounts,
    BudgetReservationResult,
    BudgetSettled,
    ReserveBudget,
    SettleBudget,
)
from orch_protocol.services.service import AnyService
from orch_worker.agent.turn import Emit, Turn
from orch_worker.backends.base import AssistantTurn, OnText
from orch_worker.backends.offline.scripted import ScriptedBackend
from orch_worker.tools.api.base import ToolContext, tool
from orch_worker.tools.dispatch.budget_client import BudgetClient, BudgetReservation
from orch_worker.tools.dispatch.toolbox import Toolbox
from paid_backend import MOST, Paid, price


def dollars(least: float, enough: float, most: float) -> ReserveBudget:
    """Return a request for so many dollars."""
    return ReserveBudget(BudgetAmounts(usd=least), BudgetAmounts(usd=enough), BudgetAmounts(usd=most))


class Bank:
    """A root that has so many dollars, and grants all of what is asked for or less."""

    def __init__(self, usd: float) -> None:
        self.left = usd
        self.low = ""
        self.asked: list[Any] = []

    async def __call__(self, called: AnyService, params: Any, seconds: float | None = None) -> Any:  # noqa: ARG002
        self.asked.append(params)
        if isinstance(params, SettleBudget):
            self.left -= params.amounts.usd
            return BudgetSettled(self.low)
        if self.left < params.least.usd:
            raise BudgetExceededError(f"${self.left:g} is left; raise it")
        usd = min(params.most.usd, self.left)
        why = "" if usd == params.most.usd else "no more than that was left"
        return BudgetReservationResult(str(len(self.asked)), BudgetAmounts(usd=usd), why)


class Paying(Talk):
    """A talk whose turns are paid from a bank."""

    def __init__(self, bank: Bank, *args: Any, budgeted: bool = True) -> None:
        super().__init__(*args)
        self.bank = bank
        self.purse = BudgetClient(ToolContext(Path("/"), call_root=bank))
        self.purse.budgeted = frozenset({"usd"} if budgeted else ())

    async def ask(  # type: ignore[override]
        self, prompt: str = "go", limits: Limits | None = None, emit: Emit | None = None
    ) -> Reply:
        """Run one turn."""
        reply = await Turn(
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
            emit=emit,
        ).run()
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
    want = dollars(1.0, 2.0, MOST)
    assert bank.asked == [
        want,
        SettleBudget("1", BudgetAmounts(usd=3.0)),
        want,
        SettleBudget("3", BudgetAmounts(usd=0.5)),
    ]


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
    talk.purse.budgeted = frozenset()
    assert (await talk.ask()).stop_reason == "end_turn"
    assert backend.covered == [2.0, None]


async def test_a_request_that_failed_settles_nothing() -> None:
    """Its turn is over, and with it what was put aside."""
    bank = Bank(10.0)
    with pytest.raises(BackendError):
        await Paying(bank, Paid([{"error": "BackendError"}])).ask()
    assert bank.asked == [dollars(1.0, 2.0, MOST)]


async def test_what_a_request_took_that_was_given_up_is_settled_and_the_turns() -> None:
    """One that was asked beside the turn: of a summary, a phase, a tool."""
    bank = Bank(100.0)
    talk = Paying(bank, Paid([{"text": "$3", "tool": "ask_beside"}, price(0.5)]))

    class Mute(Paid):
        async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:  # noqa: ARG002
            raise BackendError("gone")

        def lost(self) -> Usage:
            return Usage(cache_write_tokens=7, cost_usd=0.25)

    @tool
    async def ask_beside() -> str:
        asking = Mute(["never said"])
        hold = await talk.purse.reserve(asking)
        await talk.purse.response(asking, hold)
        return "said"

    talk.box = Toolbox([ask_beside], ToolContext(Path("/")))
    reply = await talk.ask()
    assert "gone" in talk.texts()[0]
    assert (reply.usage.cost_usd, reply.usage.cache_write_tokens) == (3.75, 7)
    assert SettleBudget("3", BudgetAmounts(usd=0.25)) in bank.asked
    assert talk.purse.lost() == Usage()


@pytest.mark.parametrize("error", [BudgetExceededError("too little is left"), asyncio.CancelledError(), OSError("x")])
async def test_whatever_a_turn_ends_by_tells_what_it_used(error: BaseException) -> None:
    """Also where the first response never came: what it took to ask for it."""

    class Failing(Paid):
        async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:  # noqa: ARG002
            raise error

        def lost(self) -> Usage:
            return Usage(7, cost_usd=0.25)

    with pytest.raises((BackendError, BudgetExceededError, asyncio.CancelledError)) as failed:
        await Paying(Bank(100.0), Failing(["never said"])).ask()
    assert vars(failed.value)["usage"] == Usage(7, cost_usd=0.25)


async def test_a_root_that_takes_no_settlement_is_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    """The turn goes on; the root counts what is on record when it is over."""

    class Deaf(Bank):
        async def __call__(self, called: AnyService, params: Any, seconds: float | None = None) -> Any:
            service = called.name
            if isinstance(params, SettleBudget):
                raise BackendError("not now")
            return await super().__call__(service, params, seconds)

    assert (await Paying(Deaf(10.0), Paid(["done"])).ask()).usage == Usage(10, 10, cost_usd=1.0, model_calls=1)
    assert "not settled: not now" in capsys.readouterr().out


class Ledger:
    """A root that grants what is asked for, but no more seconds of tools and calls than it has."""

    def __init__(self, calls: float = 99.0, seconds: float = 99.0) -> None:
        self.left = {"tool_calls": calls, "tool_seconds": seconds}
        self.granted: dict[str, dict[str, float]] = {}
        self.asked: list[Any] = []

    async def __call__(self, called: AnyService, params: Any, seconds: float | None = None) -> Any:  # noqa: ARG002
        self.asked.append(params)
        if isinstance(params, SettleBudget):
            for kind, granted in self.granted.pop(params.id).items():
                self.left[kind] += granted - getattr(params.amounts, kind)
            return BudgetSettled()
        granted = {}
        for kind, left in self.left.items():
            if left < getattr(params.least, kind):
                raise BudgetExceededError(f"{left:g} of {kind} left")
            granted[kind] = min(left, getattr(params.most, kind))
            self.left[kind] -= granted[kind]
        self.granted[id := str(len(self.asked))] = granted
        return BudgetReservationResult(id, BudgetAmounts(**granted))


class TestCalls:
    """Calls of tools that are counted."""

    def talk(self, ledger: Ledger, *items: Any, kinds: str, tool: Any = look) -> Paying:
        """Return a talk whose toolbox and turns share a purse that counts `kinds`."""
        talk = Paying(Bank(0), ScriptedBackend(items))
        talk.box = Toolbox([tool], ToolContext(Path("/"), call_root=ledger, seconds=30.0))
        talk.backend.append_system("", talk.box.specs())
        talk.purse = talk.box._context.own(BudgetClient)
        talk.purse.budgeted = frozenset(kinds.split())
        return talk

    async def test_each_call_is_covered_before_and_settled_when_it_is_on_record(self) -> None:
        """Of kinds that nobody counts nothing is asked."""
        ledger = Ledger()
        talk = self.talk(ledger, {"tools": [{"tool": "look"}] * 2}, "done", kinds="tool_calls")
        reply = await talk.ask()
        one = BudgetAmounts(tool_calls=1)
        assert [each for each in ledger.asked if isinstance(each, ReserveBudget)] == [ReserveBudget(one, one, one)] * 2
        assert [each.amounts for each in ledger.asked if isinstance(each, SettleBudget)] == [one] * 2
        assert (reply.usage.tool_calls, reply.usage.model_calls) == (2, 2)

    async def test_a_call_that_is_not_covered_ends_the_turn(self) -> None:
        """Those before it ran and are answered; the reply says why it ends, and the conversation stays whole."""
        talk = self.talk(
            Ledger(calls=3), {"loop": [{"text": "so far", "tools": [{"tool": "look"}] * 2}]}, kinds="tool_calls"
        )
        reply = await talk.ask()
        assert (reply.stop_reason, reply.steps, reply.tool_calls) == ("budget", 2, 3)
        assert reply.text == "so far\n\n[The turn was stopped after 2 steps: 0 of tool_calls left.]"
        assert talk.texts() == ["seen", "seen", "seen", "Not run: 0 of tool_calls left."]
        assert_valid(talk.recorded)

    async def test_a_tool_has_the_time_that_is_left(self) -> None:
        """One that takes longer is given up, and the model is told why."""

        @tool
        async def nap() -> str:
            """Sleep."""
            await asyncio.Event().wait()
            return "awake"

        ledger = Ledger(seconds=1.0)
        talk = self.talk(ledger, {"tool": "nap"}, "done", kinds="tool_seconds", tool=nap)
        purse_hold = talk.purse.reserve_call

        async def shorter(seconds: float | None) -> BudgetReservation:
            return msgspec.structs.replace(await purse_hold(seconds), seconds=0.01)

        talk.purse.reserve_call = shorter  # type: ignore[method-assign]
        assert (await talk.ask()).text == "done"
        assert "did not finish within 0.01 s, all that its budget leaves," in talk.texts()[0]

    async def test_waiting_for_other_agents_is_no_tool_time(self) -> None:
        """Their own tools' time is counted where it is spent; the call counts."""

        @tool(category="agents")
        def look() -> str:
            """Look."""
            return "seen"

        ledger = Ledger()
        reply = await self.talk(ledger, {"tool": "look"}, "done", kinds="tool_calls tool_seconds", tool=look).ask()
        assert ledger.asked[0] == ReserveBudget(*[BudgetAmounts(tool_calls=1)] * 3)
        assert (reply.usage.tool_calls, reply.usage.tool_seconds) == (1, 0.0)

    async def test_a_cut_off_call_counts(self) -> None:
        """Its time until then, too: a turn that is ended again and again takes its budget all the same."""
        called = asyncio.Event()

        @tool
        async def nap() -> str:
            """Sleep."""
            called.set()
            await asyncio.Event().wait()
            return "awake"

        ledger = Ledger()
        talk = self.talk(ledger, {"tool": "nap"}, "done", kinds="tool_calls tool_seconds", tool=nap)
        asking = asyncio.create_task(talk.ask())
        await called.wait()
        talk.brake.pull()
        reply = await asking
        assert (reply.stop_reason, reply.usage.tool_calls) == ("cancelled", 1)
        assert reply.usage.tool_seconds > 0
        assert ledger.left["tool_calls"] == 98


async def test_a_turn_that_a_budget_ends_says_which() -> None:
    """As when the time at work is over: what was said so far stays, and calls that were cut off say why."""
    called = asyncio.Event()

    @tool
    async def nap() -> str:
        """Sleep."""
        called.set()
        await asyncio.Event().wait()
        return "awake"

    talk = Talk(ScriptedBackend([{"text": "so far", "tool": "nap"}, "done"]), nap)
    asking = asyncio.create_task(talk.ask())
    await called.wait()
    talk.brake.pull("its time is over")
    reply = await asking
    assert (reply.stop_reason, reply.text) == (
        "budget",
        "so far\n\n[The turn was stopped after 1 steps: its time is over.]",
    )
    assert talk.texts()[0].startswith("Not finished: The budget is used up.")
    assert_valid(talk.recorded)


async def test_who_watches_hears_once_that_a_budget_comes_to_an_end() -> None:
    """And the purse keeps it, for the end of each request from then on."""
    bank = Bank(100.0)
    bank.low = "[Budget: nearly over]"
    told: list[tuple[str, str]] = []
    talk = Paying(bank, Paid([{"text": "$3", "tool": "look"}, {"text": "$3", "tool": "look"}, "done"]), look)
    await talk.ask(emit=lambda kind, text, *_: told.append((kind, text)))
    assert [text for kind, text in told if kind == "budget"] == ["[Budget: nearly over]"]
    assert talk.purse.low == "[Budget: nearly over]"
