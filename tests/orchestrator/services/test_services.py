"""Services of a root: what can be requested, by which callers, and how a request is refused."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch import Limits, ScriptedBackend
from orch.policy.caller import USER
from orch.services import HANDLERS, call, serve_worker
from orch.testing import FakeLauncher
from orch.tree.agents.agent_refs import resolve
from orch.tree.agents.state import TreeState
from orch_protocol.core.errors import (
    AgentError,
    AgentNotFoundError,
    ConfigError,
    EntryNotFoundError,
    LaunchError,
    ProtocolError,
    ToolNotGrantedError,
)
from orch_protocol.core.messages import Usage, assistant, user
from orch_protocol.policy.builtin_tools import BUILTIN_TOOLS
from orch_protocol.policy.policy import PolicyCall
from orch_protocol.services.agents.lifecycle import Kill
from orch_protocol.services.agents.query import QUERY, Collect, QueryAgent, Wait, Waited
from orch_protocol.services.agents.run_events import LIST_EVENTS, EventsSince, RunEvent
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orch_protocol.services.agents.status import LIST_AGENTS, ListAgents, ShowAgent
from orch_protocol.services.dispatch.registry import MODULES, SERVICES, services_in
from orch_protocol.services.service import AgentRef, Empty
from orch_protocol.wire.worker_messages import RootCall
from orch_worker.session.session_reader import read_session
from orch_worker.tools.agents.chat import __all__ as chat_tools
from orch_worker.tools.agents.subagents import __all__ as subagent_tools
from orch_worker.tools.dispatch.presets import RECALL
from orchestrator.root_double import NEST, Gate, World, nesting, opened
from orchestrator.tree_double import Forest
from virtual_clock import passed, virtual


async def ask_root(world: World, caller: str, service: str, params: Any) -> Any:
    """Call a service as the worker process of `caller` does."""
    payload = msgspec.Raw(msgspec.msgpack.encode(params))
    answer = await serve_worker(world.supervisor, caller, RootCall(service, payload))
    return msgspec.msgpack.decode(answer, type=SERVICES[service].result)


# Permissions.


def test_each_service_names_the_tools_that_call_it() -> None:
    """The named tools exist, and each tool that calls a service is named by that service."""
    granted = {tool for service in SERVICES.values() for tool in service.agents.tools}
    assert granted <= BUILTIN_TOOLS.keys()
    assert granted == {*subagent_tools, *chat_tools, *RECALL} - {"chat"}  # the service of chat is open to every agent


def test_each_service_has_a_handler() -> None:
    """Every service has one handler, and every handler belongs to a service."""
    assert HANDLERS.keys() == SERVICES.keys()


def test_handlers_are_where_their_definitions_are() -> None:
    """The definition of a service and its handler are in modules with the same path below `services`."""
    handlers = {name: handler.__module__ for name, handler in HANDLERS.items()}
    assert [
        f"{service.name}: defined in {module.__name__}, but its handler is in {handlers[service.name]}"
        for module in MODULES
        for service in services_in(module)
        if handlers[service.name] != module.__name__.replace("orch_protocol.", "orch.", 1)
    ] == []


def test_parameters_are_beside_their_service() -> None:
    """Parameters are in the module of their service, except those of several services and of policy functions."""
    shared = (Empty, AgentRef, PolicyCall)
    assert [
        f"{service.name}: defined in {module.__name__}, but its parameters are in {service.params.__module__}"
        for module in MODULES
        for service in services_in(module)
        if service.params.__module__ != module.__name__ and service.params not in shared
    ] == []


def test_service_names_are_unique() -> None:
    """The registry is keyed by name, so a second service with the same name would replace the first."""
    names = [service.name for module in MODULES for service in services_in(module)]
    assert sorted(names) == sorted(SERVICES)


@virtual
async def test_worker_may_call_only_services_of_its_tools(tmp_path: Path) -> None:
    """Services without a tool that calls them are refused to all agents."""
    async with opened(tmp_path, config=nesting()) as world:
        poor = await world.scripted(tools=["read_file"])
        rich = await world.scripted(tools=NEST, peers=[poor])
        for service, params in {
            "spawn": Spawn("x"),
            "query": QueryAgent(rich.id, "x"),
            "kill": Kill((rich.id,)),
            "list": ListAgents(),
            "wait": Wait((rich.id,)),
        }.items():
            with pytest.raises(ToolNotGrantedError, match=f"may not call '{service}'"):
                await ask_root(world, poor.id, service, params)
        for service, params in {
            "show": ShowAgent(poor.id),
            "resume": AgentRef(poor.id),
            "state": AgentRef(poor.id),
        }.items():
            with pytest.raises(ToolNotGrantedError, match="a tool that uses this service"):
                await ask_root(world, rich.id, service, params)
        assert [each.id for each in await ask_root(world, rich.id, "list", ListAgents())] == [poor.id]
        with pytest.raises(ProtocolError, match="no service 'nonsense'"):
            await serve_worker(world.supervisor, rich.id, RootCall("nonsense", msgspec.Raw(b"\x80")))
        with pytest.raises(ProtocolError, match="parameters of 'kill'"):
            await serve_worker(world.supervisor, rich.id, RootCall("kill", msgspec.Raw(b"\x01")))


@virtual
async def test_agent_acts_on_its_subtree_only(tmp_path: Path) -> None:
    """`kill` accepts descendants at any depth, but neither the caller itself nor other agents."""
    async with opened(tmp_path, config=nesting()) as world:
        one, other = await world.scripted(tools=NEST), await world.scripted(tools=NEST)
        two = await ask_root(world, one.id, "spawn", Spawn("x", tools=tuple(NEST)))
        three = await ask_root(world, two.id, "spawn", Spawn("x", tools=tuple(NEST)))
        with pytest.raises(AgentError, match="may only kill"):
            await ask_root(world, other.id, "kill", Kill((three.id,)))
        with pytest.raises(AgentError, match="may only kill"):
            await ask_root(world, one.id, "kill", Kill((one.id,)))
        killed = await ask_root(world, one.id, "kill", Kill(all=True))
        assert killed.ids == (three.id, two.id)
        assert world.status(one) == world.status(other) == "idle"


@virtual
async def test_caller_of_a_query_may_collect_it(tmp_path: Path) -> None:
    """An agent can collect a peer's answers to its own queries, but no other answers of the peer."""
    async with opened(tmp_path, config=nesting()) as world:
        other = await world.scripted("for one", "for the user", tools=NEST)
        one = await world.scripted(tools=NEST, peers=[other])
        await ask_root(world, one.id, "submit", QueryAgent(other.id, "go"))
        assert (await ask_root(world, one.id, "collect", Collect(other.id))).text == "for one"
        other.submit("go")
        with pytest.raises(AgentError, match="can collect only results of its own queries to"):
            await ask_root(world, one.id, "collect", Collect(other.id))


