"""What follows from what: spawning, asking, dying, killing, waking, and the limits on all of it."""

from __future__ import annotations

import pytest

from orch.tree.journal.events import (
    BootTimeout,
    CancelRequested,
    CollectReply,
    ConfirmSteering,
    KillRequested,
    LaunchFailed,
    QueueSteering,
    ResumeRequested,
)
from orch_protocol.core.errors import (
    AgentBusyError,
    AgentGoneError,
    ConcurrencyLimitError,
    ConfigError,
    DepthCapError,
    NoResultError,
    QueryCycleError,
    SpawnError,
    ToolNotGrantedError,
)
from orch_protocol.core.messages import Usage, user
from orch_protocol.wire import worker_messages
from orchestrator.tree_double import Forest, Launch, Notify, Send, Signal, SpawnRequested, Timer, WorkerBooted

# Spawning.


def test_a_spawned_agent_is_launched_and_idle_once_it_is_up() -> None:
    """It gets the next number, a name, depth 1, a process and a deadline for it."""
    forest = Forest()
    id = forest.spawn(up=False)
    node = forest.tree.agents[id]
    assert (node.spec.seq, node.spec.name, node.spec.depth, node.status) == (1, "agent-1", 1, "starting")
    assert forest.told(Launch) == [Launch(id, 1)]
    assert [timer.event for timer in forest.told(Timer)] == [BootTimeout(id, 1)]
    forest.up(id)
    assert (forest.status(id), forest.tree.agents[id].pid) == ("idle", 101)
    assert forest.told(Notify) == [Notify(f"up:{id}")]


def test_seeded_history_is_let_go_once_the_transcript_has_it() -> None:
    """A long history is not kept twice."""
    forest = Forest()
    id = forest.spawn(up=False, history=(user("long"),))
    assert forest.tree.agents[id].spec.history
    forest.up(id)
    assert forest.tree.agents[id].spec.history == ()


def test_spawning_is_refused_when_subagents_are_off() -> None:
    """The error names the setting."""
    with pytest.raises(SpawnError, match=r"subagents\.enabled"):
        Forest(enabled=False).spawn()


def test_as_many_agents_may_live_as_the_limit_says() -> None:
    """The next one is refused until one is killed; cold and dead ones do not count."""
    forest = Forest(max_concurrent=2)
    first, second = forest.spawn(), forest.spawn()
    with pytest.raises(ConcurrencyLimitError, match=r"2 agents are alive.*max_concurrent is 2"):
        forest.spawn()
    forest.handle(KillRequested((first,), "the user"))
    forest.spawn()
    forest.gone(second)
    forest.spawn()


def test_an_agent_spawns_only_where_nesting_is_allowed() -> None:
    """Nesting is off unless the configuration turns it on, and the error says how."""
    forest = Forest()
    parent = forest.spawn()
    with pytest.raises(DepthCapError, match=r"subagents\.allow_nested"):
        forest.spawn(parent)


def test_whom_a_person_talks_to_is_nobodys_subagent() -> None:
    """It may spawn where nesting is off; what it spawned may not."""
    forest = Forest()
    talker = forest.spawn(depth=0)
    child = forest.spawn(talker)
    assert [forest.tree.agents[id].spec.depth for id in (talker, child)] == [0, 1]
    with pytest.raises(DepthCapError, match=r"subagents\.allow_nested"):
        forest.spawn(child)


def test_the_depth_cap_holds_at_every_depth() -> None:
    """Agents at the cap may not spawn; the error tells the model that it is blocked."""
    forest = Forest(allow_nested=True, depth_cap=3)
    one = forest.spawn()
    two = forest.spawn(one)
    three = forest.spawn(two)
    assert [forest.tree.agents[id].spec.depth for id in (one, two, three)] == [1, 2, 3]
    with pytest.raises(DepthCapError, match="depth cap 3 reached; report that you are blocked"):
        forest.spawn(three)


def test_a_depth_cap_of_zero_forbids_spawning() -> None:
    """Zero means none, from the user's program too."""
    with pytest.raises(DepthCapError):
        Forest(depth_cap=0).spawn()


