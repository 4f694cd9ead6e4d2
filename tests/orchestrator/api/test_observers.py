"""Observers: they receive every call at any depth, and can neither stop nor delay a run."""

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
from orch_protocol.services.agents.query import QUERY, QueryAgent
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orchestrator.root_double import NEST, opened
from virtual_clock import virtual

CONFIG = Config(subagents=SubagentsConfig(allow_nested=True), policy=PolicyConfig(permissions={"bash": "deny"}))
BASH = {"tool": "bash", "input": {"command": "rm x"}}
LOOK = {"tool": "list_files", "input": {}}


def event(**changes: Any) -> CallEvent:
    """Return an event of a call of bash, with `changes`."""
    fields: dict[str, Any] = {"agent_id": "a", "agent": "tidy", "depth": 1, "query_id": "q", "tool": "bash"}
    fields |= {"input": {"command": "rm x"}, "outcome": "start"}
    return CallEvent(**(fields | changes))


async def tree(world: Any, folder: Path) -> Any:
    """Spawn three agents, each below the previous one, and return the second, which queries the third."""
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
async def test_observer_sees_calls_of_all_descendants_in_order(tmp_path: Path) -> None:
    """Each event names the calling agent and its depth; a denied call has no start event."""
    seen: list[CallEvent] = []

    async def observe(event: CallEvent) -> None:
        seen.append(event)

    async with opened(tmp_path / "home", config=CONFIG) as world:
        world.add_observer(observe)
        two = await tree(world, tmp_path)
        assert (await (await world.get(two.id)).query("go")).text == "2"
    listed = [(each.agent, each.depth, each.tool, each.outcome) for each in seen]
    assert listed == [
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
async def test_progress_of_a_query_covers_its_subtree_only(tmp_path: Path) -> None:
    """Calls of other agents are not reported."""
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
async def test_failing_or_hanging_observer_does_not_affect_the_run(tmp_path: Path) -> None:
    """The error is reported, the hanging observer is abandoned, and the third observer gets every event."""
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
    assert [complaint.partition("the run continues: ")[2] for complaint in complaints] == [
        "KeyError: 'start'",
        "KeyError: 'ran'",
    ]


@virtual
async def test_observer_awaiting_a_cancelled_task_gets_the_next_event(tmp_path: Path) -> None:
    """A CancelledError in an observer is reported, and the observer gets the next event."""
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
    assert [complaint.endswith("the run continues: CancelledError: ") for complaint in complaints] == [True, True]


@pytest.mark.parametrize(("allow", "outcome"), [(True, "task"), (False, "declined")])
@virtual
async def test_task_list_changes_are_events(tmp_path: Path, allow: bool, outcome: str) -> None:
    """The event contains the new list, or states that the change was declined."""
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


async def test_sync_observer_runs_in_a_thread(tmp_path: Path) -> None:
    """A synchronous observer runs outside the main thread, and gets no more events after its removal."""
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
        with pytest.raises(ConfigError, match="an observer must be a function"):
            world.add_observer(3)  # type: ignore[arg-type]


def test_sync_api_delivers_all_events_before_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When `close` of the synchronous API returns, the observers have received all events."""
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
def test_each_outcome_is_formatted_as_one_line(changes: dict[str, Any], line: str) -> None:
    """The line of an event is indented by the depth of the agent."""
    stream = io.StringIO()
    progress(stream)(event(**changes))
    assert stream.getvalue() == f"{line}\n"


@given(st.text(), st.sampled_from(["start", "ran", "deny", "declined", "dry_run", "task"]))
def test_model_text_cannot_forge_a_line(text: str, outcome: Any) -> None:
    """Line breaks and terminal sequences are escaped."""
    import msgspec

    found = event(outcome=outcome, agent=text, tool=text, input={"command": text}, reason=text, result=text)
    line = progress_line(msgspec.structs.asdict(found))
    assert line.isprintable()
