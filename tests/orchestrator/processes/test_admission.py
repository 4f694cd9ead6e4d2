"""Admission of new workers: the pure rule, and agents that wait for their admission."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch import AgentGoneError, AsyncOrchestrator, LaunchError, Reply, ScriptedBackend
from orch.processes import workers
from orch.processes.admission import Admission, Step
from orch.processes.base import LaunchRequest
from orch.testing import FakeLauncher, FakeWorker, fake_world


def start(id: str) -> Step:
    """The start of the first process of the agent `id`."""
    return Step(id, 1, "start")


def query(id: str) -> Step:
    """The first query of this process."""
    return Step(id, 1, "query")


class Begun(list[Step]):
    """The steps that began, in order."""

    def request(self, admission: Admission, *steps: Step) -> None:
        """Request `steps`, and record when they begin."""
        for step in steps:
            admission.request(step, partial(self.append, step))


class TestAdmission:
    """Which steps begin, and when."""

    def test_steps_begin_in_order_up_to_the_limit(self) -> None:
        """Each end admits the next one."""
        admission, begun = Admission(2), Begun()
        begun.request(admission, *map(start, "abcd"))
        assert begun == [start("a"), start("b")]
        admission.end(start("b"))
        assert begun == [*map(start, "abc")]
        admission.end(start("a"))
        assert begun == [*map(start, "abcd")]

    def test_first_queries_precede_starts(self) -> None:
        """An agent whose process runs is closer to its response than one without a process."""
        admission, begun = Admission(1), Begun()
        begun.request(admission, start("a"), start("b"), query("c"), query("d"))
        for done in (start("a"), query("c"), query("d")):
            admission.end(done)
        assert begun == [start("a"), query("c"), query("d"), start("b")]

    def test_query_of_a_starting_process_keeps_its_place(self) -> None:
        """It begins at once, and the end of the start then admits nothing."""
        admission, begun = Admission(1), Begun()
        begun.request(admission, start("a"), start("b"), query("a"))
        assert begun == [start("a"), query("a")]
        admission.end(start("a"))
        assert begun == [start("a"), query("a")]
        admission.end(query("a"))
        assert begun[-1] == start("b")

    def test_step_that_is_withdrawn_while_it_waits_never_begins(self) -> None:
        """It takes no place either."""
        admission, begun = Admission(1), Begun()
        begun.request(admission, *map(start, "abc"))
        admission.withdraw(start("b"))
        admission.withdraw(start("a"))
        admission.end(start("x"))  # unknown
        assert begun == [start("a"), start("c")]

    def test_frame_of_a_process_does_not_drop_its_waiting_query(self) -> None:
        """A process can send frames, which end its query, before this query began."""
        admission, begun = Admission(1), Begun()
        begun.request(admission, query("a"), query("b"), query("c"))
        admission.end(query("b"))
        admission.end(query("a"))
        assert begun == [query("a"), query("b")]
        admission.end(query("c"))
        admission.begin_now(query("c"))
        assert begun[-1] == query("c")

    def test_step_can_begin_beyond_the_limit(self) -> None:
        """A frame that must follow a waiting query lets the query begin. It begins once."""
        admission, begun = Admission(1), Begun()
        begun.request(admission, start("a"), query("b"), query("c"))
        admission.begin_now(query("b"))
        admission.begin_now(query("b"))
        assert begun == [start("a"), query("b")]
        admission.end(start("a"))
        assert begun == [start("a"), query("b")], "the query still needs a processor"
        admission.end(query("b"))
        assert begun[-1] == query("c")

    def test_next_process_of_an_agent_is_another_step(self) -> None:
        """A late end of the previous process ends nothing."""
        admission, begun = Admission(1), Begun()
        begun.request(admission, Step("a", 2, "start"), start("b"))
        admission.end(Step("a", 1, "start"))
        assert begun == [Step("a", 2, "start")]

    @given(
        st.integers(1, 4),
        st.lists(
            st.tuples(
                st.sampled_from(["request", "end", "withdraw"]), st.integers(0, 9), st.sampled_from(["start", "query"])
            )
        ),
    )
    def test_every_step_begins_once_when_the_others_end(self, limit: int, actions: list[tuple[str, int, str]]) -> None:
        """Never more than `limit` steps are active, and no place is lost."""
        admission, begun, requested, ended = Admission(limit), Begun(), set[Step](), set[Step]()
        for action, number, kind in actions:
            step = Step(str(number), 1, kind)  # type: ignore[arg-type]
            if action == "end":
                ended |= {step} & {*begun}
                admission.end(step)
            elif action == "withdraw":
                ended |= {step} & requested
                admission.withdraw(step)
            elif step not in requested:
                taken = start(step.id)
                if kind == "query" and taken in begun:
                    ended.add(taken)  # the query takes over its place
                requested.add(step)
                begun.request(admission, step)
            assert len({*begun} - ended) <= limit
        while active := {*begun} - ended:
            ended.add(step := active.pop())
            admission.end(step)
        assert len(begun) == len({*begun})
        assert requested - ended == set()


class GatedLauncher(FakeLauncher):
    """A launcher whose launches wait for `gate`. `launched` has the agents in the order of their launches."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.launched: list[str] = []

    async def launch(self, request: LaunchRequest) -> FakeWorker:
        """Start a worker when the gate is open."""
        self.launched.append(request.agent_id)
        await self.gate.wait()
        return await super().launch(request)


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Admit one step at a time, as on a machine with half a processor."""
    monkeypatch.setattr(workers, "admitted_at_once", lambda: 1)


async def settle() -> None:
    """Let everything happen that can happen without an event from outside."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.usefixtures("one_at_a_time")