def test_an_agent_grants_only_what_it_holds() -> None:
    """The error names the tool and what the parent does hold."""
    forest = Forest(allow_nested=True)
    parent = forest.spawn(tools=("read_file",))
    with pytest.raises(ToolNotGrantedError, match=r"'grep_files'.*it holds read_file"):
        forest.spawn(parent, tools=("grep_files",))
    assert forest.tree.agents[forest.spawn(parent, tools=("read_file",))].spec.parent_id == parent


def test_a_name_is_unique_among_the_living() -> None:
    """Killing an agent frees its name; digits alone would be a number, and `latest` is whoever was active last."""
    forest = Forest()
    first = forest.spawn(name="scout")
    with pytest.raises(SpawnError, match="'scout' is taken"):
        forest.spawn(name="scout")
    with pytest.raises(ConfigError, match="sequence number"):
        forest.spawn(name="12")
    with pytest.raises(ConfigError, match="active last"):
        forest.spawn(name="latest")
    with pytest.raises(ConfigError, match="the agent with that id"):
        forest.spawn(name=first)
    forest.handle(KillRequested((first,), "the user"))
    forest.gone(first)
    forest.spawn(name="scout")
    with pytest.raises(SpawnError, match="kill that one first"):
        forest.handle(ResumeRequested(first))


def test_a_default_name_is_one_that_is_free() -> None:
    """Somebody who took a name that looks like ours keeps nobody from spawning."""
    forest = Forest()
    forest.spawn(name="agent-2")
    forest.spawn(name="agent-3-2")
    names = [forest.tree.agents[forest.spawn()].spec.name for _ in range(2)]
    assert names == ["agent-3", "agent-4"]
    taken = Forest()
    taken.spawn(name="agent-2")
    assert taken.tree.agents[taken.spawn()].spec.name == "agent-2-2"


def test_what_a_killed_agent_still_asks_for_comes_too_late() -> None:
    """Its process may have said it before it ended: nothing new comes to be below it, and nobody works for it."""
    forest = Forest(allow_nested=True)
    parent, other = forest.spawn(), forest.spawn()
    forest.handle(KillRequested((parent,), "the user"))
    with pytest.raises(AgentGoneError, match="was killed and asks for nothing"):
        forest.spawn(parent)
    with pytest.raises(AgentGoneError, match="was killed and asks for nothing"):
        forest.ask(other, asker=parent)


def test_a_repeated_spawn_is_the_same_agent() -> None:
    """A request id makes a retry harmless."""
    forest = Forest()
    first = forest.handle(SpawnRequested(forest.spec(), request_id="r"))
    assert forest.handle(SpawnRequested(forest.spec(), request_id="r")) == first
    assert len(forest.tree.agents) == 1


def test_a_first_launch_that_fails_leaves_a_failed_agent() -> None:
    """The spawner is told why, and so is whoever asks the agent later."""
    forest = Forest()
    id = forest.spawn(up=False)
    for number in (1, 2, 3):
        forest.handle(LaunchFailed(id, number, "no memory"))
        assert forest.status(id) == "starting"
        forest.back(id)
    forest.handle(LaunchFailed(id, 4, "no memory"))
    assert forest.status(id) == "failed"
    told = {notify.topic: notify.error for notify in forest.told(Notify)}
    assert told[f"up:{id}"] is not None
    assert "no memory" in told[f"up:{id}"].message
    with pytest.raises(AgentGoneError, match=r"no memory.*orch resume 1"):
        forest.ask(id)


def test_a_process_that_is_not_up_in_time_is_killed() -> None:
    """The deadline acts on the launch it was set for, and on no other."""
    forest = Forest()
    id = forest.spawn(up=False)
    forest.handle(BootTimeout(id, 1))
    assert forest.told(Signal) == [Signal(id, 1, "late")]
    forest.up(id)
    forest.handle(BootTimeout(id, 1))
    assert forest.last == []


# Asking.


