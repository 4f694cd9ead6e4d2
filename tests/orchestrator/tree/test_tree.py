"""Decisions of the tree: spawning, queries, deaths, kills, wake-ups and their limits."""

from __future__ import annotations

import pytest

from orch.tree.interface.events import (
    BootTimeout,
    CancelRequested,
    CollectReply,
    ConfirmSteering,
    KillRequested,
    LaunchFailed,
    QueueSteering,
    ResumeRequested,
)
from orch.tree.interface.instructions import Wake
from orch.tree.interface.topics import QueryTopic, ReadyTopic
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


def test_spawned_agent_is_launched_and_becomes_idle() -> None:
    """The new agent gets the next number, a name, depth 1, a process and a boot timeout."""
    forest = Forest()
    id = forest.spawn(up=False)
    node = forest.tree.agents[id]
    assert (node.spec.seq, node.spec.name, node.spec.depth, node.status) == (1, "agent-1", 1, "starting")
    assert forest.told(Launch) == [Launch(id, 1)]
    assert [timer.event for timer in forest.told(Timer)] == [BootTimeout(id, 1)]
    forest.up(id)
    assert (forest.status(id), forest.tree.agents[id].pid) == ("idle", 101)
    assert forest.told(Notify) == [Notify(ReadyTopic(id))]


def test_seeded_history_is_dropped_once_it_is_recorded() -> None:
    """The transcript contains the history, so the tree does not keep a second copy."""
    forest = Forest()
    id = forest.spawn(up=False, history=(user("long"),))
    assert forest.tree.agents[id].spec.history
    forest.up(id)
    assert forest.tree.agents[id].spec.history == ()


def test_agents_cannot_spawn_when_subagents_are_off() -> None:
    """The error contains the name of the setting. The user can still spawn agents."""
    forest = Forest(enabled=False)
    parent = forest.spawn()
    with pytest.raises(SpawnError, match=r"subagents\.enabled"):
        forest.spawn(parent)


def test_live_agents_are_limited() -> None:
    """Killed agents and agents without a process do not count. A refused spawn changes nothing."""
    forest = Forest(max_concurrent=2)
    first, second = forest.spawn(), forest.spawn()
    forest.ask(first)
    forest.ask(second, "q2")
    before = len(forest.journal)
    with pytest.raises(ConcurrencyLimitError, match=r"none of the 2 agents .* is idle, and .*max_concurrent is 2"):
        forest.spawn()
    assert len(forest.journal) == before
    forest.handle(KillRequested((first,), "the user"))
    forest.spawn()
    forest.gone(second)
    forest.spawn()


def test_nested_spawning_is_off_by_default() -> None:
    """The error says how to turn it on."""
    forest = Forest()
    parent = forest.spawn()
    with pytest.raises(DepthCapError, match=r"subagents\.allow_nested"):
        forest.spawn(parent)


def test_interactive_session_may_spawn_without_nesting() -> None:
    """An interactive session may spawn agents, but its subagents may not."""
    forest = Forest()
    talker = forest.spawn(depth=0)
    child = forest.spawn(talker)
    assert [forest.tree.agents[id].spec.depth for id in (talker, child)] == [0, 1]
    with pytest.raises(DepthCapError, match=r"subagents\.allow_nested"):
        forest.spawn(child)


def test_agent_at_the_depth_limit_cannot_spawn() -> None:
    """The error asks the model to report that it is blocked."""
    forest = Forest(allow_nested=True, depth_cap=3)
    one = forest.spawn()
    two = forest.spawn(one)
    three = forest.spawn(two)
    assert [forest.tree.agents[id].spec.depth for id in (one, two, three)] == [1, 2, 3]
    with pytest.raises(DepthCapError, match="depth cap 3 reached; report that you are blocked"):
        forest.spawn(three)


def test_depth_limit_of_zero_forbids_spawning() -> None:
    """The limit applies to the user's program, too."""
    with pytest.raises(DepthCapError):
        Forest(depth_cap=0).spawn()


def test_agent_grants_only_its_own_tools() -> None:
    """The error contains the tool and the tools of the parent."""
    forest = Forest(allow_nested=True)
    parent = forest.spawn(tools=("read_file",))
    with pytest.raises(ToolNotGrantedError, match=r"'grep_files'.*it holds read_file"):
        forest.spawn(parent, tools=("grep_files",))
    assert forest.tree.agents[forest.spawn(parent, tools=("read_file",))].spec.parent_id == parent


