"""The tools with which an agent spawns, queries and manages subagents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_doubles import Root
from orch_protocol.core.errors import (
    AgentNotFoundError,
    BudgetExceededError,
    ConcurrencyLimitError,
    DepthCapError,
    QueryTimeoutError,
)
from orch_protocol.core.messages import Reply, Text, ToolUse, Usage
from orch_protocol.core.worktrees import WorktreeReport
from orch_protocol.policy.builtin_tools import BUILTIN_TOOLS
from orch_protocol.services.agents.lifecycle import Kill, Killed
from orch_protocol.services.agents.query import Collect, QueryAgent, Submitted, Wait, Waited
from orch_protocol.services.agents.spawn import Spawn, Spawned
from orch_protocol.services.agents.status import AgentRow, ListAgents
from orch_worker.tools.api.base import ToolContext
from orch_worker.tools.dispatch.presets import PRESETS, load, make_toolbox
from orch_worker.tools.dispatch.toolbox import Toolbox

AGENTS = [name for name, row in BUILTIN_TOOLS.items() if row.category == "agents"]
SPAWNED = Spawned("b1", 7, "scout", "minimal", 2, 123)
REPLY = Reply("b1", "q", "It is 42.", tool_calls=3)
ROW = AgentRow("b1", 7, "scout", "a1", 2, "agent", "idle", "t" * 100, "m", "minimal", 1, "", "", None, 0, 0, 1, Usage())


async def call(root: Root, tool: str, /, **input: Any) -> tuple[str, bool]:
    """Call one tool and return the text of the result and whether it is an error."""
    box = Toolbox(load(AGENTS), ToolContext(Path("/"), agent_id="a1", call_root=root, seconds=100.0))
    outcome = await box.dispatch(ToolUse("c", tool, input))
    (block,) = outcome.result.content
    assert isinstance(block, Text)
    return block.text, outcome.result.is_error


async def test_spawn() -> None:
    """`spawn_subagent` passes task and preset to the root and returns id, number and name of the subagent."""
    root = Root(SPAWNED)
    text, _ = await call(root, "spawn_subagent", task="look", preset="minimal")
    assert msgspec.json.decode(text) == {"id": "b1", "seq": 7, "name": "scout"}
    assert root.asked == [("spawn", Spawn("look", preset="minimal"))]


async def test_spawn_returns_the_note_of_the_root() -> None:
    """The model learns, for example, that uncommitted changes of its folder are missing in a worktree."""
    root = Root(msgspec.structs.replace(SPAWNED, note="uncommitted changes in /p are missing"))
    text, _ = await call(root, "spawn_subagent", task="look", isolation="worktree")
    assert msgspec.json.decode(text)["note"] == "uncommitted changes in /p are missing"


async def test_spawn_with_a_query() -> None:
    """With `query`, `spawn_subagent` also queries the new subagent and returns its answer."""
    root = Root(SPAWNED, REPLY)
    text, _ = await call(root, "spawn_subagent", task="look", tools=["read_file"], query="what?")
    assert text.split("\n")[-1] == "It is 42."
    assert root.asked[0] == ("spawn", Spawn("look", tools=("read_file",)))
    assert root.asked[1] == ("query", QueryAgent("b1", "what?", timeout=98.0))


async def test_spawn_in_a_worktree(tmp_path: Path) -> None:
    """The answer ends with the changes in the worktree and the merge command for the user.

    The argument `isolation` is offered only inside a git repository.
    """
    report = WorktreeReport("/w", "orch/b1", "main", ("x",), 1)
    root = Root(SPAWNED, msgspec.structs.replace(REPLY, worktree=report))
    text, _ = await call(root, "spawn_subagent", task="look", isolation="worktree", query="what?")
    assert root.asked[0] == ("spawn", Spawn("look", isolation="worktree"))
    assert text.endswith(
        "1 file changed, 0 commits, 1 uncommitted\nno conflicts with main\nThe user can merge: orch merge b1"
    )
    for folder, offered in ((tmp_path, False), (tmp_path / "repo", True)):
        if offered:
            (folder / ".git").mkdir(parents=True)
        [spec] = make_toolbox(["spawn_subagent"], (), ToolContext(folder)).specs()
        assert ("isolation" in spec.input_schema["properties"]) == offered


async def test_spawn_with_an_agent_type() -> None:
    """The argument `agent` offers and describes the agent types of the context.

    Without agent types, it has no choices.
    """
    root = Root(SPAWNED)
    await call(root, "spawn_subagent", task="look", agent="reviewer")
    assert root.asked == [("spawn", Spawn("look", agent="reviewer"))]
    context = ToolContext(Path("/"), agent_types={"reviewer": "Reviews changes."})
    for given, choices in ((context, ["reviewer", None]), (ToolContext(Path("/")), None)):
        [spec] = make_toolbox(["spawn_subagent"], (), given).specs()
        shown = spec.input_schema["properties"].get("agent", {})
        assert shown.get("enum") == choices
        assert shown.get("description", "").endswith("\n- reviewer: Reviews changes.") == (choices is not None)


def test_models_for_subagents_are_described() -> None:
    """The description of `model` lists the allowed patterns."""
    context = ToolContext(Path("/"), subagent_models=("ollama:*", "acme:large"))
    [spec] = make_toolbox(["spawn_subagent"], (), context).specs()
    assert spec.input_schema["properties"]["model"]["description"].endswith(" Allowed models: ollama:*, acme:large.")


@pytest.mark.parametrize(
    ("tools", "note"),
    [
        (PRESETS["work"], ""),
        (PRESETS["investigate"], " With your tools you can grant: minimal, investigate."),
        (("read_file",), None),
    ],
)
def test_presets_for_subagents_are_described(tools: tuple[str, ...], note: str | None) -> None:
    """The description of `preset` says which presets the agent can grant. Without such a preset, it is hidden."""
    specs = make_toolbox([*tools, "spawn_subagent"], (), ToolContext(Path("/"))).specs()
    [spawn] = [spec for spec in specs if spec.name == "spawn_subagent"]
    shown = spawn.input_schema["properties"].get("preset")
    explained = "work: also change files, run commands and Python."
    assert (shown and shown["description"].partition(explained)[1:]) == (note if note is None else (explained, note))


async def test_query() -> None:
    """`query_subagent` returns the answer with its stop reason and its number of tool calls."""
    text, is_error = await call(Root(REPLY), "query_subagent", id="b1", prompt="what?")
    assert (text, is_error) == ("Subagent b1 (end_turn, 3 tool calls):\n\nIt is 42.", False)


async def test_query_outlasting_its_call() -> None:
    """If the query times out, the result is not an error and names the tool that returns the answer later."""
    text, is_error = await call(Root(QueryTimeoutError("late")), "query_subagent", id="b1", prompt="what?")
    assert (text, is_error) == (
        "No answer yet: subagent b1 works on. Take its answer later with collect_subagent.",
        False,
    )


async def test_query_without_waiting() -> None:
    """With `wait=False`, `query_subagent` submits the query and returns without the answer."""
    root = Root(Submitted("b1", "q"))
    text, _ = await call(root, "query_subagent", id="7", prompt="what?", wait=False)
    assert text == "Subagent b1 is at work: take its answer with collect_subagent."
    assert root.asked == [("submit", QueryAgent("7", "what?"))]


@pytest.mark.parametrize("wake", ["any", "all", 2])
async def test_query_with_wake_up_message(wake: Any) -> None:
    """The query is submitted without waiting, and the root receives the value of `wake`."""
    root = Root(Submitted("b1", "q"))
    await call(root, "query_subagent", id="b1", prompt="what?", wake=wake)
    assert root.asked == [("submit", QueryAgent("b1", "what?", wake=wake))]


@pytest.mark.parametrize(("wait", "patience"), [(True, 60.0), (False, 0.0)])
async def test_collect(wait: bool, patience: float) -> None:
    """`collect_subagent` waits up to 60 s for the answer, or not at all if `wait` is False."""
    root = Root(REPLY)
    text, _ = await call(root, "collect_subagent", id="b1", wait=wait)
    assert text.endswith("It is 42.")
    assert root.asked == [("collect", Collect("b1", timeout=patience))]


async def test_collected_answer_can_be_collected_again() -> None:
    """With `again=True`, an answer can be collected again, because a compaction may have removed it."""
    root = Root(REPLY)
    text, _ = await call(root, "collect_subagent", id=7, again=True)
    assert text.endswith("It is 42.")
    assert root.asked == [("collect", Collect("7", timeout=60.0, again=True))]


async def test_wait_reports_finished_and_running_agents() -> None:
    """`wait_subagents` returns finished and running subagents, and a timeout is not an error."""
    root = Root(Waited(("b1",), ("b2",)), QueryTimeoutError("late"))
    text, _ = await call(root, "wait_subagents", ids=["b1", "b2"], mode="any")
    assert msgspec.json.decode(text) == {"done": ["b1"], "pending": ["b2"]}
    assert root.asked == [("wait", Wait(("b1", "b2"), "any", 98.0))]
    text, is_error = await call(root, "wait_subagents", ids=["b2"])
    assert (text.startswith("Not yet"), is_error) == (True, False)


async def test_list_marks_own_agents_agents_below_and_peers() -> None:
    """Each line of `list_subagents` states the relation of the agent to the caller: own, below or peer."""
    below = msgspec.structs.replace(ROW, id="c1", name="helper", parent_id="b1", task="t")
    peer = msgspec.structs.replace(ROW, id="p1", name="expert", parent_id=None, task="t")
    root = Root([ROW, below, peer], [])
    text, _ = await call(root, "list_subagents")
    rows = [msgspec.json.decode(line) for line in text.splitlines()]
    assert rows[0] == {"id": "b1", "name": "scout", "relation": "own", "status": "idle", "task": "t" * 80}
    assert [row["relation"] for row in rows] == ["own", "below", "peer"]
    assert root.asked == [("list", ListAgents(all=True))]
    assert (await call(root, "list_subagents"))[0] == "There are no subagents."


async def test_list_counts_own_holders_in_one_line() -> None:
    """Killed agents, holders of other agents and deleted archives are not listed."""
    held = [msgspec.structs.replace(ROW, id=f"a{number}", kind="holder", status="cold") for number in range(6)]
    gone = msgspec.structs.replace(ROW, id="a6", kind="holder", deleted="2026-01-01T00:00:00.000Z")
    other = msgspec.structs.replace(ROW, id="a7", kind="holder", parent_id="b1")
    killed = msgspec.structs.replace(ROW, id="b2", status="killed")
    text, _ = await call(Root([ROW, killed, *held, gone, other]), "list_subagents")
    first, last = text.splitlines()
    assert msgspec.json.decode(first)["id"] == "b1"
    assert last == "6 holders of archived turns (latest: a2, a3, a4, a5): query_subagent asks one by its id"


async def test_kill_of_a_holder_says_that_the_archive_stays() -> None:
    """The text says whether a process was ended."""
    text, _ = await call(Root(Killed(("a1",), ("a1",))), "kill_subagent", id="a1")
    assert text.startswith("a1 holds an archive, which stays: ")
    assert text.endswith("Its process was ended.")
    text, _ = await call(Root(Killed((), ("a2",))), "kill_subagent", id="a2")
    assert text.endswith("It had no process.")
    assert (await call(Root(Killed(("b1",))), "kill_subagent", id="b1"))[0] == "Killed: b1."


async def test_spawn_passes_name_and_model() -> None:
    """`spawn_subagent` passes name and model to the root unchanged, because the root checks them."""
    root = Root(SPAWNED)
    await call(root, "spawn_subagent", task="look", name="scout", model="local:m")
    assert root.asked == [("spawn", Spawn("look", name="scout", model="local:m"))]


async def test_spawn_offers_presets_without_the_holder() -> None:
    """The argument `preset` is an enum, and the description says that rights cannot be extended after the spawn."""
    (spec,) = [tool.spec() for tool in load(["spawn_subagent"])]
    (options, _) = spec.input_schema["properties"]["preset"]["anyOf"]
    assert set(options["enum"]) == set(PRESETS) - {"holder"}
    assert "cannot be extended" in spec.description


async def test_collect_waits_for_its_timeout() -> None:
    """`collect_subagent` waits for the given number of seconds, but not longer than the call may take."""
    root = Root(REPLY, REPLY)
    await call(root, "collect_subagent", id="b1", timeout=5)
    await call(root, "collect_subagent", id="b1", timeout=500)
    assert [asked[1].timeout for asked in root.asked] == [5.0, 98.0]


async def test_kill_names_every_killed_agent() -> None:
    """`kill_subagent` passes one id to the root and names all agents that the root killed."""
    root = Root(Killed(("b2", "b1")))
    assert (await call(root, "kill_subagent", id="b1"))[0] == "Killed: b2, b1."
    assert root.asked == [("kill", Kill(("b1",)))]


@pytest.mark.parametrize(
    "error",
    [DepthCapError("depth cap 3 reached; report that you are blocked"), ConcurrencyLimitError("16 agents are alive")],
)
async def test_spawn_limit_instructs_the_model_to_report(error: Exception) -> None:
    """If a limit prevents the spawn, the error tells the model exactly once to report that it is blocked."""
    text, is_error = await call(Root(error), "spawn_subagent", task="look")
    assert is_error
    assert text.startswith(str(error))
    assert text.count("report that you are blocked") == 1


async def test_budget_error_of_a_spawn_names_no_command() -> None:
    """The model cannot run the command that raises the limit."""
    error = BudgetExceededError("only 0 processes are left; `orch resume 2 --max-processes N` sets another limit")
    text, _ = await call(Root(error), "spawn_subagent", task="look")
    assert text == "only 0 processes are left. Do not try again: report that you are blocked."


async def test_root_errors_become_error_results() -> None:
    """If the root raises an error, the result is an error with the same message."""
    text, is_error = await call(Root(AgentNotFoundError("no agent 'b9'")), "kill_subagent", id="b9")
    assert (text, is_error) == ("no agent 'b9'", True)
