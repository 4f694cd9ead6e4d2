"""Maps: one agent and one query for each item of a list."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orch import (
    AsyncOrchestrator,
    Budget,
    Config,
    ConfigError,
    Limits,
    MapProgress,
    ScriptedBackend,
    SubagentsConfig,
)
from orch.testing import fake_world
from orchestrator.root_double import Gate, World, opened
from virtual_clock import passed, until, virtual

ECHO = ScriptedBackend([{"loop": [{"echo": True}]}])
QUOTED = ScriptedBackend(['"82 degrees"'])
NUMBERS = [1, 2, 3]


@dataclass
class Review:
    verdict: str


def model_calls(world: AsyncOrchestrator) -> int:
    """Return the number of responses of all agents."""
    return world.supervisor.tree.agents.usage.model_calls


async def test_each_item_gets_an_agent_and_results_are_in_order(tmp_path: Path) -> None:
    """The agents are subagents of an agent with the name of the map, and have no process afterwards."""
    async with opened(tmp_path) as world:
        results = await world.map(NUMBERS, "Look at {item}", name="looks", backend=ECHO, tools=[], workers=2)
        assert [(each.key, each.item, each.value, each.error) for each in results] == [
            (str(n), n, f"Look at {n}", None) for n in NUMBERS
        ]
        parent, *agents = await world.agents()
        assert (parent.name, parent.status, [row.parent_id for row in agents]) == ("looks", "cold", [parent.id] * 3)
        assert {row.id for row in agents} == {each.agent for each in results}
        assert not world.supervisor.tree.agents.alive
        assert (await (await world.get(results[1].agent)).query("And now?")).text == "And now?"


@pytest.mark.parametrize(
    ("items", "prompt", "texts"),
    [
        ([Path("a.py"), "b c"], "{item}: {x}", ["a.py: {x}", "b c: {x}"]),
        ([{"path": "a", "n": [1]}], "{item.path} {item.n} {item}", ['a [1] {"path":"a","n":[1]}']),
        ([Review("ok")], "{item.verdict}", ["ok"]),
        ([1, 2], lambda n: ["twice", str(2 * n)], ["twice\n\n2", "twice\n\n4"]),
    ],
)
async def test_prompts(tmp_path: Path, items: list[Any], prompt: Any, texts: list[str]) -> None:
    """A prompt is a template, in which only `{item}` and `{item.field}` are replaced, or a function."""
    async with opened(tmp_path) as world:
        results = await world.map(items, prompt, backend=ECHO, tools=[])
        assert [each.value for each in results] == texts


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((["a"], "Review it"), r"has no \{item\}"),
        (([{"a": 1}], "{item.b}"), r"the prompt uses \{item.b\}, and the item .* has no 'b'"),
        ((["a", "b", "a"], "{item}"), "two items have the key 'a'"),
        (("abc", "{item}"), "items must be a list; got 'abc'"),
        ((["a"], 5), "prompt must be a template"),
        ((["a"], lambda _: " "), "the prompt for the item 'a' is empty"),
        (([""], "x {item}"), "key of an item must be a string and not empty"),
    ],
)
async def test_invalid_arguments_start_no_agent(tmp_path: Path, arguments: Any, why: str) -> None:
    """The error names the item."""
    async with opened(tmp_path) as world:
        with pytest.raises(ConfigError, match=why):
            await world.map(*arguments, backend=ECHO)
        with pytest.raises(ConfigError, match="workers must be a whole number above 0; got 0"):
            await world.map(["a"], "{item}", workers=0)
        assert await world.map([], "{item}") == []
        assert await world.agents(all=True) == []


async def test_values_have_the_requested_type(tmp_path: Path) -> None:
    """An invalid reply is corrected once. A second invalid reply is the error of its item only."""
    scripts = {"good": ['{"verdict": "ok"}'], "late": ["Hm.", '{"verdict": "late"}'], "bad": ["Hm.", "No."]}
    async with opened(tmp_path, run="r") as world:
        for _ in range(2):
            found = {
                name: (await world.map([name], "{item}", returns=Review, name="m", backend=ScriptedBackend(script)))[0]
                for name, script in scripts.items()
            }
            assert (found["good"].value, found["late"].value) == (Review("ok"), Review("late"))
            assert (found["bad"].value, found["bad"].error_type) == (None, "BadReplyError")
        assert [each.kept for each in found.values()] == [True, True, False]
        assert model_calls(world) == 1 + 2 + 2 * 2  # only the failed item is asked again, by a new agent


async def test_an_error_of_the_correction_names_the_reply_that_was_invalid(tmp_path: Path) -> None:
    """For example, the script of the test has no second reply."""
    async with opened(tmp_path) as world:
        backend = ScriptedBackend(['{"verdit": "ok"}'])
        (result,) = await world.map(["a"], "{item}", returns=Review, backend=backend)
        assert result.error_type == "BackendError"
        assert str(result.error).startswith("the script has no more items: ")
        assert '(Object missing required field `verdict`): \'{"verdit": "ok"}\'' in str(result.error)


async def test_a_type_of_values_needs_a_model(tmp_path: Path) -> None:
    """Without a configured model, a map starts no agent, and a query asks nothing."""
    async with opened(tmp_path) as world:
        with pytest.raises(ConfigError, match=r"^no model configured: .*Run `orch init`, or pass model= or backend="):
            await world.map(NUMBERS, "{item}", returns=Review)
        assert await world.agents(all=True) == []
        agent = await world.spawn("read")
        with pytest.raises(ConfigError, match=r"^no model configured: "):
            await agent.query("a", returns=Review)
        with pytest.raises(ConfigError, match=r"^no model configured: "):
            agent.submit("a", returns=Review)
        assert (await agent.state()).queries == 0
        (asked,) = await world.ask_all([agent], "a", returns=Review)
        assert str(asked.error).startswith("no model configured: ")
        assert (await agent.state()).queries == 1


async def test_finished_items_cost_nothing_when_the_map_runs_again(tmp_path: Path) -> None:
    """Another prompt, setting or name of the map asks again. Other limits and the order of items do not."""
    options: dict[str, Any] = {"backend": ECHO, "tools": []}
    async with World(tmp_path, run="r") as world:
        await world.map(NUMBERS, "Look at {item}", **options)
    async with World(tmp_path, run="r") as world:
        assert model_calls(world) == 3
        again = await world.map([3, 1, 4], "Look at {item}", limits=Limits(max_turns=7), **options)
        assert [(each.value, each.kept) for each in again] == [
            ("Look at 3", True),
            ("Look at 1", True),
            ("Look at 4", False),
        ]
        assert model_calls(world) == 4
        await world.map([1], "See {item}", **options)
        await world.map([1], "Look at {item}", **options | {"tools": ["read_file"]})
        await world.map([1], "Look at {item}", name="other", **options)
        assert model_calls(world) == 7


async def test_a_question_to_the_agent_of_an_item_keeps_the_reply_of_the_map(tmp_path: Path) -> None:
    """The kept reply costs nothing afterwards. A deleted session is asked again."""
    async with opened(tmp_path, run="r") as world:
        (first,) = await world.map([1], "Look at {item}", backend=ECHO, tools=[])
        agent = await world.get(first.agent)
        assert (await agent.query("Why?")).text == "Why?"
        (again,) = await world.map([1], "Look at {item}", backend=ECHO, tools=[])
        assert (again.value, again.kept, again.agent) == ("Look at 1", True, agent.id)
        await world.sessions.forget(agent.id)
        (after,) = await world.map([1], "Look at {item}", backend=ECHO, tools=[])
        assert (after.value, after.kept, after.agent == agent.id) == ("Look at 1", False, False)


async def test_the_name_of_a_map_is_no_other_reference(tmp_path: Path) -> None:
    """A prefix of an id is a name. A number is refused, as for `spawn`. A killed map starts again."""
    async with opened(tmp_path, run="r") as world:
        while (name := (await world.scripted("x")).id[:4]).isdigit():
            pass  # digits alone are a number
        for _ in range(2):
            (result,) = await world.map([1], "{item}", name=name, backend=ECHO, tools=[])
            assert (result.value, result.kept) == ("1", False)
            parent = (await (await world.get(result.agent)).state()).parent_id
            await world.kill(str(parent))
        with pytest.raises(ConfigError, match="digits refer to a sequence number"):
            await world.map([1], "{item}", name="1", backend=ECHO)


async def test_one_failed_item_does_not_stop_the_others(tmp_path: Path) -> None:
    """With `stop_on_error`, no more items are started after an error."""
    script = ScriptedBackend([{"error": "BackendError", "message": "it broke"}, "done"])
    async with opened(tmp_path, run="r") as world:
        results = await world.map(NUMBERS, "{item}", backend=script, tools=[], workers=1, stop_on_error=True)
        assert [each.error_type for each in results] == ["BackendError", "", ""]
        assert all(str(each.error).startswith("not started: the item '1' failed: it broke") for each in results[1:])
        items = ["```json\n1\n```", "x", "```json\n3\n```"]
        results = await world.map(items, "{item}", returns={"type": "integer"}, backend=ECHO, tools=[], workers=1)
        assert [(each.value, each.error_type) for each in results] == [(1, ""), (None, "BadReplyError"), (3, "")]


async def test_a_prompt_function_that_raises_fails_only_its_item(tmp_path: Path) -> None:
    """The error names the item and the exception. With `stop_on_error`, later items are not started."""
    (tmp_path / "pump.md").write_text("82 degrees")
    files = [tmp_path / "missing.md", tmp_path / "pump.md"]
    async with opened(tmp_path / "home") as world:
        missing, pump = await world.map(files, Path.read_text, returns={"type": "string"}, backend=QUOTED, tools=[])
        assert (pump.value, pump.error) == ("82 degrees", None)
        assert (missing.value, missing.agent, missing.exit_code) == (None, "", 1)
        assert missing.error_type == "FileNotFoundError"
        assert "missing.md': FileNotFoundError: [Errno 2] No such file" in str(missing.error)
        stopped = await world.map(files, Path.read_text, backend=ECHO, tools=[], workers=1, stop_on_error=True)
        assert str(stopped[1].error).startswith("not started: the item ")


@virtual
async def test_at_most_workers_agents_work_at_a_time(tmp_path: Path) -> None:
    """More workers than `max_concurrent` wait for places."""
    for limit, workers in ((16, 2), (2, 5)):
        gate = Gate()
        config = Config(subagents=SubagentsConfig(max_concurrent=limit))
        async with opened(tmp_path / str(limit), config=config) as world:
            script = ScriptedBackend([{"tool": "gate"}, "done"])
            mapping = asyncio.ensure_future(
                world.map(range(5), "{item}", backend=script, tools=[gate.tool()], workers=workers)
            )
            await until(lambda gate=gate: gate.calls >= 2)
            await passed(5)
            assert (gate.calls, len(world.supervisor.tree.agents.alive)) == (2, 2)
            gate.open.set()
            assert [each.value for each in await mapping] == ["done"] * 5


async def test_the_budget_of_a_map_covers_all_items_and_runs(tmp_path: Path) -> None:
    """When it is used up, no more items are started. After a raise, the same call continues."""
    options: dict[str, Any] = {"backend": ECHO, "tools": [], "workers": 1}
    async with opened(tmp_path, run="r") as world:
        results = await world.map(range(5), "{item}", budget=Budget(max_model_calls=2), **options)
        assert [each.error_type for each in results[:3]] == ["", "", "BudgetExceededError"]
        assert all(str(each.error).startswith("not started: the item '2' failed") for each in results[3:])
        results = await world.map(range(5), "{item}", budget=Budget(max_model_calls=5), **options)
        assert [(str(each.value)[-1], each.kept) for each in results] == [(str(n), n < 2) for n in range(5)]
        assert model_calls(world) == 5


async def test_progress(tmp_path: Path) -> None:
    """The function is called when an item starts or ends. Its errors do not stop the map."""
    seen: list[MapProgress] = []

    def watch(progress: MapProgress) -> None:
        seen.append(progress)
        raise RuntimeError

    async with opened(tmp_path, run="r") as world:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        await world.map([1], "{item}", backend=ECHO, tools=[])
        await world.map([1, 2], "{item}", backend=ECHO, tools=[], workers=1, on_progress=watch)
    assert [(each.total, each.done, each.kept, each.working) for each in seen] == [
        (2, 0, 0, 1),
        (2, 1, 1, 0),
        (2, 1, 1, 1),
        (2, 2, 1, 0),
    ]
    assert (seen[1].seconds_left, seen[3].seconds_left) == (None, 0.0)


async def test_a_cancelled_map_cancels_its_turns_and_can_continue(tmp_path: Path) -> None:
    """Only the items that were in progress are asked again, by the same agents."""
    gate = Gate()
    options: dict[str, Any] = {"workers": 1, "tools": [gate.tool()]}
    script = ScriptedBackend([{"tool": "gate"}, "done"])
    async with opened(tmp_path, run="r") as world:
        mapping = asyncio.ensure_future(world.map([1, 2], "{item}", backend=script, **options))
        await gate.called.wait()
        mapping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await mapping
        await world.wait(*[row.id for row in await world.agents()])
        gate.open.set()
        results = await world.map([1, 2], "{item}", backend=script, **options)
        assert [(each.value, each.kept) for each in results] == [("done", False)] * 2
        assert len(await world.agents(all=True)) == 3


async def test_functions_of_the_program_are_tools_of_each_agent(tmp_path: Path) -> None:
    """The arguments of `spawn` apply to each agent."""
    calls: list[str] = []

    def note(text: str) -> str:
        """Note a text."""
        calls.append(text)
        return "noted"

    async with AsyncOrchestrator(home=tmp_path, env={}, **fake_world()) as o:
        script = ScriptedBackend([{"tool": "note", "input": {"text": "x"}}, "done"])
        results = await o.map([1, 2], "{item}", backend=script, tools=[note])
    assert ([each.value for each in results], calls) == (["done", "done"], ["x", "x"])
