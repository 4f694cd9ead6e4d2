"""Processes that end repeatedly: restart delays, limits, and recovery."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from orch.testing import FakeLauncher
from orch.tree.interface.events import (
    KillRequested,
    LaunchFailed,
    ProcessExited,
    Recover,
    RestartWorker,
    ResumeRequested,
)
from orch.tree.interface.instructions import Launch, Notify, Send, Timer
from orch.tree.interface.topics import ExitTopic, ReadyTopic
from orch.tree.rules.restart_backoff import JITTER, MAX_DELAY, MAX_FAILED_STARTS, WINDOW, check_starts, restart_delay
from orch_protocol.core.errors import AgentDiedError, AgentGoneError, LaunchError
from orch_protocol.policy.budget import Budget
from orchestrator.root_double import opened
from orchestrator.tree_double import Forest
from virtual_clock import passed, virtual


def test_restart_delays_double_up_to_a_limit() -> None:
    """Failures older than the window do not count."""
    crashes: list[float] = []
    pauses = []
    while (seconds := restart_delay(crashes, 100.0 + len(crashes), 8)) is not None:
        crashes.append(100.0 + len(crashes))
        pauses.append(seconds)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, MAX_DELAY, MAX_DELAY]
    assert restart_delay(crashes, 100.0 + WINDOW, 8) == MAX_DELAY
    assert restart_delay(crashes, 107.0 + WINDOW, 8) == 0.1
    assert restart_delay([], 0.0, 0) is None


class TestAgent:
    """Restarts of one agent."""

    def test_failed_start_is_retried_after_a_delay(self) -> None:
        """The spawner and later queries wait for the next process, and the agent keeps its slot."""
        forest = Forest(max_concurrent=1)
        id = forest.spawn(up=False)
        forest.handle(LaunchFailed(id, 1, "the zygote ended"))
        assert forest.told(Timer) == [Timer(0.1, RestartWorker(id, 1), spread=JITTER)]
        assert [notify.topic for notify in forest.told(Notify)] == [ExitTopic(id, 1)]
        forest.ask(id)
        assert list(forest.tree.agents.alive) == [id]
        forest.back(id)
        assert forest.told(Launch) == [Launch(id, 2)]
        forest.up(id)
        assert (forest.told(Notify)[0].topic, forest.told(Send)) == (ReadyTopic(id), [Send(id, "q")])
        assert forest.refold().agents.by_id == forest.tree.agents.by_id

    @pytest.mark.parametrize(
        "how", [{"code": 71}, {"code": -9, "timed_out": True}, {"code": -9, "oom": "out of memory"}]
    )
    def test_deterministic_failure_is_not_retried(self, how: dict[str, int]) -> None:
        """A process that exits by itself, exceeds its time limit or runs out of memory is not started again."""
        forest = Forest()
        id = forest.spawn(up=False)
        forest.gone(id, **how)  # type: ignore[arg-type]
        assert forest.told(Timer) == []
        assert forest.status(id) == "failed"

    def test_agent_dying_in_each_turn_fails(self) -> None:
        """`resume` resets the count."""
        forest = Forest(restarts=2)
        id = forest.spawn()
        for number in itertools.count(1):
            forest.ask(id, f"q{number}")
            if number > 1:
                forest.up(id)
            forest.gone(id)
            if forest.status(id) == "failed":
                break
            assert forest.status(id) == "died"
        assert number == 3
        error = forest.told(Notify)[0].error.message
        assert "`orch resume 1` makes it usable again" in error
        assert "3 processes of this agent ended within 60 s" in error
        with pytest.raises(AgentGoneError, match="3 processes of this agent ended within 60 s; `orch resume 1`"):
            forest.ask(id, "more")
        forest.handle(ResumeRequested(id))
        forest.ask(id, "more")
        forest.up(id)
        forest.gone(id)
        assert forest.status(id) == "died"

    def test_finished_turn_resets_the_failure_count(self) -> None:
        """Time resets the count, too."""
        forest = Forest(restarts=1)
        id = forest.spawn()
        for number in range(6):
            forest.ask(id, f"q{number}")
            if number:
                forest.up(id)
            forest.gone(id)
            assert forest.status(id) == "died"
            if number % 2:
                forest.now += WINDOW
            else:
                forest.ask(id, "whole")
                forest.up(id)
                forest.finish(id, "whole")
                forest.gone(id)  # the end of an idle process is not a crash

    def test_kill_during_the_delay_cancels_the_restart(self) -> None:
        """The spawner gets an error."""
        forest = Forest()
        id = forest.spawn(up=False)
        forest.handle(ProcessExited(id, 1, -9))
        forest.handle(KillRequested((id,), "the user"))
        assert [notify.topic for notify in forest.told(Notify)] == [ReadyTopic(id)]
        forest.back(id)
        assert forest.told(Launch) == []
        assert forest.status(id) == "killed"

    def test_refused_process_ends_the_retries(self) -> None:
        """When the process budget is exhausted, waiting callers get an error."""
        forest = Forest()
        id = forest.spawn()
        forest.ask(id)
        forest.gone(id, begun=False)
        forest.back(id, refused="no process is left")
        assert "no process is left" in forest.told(Notify)[0].error.message
        assert (forest.status(id), forest.tree.agents[id].pending) == ("failed", None)

    def test_new_root_restarts_agents_on_demand(self) -> None:
        """An agent that was waiting for its restart is started by the next query."""
        forest = Forest()
        id = forest.spawn(up=False)
        forest.handle(ProcessExited(id, 1, -9))
        forest.handle(Recover(1))
        assert (forest.status(id), list(forest.tree.agents.alive)) == ("cold", [])
        forest.back(id)
        assert forest.told(Launch) == []


class TestTree:
    """Failed starts of all agents together."""

    def test_many_failed_starts_pause_all_starts(self) -> None:
        """The error contains the reason and the remaining time. A successful start ends the pause."""
        forest = Forest(restarts=0, max_concurrent=99)
        ids = [forest.spawn(up=False) for _ in range(MAX_FAILED_STARTS + 1)]
        for id in ids[:-1]:
            forest.handle(ProcessExited(id, 1, -9))
        with pytest.raises(LaunchError, match=rf"{MAX_FAILED_STARTS} processes in a row .* for 60 s.*orch doctor"):
            forest.spawn(up=False)
        forest.up(ids[-1])
        forest.spawn(up=False)
        failed = [float(number) for number in range(MAX_FAILED_STARTS)]
        with pytest.raises(LaunchError, match="for 10 s"):
            check_starts(failed, 50.0)
        check_starts(failed, WINDOW)


@virtual
async def test_agent_is_restarted_without_a_new_query(tmp_path: Path) -> None:
    """The query is answered after two deaths of the process and one failed start."""
    launcher = FakeLauncher()
    async with opened(tmp_path, launcher=launcher) as world:
        agent = await world.scripted("done")
        world.lose(lambda kind: kind == "query")
        asking = asyncio.ensure_future(agent.query("go"))
        for _ in range(2):
            await passed(1)
            world.launcher.worker(agent.id).die(-9)
        launcher.failures.append("the zygote ended")
        await asyncio.sleep(0.0)
        world.lose(lambda _: False)
        assert (await asking).text == "done"
        assert len(launcher.workers) == 3


@virtual
async def test_restart_respects_the_process_budget(tmp_path: Path) -> None:
    """The query fails when the budget allows no further process."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("done", budget=Budget(max_processes=1))
        world.lose(lambda kind: kind == "query")
        asking = asyncio.ensure_future(agent.query("go"))
        await passed(1)
        world.launcher.worker(agent.id).die(-9)
        with pytest.raises((AgentDiedError, LaunchError), match="used 1 of 1 process"):
            await asking