@virtual
async def test_kill_all_includes_resumed_descendants(tmp_path: Path) -> None:
    """An agent that was resumed below a killed agent is killed too."""
    async with opened(tmp_path, config=nesting()) as world:
        one = await world.scripted(tools=NEST)
        two = await ask_root(world, one.id, "spawn", Spawn("x", tools=(), script=("fine",)))
        await one.kill()
        child = await world.resume(two.id)
        assert (await child.query("go")).text == "fine"
        assert await world.kill(all=True) == (two.id,)
        assert not world.supervisor.tree.agents.alive


# Bad requests.


@pytest.mark.parametrize("seconds", [-1, math.nan, -math.inf, "5", [1]])
@virtual
async def test_invalid_timeout_is_refused_before_the_query(tmp_path: Path, seconds: Any) -> None:
    """`query`, `collect`, `ping` and `wait` raise ConfigError if the timeout is invalid."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("fine")
        for attempt in (
            agent.query("go", timeout=seconds),
            agent.collect(timeout=seconds),
            agent.ping(timeout=seconds),
            world.wait(agent, timeout=seconds),
        ):
            with pytest.raises(ConfigError, match="timeout must be a number of seconds"):
                await attempt
        assert (await agent.state()).queries == 0


@virtual
async def test_agent_of_an_abandoned_spawn_is_ended(tmp_path: Path) -> None:
    """The agent is kept if the spawn has a request id, because the caller can repeat such a spawn."""
    async with opened(tmp_path) as world:
        for request_id, statuses in ((None, ["killed"]), ("r", ["killed", "idle"])):
            spawning = asyncio.ensure_future(
                call(world.supervisor, USER, SPAWN, Spawn("t", script=("hi",), request_id=request_id))
            )
            while len(world.supervisor.tree.agents) < len(statuses):  # noqa: ASYNC110
                await asyncio.sleep(0)  # until the agent is about to start
            spawning.cancel()
            await asyncio.gather(spawning, return_exceptions=True)
            assert spawning.cancelled()
            await passed(1)
            assert [row.status for row in await world.agents(all=True)] == statuses


@virtual
async def test_infinite_and_zero_timeouts_are_valid(tmp_path: Path) -> None:
    """An infinite timeout waits for the answer, and a timeout of zero does not wait."""
    async with opened(tmp_path) as world:
        agent = await world.scripted({"text": "one", "sleep": 100}, "two")
        assert (await agent.query("go", timeout=math.inf)).text == "one"
        with pytest.raises(AgentError, match="has not answered within 0 s"):
            await agent.query("go", timeout=0)
        reply = await agent.collect(timeout=math.inf)
        assert reply is not None
        assert reply.text == "two"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"limits": Limits(max_turns=0)}, r"limits: .*>= 1.*max_turns"),
        ({"limits": Limits(turn_seconds=math.nan)}, "turn_seconds"),
        ({"limits": Limits(turn_seconds=math.inf)}, "turn_seconds"),
        ({"limits": Limits(tool_seconds=-1)}, r"limits: .*> 0.*tool_seconds"),
        ({"history": [{"role": "nobody", "content": []}]}, "history"),
        ({"history": ["hello"]}, "history"),
        ({"history": [user("a"), 5]}, "history"),
        ({"name": 5}, "name"),
        ({"name": "x" * 65}, "up to 64"),
        ({"name": "été"}, "up to 64"),
        ({"name": "٣"}, "up to 64"),
        ({"env": {"A": 1}}, "env"),
        ({"cwd": "x" * 5000}, "cannot be used"),
        ({"cwd": "~nobody-is-called-that/x"}, "cannot be used"),
        ({"cwd": "a\0b"}, "cwd must be a path"),
        ({"backend": ScriptedBackend([{"tool": "x", "input": {"value": object()}}])}, "object"),
        ({"template": "fat"}, "template"),
        ({"preset": 3}, "preset"),
    ],
    ids=lambda value: str(value)[:30],
)
@virtual
async def test_invalid_spawn_is_refused_with_the_field(tmp_path: Path, wrong: dict[str, Any], why: str) -> None:
    """The error names the invalid field, and no agent is created."""
    async with opened(tmp_path) as world:
        with pytest.raises(ConfigError, match=why):
            await world.spawn("work", **({"backend": ScriptedBackend(["fine"])} | wrong))
        with pytest.raises(ConfigError, match=r"task|the task of the agent is empty"):
            await world.spawn(None, backend=ScriptedBackend([]))  # type: ignore[arg-type]
        assert await world.agents(all=True) == []


@virtual
async def test_unencodable_values_are_normalized_at_the_service(tmp_path: Path) -> None:
    """Lone surrogates are replaced, so that an agent is equal to its record in the journal."""
    async with opened(tmp_path) as world:
        history = [user("bad \ud800"), assistant("ok")]
        agent = await world.spawn("task \udfff", backend=ScriptedBackend(({"text": "x"},)), history=history)
        assert (await agent.state()).task == "task \N{REPLACEMENT CHARACTER}"
        await agent.query("go")


@virtual
async def test_two_megabyte_task_is_accepted(tmp_path: Path) -> None:
    """An agent with a task of two megabytes can be queried."""
    async with opened(tmp_path) as world:
        agent = await world.spawn("x" * 2_000_000, backend=ScriptedBackend([{"echo": True}]))
        assert (await agent.query("short")).text == "short"


@virtual
async def test_prompt_must_be_text(tmp_path: Path) -> None:
    """The error for a prompt that is not a text names its type."""
    async with opened(tmp_path) as world:
        agent = await world.scripted()
        with pytest.raises(ConfigError, match=r"must be text.*got int"):
            await agent.query(5)  # type: ignore[arg-type]


@virtual
async def test_invalid_waits_are_refused(tmp_path: Path) -> None:
    """A wait needs at least one agent and a valid mode."""
    async with opened(tmp_path) as world:
        agent = await world.scripted()
        with pytest.raises(ConfigError, match="at least one"):
            await world.wait()
        for mode in (0, 2, -1, "some", None, 1.5):
            with pytest.raises(ConfigError, match=r"invalid mode|`\$.mode`"):
                await world.wait(agent, mode=mode)  # type: ignore[arg-type]
        assert (await world.wait(agent, mode="any")).done == (agent.id,)


@virtual
async def test_wait_ends_with_the_query_that_ran_at_its_start(tmp_path: Path) -> None:
    """An agent whose query ended is done, although its next queued query already runs."""
    async with opened(tmp_path) as world:
        agents = [
            await world.scripted({"text": "first", "sleep": seconds}, {"text": "second", "sleep": 60})
            for seconds in (0.01, 0.02)
        ]
        replies = [agent.submit(prompt, queue=True) for agent in agents for prompt in ("1", "2")]
        waited = await world.wait(*agents, timeout=10)
        assert waited == Waited(tuple(agent.id for agent in agents), ())
        assert [reply.done() for reply in replies] == [True, False, True, False]
        await asyncio.gather(*replies)


@virtual
async def test_agent_cannot_wait_for_its_asker_or_itself(tmp_path: Path) -> None:
    """A wait for the agent's caller or for the agent itself would never end."""
    async with opened(tmp_path, config=nesting()) as world:
        gate = Gate()
        child = await world.scripted({"tool": "gate"}, "done", tools=[*NEST, gate.tool()], name="child")
        parent = await world.scripted(
            {"tool": "query_subagent", "input": {"id": "child", "prompt": "go"}}, "done", tools=NEST, peers=[child]
        )
        asking = asyncio.ensure_future(parent.query("go"))
        await gate.called.wait()
        with pytest.raises(AgentNotFoundError, match="may only wait for agents below itself"):
            await ask_root(world, child.id, "wait", Wait((parent.id,)))
        with pytest.raises(ConfigError, match="wait for itself"):
            await ask_root(world, child.id, "wait", Wait((child.id,)))
        gate.open.set()
        assert (await asking).text == "done"