def test_names_are_unique_among_live_agents() -> None:
    """Numbers, `latest` and ids of agents are refused as names."""
    forest = Forest()
    first = forest.spawn(name="scout")
    with pytest.raises(SpawnError, match="already has the name 'scout'"):
        forest.spawn(name="scout")
    with pytest.raises(ConfigError, match="sequence number"):
        forest.spawn(name="12")
    with pytest.raises(ConfigError, match="active last"):
        forest.spawn(name="latest")
    with pytest.raises(ConfigError, match="is the id of an agent"):
        forest.spawn(name=first)
    forest.handle(KillRequested((first,), "the user"))
    forest.gone(first)
    forest.spawn(name="scout")
    with pytest.raises(SpawnError, match="kill that agent first"):
        forest.handle(ResumeRequested(first))


def test_default_name_avoids_taken_ones() -> None:
    """A default name differs from names that the user chose."""
    forest = Forest()
    forest.spawn(name="agent-2")
    forest.spawn(name="agent-3-2")
    names = [forest.tree.agents[forest.spawn()].spec.name for _ in range(2)]
    assert names == ["agent-3", "agent-4"]
    taken = Forest()
    taken.spawn(name="agent-2")
    assert taken.tree.agents[taken.spawn()].spec.name == "agent-2-2"


def test_late_requests_of_a_killed_agent_are_refused() -> None:
    """A killed agent can neither spawn nor query agents."""
    forest = Forest(allow_nested=True)
    parent, other = forest.spawn(), forest.spawn()
    forest.handle(KillRequested((parent,), "the user"))
    with pytest.raises(AgentGoneError, match="was killed and can make no more requests"):
        forest.spawn(parent)
    with pytest.raises(AgentGoneError, match="was killed and can make no more requests"):
        forest.ask(other, asker=parent)


def test_repeated_spawn_returns_the_same_agent() -> None:
    """A retry with the same request id creates no second agent."""
    forest = Forest()
    first = forest.handle(SpawnRequested(forest.spec(), request_id="r"))
    assert forest.handle(SpawnRequested(forest.spec(), request_id="r")) == first
    assert len(forest.tree.agents) == 1


def test_failed_first_launch_leaves_a_failed_agent() -> None:
    """The spawner and later callers get the reason."""
    forest = Forest()
    id = forest.spawn(up=False)
    for number in (1, 2, 3):
        forest.handle(LaunchFailed(id, number, "no memory"))
        assert forest.status(id) == "starting"
        forest.back(id)
    forest.handle(LaunchFailed(id, 4, "no memory"))
    assert forest.status(id) == "failed"
    errors = {notify.topic: notify.error for notify in forest.told(Notify)}
    assert errors[ReadyTopic(id)] is not None
    assert "no memory" in errors[ReadyTopic(id)].message
    with pytest.raises(AgentGoneError, match=r"no memory.*orch resume 1"):
        forest.ask(id)


def test_launch_deadline_kills_its_own_process_only() -> None:
    """The timeout has no effect once the process is ready."""
    forest = Forest()
    id = forest.spawn(up=False)
    forest.handle(BootTimeout(id, 1))
    assert forest.told(Signal) == [Signal(id, 1, "late")]
    forest.up(id)
    forest.handle(BootTimeout(id, 1))
    assert forest.last == []


# Queries.


def test_query_to_an_idle_agent_is_sent_at_once() -> None:
    """The agent is busy until it answers, and the answer adds to its usage."""
    forest = Forest()
    id = forest.spawn()
    assert forest.ask(id) == "q"
    assert forest.told(Send) == [Send(id, "q")]
    assert forest.status(id) == "busy"
    forest.finish(id)
    assert forest.status(id) == "idle"
    assert forest.tree.agents[id].usage == Usage(10, 5, cost_usd=0.5)
    assert [notify.topic for notify in forest.told(Notify)] == [QueryTopic("q")]


def test_query_to_a_starting_agent_is_sent_when_it_is_ready() -> None:
    """A starting agent receives no query before it is ready."""
    forest = Forest()
    id = forest.spawn(up=False)
    forest.ask(id)
    assert forest.told(Send) == []
    forest.up(id)
    assert forest.told(Send) == [Send(id, "q")]
    assert forest.status(id) == "busy"


