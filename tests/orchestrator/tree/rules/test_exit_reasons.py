"""How a query ended, as one of seven words, once and for all: for whoever lists, shows, waits or collects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch import Budget, Limits, ScriptedBackend
from orch.processes.oom_detector import OomDetector
from orch.tree.agents.state import AgentRecord
from orch.tree.journal.entries import QueryFinished
from orch.tree.journal.events import (
    CancelRequested,
    FinishQuery,
    KillRequested,
    LaunchFailed,
    Notify,
    ProcessExited,
    Recover,
    TurnTimeout,
)
from orch_protocol.core.errors import (
    AgentDiedError,
    AgentGoneError,
    BackendError,
    BudgetExceededError,
    ErrorInfo,
    OrchError,
    error_from,
    error_info,
    outcome_of,
)
from orch_protocol.core.messages import Reply, StopReason
from orchestrator.root_double import Gate, opened
from orchestrator.tree_double import Forest
from virtual_clock import until, virtual

OOM = "out of memory: the kernel killed it"


@pytest.mark.parametrize(
    ("stop", "outcome"),
    [
        ("end_turn", "done"),
        ("max_turns", "done"),
        ("refusal", "done"),
        ("aborted", "done"),
        ("budget", "budget"),
        ("timeout", "timeout"),
        ("cancelled", "killed"),
        ("error", "failed"),
    ],
)
def test_a_reply_is_done_or_was_cut_short(stop: StopReason, outcome: str) -> None:
    """One that the agent ended itself is done, whatever it says."""
    assert Reply("a", "q", "x", stop).outcome == outcome


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (BackendError("no"), "failed"),
        (ValueError("no"), "failed"),
        (MemoryError(), "oom"),
        (AgentDiedError("no"), "lost"),
        (AgentDiedError("no").as_outcome("oom"), "oom"),
        (AgentGoneError("no"), "killed"),
        (BudgetExceededError("no"), "budget"),
    ],
)
def test_an_error_knows_how_the_query_ended(error: Exception, outcome: str) -> None:
    """As data, and raised again elsewhere, too."""
    info = error_info(error)
    assert outcome_of(info) == outcome == error_from(info).outcome
    assert outcome_of(ErrorInfo("Unheard", "of")) == "failed"


class Ending:
    """An agent at work, and what is told of its query's end."""

    def __init__(self) -> None:
        self.forest = Forest()
        self.id = self.forest.spawn()
        self.forest.ask(self.id)

    def end(self, *events: Any) -> tuple[str, str]:
        """Let events happen; return the outcome on record and that of the error that was told."""
        told = []
        for event in events:
            self.forest.handle(event)
            told += [each.error for each in self.forest.told(Notify) if each.topic == "query:q"]
        node: AgentRecord = self.forest.refold().agents[self.id]
        assert node.last is not None
        assert len([entry for entry in self.forest.journal if isinstance(entry, QueryFinished)]) == 1
        assert len(told) <= 1  # after a root's death nobody waits
        error = told[0] if told else node.last.error
        return node.last.outcome, outcome_of(error) if error else "done"


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ([ProcessExited("a001", 1, -9)], "lost"),
        ([ProcessExited("a001", 1, 0)], "lost"),
        ([ProcessExited("a001", 1, None)], "lost"),
        ([ProcessExited("a001", 1, -9, oom=OOM)], "oom"),
        ([ProcessExited("a001", 1, 1, detail="the end of its log:\nTraceback\nMemoryError: no")], "oom"),
        ([ProcessExited("a001", 1, 0, detail="it spoke of a\nMemoryError")], "lost"),
        ([TurnTimeout("a001", 1, "q"), ProcessExited("a001", 1, -9, late=True)], "timeout"),
        ([KillRequested(("a001",), "the user"), ProcessExited("a001", 1, -9)], "killed"),
        ([CancelRequested("a001", hard=True), ProcessExited("a001", 1, -9)], "killed"),
        ([Recover(1)], "lost"),
        ([FinishQuery("a001", "q", error=ErrorInfo("BackendError", "no"))], "failed"),
        ([FinishQuery("a001", "q", error=ErrorInfo("BudgetExceededError", "no"))], "budget"),
        ([FinishQuery("a001", "q", Reply("a001", "q", "yes"))], "done"),
    ],
)
def test_each_end_has_its_word(events: list[Any], outcome: str) -> None:
    """On record, and told to whoever waits."""
    assert Ending().end(*events) == (outcome, outcome)