@virtual
async def test_repeated_failed_spawn_returns_the_same_error(tmp_path: Path) -> None:
    """A repeated spawn with the same request id raises the same error and creates no second agent."""
    launcher = FakeLauncher()
    launcher.failures += ["no memory"] * 4
    async with opened(tmp_path, launcher=launcher) as world:
        for _ in range(2):
            with pytest.raises(LaunchError, match="no memory"):
                await call(world.supervisor, USER, SPAWN, Spawn("x", script=("a",), tools=(), request_id="r"))
        assert len(await world.agents(all=True)) == 1


# References.


@pytest.mark.parametrize("ref", ["9" * 5000, "٣", "²", "-1", "1.0", "+1", "x" * 100_000, "\ud800", "a b", "999"])
def test_unknown_references_get_short_errors(ref: str) -> None:
    """The error is short even if the reference is a very long number or text."""
    forest = Forest()
    forest.spawn()
    with pytest.raises(AgentNotFoundError) as caught:
        resolve(forest.tree.agents, ref)
    assert len(str(caught.value)) < 300


def test_leading_zeros_are_ignored() -> None:
    """`001` is agent 1, and `000` is no agent."""
    forest = Forest()
    id = forest.spawn()
    assert resolve(forest.tree.agents, "001").spec.id == id
    with pytest.raises(AgentNotFoundError, match="no agent has number 000"):
        resolve(forest.tree.agents, "000")


