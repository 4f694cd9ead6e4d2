"""`tool_executor=` of `spawn` and `session`: the tools of the agent, and the rules for their calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from msgspec.structs import replace

from agent_history import EAGER
from orch import (
    AsyncSubagent,
    Block,
    Budget,
    Config,
    Executor,
    Limits,
    PolicyConfig,
    ScriptedBackend,
    ToolContext,
    ToolOutput,
    ToolSpec,
    Usage,
    hook,
    tool,
)
from orch.regression.replay_agent import replay_session
from orch.sessions.export import read_agent_conversation
from orch_protocol.core.errors import ConfigError, LaunchError
from orch_protocol.core.messages import Message, ToolResult, text_of
from orch_worker.session.session_reader import read_session
from orchestrator.root_double import NEST, World, nesting, opened

PATH = f"{__name__}:House"
SCHEMA = {"type": "object", "properties": {"part": {"type": "string"}}}


class House(Executor):
    """An executor with the stock and the price of parts. `names` are the tools that it lists."""

    names: ClassVar[tuple[str, ...]] = ("stock", "price")
    made: ClassVar[int] = 0
    calls: ClassVar[list[tuple[str, str]]] = []
    outputs: ClassVar[dict[str, ToolOutput]] = {}

    def __init__(self) -> None:
        type(self).made += 1

    def list(self) -> Sequence[ToolSpec]:
        return [ToolSpec(name, f"The {name} of a part.", SCHEMA) for name in self.names]

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> Any:
        self.calls.append((name, context.agent_id))
        if arguments.get("part") == "unknown":
            raise LookupError("no such part")
        if arguments.get("part") == "slow":
            await asyncio.Event().wait()
        return self.outputs.get(name, {name: 3})


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset what other tests recorded in House."""
    monkeypatch.setattr(House, "made", 0)
    monkeypatch.setattr(House, "calls", [])
    monkeypatch.setattr(House, "outputs", {})


@pytest.fixture(params=["object", "class"])
def house(request: pytest.FixtureRequest) -> Executor | str:
    """An executor object of the program, or the path of a class that the agent's process loads."""
    return House() if request.param == "object" else PATH


def call(tool: str, part: str = "seal") -> dict[str, Any]:
    """Return a scripted response that calls `tool`."""
    return {"tool": tool, "input": {"part": part}}


async def texts(agent: AsyncSubagent) -> list[str]:
    """Return the texts of the tool results in the agent's conversation."""
    messages = read_session(Path((await agent.state()).folder)).messages
    blocks = (block for message in messages for block in message.content)
    return [text_of(Message("user", block.content)) for block in blocks if isinstance(block, ToolResult)]


def active(o: World, agent: AsyncSubagent) -> tuple[str, ...]:
    """Return the tools that the agent may use, as the root knows them."""
    return o.supervisor.tree.agents[agent.id].spec.active