@pytest.mark.parametrize("first", range(4))
def test_the_first_end_is_the_one(first: int) -> None:
    """Whatever else is heard of the query later changes nothing, in any order."""
    ends: list[Any] = [
        FinishQuery("a001", "q", Reply("a001", "q", "yes")),
        KillRequested(("a001",), "the user"),
        ProcessExited("a001", 1, -9),
        CancelRequested("a001", hard=True),
    ]
    outcomes = ["done", "killed", "lost", "killed"]
    assert Ending().end(*ends[first:], *ends[:first])[0] == outcomes[first]


def test_a_start_without_memory_says_so() -> None:
    """To the spawner as well."""
    forest = Forest(restarts=0)
    id = forest.spawn(up=False)
    forest.handle(ProcessExited(id, 1, -9, oom=OOM))
    assert [(each.error.outcome, OOM in each.error.message) for each in forest.told(Notify) if each.error] == [
        ("oom", True)
    ]
    again = forest.spawn(up=False)
    forest.handle(LaunchFailed(again, 1, "no"))
    assert outcome_of(forest.told(Notify)[0].error) == "failed"


class TestMemory:
    """What the kernel counts."""

    def test_a_kill_is_claimed_once(self, tmp_path: Path) -> None:
        """As many as were counted; what was counted before anybody looked is nobody's."""
        counter = tmp_path / "memory.events"
        counter.write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
        ooms = OomDetector(counter)
        assert ooms.claim() == ""
        counter.write_text("oom_kill 4\n")
        assert str(counter) in ooms.claim()
        assert ooms.claim() != ""
        assert ooms.claim() == ""
        counter.write_text("oom_kill 5\n")
        ooms.look()
        assert ooms.claim() == ""

    def test_where_nothing_counts_nothing_is_claimed(self, tmp_path: Path) -> None:
        """A guess would be worse than none."""
        ooms = OomDetector(tmp_path / "none")
        ooms.look()
        assert ooms.claim() == ""


@virtual
async def test_everybody_can_see_how_a_query_ended(tmp_path: Path) -> None:
    """In the list while no other is under way, with the reply and with the error."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("done", {"text": "slow", "sleep": 60}, "x", budget=Budget(max_model_calls=2))
        assert (await agent.state()).outcome == ""
        assert (await agent.query("go")).outcome == (await agent.state()).outcome == "done"
        asking = agent.submit("go on")
        await until(lambda: world.status(agent) == "busy")
        assert (await agent.state()).outcome == ""
        await agent.cancel()
        assert (await asking).outcome == "killed"
        assert (await agent.query("more")).outcome == "done"  # one that is cut off costs no call
        with pytest.raises(BudgetExceededError) as raised:
            await agent.query("and more")
        assert raised.value.outcome == (await agent.state()).outcome == "budget"
        late = await world.scripted({"text": "slow", "sleep": 60}, limits=Limits(turn_seconds=1))
        assert (await late.query("go")).outcome == "timeout"
        gate = Gate()
        died = await world.scripted({"tool": "gate"}, tools=[gate.tool()])
        answer = died.submit("go")
        await gate.called.wait()
        world.launcher.worker(died.id).die(0)
        with pytest.raises(OrchError) as lost:
            await answer
        assert lost.value.outcome == (await died.state()).outcome == "lost"


@virtual
async def test_an_agent_that_has_no_memory_left_in_its_process_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process goes on, and answers the next question."""
    respond = ScriptedBackend.assistant_turn

    async def full(*_: Any) -> Any:
        raise MemoryError

    async with opened(tmp_path) as world:
        agent = await world.scripted("fine")
        monkeypatch.setattr(ScriptedBackend, "assistant_turn", full)
        with pytest.raises(OrchError, match="MemoryError") as raised:
            await agent.query("go")
        assert raised.value.outcome == (await agent.state()).outcome == "oom"
        monkeypatch.setattr(ScriptedBackend, "assistant_turn", respond)
        assert (await agent.query("go")).outcome == "done"
