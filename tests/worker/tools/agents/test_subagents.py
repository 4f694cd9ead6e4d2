"""The tools by which an agent has agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_doubles import Root
from orch_protocol.core.errors import AgentNotFoundError, ConcurrencyLimitError, DepthCapError, QueryTimeoutError
from orch_protocol.core.messages import Reply, Text, ToolUse, Usage
from orch_protocol.services.requests import (
    AgentRow,
    Collect,
    Kill,
    Killed,
    ListAgents,
    QueryAgent,
    Spawn,
    Spawned,
    Submitted,
    Wait,
    Waited,
)
from orch_worker.tools.api.base import ToolContext
from orch_worker.tools.dispatch.presets import BUILTIN, load
from orch_worker.tools.dispatch.toolbox import Toolbox

AGENTS = [name for name, row in BUILTIN.items() if row.category == "agents"]
SPAWNED = Spawned("b1", 7, "scout", "minimal", 2, 123)
REPLY = Reply("b1", "q", "It is 42.", tool_calls=3)
ROW = AgentRow("b1", 7, "scout", "a1", 2, "agent", "idle", "t" * 100, "m", "minimal", 1, "", "", None, 0, 0, 1, Usage())


async def call(root: Root, name: str, **input: Any) -> tuple[str, bool]:
    """Return text and error mark of one call."""
    box = Toolbox(load(AGENTS), ToolContext(Path("/"), call_root=root, seconds=100.0))
    outcome = await box.dispatch(ToolUse("c", name, input))
    (block,) = outcome.result.content
    assert isinstance(block, Text)
    return block.text, outcome.result.is_error


async def test_spawn() -> None:
    """Spawning returns id, number and name."""
    root = Root(SPAWNED)
    text, _ = await call(root, "spawn_subagent", task="look", preset="minimal")
    assert msgspec.json.decode(text) == {"id": "b1", "seq": 7, "name": "scout"}
    assert root.asked == [("spawn", Spawn("look", preset="minimal"))]


async def test_spawn_with_a_query() -> None:
    """A first question is asked and its answer comes along."""
    root = Root(SPAWNED, REPLY)
    text, _ = await call(root, "spawn_subagent", task="look", tools=["read_file"], query="what?")
    assert text.split("\n")[-1] == "It is 42."
    assert root.asked[0] == ("spawn", Spawn("look", tools=("read_file",)))
    assert root.asked[1] == ("query", QueryAgent("b1", "what?", timeout=98.0))


async def test_query() -> None:
    """A query returns the answer with how it ended."""
    text, is_error = await call(Root(REPLY), "query_subagent", id="b1", prompt="what?")
    assert (text, is_error) == ("Subagent b1 (end_turn, 3 tool calls):\n\nIt is 42.", False)


async def test_query_outlasting_its_call() -> None:
    """A query is waited for less long than the call may take; the child works on and nothing is lost."""
    text, is_error = await call(Root(QueryTimeoutError("late")), "query_subagent", id="b1", prompt="what?")
    assert (text, is_error) == (
        "No answer yet: subagent b1 works on. Take its answer later with collect_subagent.",
        False,
    )


async def test_query_without_waiting() -> None:
    """A submitted query returns at once."""
    root = Root(Submitted("b1", "q"))
    text, _ = await call(root, "query_subagent", id="7", prompt="what?", wait=False)
    assert text == "Subagent b1 is at work: take its answer with collect_subagent."
    assert root.asked == [("submit", QueryAgent("7", "what?"))]


@pytest.mark.parametrize("wake", ["any", "all", 2])
async def test_query_that_wakes(wake: Any) -> None:
    """A query can ask for a message when it, or so many of its kind, are done; it does not wait then."""
    root = Root(Submitted("b1", "q"))
    await call(root, "query_subagent", id="b1", prompt="what?", wake=wake)
    assert root.asked == [("submit", QueryAgent("b1", "what?", wake=wake))]


@pytest.mark.parametrize(("wait", "patience"), [(True, 98.0), (False, 0.0)])
async def test_collect(wait: bool, patience: float) -> None:
    """An answer is collected, with or without waiting for it."""
    root = Root(REPLY)
    text, _ = await call(root, "collect_subagent", id="b1", wait=wait)
    assert text.endswith("It is 42.")
    assert root.asked == [("collect", Collect("b1", timeout=patience))]


async def test_collect_again() -> None:
    """An answer that was taken is to be had once more: a compaction may have taken it away."""
    root = Root(REPLY)
    text, _ = await call(root, "collect_subagent", id=7, again=True)
    assert text.endswith("It is 42.")
    assert root.asked == [("collect", Collect("7", timeout=98.0, again=True))]


async def test_wait() -> None:
    """Waiting says who is done and who is not, also when time ran out."""
    root = Root(Waited(("b1",), ("b2",)), QueryTimeoutError("late"))
    text, _ = await call(root, "wait_subagents", ids=["b1", "b2"], mode="any")
    assert msgspec.json.decode(text) == {"done": ["b1"], "pending": ["b2"]}
    assert root.asked == [("wait", Wait(("b1", "b2"), "any", 98.0))]
    text, is_error = await call(root, "wait_subagents", ids=["b2"])
    assert (text.startswith("Not yet"), is_error) == (True, False)


async def test_list() -> None:
    """Listing gives one line an agent."""
    root = Root([ROW], [])
    text, _ = await call(root, "list_subagents")
    assert msgspec.json.decode(text) == {"id": "b1", "name": "scout", "status": "idle", "task": "t" * 80}
    assert root.asked == [("list", ListAgents())]
    assert (await call(root, "list_subagents"))[0] == "There are no subagents."


async def test_kill() -> None:
    """Killing names everyone who was killed."""
    root = Root(Killed(("b2", "b1")))
    assert (await call(root, "kill_subagent", id="b1"))[0] == "Killed: b2, b1."
    assert root.asked == [("kill", Kill(("b1",)))]


@pytest.mark.parametrize(
    "error",
    [DepthCapError("depth cap 3 reached; report that you are blocked"), ConcurrencyLimitError("16 agents are alive")],
)
async def test_limits_say_to_report(error: Exception) -> None:
    """A limit is an error result that tells the model once to report that it is blocked."""
    text, is_error = await call(Root(error), "spawn_subagent", task="look")
    assert is_error
    assert text.startswith(str(error))
    assert text.count("report that you are blocked") == 1


async def test_errors_of_the_root_are_results() -> None:
    """What the root refuses is an error result in its words."""
    text, is_error = await call(Root(AgentNotFoundError("no agent 'b9'")), "kill_subagent", id="b9")
    assert (text, is_error) == ("no agent 'b9'", True)