class TestTools:
    """The tools of an agent with an executor."""

    async def test_executor_replaces_built_in_tools(self, tmp_path: Path, house: Executor | str) -> None:
        """A session has only the tools of the executor, and their calls reach the executor."""
        script = ScriptedBackend([call("stock"), call("read_file"), "3 left"])
        async with opened(tmp_path) as o:
            session = await o.session(tool_executor=house, backend=script)
            assert (await session.run("How many seals?")).text == "3 left"
            refused = "Tool 'read_file' is not granted to this agent. Granted: stock, price."
            assert await texts(session) == ['{"stock":3}', refused]
            assert House.calls == [("stock", session.id)]
            assert active(o, session) == ("stock", "price")

    async def test_tools_are_those_named(self, tmp_path: Path, house: Executor | str) -> None:
        """`tools` can name tools of the executor, tools of the program and built-in tools."""

        @tool
        def weigh(part: str) -> str:
            """Weigh a part."""
            return f"the {part} weighs 2 kg"

        async with opened(tmp_path) as o:
            calls = [call(name) for name in ("price", "stock", "weigh")]
            agent = await o.scripted(*calls, "done", tool_executor=house, tools=["price", "read_file", weigh])
            await agent.query("Go")
            refused = "Tool 'stock' is not granted to this agent. Granted: read_file, weigh, price."
            assert await texts(agent) == ['{"price":3}', refused, "the seal weighs 2 kg"]
            assert active(o, agent) == ("read_file", "weigh", "price")
            without = await o.scripted("done", tool_executor=house, tools=["read_file"])
            assert active(o, without) == ("read_file",)

    async def test_preset_adds_built_in_tools(self, tmp_path: Path, house: Executor | str) -> None:
        """With a preset, an agent has the tools of the preset and all tools of the executor."""
        async with opened(tmp_path) as o:
            agent = await o.scripted("done", tool_executor=house, preset="minimal")
            assert active(o, agent) == ("list_files", "grep_files", "read_file", "stock", "price")

    async def test_revoked_tool_is_refused(self, tmp_path: Path, house: Executor | str) -> None:
        """A tool of the executor can be revoked, and its other tools can still be called."""
        async with opened(tmp_path) as o:
            agent = await o.scripted(call("stock"), call("price"), "done", tool_executor=house)
            await agent.revoke_tools(keep=["price"])
            await agent.query("Go")
            refused, price = await texts(agent)
            assert "it was revoked for this agent" in refused
            assert price == '{"price":3}'
            assert active(o, agent) == ("price",)

    async def test_unknown_name_in_tools_is_an_error(self, tmp_path: Path, house: Executor | str) -> None:
        """The error for an unknown name in `tools` names the executor and its tools."""
        async with opened(tmp_path) as o:
            with pytest.raises(
                (ConfigError, LaunchError), match=r"unknown tool 'stok': tool executor .* lists stock, price"
            ):
                await o.scripted("done", tool_executor=house, tools=["stok"])

    async def test_name_of_a_tool_of_the_program_is_an_error(self, tmp_path: Path, house: Executor | str) -> None:
        """The names conflict only if the agent has both: with a preset, but not with the executor alone."""
        async with opened(tmp_path) as o:
            o.register_tool(tool(name="stock")(lambda: "none"))
            with pytest.raises(LaunchError, match="House' lists 'stock', which is also a tool of the program"):
                await o.scripted("done", tool_executor=house, preset="minimal")
            assert active(o, await o.scripted("done", tool_executor=house)) == ("stock", "price")

    async def test_subagents_do_not_have_them(self, tmp_path: Path, house: Executor | str) -> None:
        """A subagent has neither the executor of its parent nor the tools of the executor."""
        async with opened(tmp_path, config=nesting()) as o:
            script = [{"tool": "spawn_subagent", "input": {"task": "look"}}, "done"]
            parent = await o.scripted(*script, tool_executor=house, tools=["stock", *NEST])
            await parent.query("Go")
            child = next(row for row in await o.agents() if row.parent_id == parent.id)
            spec = o.supervisor.tree.agents[child.id].spec
            assert (spec.executor, spec.active) == (None, ())

    @pytest.mark.parametrize(
        ("executor", "why"),
        [
            (House, "tool_executor must be an object of an orch.Executor subclass"),
            (3, "tool_executor must be an object of an orch.Executor subclass"),
            ("house", "invalid tool_executor 'house': use the import path of a class, package.module:Class"),
            ("house:", "invalid tool_executor"),
            (f"{__name__}:Nowhere", "cannot import the tool executor .* has no attribute 'Nowhere'"),
            ("no_such_house:House", "cannot import the tool executor 'no_such_house:House': ModuleNotFoundError"),
            (f"{__name__}:call", "must be a subclass of orch.Executor"),
            (f"{__name__}:Executor", "cannot create the tool executor .*abstract"),
        ],
    )
    async def test_invalid_executor_is_an_error(self, tmp_path: Path, executor: Any, why: str) -> None:
        """An executor that cannot be used is an error when the agent is spawned."""
        async with opened(tmp_path) as o:
            with pytest.raises((ConfigError, LaunchError), match=why):
                await o.session(tool_executor=executor, backend=ScriptedBackend(["done"]))


