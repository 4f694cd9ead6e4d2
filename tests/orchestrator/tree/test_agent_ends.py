"""The ends of agents: death, kill, resumption, idle timeout and recovery; and a random test of the whole tree."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orch.tree.interface.events import (
    CancelRequested,
    CollectReply,
    ConfirmSteering,
    KillRequested,
    LaunchFailed,
    QueueSteering,
    Recover,
    ResumeRequested,
    RetireIdleAgents,
    StopIfIdle,
    StopTimeout,
)
from orch.tree.interface.topics import ExitTopic
from orch.tree.journal.entries import QueryFinished, WorkerExited
from orch_protocol.core.errors import AgentBusyError, AgentGoneError, OrchError
from orch_protocol.core.messages import Reply, Usage
from orchestrator.tree_double import (
    Forest,
    Launch,
    Notify,
    ProcessExited,
    Send,
    Signal,
    StartQuery,
    Timer,
    WorkerBooted,
)

# Ends.


def test_idle_death_is_repaired_by_the_next_query() -> None:
    """The agent has the status `died` and no process until the next query."""
    forest = Forest()
    id = forest.spawn()
    forest.gone(id, -9)
    assert forest.status(id) == "died"
    forest.ask(id)
    assert forest.status(id) == "starting"


def test_death_in_a_turn_fails_the_query_unless_the_reply_is_recorded() -> None:
    """A turn in the transcript counts as finished. Otherwise the query fails with AgentDiedError."""
    forest = Forest()
    lost, saved = forest.spawn(), forest.spawn()
    forest.ask(lost, "q1")
    forest.ask(saved, "q2")
    forest.gone(lost, usage=Usage(1, 2))
    assert forest.told(Notify)[0].error.type == "AgentDiedError"
    assert "signal 9" in forest.told(Notify)[0].error.message
    assert forest.tree.agents[lost].usage == Usage(1, 2)
    forest.gone(saved, recovered=Reply(saved, "q2", "made it", usage=Usage(3, 4)))
    assert forest.told(Notify)[0].value.text == "made it"
    assert forest.tree.agents[saved].usage == Usage(3, 4)
    assert forest.status(lost) == forest.status(saved) == "died"


def test_query_that_never_began_is_sent_again() -> None:
    """The query is sent to the next process, a limited number of times."""
    forest = Forest(restarts=2)
    id = forest.spawn()
    forest.ask(id)
    for number in (1, 2):
        forest.gone(id, begun=False)
        assert forest.told(Launch) == []
        assert [notify.topic for notify in forest.told(Notify)] == [ExitTopic(id, number)]
        forest.back(id)
        assert forest.told(Launch) == [Launch(id, number + 1)]
        forest.up(id)
        assert forest.told(Send) == [Send(id, "q")]
    forest.gone(id, begun=False)
    assert forest.told(Notify)[0].error.type == "AgentDiedError"
    assert forest.status(id) == "failed"


def test_events_of_an_older_incarnation_are_ignored() -> None:
    """The exit and the start of an earlier process do not change the agent."""
    forest = Forest()
    id = forest.spawn()
    forest.gone(id)
    forest.ask(id)
    forest.up(id)
    forest.handle(ProcessExited(id, 1, -9))
    forest.handle(WorkerBooted(id, 1, 7))
    assert forest.status(id) == "busy"
    assert forest.tree.agents[id].pid == 102


def test_kill_ends_descendants_first() -> None:
    """Callers get an error, and killed agents refuse queries until they are resumed."""
    forest = Forest(allow_nested=True)
    one = forest.spawn()
    two = forest.spawn(one)
    three = forest.spawn(two)
    forest.ask(two, "q2")
    assert forest.handle(KillRequested((one,), "the user")) == (three, two, one)
    assert [signal.id for signal in forest.told(Signal)] == [three, two, one]
    assert [notify.error.type for notify in forest.told(Notify)] == ["AgentGoneError"]
    with pytest.raises(AgentGoneError, match="orch resume 2"):
        forest.ask(two)


def test_second_kill_has_no_effect() -> None:
    """A second kill returns no agents and has no instructions."""
    forest = Forest()
    id = forest.spawn()
    forest.handle(KillRequested((id, id), "the user"))
    assert forest.handle(KillRequested((id,), "the user")) == ()
    assert forest.last == []


def test_killed_agent_keeps_its_usage_and_answers_after_resume() -> None:
    """The usage of a killed agent stays part of the tree's usage."""
    forest = Forest()
    id = forest.spawn()
    forest.ask(id)
    forest.finish(id)
    forest.handle(KillRequested((id,), "the user"))
    forest.gone(id)
    assert forest.status(id) == "killed"
    assert forest.tree.agents.tree_usage(id) == Usage(10, 5, cost_usd=0.5)
    forest.handle(ResumeRequested(id))
    assert forest.status(id) == "cold"
    forest.ask(id)
    assert forest.told(Launch) == [Launch(id, 2)]