def test_a_query_goes_to_an_idle_agent_at_once() -> None:
    """It is busy until it answers; the answer adds to its usage."""
    forest = Forest()
    id = forest.spawn()
    assert forest.ask(id) == "q"
    assert forest.told(Send) == [Send(id, "q")]
    assert forest.status(id) == "busy"
    forest.finish(id)
    assert forest.status(id) == "idle"
    assert forest.tree.agents[id].usage == Usage(10, 5, cost_usd=0.5)
    assert [notify.topic for notify in forest.told(Notify)] == ["query:q"]


def test_a_query_waits_for_a_starting_agent() -> None:
    """It is sent when the agent is up."""
    forest = Forest()
    id = forest.spawn(up=False)
    forest.ask(id)
    assert forest.told(Send) == []
    forest.up(id)
    assert forest.told(Send) == [Send(id, "q")]
    assert forest.status(id) == "busy"


def test_one_query_at_a_time() -> None:
    """The second is refused, naming the first."""
    forest = Forest()
    id = forest.spawn()
    forest.ask(id)
    with pytest.raises(AgentBusyError, match="busy with: do it"):
        forest.ask(id, "q2")


def test_a_repeated_query_is_the_same_query() -> None:
    """A request id makes a retry harmless, also after the answer."""
    forest = Forest()
    id = forest.spawn()
    assert forest.ask(id, "q1", request_id="r") == "q1"
    assert forest.ask(id, "q2", request_id="r") == "q1"
    forest.finish(id, "q1")
    assert forest.ask(id, "q3", request_id="r") == "q1"
    assert forest.status(id) == "idle"


def test_an_answer_to_another_query_changes_nothing() -> None:
    """A late answer is not this query's."""
    forest = Forest()
    id = forest.spawn()
    forest.ask(id, "q2")
    forest.finish(id, "q1")
    assert forest.status(id) == "busy"


def test_a_descendant_may_not_wait_for_an_ancestor_that_waits_for_it() -> None:
    """The cycle is refused at any length, and so is asking oneself."""
    forest = Forest(allow_nested=True)
    one = forest.spawn()
    two = forest.spawn(one)
    three = forest.spawn(two)
    forest.ask(one, "q1")
    forest.ask(two, "q2", asker=one, waits=True)
    forest.ask(three, "q3", asker=two, waits=True)
    with pytest.raises(QueryCycleError):
        forest.ask(one, "q4", asker=three, waits=True)
    with pytest.raises(QueryCycleError):
        forest.ask(three, "q4", asker=three, waits=False)


def test_asking_an_ancestor_that_does_not_wait_is_allowed() -> None:
    """Only a real wait closes a cycle: an idle ancestor may be asked."""
    forest = Forest(allow_nested=True)
    one = forest.spawn()
    two = forest.spawn(one)
    forest.ask(two, "q2", asker=one, waits=False)
    assert forest.ask(one, "q3", asker=two, waits=True) == "q3"


def test_a_query_revives_a_cold_agent() -> None:
    """A new incarnation is launched and gets the query when it is up."""
    forest = Forest()
    id = forest.spawn()
    forest.gone(id, 0)
    assert forest.status(id) == "died"
    forest.ask(id)
    assert forest.told(Launch) == [Launch(id, 2)]
    forest.up(id)
    assert forest.told(Send) == [Send(id, "q")]


def test_reviving_at_the_limit_sends_the_longest_idle_agent_to_sleep() -> None:
    """An agent that sleeps loses nothing; with everybody busy the query is refused."""
    forest = Forest(max_concurrent=2)
    cold, old = forest.spawn(), forest.spawn()
    forest.gone(cold)
    forest.now += 10
    young = forest.spawn()
    forest.ask(cold)
    assert Signal(old, 1, "stop") in forest.told(Signal)
    assert not forest.tree.agents[old].alive
    forest.ask(young, "q2")
    forest.gone(old, 0)
    assert forest.status(old) == "cold"
    with pytest.raises(ConcurrencyLimitError, match=r"none of the 2 agents .* wait for one to become idle"):
        forest.ask(old, "q3")