class TestRules:
    """The rules for each call, and the handling of its result."""

    async def test_policy_applies(self, tmp_path: Path, house: Executor | str) -> None:
        """A denied call does not reach the executor; a call that needs an approval is a question to the approver."""
        rules = PolicyConfig(permissions={"stock": "deny", "price": "ask"})
        asked: list[str] = []
        async with opened(
            tmp_path, config=Config(policy=rules), approve=lambda question: asked.append(question.tool) or False
        ) as o:
            agent = await o.scripted(call("stock"), call("price"), "done", tool_executor=house)
            await agent.query("Go")
            denied, declined = await texts(agent)
            assert "denied" in denied.lower()
            assert "price" in declined
            assert (asked, House.calls) == (["price"], [])

    @pytest.mark.parametrize("mode", ["ask", "deny"])
    async def test_approval_mode_applies(
        self, tmp_path: Path, house: Executor | str, mode: Literal["ask", "deny"]
    ) -> None:
        """Tools of an executor follow `approval_mode`; functions of the program do not."""

        @tool
        def scale(part: str) -> str:
            """Weigh the part."""
            return f"{part}: 3 kg"

        asked: list[str] = []
        async with opened(
            tmp_path,
            config=Config(policy=PolicyConfig(approval_mode=mode)),
            approve=lambda question: asked.append(question.tool) or False,
        ) as o:
            script = ScriptedBackend([call("stock"), call("scale"), "done"])
            session = await o.session(tool_executor=house, tools=["stock", scale], backend=script)
            await session.run("Go")
            refused, weighed = await texts(session)
            assert "stock is a tool of an executor, which may run code" in refused
            assert weighed == "seal: 3 kg"
            assert (asked, House.calls) == (["stock"] if mode == "ask" else [], [])

    async def test_hooks_apply(self, tmp_path: Path, house: Executor | str) -> None:
        """A hook can block a call, and another hook can change a result."""

        @hook("tool_call")
        def keep_prices(event: Any, _ctx: Any) -> Any:
            return Block("prices are secret") if event.name == "price" else None

        @hook("tool_result")
        def shout(event: Any, _ctx: Any) -> Any:
            return event.patch(text=event.text.upper())

        async with opened(tmp_path) as o:
            o.register_hook(keep_prices)
            o.register_hook(shout)
            agent = await o.scripted(call("stock"), call("price"), "done", tool_executor=house)
            await agent.query("Go")
            stock, price = await texts(agent)
            assert stock == '{"STOCK":3}'
            assert "PRICES ARE SECRET" in price.upper()
            assert [name for name, _ in House.calls] == ["stock"]

    async def test_budget_applies(self, tmp_path: Path, house: Executor | str) -> None:
        """A call that the budget does not cover does not reach the executor."""
        async with opened(tmp_path) as o:
            script = [call("stock"), call("price"), "done"]
            agent = await o.scripted(*script, tool_executor=house, budget=Budget(max_tool_calls=1))
            reply = await agent.query("Go")
            assert (reply.stop_reason, len(House.calls)) == ("budget", 1)

    async def test_failures_name_executor_and_tool(self, tmp_path: Path, house: Executor | str) -> None:
        """The turn continues after an exception and after a call that exceeds its time limit."""
        script = [call("stock", "unknown"), call("stock", "slow"), call("stock"), "done"]
        async with opened(tmp_path) as o:
            agent = await o.scripted(*script, tool_executor=house, limits=Limits(tool_seconds=0.05))
            assert (await agent.query("Go")).text == "done"
            failed, late, last = await texts(agent)
            label = f"Tool 'stock' of executor '{PATH}'"
            assert failed == f"{label} failed: LookupError: no such part"
            assert late.startswith(f"{label} did not finish within 0.05 s")
            assert last == '{"stock":3}'

    async def test_tool_outputs_are_complete(self, tmp_path: Path, house: Executor | str) -> None:
        """Changed files and usage count for the turn, and a `local` result marks the agent as local."""
        output = ToolOutput("3", files_changed=("stock.csv",), usage=Usage(input_tokens=7000, cost_usd=0.5))
        House.outputs["stock"], House.outputs["price"] = output, ToolOutput("two euros", local=True)

        @tool
        def weigh(part: str) -> ToolOutput:  # noqa: ARG001
            """Weigh a part."""
            return output

        async with opened(tmp_path) as o:
            script, tools = [call("stock"), call("price"), call("weigh"), "done"], ["stock", "price", weigh]
            agent = await o.scripted(*script, tool_executor=house, tools=tools)
            reply = await agent.query("Go")
            assert reply.files_changed == ("stock.csv",)
            assert reply.usage.input_tokens > 14_000
            assert reply.usage.cost_usd == 1.0
            assert await texts(agent) == ["3", "two euros", "3"]
            assert o.supervisor.tree.agents[agent.id].spec.local

    async def test_plan_mode_applies(self, tmp_path: Path, house: Executor | str) -> None:
        """The effects of the executor's tools are unknown, so their calls need an approved plan."""
        async with opened(tmp_path) as o:
            agent = await o.scripted(call("stock"), "done", tool_executor=house, plan=True)
            await agent.query("Go")
            assert House.calls == []