def test_second_query_is_refused() -> None:
    """The error contains the prompt of the first query."""
    forest = Forest()
    id = forest.spawn()
    forest.ask(id)
    with pytest.raises(AgentBusyError, match="busy with: do it"):
        forest.ask(id, "q2")


def test_repeated_query_is_the_same_query() -> None:
    """A retry with the same request id starts no second query, even after the answer."""
    forest = Forest()
    id = forest.spawn()
    assert forest.ask(id, "q1", request_id="r") == "q1"
    assert forest.ask(id, "q2", request_id="r") == "q1"
    forest.finish(id, "q1")
    assert forest.ask(id, "q3", request_id="r") == "q1"
    assert forest.status(id) == "idle"


def test_answer_to_another_query_is_ignored() -> None:
    """A late answer to an earlier query does not end the current one."""
    forest = Forest()
    id = forest.spawn()
    forest.ask(id, "q2")
    forest.finish(id, "q1")
    assert forest.status(id) == "busy"


def test_waiting_for_a_waiting_ancestor_is_refused() -> None:
    """The ancestor may be at any distance. An agent cannot query itself, either."""
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
    """An ancestor that does not wait can be queried, because no cycle results."""
    forest = Forest(allow_nested=True)
    one = forest.spawn()
    two = forest.spawn(one)
    forest.ask(two, "q2", asker=one, waits=False)
    assert forest.ask(one, "q3", asker=two, waits=True) == "q3"


def test_query_revives_a_cold_agent() -> None:
    """A new incarnation is launched and gets the query when it is ready."""
    forest = Forest()
    id = forest.spawn()
    forest.gone(id, 0)
    assert forest.status(id) == "died"
    forest.ask(id)
    assert forest.told(Launch) == [Launch(id, 2)]
    forest.up(id)
    assert forest.told(Send) == [Send(id, "q")]


def test_spawn_at_the_limit_stops_the_process_of_the_longest_idle_agent() -> None:
    """The stopped agent is cold and can be queried again."""
    forest = Forest(max_concurrent=2)
    old = forest.spawn()
    forest.now += 10
    busy = forest.spawn()
    forest.ask(busy)
    new = forest.spawn(up=False)
    assert (forest.told(Signal), forest.told(Launch)) == ([Signal(old, 1, "stop")], [Launch(new, 1)])
    forest.gone(old, 0)
    assert (forest.status(old), len(forest.tree.agents.alive)) == ("cold", 2)


def test_revival_at_the_limit_suspends_the_longest_idle_agent() -> None:
    """If every agent is busy, the query is refused."""
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


def test_query_to_a_leaving_agent_needs_a_slot() -> None:
    """The agent needs a process again, so it counts against the limit."""
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


def test_answer_is_collected_once() -> None:
    """The error of a second collect contains the caller that has collected the answer."""
    forest = Forest()
    id = forest.spawn()
    forest.ask(id)
    forest.finish(id)
    assert forest.handle(CollectReply(id, "the user")).reply.text == "done"
    with pytest.raises(NoResultError, match=r"collected by the user at 1970-01-01T00:16:40.*again"):
        forest.handle(CollectReply(id, "other"))
    assert forest.handle(CollectReply(id, "other", again=True)).reply.text == "done"


def test_blocking_query_takes_its_answer() -> None:
    """The answer cannot be collected afterwards."""
    forest = Forest()
    id = forest.spawn()
    forest.ask(id)
    forest.finish(id, taken_by="the user")
    with pytest.raises(NoResultError, match="collected by the user"):
        forest.handle(CollectReply(id, "the user"))


def test_collect_before_or_during_a_query_is_an_error() -> None:
    """The error contains the agent's state."""
    forest = Forest()
    id = forest.spawn()
    with pytest.raises(NoResultError, match="it was not queried"):
        forest.handle(CollectReply(id, "the user"))
    forest.ask(id)
    with pytest.raises(AgentBusyError, match="still working on: do it"):
        forest.handle(CollectReply(id, "the user"))


# Wake-ups.


def test_wake_on_any_is_sent_for_each_finished_agent() -> None:
    """The asker's inbox contains the id of the finished agent only."""
    forest = Forest(allow_nested=True)
    parent = forest.spawn()
    one, two = forest.spawn(parent), forest.spawn(parent)
    forest.ask(one, "q1", asker=parent, wake="any")
    forest.ask(two, "q2", asker=parent, wake="any")
    forest.finish(one, "q1")
    assert Wake(parent) in forest.last
    assert one in forest.tree.agents[parent].inbox[0]
    assert two not in forest.tree.agents[parent].inbox[0]


