"""Turns under a budget: what is reserved and settled, and how a turn ends when the budget is used up."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_doubles import Emit, Talk, assert_valid
from orch_protocol.agent.spec import Limits
from orch_protocol.core.errors import BackendError, BudgetExceededError
from orch_protocol.core.messages import Reply, Usage, text_of
from orch_protocol.policy.budget import BudgetAmounts
from orch_protocol.services.policy.budgets import BudgetReservationResult, BudgetSettled, ReserveBudget, SettleBudget
from orch_protocol.services.service import AnyService
from orch_protocol.wire.worker_messages import Query
from orch_worker.agent.features.budget import BudgetExtension
from orch_worker.backends.base import AssistantTurn, OnText
from orch_worker.backends.offline.scripted import ScriptedBackend
from orch_worker.tools.api.base import ToolContext, tool
from orch_worker.tools.dispatch.budget_client import BudgetClient, BudgetReservation
from orch_worker.tools.dispatch.toolbox import Toolbox
from paid_backend import MOST, Paid, price


def dollars(minimum: float, expected: float, limit: float) -> ReserveBudget:
    """Return a request for a reservation with these amounts in dollars."""
    return ReserveBudget(BudgetAmounts(usd=minimum), BudgetAmounts(usd=expected), BudgetAmounts(usd=limit))


class Bank:
    """A root with a number of dollars. It grants the requested amount, or the rest of its money."""

    def __init__(self, usd: float) -> None:
        self.left = usd
        self.low = ""
        self.asked: list[Any] = []

    async def __call__(self, called: AnyService, params: Any, seconds: float | None = None) -> Any:  # noqa: ARG002
        self.asked.append(params)
        if isinstance(params, SettleBudget):
            self.left -= params.amounts.usd
            return BudgetSettled(self.low)
        if self.left < params.minimum.usd:
            raise BudgetExceededError(f"${self.left:g} is left; raise it")
        usd = min(params.maximum.usd, self.left)
        why = "" if usd == params.maximum.usd else "no more than that was left"
        return BudgetReservationResult(str(len(self.asked)), BudgetAmounts(usd=usd), why)


class Prompt:
    """The part of a prompt that budgets use."""

    low = ""


class Paying(Talk):
    """A talk whose turns are paid from a bank."""

    def __init__(self, bank: Bank, *args: Any, budgeted: bool = True) -> None:
        super().__init__(*args)
        self.bank = bank
        self.purse = BudgetClient(ToolContext(Path("/"), call_root=bank))
        self.purse.budgeted = frozenset({"usd"} if budgeted else ())
        self.losses = self.purse.losses
        self.prompt = Prompt()

    async def ask(  # type: ignore[override]
        self, prompt: str = "go", limits: Limits | None = None, emit: Emit | None = None
    ) -> Reply:
        """Run one turn."""
        self.on_event = emit or self.on_event
        budgets = [BudgetExtension(self.purse, self.prompt)] if self.purse.budgeted else []  # type: ignore[arg-type]
        for budget in budgets:
            await budget.turn_began("q1", Query(prompt))
        reply = await self.turn(prompt, limits or Limits(), *budgets)
        await asyncio.sleep(0)  # lets the last settlement finish, for which no caller waits
        return reply


@tool
def look() -> str:
    """Look."""
    return "seen"


async def test_each_response_is_reserved_and_settled() -> None:
    """The root receives one reservation and one settlement for each response, and no other request."""
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


async def test_response_is_settled_before_its_tools_run() -> None:
    """A response is settled before its tools run, because a subagent that a tool spawns may need the money."""
    bank = Bank(100.0)
    at_tool: list[float] = []

    @tool
    async def peek() -> str:
        at_tool.append(bank.left)
        return "seen"

    await Paying(bank, Paid([{"text": "$3", "tool": "peek"}, "done"]), peek).ask()
    assert at_tool == [97.0]


async def test_turn_stops_when_the_next_response_is_not_covered() -> None:
    """The turn ends with results for all calls and the reason of the root, and a later turn can continue."""
    bank = Bank(6.5)
    talk = Paying(bank, Paid([{"text": "$3", "tool": "look"}, {"text": "so far $3", "tool": "look"}, "done"]), look)
    reply = await talk.ask()
    assert (reply.stop_reason, reply.steps, reply.tool_calls) == ("budget", 2, 2)
    assert reply.text == "so far $3\n\n[The turn was stopped after 2 steps: $0.5 is left; raise it.]"
    assert_valid(talk.recorded)
    bank.left = 10.0
    assert (await talk.ask("go on")).text == "done"


async def test_uncovered_first_response_is_an_error() -> None:
    """If not even the first response is covered, the turn raises the error and records only the prompt."""
    talk = Paying(Bank(0.5), Paid(["done"]))
    with pytest.raises(BudgetExceededError, match=r"\$0\.5 is left; raise it"):
        await talk.ask()
    assert [text_of(message) for message in talk.recorded] == ["go"]


async def test_response_truncated_by_budget_ends_the_turn() -> None:
    """If the budget truncates a response, the reply has the stop reason `budget` and the reason of the root."""
    talk = Paying(Bank(2.5), Paid([price(5, "a long story ")]))
    reply = await talk.ask()
    assert (reply.stop_reason, reply.usage.cost_usd) == ("budget", 2.5)
    assert reply.text.endswith("[The turn was stopped after 1 steps: no more than that was left.]")


async def test_calls_of_a_response_truncated_by_budget_do_not_run() -> None:
    """Calls in a truncated response may be incomplete, so their results say that they did not run."""
    talk = Paying(Bank(2.5), Paid([{"text": "$5", "tool": "look"}, "done"]), look)
    reply = await talk.ask()
    assert (reply.stop_reason, reply.tool_calls) == ("budget", 0)
    assert "Not run" in talk.texts()[0]
    assert_valid(talk.recorded)


@pytest.mark.parametrize(("backend", "budgeted"), [(Paid(["done"]), False), (ScriptedBackend(["done"]), True)])
async def test_turn_without_budget_or_price_does_not_ask_the_root(backend: ScriptedBackend, budgeted: bool) -> None:
    """The root receives no request if the agent has no budget or the backend has no prices."""
    bank = Bank(0.0)
    assert (await Paying(bank, backend, budgeted=budgeted).ask()).text == "done"
    assert bank.asked == []


async def test_removed_budget_leaves_no_limit() -> None:
    """After its budget is removed, an agent sends the next request without the limit of the previous turn."""
    bank = Bank(2.0)
    backend = Paid([price(1.5), price(5)])
    talk = Paying(bank, backend)
    await talk.ask()
    talk.purse.budgeted = frozenset()
    assert (await talk.ask()).stop_reason == "end_turn"
    assert backend.covered == [2.0, None]


async def test_failed_request_is_not_settled() -> None:
    """A failed request leaves its reservation open, because the end of the turn releases it."""
    bank = Bank(10.0)
    with pytest.raises(BackendError):
        await Paying(bank, Paid([{"error": "BackendError"}])).ask()
    assert bank.asked == [dollars(1.0, 2.0, MOST)]


async def test_abandoned_side_requests_are_settled() -> None:
    """A failed request of a tool is settled with its lost usage, which is also part of the reply."""
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
    assert talk.losses.total == Usage()


@pytest.mark.parametrize("error", [BudgetExceededError("too little is left"), asyncio.CancelledError(), OSError("x")])
async def test_every_end_of_a_turn_reports_its_usage(error: BaseException) -> None:
    """The exception that ends a turn contains the lost usage, even if there was no response."""

    class Failing(Paid):
        async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:  # noqa: ARG002
            raise error

        def lost(self) -> Usage:
            return Usage(7, cost_usd=0.25)

    with pytest.raises((BackendError, BudgetExceededError, asyncio.CancelledError)) as failed:
        await Paying(Bank(100.0), Failing(["never said"])).ask()
    assert vars(failed.value)["usage"] == Usage(7, cost_usd=0.25)


async def test_turn_does_not_wait_for_a_failing_settlement(capsys: pytest.CaptureFixture[str]) -> None:
    """A failed settlement is only logged, because the root counts the recorded usage at the end of the turn."""

    class Deaf(Bank):
        async def __call__(self, called: AnyService, params: Any, seconds: float | None = None) -> Any:
            service = called.name
            if isinstance(params, SettleBudget):
                raise BackendError("not now")
            return await super().__call__(service, params, seconds)

    assert (await Paying(Deaf(10.0), Paid(["done"])).ask()).usage == Usage(10, 10, cost_usd=1.0, model_calls=1)
    assert "not settled: not now" in capsys.readouterr().out


class Ledger:
    """A root with a limited number of tool calls and seconds. It grants the requested amounts, or the rest."""

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
            if left < getattr(params.minimum, kind):
                raise BudgetExceededError(f"{left:g} of {kind} left; `orch budget` sets another limit")
            granted[kind] = min(left, getattr(params.maximum, kind))
            self.left[kind] -= granted[kind]
        self.granted[id := str(len(self.asked))] = granted
        return BudgetReservationResult(id, BudgetAmounts(**granted))


class TestCalls:
    """Tool calls under a budget."""

    def talk(self, ledger: Ledger, *items: Any, kinds: str, tool: Any = look) -> Paying:
        """Return a talk whose toolbox and turns share a budget client that counts `kinds`."""
        talk = Paying(Bank(0), ScriptedBackend(items))
        talk.box = Toolbox([tool], ToolContext(Path("/"), call_root=ledger, seconds=30.0))
        talk.backend.append_system("", talk.box.specs())
        talk.purse = talk.box._context.agent_object(BudgetClient)
        talk.purse.budgeted = frozenset(kinds.split())
        return talk

    async def test_each_call_is_reserved_and_settled_when_recorded(self) -> None:
        """Each call reserves and settles one tool call, and kinds without a limit are not reserved."""
        ledger = Ledger()
        talk = self.talk(ledger, {"tools": [{"tool": "look"}] * 2}, "done", kinds="tool_calls")
        reply = await talk.ask()
        one = BudgetAmounts(tool_calls=1)
        assert [each for each in ledger.asked if isinstance(each, ReserveBudget)] == [ReserveBudget(one, one, one)] * 2
        assert [each.amounts for each in ledger.asked if isinstance(each, SettleBudget)] == [one] * 2
        assert (reply.usage.tool_calls, reply.usage.model_calls) == (2, 2)

    async def test_uncovered_call_ends_the_turn(self) -> None:
        """Earlier calls have results, and the reply and the uncovered call state the reason.

        Only the reply, which the user reads, names the command.
        """
        talk = self.talk(
            Ledger(calls=3), {"loop": [{"text": "so far", "tools": [{"tool": "look"}] * 2}]}, kinds="tool_calls"
        )
        reply = await talk.ask()
        assert (reply.stop_reason, reply.steps, reply.tool_calls) == ("budget", 2, 3)
        assert reply.text.endswith("2 steps: 0 of tool_calls left; `orch budget` sets another limit.]")
        assert talk.texts() == ["seen", "seen", "seen", "Not run: 0 of tool_calls left."]
        assert_valid(talk.recorded)

    async def test_tool_times_out_when_its_time_budget_is_used_up(self) -> None:
        """The result tells the model that the budget limited the time of the tool."""

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

    async def test_waiting_for_subagents_uses_no_tool_time(self) -> None:
        """A call of a tool for subagents counts as one tool call with zero seconds."""

        @tool(category="agents")
        def look() -> str:
            """Look."""
            return "seen"

        ledger = Ledger()
        reply = await self.talk(ledger, {"tool": "look"}, "done", kinds="tool_calls tool_seconds", tool=look).ask()
        assert ledger.asked[0] == ReserveBudget(*[BudgetAmounts(tool_calls=1)] * 3)
        assert (reply.usage.tool_calls, reply.usage.tool_seconds) == (1, 0.0)

    async def test_cancelled_call_counts_with_its_time(self) -> None:
        """A cancelled call uses the budget, so that repeated cancellation does not avoid the limit."""
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
        talk.brake.cancel()
        reply = await asking
        assert (reply.stop_reason, reply.usage.tool_calls) == ("cancelled", 1)
        assert reply.usage.tool_seconds > 0
        assert ledger.left["tool_calls"] == 98


async def test_turn_ended_by_a_budget_names_it() -> None:
    """The reply keeps the text so far, and the reply and the cancelled call state the reason."""
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
    talk.brake.cancel("its time is over")
    reply = await asking
    assert (reply.stop_reason, reply.text) == (
        "budget",
        "so far\n\n[The turn was stopped after 1 steps: its time is over.]",
    )
    assert talk.texts()[0].startswith("Not finished: The budget is used up.")
    assert_valid(talk.recorded)


async def test_low_budget_is_reported_once() -> None:
    """A turn emits one event about a low budget, and the budget client keeps the notice for later requests."""
    bank = Bank(100.0)
    bank.low = "[Budget: nearly over]"
    collected: list[tuple[str, str]] = []
    talk = Paying(bank, Paid([{"text": "$3", "tool": "look"}, {"text": "$3", "tool": "look"}, "done"]), look)
    await talk.ask(emit=lambda kind, text, *_: collected.append((kind, text)))
    assert [text for kind, text in collected if kind == "budget"] == ["[Budget: nearly over]"]
    assert talk.purse.low == "[Budget: nearly over]"