def test_resume_requires_the_end_of_the_last_process() -> None:
    """Two processes of one agent would write the same transcript."""
    forest = Forest()
    id = forest.spawn()
    forest.handle(KillRequested((id,), "the user"))
    with pytest.raises(AgentBusyError, match="has not ended yet"):
        forest.handle(ResumeRequested(id))
    forest.gone(id)
    assert [notify.topic for notify in forest.told(Notify)] == [ExitTopic(id, 1)]
    forest.handle(ResumeRequested(id))
    assert forest.status(id) == "cold"


def test_agent_killed_while_starting_ends_with_its_launch() -> None:
    """The end is reported once, whether or not the process had started."""
    forest = Forest()
    failed, started = forest.spawn(up=False), forest.spawn(up=False)
    forest.handle(KillRequested((failed, started), "the user"))
    forest.handle(LaunchFailed(failed, 1, "too late"))
    assert [notify.topic for notify in forest.told(Notify)] == [ExitTopic(failed, 1)]
    forest.handle(WorkerBooted(started, 1, 7))
    forest.gone(started)
    assert [notify.topic for notify in forest.told(Notify)] == [ExitTopic(started, 1)]
    forest.gone(started)
    assert forest.last == []
    for id in (failed, started):
        forest.handle(ResumeRequested(id))
        assert forest.status(id) == "cold"


def test_tree_usage_includes_killed_descendants() -> None:
    """The usage of a tree is the sum of the usage of its agents."""
    forest = Forest(allow_nested=True)
    one = forest.spawn()
    two = forest.spawn(one)
    for id in (one, two):
        forest.ask(id)
        forest.finish(id)
    forest.handle(KillRequested((two,), "the user"))
    assert forest.tree.agents.tree_usage(one) == Usage(20, 10, cost_usd=1.0)


def test_idle_agent_goes_cold() -> None:
    """An agent that is idle for too long is asked to exit, and is killed if it does not."""
    forest = Forest(timeout_minutes=1)
    id = forest.spawn()
    forest.now += 59
    forest.handle(RetireIdleAgents())
    assert forest.told(Signal) == []
    forest.now += 1
    forest.handle(RetireIdleAgents())
    assert forest.told(Signal) == [Signal(id, 1, "stop")]
    forest.handle(StopTimeout(id, 1))
    assert forest.told(Signal) == [Signal(id, 1, "kill")]
    forest.gone(id, 0)
    assert forest.status(id) == "cold"


def test_query_to_a_leaving_agent_goes_to_its_next_process() -> None:
    """The query is sent after the old process has ended and the new one is ready."""
    forest = Forest(timeout_minutes=1)
    id = forest.spawn()
    forest.now += 60
    forest.handle(RetireIdleAgents())
    forest.ask(id)
    forest.gone(id, 0)
    assert forest.told(Launch) == [Launch(id, 2)]
    forest.up(id)
    assert forest.told(Send) == [Send(id, "q")]


# Recovery.


def test_new_root_restores_every_agent() -> None:
    """Idle agents are cold. Busy agents have died unless their reply is in the transcript."""
    forest = Forest()
    idle, lost, saved, killed = (forest.spawn(name=name) for name in ("idle", "lost", "saved", "killed"))
    forest.ask(lost, "q1")
    forest.ask(saved, "q2")
    forest.handle(KillRequested((killed,), "the user"))
    forest.tree = forest.refold()
    forest.handle(Recover(1, {"q2": Reply(saved, "q2", "made it")}, {"q1": Usage(1, 2)}))
    assert [forest.status(id) for id in (idle, lost, saved, killed)] == ["cold", "died", "cold", "killed"]
    assert forest.handle(CollectReply(saved, "the user")).reply.text == "made it"
    assert forest.handle(CollectReply(lost, "the user")).error.type == "AgentDiedError"
    assert forest.tree.agents[lost].usage == Usage(1, 2)
    assert forest.tree.agents[idle].spec.name == "idle"
    assert not forest.tree.agents.alive


