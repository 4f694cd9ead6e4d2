"""Python in separate processes, and agents that use tools to change files."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from integration.worker_processes import eventually
from leak_check import command_lines
from orch import Config, ScriptedBackend, SubagentsConfig, tool
from orch_protocol.core.messages import Message, ToolResult, text_of
from orch_worker.session.session_reader import read_session
from orch_worker.tools.api.base import Tool, ToolContext, ToolError, ToolOutput
from orch_worker.tools.python.python import py_help, run_python_script

Open = Any


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(tmp_path, env={"CENSUS": os.environ["CENSUS"]}, seconds=30.0)


async def run(tool: Tool, context: ToolContext, **input: Any) -> ToolOutput:
    return await tool.run(context, input)


class TestScript:
    """The tool run_python_script."""

    @pytest.mark.parametrize(
        ("code", "text"),
        [
            ("print(1)", "1\n[exit status 0]"),
            ("raise SystemExit(4)", "[exit status 4]"),
            ("import mine; print(mine.x)", "7\n[exit status 0]"),
            ("print(input())", "EOFError: EOF when reading a line\n[exit status 1]"),
            ("print('\u00e9\U0001f600')", "\u00e9\U0001f600\n[exit status 0]"),
            ("import os; os.kill(os.getpid(), 9)", "[signal SIGKILL]"),
        ],
    )
    async def test_script_runs_in_its_own_process(self, context: ToolContext, code: str, text: str) -> None:
        """A script runs in the agent's folder, and the result has its output and its exit status."""
        (context.cwd / "mine.py").write_text("x = 7\n")
        output = await run(run_python_script, context, code=code)
        assert output.text.endswith(text)
        assert output.is_error == ("[exit status 0]" not in text)

    async def test_endless_script_times_out(self, context: ToolContext) -> None:
        """The result contains the output before the timeout, even if the script blocks in C code."""
        output = await run(run_python_script, context, code="print('up', flush=True)\nsum(range(10**13))", timeout=0.5)
        assert output.text.startswith("up\n[timed out")


class TestHelp:
    """The tool py_help."""

    @pytest.mark.parametrize(
        ("topic", "words"),
        [("json.dumps", "Serialize ``obj``"), ("pathlib.Path.glob", "glob(self, pattern"), ("with", "context manager")],
    )
    async def test_topics(self, context: ToolContext, topic: str, words: str) -> None:
        """`py_help` shows the documentation of functions, methods and keywords."""
        output = await run(py_help, context, topic=topic)
        assert words in output.text
        assert "exit status" not in output.text

    @pytest.mark.parametrize("topic", ["mine", "nothing.like.it", "mine.x", ""])
    async def test_help_imports_no_file_of_the_folder(self, context: ToolContext, topic: str) -> None:
        """`py_help` documents installed modules only."""
        (context.cwd / "mine.py").write_text("open('caught', 'w')\n")
        if topic:
            with pytest.raises(ToolError, match="No Python documentation found"):
                await run(py_help, context, topic=topic)
        assert os.listdir(context.cwd) == ["mine.py"]


def shown(folder: str) -> list[str]:
    """Return the text of every tool result in the session of `folder`."""
    blocks = [block for message in read_session(Path(folder)).messages for block in message.content]
    return [text_of(Message("user", block.content)) for block in blocks if isinstance(block, ToolResult)]


def call(tool: str, **input: Any) -> dict[str, Any]:
    """Return a scripted response that calls `tool`."""
    return {"tool": tool, "input": input}


