"""What follows from what: spawning, asking, dying, killing, waking, and the limits on all of it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orch.events import (
    BootOverdue,
    Cancel,
    Collect,
    Hear,
    Kill,
    LaunchFailed,
    Recover,
    Resume,
    Steer,
    StopOverdue,
    Sweep,
)
from orch.journal import Ended
from orch_protocol import commands
from orch_protocol.errors import (
    AgentBusyError,
    AgentGoneError,
    ConcurrencyLimitError,
    ConfigError,
    DepthCapError,
    NoResultError,
    OrchError,
    QueryCycleError,
    SpawnError,
    ToolNotGrantedError,
)
from orch_protocol.messages import Reply, Usage, user
from orchestrator.forest import Ask, Forest, Gone, Launch, Notify, Send, Signal, Spawn, Timer, WorkerUp

# Spawning.


def test_a_spawned_agent_is_launched_and_idle_once_it_is_up() -> None:
    """It gets the next number, a name, depth 1, a process and a deadline for it."""
    forest = Forest()
    id = forest.spawn(up=False)
    node = forest.tree.nodes[id]
    assert (node.spec.seq, node.spec.name, node.spec.depth, node.status) == (1, "agent-1", 1, "starting")
    assert forest.told(Launch) == [Launch(id, 1)]
    assert [timer.event for timer in forest.told(Timer)] == [BootOverdue(id, 1)]
    forest.up(id)
    assert (forest.status(id), forest.tree.nodes[id].pid) == ("idle", 101)
    assert forest.told(Notify) == [Notify(f"up:{id}:1")]


def test_seeded_history_is_let_go_once_the_transcript_has_it() -> None:
    """A long history is not kept twice."""
    forest = Forest()
    id = forest.spawn(up=False, history=(user("long"),))
    assert forest.tree.nodes[id].spec.history
    forest.up(id)
    assert forest.tree.nodes[id].spec.history == ()


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
    forest.handle(Kill((first,), "the user"))
    forest.spawn()
    forest.gone(second)
    forest.spawn()


def test_an_agent_spawns_only_where_nesting_is_allowed() -> None:
    """Nesting is off unless the configuration turns it on, and the error says how."""
    forest = Forest()
    parent = forest.spawn()
    with pytest.raises(DepthCapError, match=r"subagents\.allow_nested"):
        forest.spawn(parent)


def test_the_depth_cap_holds_at_every_depth() -> None:
    """Agents at the cap may not spawn; the error tells the model that it is blocked."""
    forest = Forest(allow_nested=True, depth_cap=3)
    one = forest.spawn()
    two = forest.spawn(one)
    three = forest.spawn(two)
    assert [forest.tree.nodes[id].spec.depth for id in (one, two, three)] == [1, 2, 3]
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
    assert forest.tree.nodes[forest.spawn(parent, tools=("read_file",))].spec.parent_id == parent


def test_a_name_is_unique_among_the_living() -> None:
    """Killing an agent frees its name; digits alone would be a number."""
    forest = Forest()
    first = forest.spawn(name="scout")
    with pytest.raises(SpawnError, match="'scout' is taken"):
        forest.spawn(name="scout")
    with pytest.raises(ConfigError, match="sequence number"):
        forest.spawn(name="12")
    forest.handle(Kill((first,), "the user"))
    forest.gone(first)
    forest.spawn(name="scout")
    with pytest.raises(SpawnError, match="kill that one first"):
        forest.handle(Resume(first))


def test_a_default_name_is_one_that_is_free() -> None:
    """Somebody who took a name that looks like ours keeps nobody from spawning."""
    forest = Forest()
    forest.spawn(name="agent-2")
    forest.spawn(name="agent-3-2")
    names = [forest.tree.nodes[forest.spawn()].spec.name for _ in range(2)]
    assert names == ["agent-3", "agent-4"]
    taken = Forest()
    taken.spawn(name="agent-2")
    assert taken.tree.nodes[taken.spawn()].spec.name == "agent-2-2"


def test_what_a_killed_agent_still_asks_for_comes_too_late() -> None:
    """Its process may have said it before it ended: nothing new comes to be below it, and nobody works for it."""
    forest = Forest(allow_nested=True)
    parent, other = forest.spawn(), forest.spawn()
    forest.handle(Kill((parent,), "the user"))
    with pytest.raises(AgentGoneError, match="was killed and asks for nothing"):
        forest.spawn(parent)
    with pytest.raises(AgentGoneError, match="was killed and asks for nothing"):
        forest.ask(other, asker=parent)


def test_a_repeated_spawn_is_the_same_agent() -> None:
    """A request id makes a retry harmless."""
    forest = Forest()
    first = forest.handle(Spawn(forest.spec(), request_id="r"))
    assert forest.handle(Spawn(forest.spec(), request_id="r")) == first
    assert len(forest.tree.nodes) == 1


def test_a_first_launch_that_fails_leaves_a_failed_agent() -> None:
    """The spawner is told why, and so is whoever asks the agent later."""
    forest = Forest()
    id = forest.spawn(up=False)
    forest.handle(LaunchFailed(id, 1, "no memory"))
    assert forest.status(id) == "failed"
    told = {notify.topic: notify.error for notify in forest.told(Notify)}
    assert told[f"up:{id}:1"] is not None
    assert "no memory" in told[f"up:{id}:1"].message
    with pytest.raises(AgentGoneError, match=r"no memory.*orch resume 1"):
        forest.ask(id)


def test_a_process_that_is_not_up_in_time_is_killed() -> None:
    """The deadline acts on the launch it was set for, and on no other."""
    forest = Forest()
    id = forest.spawn(up=False)
    forest.handle(BootOverdue(id, 1))
    assert forest.told(Signal) == [Signal(id, 1, "kill")]
    forest.up(id)
    forest.handle(BootOverdue(id, 1))
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
    assert forest.tree.nodes[id].usage == Usage(10, 5, cost_usd=0.5)
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
    assert not forest.tree.nodes[old].alive
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
    assert len(forest.tree.nodes.alive) == 2


# Collecting.


def test_an_answer_is_collected_once() -> None:
    """The second time says who took it and when, and how to read it again."""
    forest = Forest()
    id = forest.spawn()
    forest.ask(id)
    forest.finish(id)
    assert forest.handle(Collect(id, "the user")).reply.text == "done"
    with pytest.raises(NoResultError, match=r"taken by the user at 1970-01-01T00:16:40.*again"):
        forest.handle(Collect(id, "somebody"))
    assert forest.handle(Collect(id, "somebody", again=True)).reply.text == "done"


def test_an_answer_that_a_waiter_got_is_taken() -> None:
    """A blocking query takes its own answer."""
    forest = Forest()
    id = forest.spawn()
    forest.ask(id)
    forest.finish(id, taken_by="the user")
    with pytest.raises(NoResultError, match="taken by the user"):
        forest.handle(Collect(id, "the user"))


def test_there_is_nothing_to_collect_before_a_query_and_during_one() -> None:
    """The one says so, the other says what it works on."""
    forest = Forest()
    id = forest.spawn()
    with pytest.raises(NoResultError, match="no query was put to it"):
        forest.handle(Collect(id, "the user"))
    forest.ask(id)
    with pytest.raises(AgentBusyError, match="still at work on: do it"):
        forest.handle(Collect(id, "the user"))


# Ending.


def test_an_agent_that_dies_idle_is_revived_by_the_next_query() -> None:
    """Its death is known and costs nothing."""
    forest = Forest()
    id = forest.spawn()
    forest.gone(id, -9)
    assert forest.status(id) == "died"
    forest.ask(id)
    assert forest.status(id) == "starting"


def test_a_death_in_a_turn_fails_the_query_unless_the_transcript_has_the_reply() -> None:
    """The transcript is the truth: a finished turn resolves, an unfinished one is an error that says what to do."""
    forest = Forest()
    lost, saved = forest.spawn(), forest.spawn()
    forest.ask(lost, "q1")
    forest.ask(saved, "q2")
    forest.gone(lost, usage=Usage(1, 2))
    assert forest.told(Notify)[0].error.type == "AgentDiedError"
    assert "signal 9" in forest.told(Notify)[0].error.message
    assert forest.tree.nodes[lost].usage == Usage(1, 2)
    forest.gone(saved, recovered=Reply(saved, "q2", "made it", usage=Usage(3, 4)))
    assert forest.told(Notify)[0].value.text == "made it"
    assert forest.tree.nodes[saved].usage == Usage(3, 4)
    assert forest.status(lost) == forest.status(saved) == "died"


def test_a_query_that_was_never_begun_is_asked_again_once() -> None:
    """A process that was dead before it heard the query cost nothing: the next one answers it."""
    forest = Forest()
    id = forest.spawn()
    forest.ask(id)
    forest.gone(id, begun=False)
    assert forest.told(Launch) == [Launch(id, 2)]
    assert [notify.topic for notify in forest.told(Notify)] == [f"gone:{id}:1"]
    forest.up(id)
    assert forest.told(Send) == [Send(id, "q")]
    forest.gone(id, begun=False)
    assert forest.told(Notify)[0].error.type == "AgentDiedError"
    assert forest.status(id) == "died"


def test_news_of_an_older_incarnation_changes_nothing() -> None:
    """A death or readiness that belongs to the past is ignored."""
    forest = Forest()
    id = forest.spawn()
    forest.gone(id)
    forest.ask(id)
    forest.up(id)
    forest.handle(Gone(id, 1, -9))
    forest.handle(WorkerUp(id, 1, 7))
    assert forest.status(id) == "busy"
    assert forest.tree.nodes[id].pid == 102


def test_killing_ends_everything_below_children_first() -> None:
    """Waiters are told, processes are killed, and the dead answer no more until resumed."""
    forest = Forest(allow_nested=True)
    one = forest.spawn()
    two = forest.spawn(one)
    three = forest.spawn(two)
    forest.ask(two, "q2")
    assert forest.handle(Kill((one,), "the user")) == (three, two, one)
    assert [signal.id for signal in forest.told(Signal)] == [three, two, one]
    assert [notify.error.type for notify in forest.told(Notify)] == ["AgentGoneError"]
    with pytest.raises(AgentGoneError, match="orch resume 2"):
        forest.ask(two)


def test_killing_twice_kills_once() -> None:
    """The second kill finds nothing to do."""
    forest = Forest()
    id = forest.spawn()
    forest.handle(Kill((id, id), "the user"))
    assert forest.handle(Kill((id,), "the user")) == ()
    assert forest.last == []


def test_a_killed_agent_keeps_its_usage_and_answers_after_resume() -> None:
    """What was spent stays spent."""
    forest = Forest()
    id = forest.spawn()
    forest.ask(id)
    forest.finish(id)
    forest.handle(Kill((id,), "the user"))
    forest.gone(id)
    assert forest.status(id) == "killed"
    assert forest.tree.nodes.tree_usage(id) == Usage(10, 5, cost_usd=0.5)
    forest.handle(Resume(id))
    assert forest.status(id) == "cold"
    forest.ask(id)
    assert forest.told(Launch) == [Launch(id, 2)]


def test_an_agent_is_resumed_when_its_last_process_is_gone() -> None:
    """Two processes of one agent would fight for its transcript; until then the error says to wait."""
    forest = Forest()
    id = forest.spawn()
    forest.handle(Kill((id,), "the user"))
    with pytest.raises(AgentBusyError, match="has not ended yet"):
        forest.handle(Resume(id))
    forest.gone(id)
    assert [notify.topic for notify in forest.told(Notify)] == [f"gone:{id}:1"]
    forest.handle(Resume(id))
    assert forest.status(id) == "cold"


def test_an_agent_killed_as_it_starts_is_gone_when_its_launch_is() -> None:
    """Whether a process comes of it or not, the end is on record and told once."""
    forest = Forest()
    failed, started = forest.spawn(up=False), forest.spawn(up=False)
    forest.handle(Kill((failed, started), "the user"))
    forest.handle(LaunchFailed(failed, 1, "too late"))
    assert [notify.topic for notify in forest.told(Notify)] == [f"gone:{failed}:1"]
    forest.handle(WorkerUp(started, 1, 7))
    forest.gone(started)
    assert [notify.topic for notify in forest.told(Notify)] == [f"gone:{started}:1"]
    forest.gone(started)
    assert forest.last == []
    for id in (failed, started):
        forest.handle(Resume(id))
        assert forest.status(id) == "cold"


def test_usage_rolls_up_the_tree() -> None:
    """A parent's tree usage holds its children's, killed ones too."""
    forest = Forest(allow_nested=True)
    one = forest.spawn()
    two = forest.spawn(one)
    for id in (one, two):
        forest.ask(id)
        forest.finish(id)
    forest.handle(Kill((two,), "the user"))
    assert forest.tree.nodes.tree_usage(one) == Usage(20, 10, cost_usd=1.0)


def test_an_agent_that_idles_long_enough_goes_cold() -> None:
    """It is asked to leave, killed if it does not, and answers again when asked."""
    forest = Forest(timeout_minutes=1)
    id = forest.spawn()
    forest.now += 59
    forest.handle(Sweep())
    assert forest.told(Signal) == []
    forest.now += 1
    forest.handle(Sweep())
    assert forest.told(Signal) == [Signal(id, 1, "stop")]
    forest.handle(StopOverdue(id, 1))
    assert forest.told(Signal) == [Signal(id, 1, "kill")]
    forest.gone(id, 0)
    assert forest.status(id) == "cold"


def test_a_query_to_an_agent_that_is_leaving_is_answered_by_its_next_process() -> None:
    """Nothing is lost between going to sleep and being woken."""
    forest = Forest(timeout_minutes=1)
    id = forest.spawn()
    forest.now += 60
    forest.handle(Sweep())
    forest.ask(id)
    forest.gone(id, 0)
    assert forest.told(Launch) == [Launch(id, 2)]
    forest.up(id)
    assert forest.told(Send) == [Send(id, "q")]


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
    assert one in forest.tree.nodes[parent].inbox[0]
    assert two not in forest.tree.nodes[parent].inbox[0]


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
    assert "failed: broken" in forest.tree.nodes[parent].inbox[0]
    forest.ask(parent, "q3", from_inbox=True)
    assert forest.tree.nodes[parent].inbox == []


def test_a_killed_agent_wakes_its_asker_too() -> None:
    """Its end is news like an answer; several in one stroke are one wake-up."""
    forest = Forest(allow_nested=True)
    parent = forest.spawn()
    children = [forest.spawn(parent) for _ in range(3)]
    for child in children:
        forest.ask(child, f"q-{child}", asker=parent, wake="all")
    forest.handle(Kill((children[0],), "the user"))
    assert not any(notify.topic.startswith("wake") for notify in forest.told(Notify))
    forest.handle(Kill(tuple(children[1:]), "the user"))
    assert [notify.topic for notify in forest.told(Notify) if "wake" in notify.topic] == [f"wake:{parent}"]
    [news] = forest.tree.nodes[parent].inbox
    assert all(child in news for child in children)
    assert forest.tree.nodes[parent].news == []


def test_what_was_wrong_with_a_transcript_is_known_from_then_on() -> None:
    """A repair that the worker reports, and a memory that is gone altogether."""
    forest = Forest()
    id = forest.spawn(up=False)
    forest.handle(WorkerUp(id, 1, 7, commands.Ready(entries=3, repaired="one line skipped")))
    assert forest.tree.nodes[id].repaired == "one line skipped"
    forest.ask(id)
    forest.finish(id)
    forest.gone(id)
    forest.ask(id, "q2")
    forest.handle(WorkerUp(id, 2, 8, commands.Ready(entries=0)))
    assert "transcript is gone" in forest.tree.nodes[id].repaired
    forest.finish(id, "q2")
    last = forest.tree.nodes[id].last
    assert last is not None
    assert last.reply is not None
    assert "transcript is gone" in last.reply.warning


# Steering.


def test_what_is_said_reaches_a_working_agent_at_once_and_a_cold_one_with_its_next_process() -> None:
    """It is kept until the worker tells that it is in the conversation."""
    forest = Forest()
    id = forest.spawn()
    forest.ask(id)
    forest.handle(Steer(id, "s1", "be brief"))
    assert forest.told(Send) == [Send(id, "s1", "steer", commands.Steer("be brief"))]
    forest.handle(Hear(id, "s1"))
    forest.finish(id)
    forest.gone(id)
    forest.handle(Steer(id, "s2", "in French", follow_up=True))
    assert forest.last == []
    forest.ask(id, "q2")
    forest.up(id)
    assert forest.told(Send) == [Send(id, "s2", "steer", commands.Steer("in French", True)), Send(id, "q2")]
    forest.handle(Hear(id, "s2"))
    forest.handle(Hear(id, "s2"))
    assert forest.tree.nodes[id].unheard == {}


def test_nothing_is_said_to_the_killed() -> None:
    """The error is that of a query."""
    forest = Forest()
    id = forest.spawn()
    forest.handle(Kill((id,), "the user"))
    with pytest.raises(AgentGoneError, match="orch resume 1"):
        forest.handle(Steer(id, "s", "hello?"))


def test_a_turn_is_cancelled_softly_or_hard() -> None:
    """Softly the worker ends it; hard its process is killed; without a turn nothing happens."""
    forest = Forest()
    id = forest.spawn()
    forest.handle(Cancel(id))
    assert forest.last == []
    forest.ask(id)
    forest.handle(Cancel(id))
    assert forest.told(Send) == [Send(id, "q", "cancel", commands.Cancel())]
    forest.handle(Cancel(id, hard=True))
    assert forest.told(Signal) == [Signal(id, 1, "kill")]
    assert [(notify.topic, notify.error.type) for notify in forest.told(Notify)] == [("query:q", "AgentDiedError")]


def test_a_turn_that_was_ended_with_its_process_is_not_begun_again() -> None:
    """Also when the process had not heard of it; whoever asks meanwhile is answered by the next one."""
    forest = Forest()
    id = forest.spawn()
    forest.ask(id, "q1")
    forest.handle(Cancel(id, hard=True))
    forest.ask(id, "q2")
    assert forest.told(Send) == []
    forest.gone(id, begun=False)
    assert forest.told(Launch) == [Launch(id, 2)]
    forest.up(id)
    assert forest.told(Send) == [Send(id, "q2")]


# Recovery.


def test_a_new_root_finds_every_agent_of_the_last_one() -> None:
    """Idle ones are cold, busy ones died unless their transcript has the reply, results wait to be collected."""
    forest = Forest()
    idle, lost, saved, killed = (forest.spawn(name=name) for name in ("idle", "lost", "saved", "killed"))
    forest.ask(lost, "q1")
    forest.ask(saved, "q2")
    forest.handle(Kill((killed,), "the user"))
    forest.tree = forest.refold()
    forest.handle(Recover(1, {"q2": Reply(saved, "q2", "made it")}, {"q1": Usage(1, 2)}))
    assert [forest.status(id) for id in (idle, lost, saved, killed)] == ["cold", "died", "cold", "killed"]
    assert forest.handle(Collect(saved, "the user")).reply.text == "made it"
    assert forest.handle(Collect(lost, "the user")).error.type == "AgentDiedError"
    assert forest.tree.nodes[lost].usage == Usage(1, 2)
    assert forest.tree.nodes[idle].spec.name == "idle"
    assert not forest.tree.nodes.alive


def test_news_of_a_run_that_ended_waits_for_its_reader() -> None:
    """Who asked to be woken finds it with the next turn; nobody starts to work because a root did."""
    forest = Forest(allow_nested=True)
    parent = forest.spawn()
    child = forest.spawn(parent)
    forest.ask(child, "q", asker=parent, wake="all")
    forest.tree = forest.refold()
    forest.handle(Recover(1))
    assert forest.last == []
    assert "cut short" in forest.tree.nodes[parent].inbox[0]


def test_a_process_that_was_killed_is_forgotten_with_its_root() -> None:
    """Its end was never heard of, and the agent can be resumed."""
    forest = Forest()
    id = forest.spawn()
    forest.handle(Kill((id,), "the user"))
    forest.tree = forest.refold()
    forest.handle(Recover(1))
    assert (forest.status(id), forest.tree.nodes[id].pid) == ("killed", None)
    forest.handle(Resume(id))


def test_entries_about_unknown_agents_are_skipped() -> None:
    """A journal with a damaged line still folds."""
    forest = Forest()
    forest.tree.apply([Ended(at=1.0, id="nobody", incarnation=1, status="cold")])
    assert len(forest.tree.nodes) == 0


class Life(RuleBasedStateMachine):
    """Whatever happens, the tree is the fold of its journal, and the limits hold."""

    def __init__(self) -> None:
        super().__init__()
        self.forest = Forest(allow_nested=True, max_concurrent=4, timeout_minutes=1)
        self.queries = 0

    def _pick(self, number: int) -> str | None:
        ids = list(self.forest.tree.nodes.by_id)
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
                Ask(id, f"q{self.queries}", "do it", asking, waits and wake is None, wake if asking else None),
            )

    @rule(number=st.integers(0, 9), fails=st.booleans(), taken=st.booleans())
    def finish(self, number: int, fails: bool, taken: bool) -> None:
        if (id := self._pick(number)) and (pending := self.forest.tree.nodes[id].pending):
            error, taken_by = ("broken" if fails else None), ("the user" if taken else None)
            self.forest.finish(id, pending.query_id, error=error, taken_by=taken_by)

    @rule(number=st.integers(0, 9), code=st.sampled_from([0, 1, -9, None]))
    def gone(self, number: int, code: int | None) -> None:
        if id := self._pick(number):
            self.forest.gone(id, code)

    @rule(number=st.integers(0, 9))
    def kill(self, number: int) -> None:
        if id := self._pick(number):
            self.forest.handle(Kill((id,), "the user"))

    @rule(number=st.integers(0, 9), follow_up=st.booleans(), heard=st.booleans())
    def steer(self, number: int, follow_up: bool, heard: bool) -> None:
        if id := self._pick(number):
            self.queries += 1
            self._try(self.forest.handle, Steer(id, f"s{self.queries}", "so", follow_up))
            if heard:
                self.forest.handle(Hear(id, f"s{self.queries}"))

    @rule(number=st.integers(0, 9), hard=st.booleans())
    def cancel(self, number: int, hard: bool) -> None:
        if id := self._pick(number):
            self.forest.handle(Cancel(id, hard))

    @rule(number=st.integers(0, 9))
    def resume(self, number: int) -> None:
        if id := self._pick(number):
            self._try(self.forest.handle, Resume(id))

    @rule(number=st.integers(0, 9), again=st.booleans())
    def collect(self, number: int, again: bool) -> None:
        if id := self._pick(number):
            self._try(self.forest.handle, Collect(id, "the user", again))

    @rule(seconds=st.sampled_from([1, 61]))
    def sweep(self, seconds: int) -> None:
        self.forest.now += seconds
        self.forest.handle(Sweep())

    @rule()
    def restart(self) -> None:
        self.forest.tree = self.forest.refold()
        self.forest.handle(Recover(1))

    @invariant()
    def the_tree_is_the_fold_of_its_journal(self) -> None:
        folded, live = self.forest.refold().nodes, self.forest.tree.nodes
        assert folded.by_id == live.by_id
        for index in ("by_seq", "names", "alive", "pending", "requests"):
            assert getattr(folded, index) == getattr(live, index), index

    @invariant()
    def the_limits_hold(self) -> None:
        assert len(self.forest.tree.nodes.alive) <= 4
        assert all(node.spec.depth <= 3 for node in self.forest.tree.nodes)

    @invariant()
    def an_agent_is_busy_just_when_it_has_a_query_under_way(self) -> None:
        for node in self.forest.tree.nodes:
            if node.status == "busy":
                assert node.pending is not None
            if node.status == "idle" and not node.stopping:
                assert node.pending is None
            if node.status in ("starting", "idle", "busy"):
                assert node.running


Life.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLife = Life.TestCase