def test_a_query_to_an_agent_that_is_leaving_needs_room_too() -> None:
    """It is to have a process again, so it counts; without room it is refused."""
    forest = Forest(max_concurrent=2)
    cold, old = forest.spawn(), forest.spawn()
    forest.gone(cold)
    forest.now += 10
    young = forest.spawn()
    forest.ask(cold)
    assert forest.told(Signal) == [Signal(old, 1, "stop")]
    forest.ask(old, "q2")
    assert forest.told(Signal) == [Signal(young, 1, "stop")]
    with pytest.raises(ConcurrencyLimitError):
        forest.ask(young, "q3")
    forest.gone(old, 0)
    assert forest.told(Launch) == [Launch(old, 2)]
    assert len(forest.tree.agents.alive) == 2


# Collecting.


def test_an_answer_is_collected_once() -> None:
    """The second time says who took it and when, and how to read it again."""
    forest = Forest()
    id = forest.spawn()
    forest.ask(id)
    forest.finish(id)
    assert forest.handle(CollectReply(id, "the user")).reply.text == "done"
    with pytest.raises(NoResultError, match=r"taken by the user at 1970-01-01T00:16:40.*again"):
        forest.handle(CollectReply(id, "somebody"))
    assert forest.handle(CollectReply(id, "somebody", again=True)).reply.text == "done"


def test_an_answer_that_a_waiter_got_is_taken() -> None:
    """A blocking query takes its own answer."""
    forest = Forest()
    id = forest.spawn()
    forest.ask(id)
    forest.finish(id, taken_by="the user")
    with pytest.raises(NoResultError, match="taken by the user"):
        forest.handle(CollectReply(id, "the user"))


def test_there_is_nothing_to_collect_before_a_query_and_during_one() -> None:
    """The one says so, the other says what it works on."""
    forest = Forest()
    id = forest.spawn()
    with pytest.raises(NoResultError, match="no query was put to it"):
        forest.handle(CollectReply(id, "the user"))
    forest.ask(id)
    with pytest.raises(AgentBusyError, match="still at work on: do it"):
        forest.handle(CollectReply(id, "the user"))


# Waking.


def test_any_finished_agent_wakes_its_asker() -> None:
    """The news is in the asker's inbox, with who and how."""
    forest = Forest(allow_nested=True)
    parent = forest.spawn()
    one, two = forest.spawn(parent), forest.spawn(parent)
    forest.ask(one, "q1", asker=parent, wake="any")
    forest.ask(two, "q2", asker=parent, wake="any")
    forest.finish(one, "q1")
    assert Notify(f"wake:{parent}") in forest.last
    assert one in forest.tree.agents[parent].inbox[0]
    assert two not in forest.tree.agents[parent].inbox[0]


@pytest.mark.parametrize(("mode", "wakes"), [("all", [False, False, True]), (2, [False, True, True])])
def test_all_or_so_many_finished_agents_wake_their_asker(mode: str | int, wakes: list[bool]) -> None:
    """`all` waits for every one, a number for so many and then for the rest."""
    forest = Forest(allow_nested=True)
    parent = forest.spawn()
    children = [forest.spawn(parent) for _ in range(3)]
    for child in children:
        forest.ask(child, f"q-{child}", asker=parent, wake=mode)
    seen = []
    for child in children:
        forest.finish(child, f"q-{child}")
        seen.append(any(notify.topic == f"wake:{parent}" for notify in forest.told(Notify)))
    assert seen == wakes


def test_a_busy_asker_is_woken_when_its_turn_is_over() -> None:
    """News waits in the inbox, and the prompt made of it empties that."""
    forest = Forest(allow_nested=True)
    parent = forest.spawn()
    child = forest.spawn(parent)
    forest.ask(parent, "q1")
    forest.ask(child, "q2", asker=parent, wake="all")
    forest.finish(child, "q2", error="broken")
    assert not any(notify.topic.startswith("wake") for notify in forest.told(Notify))
    forest.finish(parent, "q1")
    assert Notify(f"wake:{parent}") in forest.last
    assert "failed: broken" in forest.tree.agents[parent].inbox[0]
    forest.ask(parent, "q3", from_inbox=True)
    assert forest.tree.agents[parent].inbox == []