def test_wake_up_message_of_an_ended_run_is_delivered_with_the_next_turn() -> None:
    """Opening the run does not start a turn."""
    forest = Forest(allow_nested=True)
    parent = forest.spawn()
    child = forest.spawn(parent)
    forest.ask(child, "q", asker=parent, wake="all")
    forest.tree = forest.refold()
    forest.handle(Recover(1))
    assert forest.last == []
    assert "was interrupted" in forest.tree.agents[parent].inbox[0]


def test_accepted_query_is_asked_again_by_the_next_root() -> None:
    """Only submitted queries have a prompt in the journal, so only those are repeated."""
    forest = Forest()
    cold, starting, waited = forest.spawn(), forest.spawn(up=False), forest.spawn()
    forest.handle(StopIfIdle(cold))
    forest.gone(cold, code=0)
    for id, prompt in ((cold, "all of it"), (starting, "all of that"), (waited, "")):
        forest.ask(id, f"q-{id}", stays=True, prompt=prompt)
    forest.tree = forest.refold()
    forest.handle(Recover(1))
    assert [forest.status(id) for id in (cold, starting, waited)] == ["starting", "starting", "died"]
    relaunches = [timer.event for timer in forest.told(Timer)]
    assert [event.id for event in relaunches] == [cold, starting]
    assert [node.pending.prompt for node in forest.tree.agents.pending.values()] == ["all of it", "all of that"]
    for event in relaunches:
        forest.handle(event)
        assert forest.told(Launch) == [Launch(event.id, event.incarnation + 1)]
        forest.up(event.id)
        assert forest.told(Send) == [Send(event.id, f"q-{event.id}")]
        forest.finish(event.id, f"q-{event.id}")
        assert forest.handle(CollectReply(event.id, "the user")).reply.text == "done"


def test_query_is_asked_again_by_as_many_roots_as_end_before_it() -> None:
    """The prompt survives several restarts and compactions of the journal."""
    forest = Forest()
    id = forest.spawn(up=False)
    forest.ask(id, "q", stays=True, prompt="all of it")
    for _ in range(3):
        forest.tree = forest.refold()
        forest.handle(Recover(1))
        forest.journal = forest.tree.agents.snapshot_entries(forest.now)
        forest.tree = forest.refold()
    pending = forest.tree.agents[id].pending
    assert pending is not None
    assert (pending.query_id, pending.prompt) == ("q", "all of it")
    forest.back(id)
    forest.up(id)
    assert forest.told(Send) == [Send(id, "q")]


def test_accepted_query_that_was_begun_is_not_asked_again() -> None:
    """The prompt of a begun query is in the transcript. Collecting reports the interruption."""
    forest = Forest()
    id = forest.spawn()
    forest.ask(id, "q", stays=True, prompt="all of it")
    forest.tree = forest.refold()
    forest.handle(Recover(1, begun=frozenset({"q"})))
    assert (forest.status(id), forest.told(Timer)) == ("died", [])
    assert forest.handle(CollectReply(id, "the user")).error.type == "AgentDiedError"


def test_prompt_of_an_ephemeral_agent_is_not_in_the_journal() -> None:
    """Nothing of an agent with `persist=False` is stored on a disk."""
    forest = Forest()
    id = forest.spawn(persist=False)
    forest.ask(id, "q", stays=True, prompt="all of it")
    assert "all of it" not in str(forest.journal)


def test_end_of_a_killed_process_is_assumed_by_the_next_root() -> None:
    """The agent can be resumed."""
    forest = Forest()
    id = forest.spawn()
    forest.handle(KillRequested((id,), "the user"))
    forest.tree = forest.refold()
    forest.handle(Recover(1))
    assert (forest.status(id), forest.tree.agents[id].pid) == ("killed", None)
    forest.handle(ResumeRequested(id))


def test_entries_about_unknown_agents_are_skipped() -> None:
    """A journal can be read even if the line that spawned an agent is damaged."""
    forest = Forest()
    forest.tree.apply([WorkerExited(at=1.0, id="nobody", incarnation=1, status="cold")])
    assert len(forest.tree.agents) == 0