class TestWaitingAgents:
    """Agents whose start or first query waits for its admission."""

    async def test_killed_agent_is_never_launched(self, tmp_path: Path) -> None:
        """Its spawn fails, and the agent behind it starts."""
        launcher = GatedLauncher()
        async with AsyncOrchestrator("extractive:", home=tmp_path, **fake_world(launcher)) as o:
            spawns = [asyncio.ensure_future(o.spawn("x", name=name)) for name in "abc"]
            await settle()
            assert len(launcher.launched) == 1
            await o.kill("b")
            with pytest.raises((AgentGoneError, LaunchError)):
                await spawns[1]
            launcher.gate.set()
            first, last = await spawns[0], await spawns[2]
            assert launcher.launched == [first.id, last.id]

    async def test_canceled_spawn_leaves_no_agent(self, tmp_path: Path) -> None:
        """The next agent starts."""
        launcher = GatedLauncher()
        async with AsyncOrchestrator("extractive:", home=tmp_path, **fake_world(launcher)) as o:
            spawns = [asyncio.ensure_future(o.spawn("x", name=name)) for name in "abc"]
            await settle()
            spawns[1].cancel()
            await settle()
            launcher.gate.set()
            await asyncio.gather(spawns[0], spawns[2])
            assert [agent.name for agent in await o.agents() if agent.status == "idle"] == ["a", "c"]

    async def test_closing_does_not_wait_for_admissions(self, tmp_path: Path) -> None:
        """Spawns that wait fail."""
        launcher = GatedLauncher()
        async with AsyncOrchestrator("extractive:", home=tmp_path, **fake_world(launcher)) as o:
            spawns = [asyncio.ensure_future(o.spawn("x")) for _ in range(3)]
            await settle()
        results = await asyncio.gather(*spawns, return_exceptions=True)
        assert all(isinstance(result, Exception) for result in results)

    async def test_start_that_hangs_delays_others_only_for_a_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A process that sends nothing gives up its place."""
        monkeypatch.setattr(workers, "HOLD_SECONDS", 0.0)
        launcher = FakeLauncher()
        async with AsyncOrchestrator("extractive:", home=tmp_path, **fake_world(launcher)) as o:
            assert launcher.board is not None
            launcher.board.lose = lambda _: not hung.done()
            hung = asyncio.ensure_future(o.spawn("x"))
            await settle()
            hung.cancel()
            await asyncio.wait([hung])
            assert (await (await o.spawn("y")).state()).status == "idle"

    async def test_all_first_queries_are_answered(self, tmp_path: Path) -> None:
        """Each turn admits the next one."""
        async with AsyncOrchestrator("extractive:", home=tmp_path, **fake_world()) as o:
            agents = await asyncio.gather(*(o.spawn("x", backend=ScriptedBackend([str(n)])) for n in range(9)))
            replies = await asyncio.gather(*(agent.query("go") for agent in agents))
            assert [reply.text for reply in replies if isinstance(reply, Reply)] == [str(n) for n in range(9)]