def test_a_killed_agent_wakes_its_asker_too() -> None:
    """Its end is news like an answer; several in one stroke are one wake-up."""
    forest = Forest(allow_nested=True)
    parent = forest.spawn()
    children = [forest.spawn(parent) for _ in range(3)]
    for child in children:
        forest.ask(child, f"q-{child}", asker=parent, wake="all")
    forest.handle(KillRequested((children[0],), "the user"))
    assert not any(notify.topic.startswith("wake") for notify in forest.told(Notify))
    forest.handle(KillRequested(tuple(children[1:]), "the user"))
    assert [notify.topic for notify in forest.told(Notify) if "wake" in notify.topic] == [f"wake:{parent}"]
    [news] = forest.tree.agents[parent].inbox
    assert all(child in news for child in children)
    assert forest.tree.agents[parent].news == []


def test_what_was_wrong_with_a_transcript_is_known_from_then_on() -> None:
    """A repair that the worker reports, and a memory that is gone altogether."""
    forest = Forest()
    id = forest.spawn(up=False)
    forest.handle(WorkerBooted(id, 1, 7, worker_messages.Ready(entries=3, repaired="one line skipped")))
    assert forest.tree.agents[id].repaired == "one line skipped"
    forest.ask(id)
    forest.finish(id)
    forest.gone(id)
    forest.ask(id, "q2")
    forest.handle(WorkerBooted(id, 2, 8, worker_messages.Ready(entries=0)))
    assert "transcript is gone" in forest.tree.agents[id].repaired
    forest.finish(id, "q2")
    last = forest.tree.agents[id].last
    assert last is not None
    assert last.reply is not None
    assert "transcript is gone" in last.reply.warning


# Steering.


def test_what_is_said_reaches_a_working_agent_at_once_and_a_cold_one_with_its_next_process() -> None:
    """It is kept until the worker tells that it is in the conversation."""
    forest = Forest()
    id = forest.spawn()
    forest.ask(id)
    forest.handle(QueueSteering(id, "s1", "be brief"))
    assert forest.told(Send) == [Send(id, "s1", "steer", worker_messages.SteerTurn("be brief"))]
    forest.handle(ConfirmSteering(id, "s1"))
    forest.finish(id)
    forest.gone(id)
    forest.handle(QueueSteering(id, "s2", "in French", follow_up=True))
    assert forest.last == []
    forest.ask(id, "q2")
    forest.up(id)
    assert forest.told(Send) == [Send(id, "s2", "steer", worker_messages.SteerTurn("in French", True)), Send(id, "q2")]
    forest.handle(ConfirmSteering(id, "s2"))
    forest.handle(ConfirmSteering(id, "s2"))
    assert forest.tree.agents[id].unheard == {}


def test_nothing_is_said_to_the_killed() -> None:
    """The error is that of a query."""
    forest = Forest()
    id = forest.spawn()
    forest.handle(KillRequested((id,), "the user"))
    with pytest.raises(AgentGoneError, match="orch resume 1"):
        forest.handle(QueueSteering(id, "s", "hello?"))


def test_a_turn_is_cancelled_softly_or_hard() -> None:
    """Softly the worker ends it; hard its process is killed; without a turn nothing happens."""
    forest = Forest()
    id = forest.spawn()
    forest.handle(CancelRequested(id))
    assert forest.last == []
    forest.ask(id)
    forest.handle(CancelRequested(id))
    assert forest.told(Send) == [Send(id, "q", "cancel", worker_messages.CancelCurrentTurn())]
    forest.handle(CancelRequested(id, hard=True))
    assert forest.told(Signal) == [Signal(id, 1, "kill")]
    assert [(notify.topic, notify.error.type) for notify in forest.told(Notify)] == [("query:q", "AgentDiedError")]


def test_a_turn_that_was_ended_with_its_process_is_not_begun_again() -> None:
    """Also when the process had not heard of it; whoever asks meanwhile is answered by the next one."""
    forest = Forest()
    id = forest.spawn()
    forest.ask(id, "q1")
    forest.handle(CancelRequested(id, hard=True))
    forest.ask(id, "q2")
    assert forest.told(Send) == []
    forest.gone(id, begun=False)
    assert forest.told(Launch) == [Launch(id, 2)]
    forest.up(id)
    assert forest.told(Send) == [Send(id, "q2")]
