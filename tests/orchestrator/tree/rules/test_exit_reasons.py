"""The outcome of a query is one of seven words, and every caller gets the same word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch import Budget, Limits, ScriptedBackend
from orch.processes.oom_detector import OomDetector
from orch.tree.agents.state import AgentRecord
from orch.tree.interface.events import (
    CancelRequested,
    FinishQuery,
    KillRequested,
    LaunchFailed,
    ProcessExited,
    Recover,
    TurnTimeout,
)
from orch.tree.interface.instructions import Notify
from orch.tree.interface.topics import QueryTopic
from orch.tree.journal.entries import QueryFinished
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
def test_reply_is_done_or_truncated(stop: StopReason, outcome: str) -> None:
    """A reply that the model finished is `done`, for any text."""
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
def test_error_carries_the_end_reason(error: Exception, outcome: str) -> None:
    """The outcome is part of the serialized error and of the error restored from it."""
    info = error_info(error)
    assert outcome_of(info) == outcome == error_from(info).outcome
    assert outcome_of(ErrorInfo("Unheard", "of")) == "failed"


class Ending:
    """A busy agent, with the notifications about its query."""

    def __init__(self) -> None:
        self.forest = Forest()
        self.id = self.forest.spawn()
        self.forest.ask(self.id)

    def end(self, *events: Any) -> tuple[str, str]:
        """Handle the events. Return the recorded outcome and the outcome of the reported error."""
        collected = []
        for event in events:
            self.forest.handle(event)
            collected += [each.error for each in self.forest.told(Notify) if each.topic == QueryTopic("q")]
        node: AgentRecord = self.forest.refold().agents[self.id]
        assert node.last is not None
        assert len([entry for entry in self.forest.journal if isinstance(entry, QueryFinished)]) == 1
        assert len(collected) <= 1  # after the death of a root, no caller waits
        error = collected[0] if collected else node.last.error
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
        ([TurnTimeout("a001", 1, "q"), ProcessExited("a001", 1, -9, timed_out=True)], "timeout"),
        ([KillRequested(("a001",), "the user"), ProcessExited("a001", 1, -9)], "killed"),
        ([CancelRequested("a001", hard=True), ProcessExited("a001", 1, -9)], "killed"),
        ([Recover(1)], "lost"),
        ([FinishQuery("a001", "q", error=ErrorInfo("BackendError", "no"))], "failed"),
        ([FinishQuery("a001", "q", error=ErrorInfo("BudgetExceededError", "no"))], "budget"),
        ([FinishQuery("a001", "q", Reply("a001", "q", "yes"))], "done"),
    ],
)
def test_each_end_reason_is_recorded_and_reported(events: list[Any], outcome: str) -> None:
    """The journal and the waiting callers have the same outcome."""
    assert Ending().end(*events) == (outcome, outcome)


@pytest.mark.parametrize("first", range(4))
def test_first_end_reason_wins(first: int) -> None:
    """Later events do not change the outcome, in several orders."""
    ends: list[Any] = [
        FinishQuery("a001", "q", Reply("a001", "q", "yes")),
        KillRequested(("a001",), "the user"),
        ProcessExited("a001", 1, -9),
        CancelRequested("a001", hard=True),
    ]
    outcomes = ["done", "killed", "lost", "killed"]
    assert Ending().end(*ends[first:], *ends[:first])[0] == outcomes[first]


def test_start_out_of_memory_is_reported() -> None:
    """The spawner gets the outcome, too."""
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
    """The kernel's counter of out-of-memory kills."""

    def test_oom_kill_is_claimed_once(self, tmp_path: Path) -> None:
        """Kills before the detector was created belong to no agent."""
        counter = tmp_path / "memory.events"
        counter.write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
        ooms = OomDetector(counter)
        assert ooms.claim() == ""
        counter.write_text("oom_kill 4\n")
        assert str(counter) in ooms.claim()
        assert ooms.claim() != ""
        assert ooms.claim() == ""
        counter.write_text("oom_kill 5\n")
        ooms.ignore_earlier()
        assert ooms.claim() == ""

    def test_no_oom_is_claimed_without_a_counter(self, tmp_path: Path) -> None:
        """Without a counter, the detector does not guess."""
        ooms = OomDetector(tmp_path / "none")
        ooms.ignore_earlier()
        assert ooms.claim() == ""


@virtual
async def test_end_reason_is_in_list_reply_and_error(tmp_path: Path) -> None:
    """The outcome in the list is empty while a query runs."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("done", {"text": "slow", "sleep": 60}, "x", budget=Budget(max_model_calls=2))
        assert (await agent.state()).outcome == ""
        assert (await agent.query("go")).outcome == (await agent.state()).outcome == "done"
        asking = agent.submit("go on")
        await until(lambda: world.status(agent) == "busy")
        assert (await agent.state()).outcome == ""
        await agent.cancel()
        assert (await asking).outcome == "killed"
        assert (await agent.query("more")).outcome == "done"  # a cancelled request costs no call
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
async def test_memory_error_in_a_worker_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process continues."""
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