@pytest.mark.parametrize(("mode", "wakes"), [("all", [False, False, True]), (2, [False, True, True])])
def test_wake_on_all_or_a_number_waits_for_them(mode: str | int, wakes: list[bool]) -> None:
    """`all` waits for every agent. A number waits for so many agents, and then each further one wakes the caller."""
    forest = Forest(allow_nested=True)
    parent = forest.spawn()
    children = [forest.spawn(parent) for _ in range(3)]
    for child in children:
        forest.ask(child, f"q-{child}", asker=parent, wake=mode)
    seen = []
    for child in children:
        forest.finish(child, f"q-{child}")
        seen.append(Wake(parent) in forest.told(Wake))
    assert seen == wakes


def test_busy_agent_is_woken_after_its_turn() -> None:
    """The message waits in the inbox until the next prompt contains it."""
    forest = Forest(allow_nested=True)
    parent = forest.spawn()
    child = forest.spawn(parent)
    forest.ask(parent, "q1")
    forest.ask(child, "q2", asker=parent, wake="all")
    forest.finish(child, "q2", error="broken")
    assert forest.told(Wake) == []
    forest.finish(parent, "q1")
    assert Wake(parent) in forest.last
    assert "failed: broken" in forest.tree.agents[parent].inbox[0]
    forest.ask(parent, "q3", from_inbox=True)
    assert forest.tree.agents[parent].inbox == []


def test_killed_agent_wakes_its_caller() -> None:
    """Several killed agents cause one message."""
    forest = Forest(allow_nested=True)
    parent = forest.spawn()
    children = [forest.spawn(parent) for _ in range(3)]
    for child in children:
        forest.ask(child, f"q-{child}", asker=parent, wake="all")
    forest.handle(KillRequested((children[0],), "the user"))
    assert forest.told(Wake) == []
    forest.handle(KillRequested(tuple(children[1:]), "the user"))
    assert forest.told(Wake) == [Wake(parent)]
    [news] = forest.tree.agents[parent].inbox
    assert all(child in news for child in children)
    assert forest.tree.agents[parent].news == []


def test_transcript_damage_is_kept_in_the_agent_record() -> None:
    """The record contains the repair that the worker reported, or says that the transcript is missing."""
    forest = Forest()
    id = forest.spawn(up=False)
    forest.handle(WorkerBooted(id, 1, 7, worker_messages.Ready(entries=3, repaired="one line skipped")))
    assert forest.tree.agents[id].repaired == "one line skipped"
    forest.ask(id)
    forest.finish(id)
    forest.gone(id)
    forest.ask(id, "q2")
    forest.handle(WorkerBooted(id, 2, 8, worker_messages.Ready(entries=0)))
    assert "transcript is missing" in forest.tree.agents[id].repaired
    forest.finish(id, "q2")
    last = forest.tree.agents[id].last
    assert last is not None
    assert last.reply is not None
    assert "transcript is missing" in last.reply.warning


# Steering.


def test_steering_reaches_a_busy_agent_at_once_and_a_cold_one_later() -> None:
    """The message is kept until the worker confirms that it is in the conversation."""
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


def test_steering_a_killed_agent_is_refused() -> None:
    """The error is the same as that of a query."""
    forest = Forest()
    id = forest.spawn()
    forest.handle(KillRequested((id,), "the user"))
    with pytest.raises(AgentGoneError, match="orch resume 1"):
        forest.handle(QueueSteering(id, "s", "hello?"))


def test_cancel_is_soft_or_hard() -> None:
    """A soft cancel is sent to the worker, and a hard one kills its process. Without a turn, nothing happens."""
    forest = Forest()
    id = forest.spawn()
    forest.handle(CancelRequested(id))
    assert forest.last == []
    forest.ask(id)
    forest.handle(CancelRequested(id))
    assert forest.told(Send) == [Send(id, "q", "cancel", worker_messages.CancelCurrentTurn())]
    forest.handle(CancelRequested(id, hard=True))
    assert forest.told(Signal) == [Signal(id, 1, "kill")]
    assert [(notify.topic, notify.error.type) for notify in forest.told(Notify)] == [
        (QueryTopic("q"), "AgentDiedError")
    ]


def test_hard_cancelled_turn_is_not_restarted() -> None:
    """A query that the process had not received is not sent again. Later queries are sent to the next process."""
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