class Life(RuleBasedStateMachine):
    """After any operations, the tree equals the tree from its journal, and the limits are respected."""

    def __init__(self) -> None:
        super().__init__()
        self.forest = Forest(allow_nested=True, max_concurrent=4, timeout_minutes=1)
        self.queries = 0

    def _pick(self, number: int) -> str | None:
        ids = list(self.forest.tree.agents.by_id)
        return ids[number % len(ids)] if ids else None

    def _try(self, act: object, *args: object, **kwargs: object) -> None:
        try:
            act(*args, **kwargs)  # type: ignore[operator]
        except OrchError:
            pass

    @rule(parent=st.integers(0, 9), nested=st.booleans(), up=st.booleans())
    def spawn(self, parent: int, nested: bool, up: bool) -> None:
        self._try(self.forest.spawn, self._pick(parent) if nested else None, up)

    @rule(number=st.integers(0, 9))
    def up(self, number: int) -> None:
        if id := self._pick(number):
            self._try(self.forest.up, id)

    @rule(
        number=st.integers(0, 9),
        asker=st.integers(0, 9),
        waits=st.booleans(),
        wake=st.sampled_from([None, "any", "all", 2]),
    )
    def ask(self, number: int, asker: int, waits: bool, wake: str | int | None) -> None:
        if id := self._pick(number):
            self.queries += 1
            asking = self._pick(asker)
            self._try(
                self.forest.handle,
                StartQuery(id, f"q{self.queries}", "do it", asking, waits and wake is None, wake if asking else None),
            )

    @rule(number=st.integers(0, 9), fails=st.booleans(), taken=st.booleans())
    def finish(self, number: int, fails: bool, taken: bool) -> None:
        if (id := self._pick(number)) and (pending := self.forest.tree.agents[id].pending):
            error, taken_by = ("broken" if fails else None), ("the user" if taken else None)
            self.forest.finish(id, pending.query_id, error=error, taken_by=taken_by)

    @rule(number=st.integers(0, 9), code=st.sampled_from([0, 1, -9, None]))
    def gone(self, number: int, code: int | None) -> None:
        if id := self._pick(number):
            self.forest.gone(id, code)

    @rule(number=st.integers(0, 9), refused=st.sampled_from(["", "no descriptor left"]))
    def back(self, number: int, refused: str) -> None:
        if id := self._pick(number):
            self.forest.back(id, refused=refused)

    @rule(number=st.integers(0, 9))
    def kill(self, number: int) -> None:
        if id := self._pick(number):
            self.forest.handle(KillRequested((id,), "the user"))

    @rule(number=st.integers(0, 9), follow_up=st.booleans(), heard=st.booleans())
    def steer(self, number: int, follow_up: bool, heard: bool) -> None:
        if id := self._pick(number):
            self.queries += 1
            self._try(self.forest.handle, QueueSteering(id, f"s{self.queries}", "so", follow_up))
            if heard:
                self.forest.handle(ConfirmSteering(id, f"s{self.queries}"))

    @rule(number=st.integers(0, 9), hard=st.booleans())
    def cancel(self, number: int, hard: bool) -> None:
        if id := self._pick(number):
            self.forest.handle(CancelRequested(id, hard))

    @rule(number=st.integers(0, 9))
    def resume(self, number: int) -> None:
        if id := self._pick(number):
            self._try(self.forest.handle, ResumeRequested(id))

    @rule(number=st.integers(0, 9), again=st.booleans())
    def collect(self, number: int, again: bool) -> None:
        if id := self._pick(number):
            self._try(self.forest.handle, CollectReply(id, "the user", again))

    @rule(seconds=st.sampled_from([1, 61]))
    def sweep(self, seconds: int) -> None:
        self.forest.now += seconds
        self.forest.handle(RetireIdleAgents())

    @rule()
    def restart(self) -> None:
        self.forest.tree = self.forest.refold()
        self.forest.handle(Recover(1))

    @invariant()
    def the_tree_is_the_fold_of_its_journal(self) -> None:
        folded, live = self.forest.refold().agents, self.forest.tree.agents
        assert folded.by_id == live.by_id
        for index in ("names", "alive", "pending", "requests"):
            assert getattr(folded, index) == getattr(live, index), index

    @invariant()
    def each_query_ends_once(self) -> None:
        ends = [entry.query_id for entry in self.forest.journal if isinstance(entry, QueryFinished)]
        assert len(ends) == len(set(ends))

    @invariant()
    def the_limits_hold(self) -> None:
        assert len(self.forest.tree.agents.alive) <= 4
        assert all(node.spec.depth <= 3 for node in self.forest.tree.agents)

    @invariant()
    def an_agent_is_busy_just_when_it_has_a_query_under_way(self) -> None:
        for node in self.forest.tree.agents:
            if node.status == "busy":
                assert node.pending is not None
            if node.status == "idle" and not node.stopping:
                assert node.pending is None
            if node.status in ("idle", "busy"):
                assert node.running
            if node.status == "starting":
                assert node.running or node.crashes  # between two processes


Life.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestLife = Life.TestCase