class TestAgents:
    """Agents with tools that change files."""

    async def test_agent_writes_edits_and_runs_files(self, world: Open, tmp_path: Path) -> None:
        """The reply lists the changed files, and results are in the order of the calls."""
        script = [
            call("write_file", path="a/x.py", content="print('one')\n"),
            {
                "tools": [
                    call("replace_in_file", path="a/x.py", old_text="one", new_text="two"),
                    call("replace_in_file", path="a/x.py", old_text="two", new_text="three"),
                ]
            },
            call("bash", command="python3 a/x.py; env | grep -c SECRET"),
            call("run_python", code="seen = 6 * 7\nseen"),
            call("run_python", code="seen + 1"),
            "done",
        ]
        o = await world()
        env = {"PATH": os.environ["PATH"], "MY_SECRET": "canary"}
        agent = await o.spawn("work", preset="work", backend=ScriptedBackend(script), cwd=tmp_path, env=env)
        reply = await agent.query("go")
        assert (reply.text, reply.tool_calls, reply.files_changed) == ("done", 6, ("a/x.py",))
        texts = [text.partition("\n[not readable")[0] for text in shown((await agent.state()).folder)]
        assert texts[3:] == ["three\n0\n[exit status 1]", "42", "43"]

    async def test_background_jobs_end_with_a_killed_agent(self, world: Open, tmp_path: Path) -> None:
        """No process of the job is left, although the orchestrator is still open."""
        script = [call("bash", command="setsid sleep 607 & sleep 607", background=True), "started"]
        o = await world()
        env = {"PATH": os.environ["PATH"], "CENSUS": os.environ["CENSUS"]}
        agent = await o.spawn("work", tools=["code"], backend=ScriptedBackend(script), cwd=tmp_path, env=env)
        assert (await agent.query("go")).text == "started"
        await eventually(lambda: command_lines().count("sleep 607") == 2)
        await agent.kill()
        await eventually(lambda: "sleep 607" not in command_lines())

    async def test_stored_results_survive_the_process(self, world: Open, tmp_path: Path) -> None:
        """The next process of the agent reads a result by its handle."""
        script = [
            call("bash", command="seq 1 20000"),
            "first",
            call("read_handle", handle=".h_001", search="^777"),
            "ok",
        ]
        o = await world()
        tools = ["bash", "read_handle"]
        env = {"PATH": os.environ["PATH"]}
        agent = await o.spawn("work", tools=tools, backend=ScriptedBackend(script), cwd=tmp_path, env=env)
        await agent.query("go")
        await agent.kill()
        agent = await o.resume(agent.id)
        assert (await agent.query("more")).text == "ok"
        texts = shown((await agent.state()).folder)
        assert "read_handle with .h_001 shows any part" in texts[0]
        assert [line.partition(": ")[2] for line in texts[1].splitlines()] == [
            "777",
            *(str(n) for n in range(7770, 7780)),
        ]

    @pytest.mark.parametrize("world", ["zygote"], indirect=True)
    async def test_run_python_works_in_the_agents_folder(self, world: Open, tmp_path: Path) -> None:
        """Code in the worker opens the agent's files by relative names."""
        (tmp_path / "x.txt").write_text("found")
        o = await world()
        script = [call("run_python", code="open('x.txt').read()"), "done"]
        agent = await o.spawn("look", tools=["python"], backend=ScriptedBackend(script), cwd=tmp_path)
        await agent.query("go")
        assert shown((await agent.state()).folder) == ["'found'"]

    async def test_unavailable_tool_is_refused(self, world: Open, tmp_path: Path) -> None:
        """The result of a call of an unavailable tool names the tool, and the call does not count."""
        o = await world()
        script = [call("web_search", query="x"), "done"]
        agent = await o.spawn("look", preset="investigate", backend=ScriptedBackend(script), cwd=tmp_path)
        assert (await agent.query("go")).tool_calls == 0
        assert shown((await agent.state()).folder) == ["Tool 'web_search' is not available here."]

    async def test_root_tools_keep_exclusivity_and_locks(self, world: Open) -> None:
        """An exclusive function runs alone, and functions that lock the same file run one after the other."""
        log: list[str] = []

        async def note(what: str) -> str:
            log.append(f"+{what}")
            await asyncio.sleep(0.01)
            log.append(f"-{what}")
            return what

        @tool(exclusive=True)
        async def alone(what: str) -> str:
            return await note(what)

        @tool(locks="path")
        async def edit(path: str) -> str:
            return await note(path)

        steps = [[call("alone", what="a"), call("alone", what="b")], [call("edit", path=p) for p in ("x", "./x")]]
        o = await world()
        script = ScriptedBackend([*({"tools": calls} for calls in steps), "done"])
        agent = await o.spawn("work", tools=[alone, edit], backend=script)
        await agent.query("go")
        assert log == ["+a", "-a", "+b", "-b", "+x", "-x", "+./x", "-./x"]

    async def test_unavailable_root_tool_is_not_offered(self, world: Open) -> None:
        """The predicate `available` of the tool decides for each agent. A call gets the reason."""

        @tool(available=lambda context: "GO" in context.env)
        def go() -> str:
            """Go."""
            return "gone"

        o = await world()
        seen = []
        for env in ({}, {"GO": "1"}):
            agent = await o.spawn("go", tools=[go], backend=ScriptedBackend([call("go"), "done"]), env=env)
            await agent.query("go")
            seen += shown((await agent.state()).folder)
        assert seen == ["Tool 'go' is not available here.", "gone"]

    @pytest.mark.parametrize("world", ["fake"], indirect=True)
    async def test_default_tools_are_limited_to_the_parents(self, world: Open, tmp_path: Path) -> None:
        """A subagent has those tools of the default preset that its parent has. A preset with more tools is refused."""
        o = await world(config=Config(subagents=SubagentsConfig(allow_nested=True)))
        tools = ["spawn_subagent", "read_file", "bash"]
        script = [call("spawn_subagent", task="look"), call("spawn_subagent", task="look", preset="work"), "done"]
        agent = await o.spawn("work", tools=tools, backend=ScriptedBackend(script), cwd=tmp_path)
        await agent.query("go")
        spawned, refused = shown((await agent.state()).folder)
        child = next(row for row in await o.agents() if row.parent_id == agent.id)
        assert child.id in spawned
        assert o.supervisor.tree.agents[child.id].spec.tools == ("read_file",)
        assert "grep_files" in refused
