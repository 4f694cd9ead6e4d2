"""What can be asked of a root, by whom, and how it is refused."""

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
    LaunchError,
    ProtocolError,
    ToolNotGrantedError,
)
from orch_protocol.core.messages import Usage, assistant, user
from orch_protocol.services.registry import MODULES, SERVICES
from orch_protocol.services.requests import (
    LIST_AGENTS,
    QUERY,
    SPAWN,
    AgentRef,
    Collect,
    Kill,
    ListAgents,
    QueryAgent,
    ShowAgent,
    Spawn,
    Wait,
)
from orch_protocol.services.service import Service
from orch_protocol.wire.worker_messages import RootCall
from orch_worker.session.transcript import read_session
from orch_worker.tools.agents.chat import __all__ as chat_tools
from orch_worker.tools.agents.subagents import __all__ as subagent_tools
from orch_worker.tools.dispatch.presets import BUILTIN, RECALL
from orchestrator.root_double import NEST, Gate, World, nesting, opened
from orchestrator.tree_double import Forest
from virtual_clock import passed, virtual


async def ask_root(world: World, caller: str, service: str, params: Any) -> Any:
    """Ask as a worker's process does."""
    payload = msgspec.Raw(msgspec.msgpack.encode(params))
    answer = await serve_worker(world.supervisor, caller, RootCall(service, payload))
    return msgspec.msgpack.decode(answer, type=SERVICES[service].result)


# Who may ask.


def test_each_service_is_for_the_tools_that_ask_for_it() -> None:
    """Definitions name tools that exist, and every tool that calls a service is named by one."""
    granted = {tool for service in SERVICES.values() for tool in service.agents.tools}
    assert granted <= BUILTIN.keys()
    assert granted == {*subagent_tools, *chat_tools, *RECALL} - {"chat"}  # chat calls a service of every agent


def test_each_service_has_a_handler() -> None:
    """Every definition is bound to a handler, and every handler to a definition."""
    assert HANDLERS.keys() == SERVICES.keys()


def test_service_names_are_unique() -> None:
    """No two definitions share a name on the wire."""
    names = [value.name for module in MODULES for value in vars(module).values() if isinstance(value, Service)]
    assert sorted(names) == sorted(SERVICES)


@virtual
async def test_a_worker_may_ask_for_what_its_tools_ask_for(tmp_path: Path) -> None:
    """A process that asks for more is refused, whatever it says; what is for people alone is for no agent."""
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
            with pytest.raises(ToolNotGrantedError, match="any tool that asks"):
                await ask_root(world, rich.id, service, params)
        assert [each.id for each in await ask_root(world, rich.id, "list", ListAgents())] == [poor.id]
        with pytest.raises(ProtocolError, match="no service 'nonsense'"):
            await serve_worker(world.supervisor, rich.id, RootCall("nonsense", msgspec.Raw(b"\x80")))
        with pytest.raises(ProtocolError, match="parameters of 'kill'"):
            await serve_worker(world.supervisor, rich.id, RootCall("kill", msgspec.Raw(b"\x01")))


@virtual
async def test_an_agent_acts_on_what_is_below_it(tmp_path: Path) -> None:
    """Killing and collecting stop at its own subtree; everybody below it, at any depth, is in it."""
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
async def test_who_asked_may_collect(tmp_path: Path) -> None:
    """An agent takes the answer to its own question from a peer that it asked, and nobody else's."""
    async with opened(tmp_path, config=nesting()) as world:
        other = await world.scripted("for one", "for the user", tools=NEST)
        one = await world.scripted(tools=NEST, peers=[other])
        await ask_root(world, one.id, "submit", QueryAgent(other.id, "go"))
        assert (await ask_root(world, one.id, "collect", Collect(other.id))).text == "for one"
        other.submit("go")
        with pytest.raises(AgentError, match="can only collect its own queries from"):
            await ask_root(world, one.id, "collect", Collect(other.id))