def test_misspelled_name_suggests_the_nearest() -> None:
    """The error for an unknown name suggests the nearest of 3,000 names."""
    forest = Forest(max_concurrent=5000)
    for number in range(3000):
        forest.spawn(name=f"worker-{number}")
    forest.spawn(name="scout")
    with pytest.raises(AgentNotFoundError, match="did you mean 'scout'"):
        resolve(forest.tree.agents, "scuot")
    with pytest.raises(AgentNotFoundError, match="empty reference"):
        resolve(TreeState(), " ")


@virtual
async def test_query_to_a_starting_agent_waits(tmp_path: Path) -> None:
    """A query that arrives before the agent's process has started runs after the start."""
    async with opened(tmp_path) as world:
        spawning = asyncio.ensure_future(world.scripted("fine", name="x"))
        await passed(0)
        reply = await call(world.supervisor, USER, QUERY, QueryAgent("x", "go"))
        assert reply.text == "fine"
        await spawning


@pytest.mark.parametrize("end", ["kill", "cancel", "die", "close"])
@virtual
async def test_usage_of_an_unfinished_turn_counts(tmp_path: Path, end: str) -> None:
    """The usage of a turn that was killed, cancelled or interrupted also counts in the next root."""
    gate = Gate()
    async with opened(tmp_path, run="r") as world:
        agent = await world.scripted({"tool": "gate"}, "done", tools=[gate.tool()])
        answer = agent.submit("go")
        await gate.called.wait()
        assert (await agent.state()).usage == Usage()
        if end == "kill":
            await agent.kill()
        elif end == "cancel":
            await agent.cancel(hard=True)
        elif end == "die":
            world.launcher.worker(agent.id).die(-9)
        if end == "close":
            answer.cancel()
            await passed(0)
        else:
            with pytest.raises(AgentError):
                await answer
            assert (await agent.state()).usage.output_tokens > 0
    async with opened(tmp_path, run="r") as world:
        row = await (await world.get(agent.id)).state()
        assert row.usage.output_tokens > 0
        assert row.usage == read_session(Path(row.folder)).usage


