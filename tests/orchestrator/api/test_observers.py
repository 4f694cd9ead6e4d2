"""Observers: told of every call at any depth, beside the run, which they can neither break nor hold up."""

from __future__ import annotations

import asyncio
import io
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch import CallEvent, Config, ConfigError, Orchestrator, PolicyConfig, Question, ScriptedBackend, SubagentsConfig
from orch.api.observers import progress
from orch.policy.caller import USER, AgentCaller
from orch.render.progress import progress_line
from orch.services import call
from orch.testing import FakeLauncher
from orch_protocol.services.requests import QUERY, SPAWN, QueryAgent, Spawn
from orchestrator.root_double import NEST, opened
from virtual_clock import virtual

CONFIG = Config(subagents=SubagentsConfig(allow_nested=True), policy=PolicyConfig(permissions={"bash": "deny"}))
BASH = {"tool": "bash", "input": {"command": "rm x"}}
LOOK = {"tool": "list_files", "input": {}}


def event(**changes: Any) -> CallEvent:
    """Return an event of a call of bash."""
    fields: dict[str, Any] = {"agent_id": "a", "agent": "tidy", "depth": 1, "query_id": "q", "tool": "bash"}
    fields |= {"input": {"command": "rm x"}, "outcome": "start"}
    return CallEvent(**(fields | changes))


async def tree(world: Any, folder: Path) -> Any:
    """Return the first of three agents, one below the other, of which each looks, asks the next, or is denied."""
    agent = await world.scripted("-", tools=["bash", "list_files", *NEST], cwd=folder, name="one")
    ask = {"tool": "query_subagent", "input": {"id": "three", "prompt": "go"}}
    tools = ("bash", "list_files", *NEST)
    two = await call(
        world.supervisor, AgentCaller(agent.id), SPAWN, Spawn("t", name="two", tools=tools, script=(LOOK, ask, "2"))
    )
    await call(
        world.supervisor, AgentCaller(two.id), SPAWN, Spawn("t", name="three", tools=tools, script=(BASH, LOOK, "3"))
    )
    return two


@virtual
async def test_every_call_at_any_depth_is_told_of_in_order(tmp_path: Path) -> None:
    """An observer hears of the calls of children and grandchildren, each agent's in order, with who makes them."""
    seen: list[CallEvent] = []

    async def observe(event: CallEvent) -> None:
        seen.append(event)

    async with opened(tmp_path / "home", config=CONFIG) as world:
        world.add_observer(observe)
        two = await tree(world, tmp_path)
        assert (await (await world.get(two.id)).query("go")).text == "2"
    told = [(each.agent, each.depth, each.tool, each.outcome) for each in seen]
    assert told == [
        ("two", 2, "list_files", "start"),
        ("two", 2, "list_files", "ran"),
        ("two", 2, "query_subagent", "start"),
        ("three", 3, "bash", "deny"),
        ("three", 3, "list_files", "start"),
        ("three", 3, "list_files", "ran"),
        ("two", 2, "query_subagent", "ran"),
    ]
    assert len({each.query_id for each in seen}) == 2


@virtual
async def test_a_client_follows_one_branch(tmp_path: Path) -> None:
    """A query with `progress` is told of the calls of its agent and of those below it, and of no others."""
    seen: list[CallEvent] = []
    async with opened(tmp_path / "home", config=CONFIG) as world:
        two = await tree(world, tmp_path)
        other = await world.scripted(LOOK, "done", tools=["list_files"], cwd=tmp_path)
        asked = QueryAgent(two.id, "go", progress=True)
        await asyncio.gather(call(world.supervisor, USER, QUERY, asked, seen.append), other.query("go"))
        assert {each.agent for each in seen} == {"two", "three"}
        seen.clear()
        assert world.supervisor.watchers._branches == {}


@virtual
async def test_nobody_who_fails_or_hangs_breaks_a_run(tmp_path: Path) -> None:
    """What an observer raises is complained of; one that never returns is left behind; others hear everything."""
    seen: list[str] = []
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))

    async def fails(event: CallEvent) -> None:
        raise KeyError(event.outcome)

    async def hangs(_: CallEvent) -> None:
        await asyncio.Event().wait()

    async def hears(event: CallEvent) -> None:
        seen.append(event.outcome)

    async with opened(tmp_path / "home", config=CONFIG) as world:
        for observer in (fails, hangs, hears):
            world.add_observer(observer)
        agent = await world.scripted(LOOK, "done", tools=["list_files"], cwd=tmp_path)
        assert (await agent.query("go")).text == "done"
    assert seen == ["start", "ran"]
    assert [complaint.partition("the run goes on: ")[2] for complaint in complaints] == [
        "KeyError: 'start'",
        "KeyError: 'ran'",
    ]