@virtual
async def test_killing_all_spares_nobody(tmp_path: Path) -> None:
    """Also an agent that was resumed below one that stays killed."""
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
async def test_a_timeout_that_is_no_time_is_refused(tmp_path: Path, seconds: Any) -> None:
    """Before anything is asked."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("fine")
        for attempt in (
            agent.query("go", timeout=seconds),
            agent.collect(timeout=seconds),
            agent.ping(timeout=seconds),
            world.wait(agent, timeout=seconds),
        ):
            with pytest.raises(ConfigError, match="a timeout is a number of seconds"):
                await attempt
        assert (await agent.state()).queries == 0


@virtual
async def test_an_agent_whose_program_does_not_wait_for_it_is_ended(tmp_path: Path) -> None:
    """Nobody has a handle of it, and it would take the place of another; one that can be asked for again stays."""
    async with opened(tmp_path) as world:
        for request_id, statuses in ((None, ["killed"]), ("r", ["killed", "idle"])):
            spawning = asyncio.ensure_future(
                call(world.supervisor, USER, SPAWN, Spawn("t", script=("hi",), request_id=request_id))
            )
            while len(world.supervisor.tree.agents) < len(statuses):  # noqa: ASYNC110
                await asyncio.sleep(0)  # until it is about to come up
            spawning.cancel()
            await asyncio.gather(spawning, return_exceptions=True)
            assert spawning.cancelled()
            await passed(1)
            assert [row.status for row in await world.agents(all=True)] == statuses


@virtual
async def test_for_ever_is_a_timeout(tmp_path: Path) -> None:
    """Infinity waits until the answer is there; nothing at all waits for nothing."""
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
        ({"cwd": "a\0b"}, "cwd is a path"),
        ({"backend": ScriptedBackend([{"tool": "x", "input": {"value": object()}}])}, "object"),
        ({"template": "fat"}, "template"),
        ({"preset": 3}, "preset"),
    ],
    ids=lambda value: str(value)[:30],
)
@virtual
async def test_a_spawn_that_makes_no_sense_is_refused(tmp_path: Path, wrong: dict[str, Any], why: str) -> None:
    """The error names the field, and no agent comes to be."""
    async with opened(tmp_path) as world:
        with pytest.raises(ConfigError, match=why):
            await world.spawn("work", **({"backend": ScriptedBackend(["fine"])} | wrong))
        with pytest.raises(ConfigError, match=r"task|the task of the agent is empty"):
            await world.spawn(None, backend=ScriptedBackend([]))  # type: ignore[arg-type]
        assert await world.agents(all=True) == []


@virtual
async def test_what_no_file_can_carry_is_mended_at_the_door(tmp_path: Path) -> None:
    """Lone surrogates, tuples: an agent is from the beginning what its journal says of it."""
    async with opened(tmp_path) as world:
        history = [user("bad \ud800"), assistant("ok")]
        agent = await world.spawn("task \udfff", backend=ScriptedBackend(({"text": "x"},)), history=history)
        assert (await agent.state()).task == "task \N{REPLACEMENT CHARACTER}"
        await agent.query("go")


@virtual
async def test_a_huge_task_is_a_task(tmp_path: Path) -> None:
    """Two megabytes of it travel like everything else."""
    async with opened(tmp_path) as world:
        agent = await world.spawn("x" * 2_000_000, backend=ScriptedBackend([{"echo": True}]))
        assert (await agent.query("short")).text == "short"


@virtual
async def test_a_prompt_is_text(tmp_path: Path) -> None:
    """Anything else is refused, by its type."""
    async with opened(tmp_path) as world:
        agent = await world.scripted()
        with pytest.raises(ConfigError, match="is text, not int"):
            await agent.query(5)  # type: ignore[arg-type]


@virtual
async def test_waiting_for_what_cannot_be(tmp_path: Path) -> None:
    """No agents, too many, no number: each is said."""
    async with opened(tmp_path) as world:
        agent = await world.scripted()
        with pytest.raises(ConfigError, match="at least one"):
            await world.wait()
        for mode in (0, 2, -1, "some", None, 1.5):
            with pytest.raises(ConfigError, match=r"invalid mode|`\$.mode`"):
                await world.wait(agent, mode=mode)  # type: ignore[arg-type]
        assert (await world.wait(agent, mode="any")).done == (agent.id,)


@virtual
async def test_an_agent_does_not_wait_for_one_that_waits_for_it(tmp_path: Path) -> None:
    """Nobody would ever be done."""
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
async def test_a_repeated_spawn_that_failed_has_failed(tmp_path: Path) -> None:
    """A client that asks again hears the same error, not of an agent that cannot answer."""
    launcher = FakeLauncher()
    launcher.failures += ["no memory"] * 4
    async with opened(tmp_path, launcher=launcher) as world:
        for _ in range(2):
            with pytest.raises(LaunchError, match="no memory"):
                await call(world.supervisor, USER, SPAWN, Spawn("x", script=("a",), tools=(), request_id="r"))
        assert len(await world.agents(all=True)) == 1


# References.


@pytest.mark.parametrize("ref", ["9" * 5000, "٣", "²", "-1", "1.0", "+1", "x" * 100_000, "\ud800", "a b", "999"])
def test_a_reference_to_nobody_is_refused_shortly(ref: str) -> None:
    """Whatever it looks like: digits of other scripts, more digits than a number may have, a book."""
    forest = Forest()
    forest.spawn()
    with pytest.raises(AgentNotFoundError) as caught:
        resolve(forest.tree.agents, ref)
    assert len(str(caught.value)) < 300


def test_leading_zeros_do_not_matter() -> None:
    """007 is agent 7, and 0 is nobody."""
    forest = Forest()
    id = forest.spawn()
    assert resolve(forest.tree.agents, "001").spec.id == id
    with pytest.raises(AgentNotFoundError, match="no agent has number 000"):
        resolve(forest.tree.agents, "000")


def test_a_typing_error_is_answered_with_the_nearest_name() -> None:
    """Among many names too."""
    forest = Forest(max_concurrent=5000)
    for number in range(3000):
        forest.spawn(name=f"worker-{number}")
    forest.spawn(name="scout")
    with pytest.raises(AgentNotFoundError, match="did you mean 'scout'"):
        resolve(forest.tree.agents, "scuot")
    with pytest.raises(AgentNotFoundError, match="empty reference"):
        resolve(TreeState(), " ")


@virtual
async def test_an_agent_is_asked_while_it_starts(tmp_path: Path) -> None:
    """The query waits for the process, and for as long as it may."""
    async with opened(tmp_path) as world:
        spawning = asyncio.ensure_future(world.scripted("fine", name="x"))
        await passed(0)
        reply = await call(world.supervisor, USER, QUERY, QueryAgent("x", "go"))
        assert reply.text == "fine"
        await spawning


@pytest.mark.parametrize("end", ["kill", "cancel", "die", "close"])
@virtual
async def test_what_an_unfinished_turn_used_counts(tmp_path: Path, end: str) -> None:
    """Its responses were paid for, however it was cut short; the next root knows of it too."""
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
    """The list of one root can include the agents of other runs of the same home, such as those of programs."""

    async def test_running_and_ended_runs_are_listed(self, tmp_path: Path) -> None:
        """A run that has ended shows its agents as cold."""
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
        """A program that named no run removes it at its end; one that was killed leaves it to be removed."""
        async with opened(tmp_path, run="daemon") as daemon:
            async with opened(tmp_path) as program:
                await program.scripted()
                folder = program.supervisor.happenings.path.parent
                kept = {name: (folder / name).read_bytes() for name in ("journal.jsonl", "lock")}
                assert len(await call(daemon.supervisor, USER, LIST_AGENTS, ListAgents(runs=True))) == 1
            folder.mkdir()
            (folder / "journal.jsonl").write_bytes(kept["journal.jsonl"])
            (folder / "lock").write_bytes(b"0\n")
            assert await call(daemon.supervisor, USER, LIST_AGENTS, ListAgents(runs=True)) == []

    async def test_unreadable_journal_does_not_fail_the_list(self, tmp_path: Path) -> None:
        """A foreign file and a folder without a journal are left out."""
        async with opened(tmp_path, run="daemon") as daemon:
            for name, data in {"foreign": b"\0\1\2\n", "empty": b"", "folder": None}.items():
                (tmp_path / "runs" / name).mkdir()
                if data is not None:
                    (tmp_path / "runs" / name / "journal.jsonl").write_bytes(data)
            (tmp_path / "runs" / "folder" / "journal.jsonl").mkdir()
            assert await call(daemon.supervisor, USER, LIST_AGENTS, ListAgents(runs=True)) == []

    async def test_agent_does_not_see_other_runs(self, tmp_path: Path) -> None:
        """An agent that sets `runs` gets the agents of its own run."""
        async with opened(tmp_path, run="other") as other, opened(tmp_path, run="daemon", config=nesting()) as daemon:
            await other.scripted()
            agent = await daemon.scripted(tools=NEST)
            rows = await ask_root(daemon, agent.id, "list", ListAgents(all=True, runs=True))
            assert {row["run"] if isinstance(row, dict) else row.run for row in rows} <= {""}