class TestAgentsOfOtherRuns:
    """`ListAgents(runs=True)`: the list includes agents of other runs of the same home."""

    async def test_running_and_ended_runs_are_listed(self, tmp_path: Path) -> None:
        """The agents of a running run have their status, and those of an ended run are cold."""
        async with opened(tmp_path, run="ended") as ended:
            await (await ended.scripted("fine")).query("go")
        async with opened(tmp_path, run="running") as running, opened(tmp_path, run="daemon") as daemon:
            theirs, own = await running.scripted(), await daemon.scripted()
            rows = await call(daemon.supervisor, USER, LIST_AGENTS, ListAgents(runs=True))
            assert [(row.run, row.status, row.queries) for row in rows] == [
                ("", "idle", 0),
                ("ended", "cold", 1),
                ("running", "idle", 0),
            ]
            assert (rows[0].id, rows[2].id) == (own.id, theirs.id)
            assert [row.pid is None for row in rows] == [False, True, False]
            assert [row.run for row in await call(daemon.supervisor, USER, LIST_AGENTS, ListAgents())] == [""]
            await theirs.kill()
            assert [row.run for row in await call(daemon.supervisor, USER, LIST_AGENTS, ListAgents(runs=True))] == [
                "",
                "ended",
            ]
            everything = await call(daemon.supervisor, USER, LIST_AGENTS, ListAgents(all=True, runs=True))
            assert [(row.run, row.status) for row in everything][1:] == [("ended", "cold"), ("running", "killed")]

    async def test_temporary_run_is_listed_only_while_it_runs(self, tmp_path: Path) -> None:
        """A run without a name is not listed after its end, even if a killed program left its files."""
        async with opened(tmp_path, run="daemon") as daemon:
            async with opened(tmp_path) as program:
                await program.scripted()
                folder = program.supervisor.run_events.path.parent
                kept = {name: (folder / name).read_bytes() for name in ("journal.jsonl", "lock")}
                assert len(await call(daemon.supervisor, USER, LIST_AGENTS, ListAgents(runs=True))) == 1
            folder.mkdir()
            (folder / "journal.jsonl").write_bytes(kept["journal.jsonl"])
            (folder / "lock").write_bytes(b"0\n")
            assert await call(daemon.supervisor, USER, LIST_AGENTS, ListAgents(runs=True)) == []

    async def test_unreadable_journal_does_not_fail_the_list(self, tmp_path: Path) -> None:
        """A foreign file, an empty file and a folder in the place of a journal are ignored."""
        async with opened(tmp_path, run="daemon") as daemon:
            for name, data in {"foreign": b"\0\1\2\n", "empty": b"", "folder": None}.items():
                (tmp_path / "runs" / name).mkdir()
                if data is not None:
                    (tmp_path / "runs" / name / "journal.jsonl").write_bytes(data)
            (tmp_path / "runs" / "folder" / "journal.jsonl").mkdir()
            assert await call(daemon.supervisor, USER, LIST_AGENTS, ListAgents(runs=True)) == []

    async def test_events_of_another_run_are_listed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A caller can select the events of one agent and wait for new events; an unknown run is an error."""
        monkeypatch.setattr("orch.services.agents.run_events.POLL_SECONDS", 0.01)
        async with opened(tmp_path, run="other") as other, opened(tmp_path, run="daemon") as daemon:

            async def events(**given: Any) -> list[RunEvent]:
                return await call(daemon.supervisor, USER, LIST_EVENTS, EventsSince(**{"run": "other"} | given))

            one, two = await other.scripted(name="one"), await other.scripted(name="two")
            seen = await events()
            assert seen == await other.events()
            assert {event.agent_id for event in await events(ref="two")} == {two.id}
            waiting = asyncio.ensure_future(events(since=seen[-1].n, seconds=60))
            await other.emit_event(one, "deploy", data={"n": 1})
            assert [event.data["name"] for event in await waiting] == ["deploy"]
            for wrong in ("none", "..", "../runs/other", "/"):
                with pytest.raises(EntryNotFoundError, match="no run named"):
                    await events(run=wrong)
            with pytest.raises(AgentNotFoundError):
                await events(ref="three")

    async def test_agent_does_not_see_other_runs(self, tmp_path: Path) -> None:
        """An agent cannot set `runs`, and its list contains only agents of its own run."""
        async with opened(tmp_path, run="other") as other, opened(tmp_path, run="daemon", config=nesting()) as daemon:
            await other.scripted()
            agent = await daemon.scripted(tools=NEST)
            with pytest.raises(ToolNotGrantedError, match="cannot set 'runs' of 'list'"):
                await ask_root(daemon, agent.id, "list", ListAgents(all=True, runs=True))
            rows = await ask_root(daemon, agent.id, "list", ListAgents(all=True))
            assert {row["run"] if isinstance(row, dict) else row.run for row in rows} <= {""}