@virtual
async def test_an_observer_that_is_cancelled_from_within_hears_the_next_event(tmp_path: Path) -> None:
    """As by awaiting what somebody has cancelled: that is complained of, and nothing waits for ever or is lost."""
    seen: list[str] = []
    complaints: list[str] = []
    go = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))

    async def leaves(event: CallEvent) -> None:
        seen.append(event.outcome)
        await go.wait()
        raise asyncio.CancelledError

    async with opened(tmp_path / "home", config=CONFIG) as world:
        world.add_observer(leaves)
        agent = await world.scripted(LOOK, "done", tools=["list_files"], cwd=tmp_path)
        assert (await agent.query("go")).text == "done"
        go.set()
    assert seen == ["start", "ran"]
    assert [complaint.endswith("the run goes on: CancelledError: ") for complaint in complaints] == [True, True]


@pytest.mark.parametrize(("allow", "outcome"), [(True, "task"), (False, "declined")])
@virtual
async def test_what_becomes_of_tasks_is_told(tmp_path: Path, allow: bool, outcome: str) -> None:
    """A call about the agent's tasks is one event, with what the list is then, or that it was declined."""
    seen: list[CallEvent] = []

    async def approve(_: Question) -> bool:
        return allow

    plan = {"tool": "task_create", "input": {"tasks": ["sweep", "mop"]}}
    async with opened(tmp_path / "home", config=CONFIG, approve=approve) as world:
        agent = await world.scripted(plan, "done", tools=["task_create", "task_update"], cwd=tmp_path)
        await call(world.supervisor, USER, QUERY, QueryAgent(agent.id, "go", progress=True), seen.append)
    (event,) = seen
    assert (event.tool, event.outcome) == ("task_create", outcome)
    assert ("sweep" in event.result) is allow


async def test_a_function_runs_beside_the_loop(tmp_path: Path) -> None:
    """An observer that is not async runs in a thread, one event at a time; removed, it hears no more."""
    seen: list[tuple[str, bool]] = []

    def observe(event: CallEvent) -> None:
        seen.append((event.outcome, threading.current_thread() is threading.main_thread()))

    async with opened(tmp_path / "home", config=CONFIG) as world:
        world.add_observer(observe)
        agent = await world.scripted(LOOK, "one", LOOK, "two", tools=["list_files"], cwd=tmp_path)
        await agent.query("go")
        await world._watchers.close()
        assert seen == [("start", False), ("ran", False)]
        world.remove_observer(observe)
        await agent.query("go")
        assert len(seen) == 2
        with pytest.raises(ConfigError, match="an observer is a function"):
            world.add_observer(3)  # type: ignore[arg-type]


def test_a_program_without_a_loop_has_observers_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sync API takes them, and has told them everything when it is closed."""
    seen: list[CallEvent] = []
    stream = io.StringIO()
    launcher = FakeLauncher()
    monkeypatch.setattr("orch.api.orchestrator.Router", launcher.connect)
    with Orchestrator(home=tmp_path / "home", config=CONFIG, env={}, launcher=lambda *_: launcher) as o:
        o.add_observer(seen.append)
        o.add_observer(progress(stream))
        agent = o.spawn("t", tools=["list_files"], backend=ScriptedBackend([LOOK, "done"]), cwd=tmp_path, name="tidy")
        agent.query("go")
    assert [each.outcome for each in seen] == ["start", "ran"]
    start, ran = stream.getvalue().splitlines()
    assert start == "tidy: -> list_files"
    assert ran.startswith("tidy: <- list_files 0.")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "tidy: -> bash rm x"),
        ({"reason": "why"}, "tidy: -> bash rm x (why)"),
        ({"reason": "why", "decision": "ask"}, "tidy: -> bash rm x"),
        ({"outcome": "ran", "success": True, "elapsed_ms": 1234}, "tidy: <- bash 1.2 s"),
        (
            {"outcome": "ran", "success": False, "elapsed_ms": 0, "result": "no\nsuch"},
            "tidy: <- bash 0.0 s failed: no such",
        ),
        ({"outcome": "deny", "reason": "why"}, "tidy: denied: bash rm x (why)"),
        ({"outcome": "declined", "reason": "why", "depth": 3}, "    tidy: declined: bash rm x (why)"),
        ({"outcome": "dry_run"}, "tidy: would run: bash rm x"),
        ({"outcome": "dry_run", "decision": "ask", "reason": "why"}, "tidy: would need approval: bash rm x (why)"),
        ({"outcome": "dry_run", "decision": "deny", "reason": "why"}, "tidy: would be denied: bash rm x (why)"),
        ({"outcome": "task", "result": "[ ] sweep"}, "tidy: bash rm x: [ ] sweep"),
        ({"input": {"names": ["a"], "n": 2}}, "tidy: -> bash names=['a'], n=2"),
    ],
)
def test_each_outcome_is_a_line(changes: dict[str, Any], line: str) -> None:
    """Every event is told in one plain line, further in the deeper the agent stands."""
    stream = io.StringIO()
    progress(stream)(event(**changes))
    assert stream.getvalue() == f"{line}\n"


@given(st.text(), st.sampled_from(["start", "ran", "deny", "declined", "dry_run", "task"]))
def test_no_text_forges_a_line(text: str, outcome: Any) -> None:
    """Whatever a model writes, a line stays one, and holds nothing that a terminal would obey."""
    import msgspec

    told = event(outcome=outcome, agent=text, tool=text, input={"command": text}, reason=text, result=text)
    line = progress_line(msgspec.structs.asdict(told))
    assert line.isprintable()