class TestRestart:
    """Executors when processes end."""

    async def test_class_is_loaded_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A new process has a new object; the agent keeps its tools and gets no new ones."""
        async with opened(tmp_path) as o:
            agent = await o.scripted(call("price"), "one", call("stock"), call("weight"), "two", tool_executor=PATH)
            await agent.query("Go")
            await agent.kill()
            monkeypatch.setattr(House, "names", ("weight", "stock"))
            agent = await o.resume(agent.id)
            assert (await agent.query("Go on")).text == "two"
            assert await texts(agent) == [
                '{"price":3}',
                '{"stock":3}',
                "Tool 'weight' is not granted to this agent. Granted: stock.",
            ]
            assert House.made == 2
            assert active(o, agent) == ("stock", "price")

    async def test_object_serves_later_processes(self, tmp_path: Path) -> None:
        """Each process of the agent uses the same object."""
        async with opened(tmp_path) as o:
            agent = await o.scripted(call("price"), "one", call("stock"), "two", tool_executor=House())
            await agent.query("Go")
            await agent.kill()
            agent = await o.resume(agent.id)
            await agent.query("Go on")
            assert await texts(agent) == ['{"price":3}', '{"stock":3}']
            assert House.made == 1

    async def test_object_ends_with_its_program(self, tmp_path: Path) -> None:
        """Calls give error results until a program passes an object when it resumes the session."""
        async with opened(tmp_path, run="shop") as o:
            script = ScriptedBackend(["one", call("stock"), "two", call("stock"), "three"])
            await o.session(tool_executor=House(), backend=script)
        async with opened(tmp_path, run="shop") as o:
            session = await o.session(resume=True)
            await session.run("Go")
            await session.run("Go on")
            gone = f"Tool 'stock' is not available: the program that passed executor '{PATH}' ended"
            assert await texts(session) == [gone]
            session = await o.session(resume=True, tool_executor=House())
            await session.run("Go on")
            assert await texts(session) == [gone, '{"stock":3}']

    async def test_fork_has_the_executor(self, tmp_path: Path, house: Executor | str) -> None:
        """A call in the fork reaches the executor of the source."""
        async with opened(tmp_path) as o:
            agent = await o.scripted("one", call("stock"), "two", tool_executor=house)
            await agent.query("Go")
            copy = await agent.session.fork()
            await copy.query("Go on")
            assert await texts(copy) == ['{"stock":3}']
            assert active(o, copy) == ("stock", "price")

    async def test_archived_turns_have_no_executor(self, tmp_path: Path, house: Executor | str) -> None:
        """A holder has no tools; its agent has the tools of the executor in addition to the archive tools."""
        async with opened(tmp_path, config=Config(archival=replace(EAGER, async_=False))) as o:
            agent = await o.scripted(call("stock"), "one", call("price"), "two", tool_executor=house)
            holder = (await agent.query("Go")).archived_to or ""
            assert (await agent.query("Go on")).text == "two"
            assert [name for name, _ in House.calls] == ["stock", "price"]
            assert {"stock", "price", "search_archive"} <= set(active(o, agent))
            spec = o.supervisor.tree.agents[(await o.get(holder)).id].spec
            assert (spec.executor, spec.active) == (None, ())

    async def test_recorded_conversation_replays_without_the_executor(
        self, tmp_path: Path, house: Executor | str
    ) -> None:
        """In a replay, the results of the executor's tools come from the recording."""
        async with opened(tmp_path / "home") as o:
            agent = await o.scripted(call("stock"), "one", tool_executor=house, cwd=tmp_path)
            await agent.query("Go")
            found, spec = read_agent_conversation(await agent.state()), o.supervisor.tree.agents[agent.id].spec
        story = await asyncio.to_thread(replay_session, found, spec)
        assert [[tool[0] for tool in offer] for offer in story["offers"]] == [["stock", "price"]]
        assert len(House.calls) == 1
