"""Processes that end before their work is begun, or in the middle of it, again and again: pauses, limits, ways out."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from orch.testing import FakeLauncher
from orch.tree.journal.events import (
    KillRequested,
    Launch,
    LaunchFailed,
    Notify,
    ProcessExited,
    Recover,
    RestartWorker,
    ResumeRequested,
    Send,
    Timer,
)
from orch.tree.rules.restart_backoff import JITTER, MAX_DELAY, MAX_FAILED_STARTS, WINDOW, check_starts, restart_delay
from orch_protocol.core.errors import AgentDiedError, AgentGoneError, LaunchError
from orch_protocol.policy.budget import Budget
from orchestrator.root_double import opened
from orchestrator.tree_double import Forest
from virtual_clock import passed, virtual


def test_pauses_grow_and_end() -> None:
    """Twice as long each time, to a bound; what is longer ago than a minute does not count."""
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
    """One agent."""

    def test_a_start_that_fails_is_tried_again_after_a_pause(self) -> None:
        """The spawner waits on, who asks meanwhile is answered by the next process, and its room stays its own."""
        forest = Forest(max_concurrent=1)
        id = forest.spawn(up=False)
        forest.handle(LaunchFailed(id, 1, "the zygote ended"))
        assert forest.told(Timer) == [Timer(0.1, RestartWorker(id, 1), spread=JITTER)]
        assert [notify.topic for notify in forest.told(Notify)] == [f"gone:{id}:1"]
        forest.ask(id)
        assert list(forest.tree.agents.alive) == [id]
        forest.back(id)
        assert forest.told(Launch) == [Launch(id, 2)]
        forest.up(id)
        assert (forest.told(Notify)[0].topic, forest.told(Send)) == (f"up:{id}", [Send(id, "q")])
        assert forest.refold().agents.by_id == forest.tree.agents.by_id

    @pytest.mark.parametrize("how", [{"code": 71}, {"code": -9, "late": True}, {"code": -9, "oom": "out of memory"}])
    def test_what_would_end_the_same_is_not_tried_again(self, how: dict[str, int]) -> None:
        """A process that ends by itself says why; one that took all the time there is takes it again."""
        forest = Forest()
        id = forest.spawn(up=False)
        forest.gone(id, **how)  # type: ignore[arg-type]
        assert forest.told(Timer) == []
        assert forest.status(id) == "failed"

    def test_one_that_dies_in_each_turn_has_failed(self) -> None:
        """Nobody revives it any more by asking; the last error and resume say so, and a resume begins anew."""
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
        assert "`orch resume 1` lets it answer again" in error
        assert "the end of its process number 3 within 60 s" in error
        with pytest.raises(AgentGoneError, match="number 3 within 60 s; `orch resume 1`"):
            forest.ask(id, "more")
        forest.handle(ResumeRequested(id))
        forest.ask(id, "more")
        forest.up(id)
        forest.gone(id)
        assert forest.status(id) == "died"

    def test_a_turn_that_is_finished_makes_up_for_it(self) -> None:
        """So does time."""
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
                forest.gone(id)  # idle: that is no crash

    def test_one_that_is_killed_in_the_pause_does_not_come_back(self) -> None:
        """Its spawner hears of it."""
        forest = Forest()
        id = forest.spawn(up=False)
        forest.handle(ProcessExited(id, 1, -9))
        forest.handle(KillRequested((id,), "the user"))
        assert [notify.topic for notify in forest.told(Notify)] == [f"up:{id}"]
        forest.back(id)
        assert forest.told(Launch) == []
        assert forest.status(id) == "killed"

    def test_a_process_that_cannot_be_had_ends_it(self) -> None:
        """As when a budget of processes is used up: who waits is told."""
        forest = Forest()
        id = forest.spawn()
        forest.ask(id)
        forest.gone(id, begun=False)
        forest.back(id, refused="no process is left")
        assert "no process is left" in forest.told(Notify)[0].error.message
        assert (forest.status(id), forest.tree.agents[id].pending) == ("failed", None)

    def test_a_root_that_takes_over_starts_nobody(self) -> None:
        """Who was about to come back does so when it is asked."""
        forest = Forest()
        id = forest.spawn(up=False)
        forest.handle(ProcessExited(id, 1, -9))
        forest.handle(Recover(1))
        assert (forest.status(id), list(forest.tree.agents.alive)) == ("cold", [])
        forest.back(id)
        assert forest.told(Launch) == []


class TestTree:
    """All of them together."""

    def test_when_many_starts_fail_nothing_is_started_for_a_while(self) -> None:
        """Whoever wants a process is told why and for how long; one that comes up ends it, and so does time."""
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
async def test_an_agent_comes_back_by_itself(tmp_path: Path) -> None:
    """Its process died before it heard the question, twice, and could not be started once: the answer comes."""
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
async def test_no_process_is_started_beyond_a_budget(tmp_path: Path) -> None:
    """Not by itself either."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("done", budget=Budget(max_processes=1))
        world.lose(lambda kind: kind == "query")
        asking = asyncio.ensure_future(agent.query("go"))
        await passed(1)
        world.launcher.worker(agent.id).die(-9)
        with pytest.raises((AgentDiedError, LaunchError), match="used 1 of 1 process"):
            await asking
