"""Live Python in processes of their own: what ends them, what is left, and values that go from one to the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.command_shell import Shell
from orch import AsyncOrchestrator, AsyncSubagent, Limits, NoValueError, ScriptedBackend
from orch.processes.in_process import InProcessLauncher
from orch_protocol.core.errors import AgentDiedError, ConfigError
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse

pd = pytest.importorskip("pandas")

SEGFAULT = "import ctypes; ctypes.string_at(0)"
FOREVER = "sum(range(10**13))"


def python(code: str) -> dict[str, Any]:
    """Return a call of run_python."""
    return {"tool": "run_python", "input": {"code": code}}


def results(messages: tuple[Message, ...]) -> list[tuple[str, str]]:
    """Return the ids of calls with the texts of their results, one for each result there is."""
    return [
        (block.tool_use_id, "".join(each.text for each in block.content if isinstance(each, Text)))
        for message in messages
        for block in message.content
        if isinstance(block, ToolResult)
    ]


def calls(messages: tuple[Message, ...]) -> list[str]:
    """Return the ids of all calls."""
    return [block.id for message in messages for block in message.content if isinstance(block, ToolUse)]


def spoil(path: Path, link: str = "") -> None:
    """Let something else be at `path`."""
    path.unlink()
    if link:
        path.symlink_to(link)
    else:
        path.write_text("[]")


async def held(root: AsyncOrchestrator, *script: Any, limits: Limits | None = None) -> AsyncSubagent:
    """Return an agent with live Python that says `script`."""
    tools = ["run_python", "read_handle"]
    return await root.spawn("compute", tools=tools, backend=ScriptedBackend(list(script)), limits=limits)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; os._exit(3)", "exit code 3"),
        (SEGFAULT, "signal 11, SIGSEGV"),
        (FOREVER, "it let nothing else run, and was ended"),
    ],
)
async def test_code_that_ends_its_process_ends_that_alone_and_the_agent_is_told(
    tmp_path: Path, code: str, how: str
) -> None:
    """The call has one result, and the next prompt says how the process ended; names are gone and said to be, handles
    are there, and another agent was not touched."""
    async with AsyncOrchestrator(home=tmp_path, env={}) as root:
        agent = await held(
            root,
            python("kept = list(range(5000))\nkept"),
            python(code),
            python("len(handles[1])"),
            python("kept"),
            "back",
            limits=Limits(tool_seconds=0.5 if code == FOREVER else 30.0),
        )
        other = await held(root, python("x = 1"), "done", python("x + 1"), "done")
        await other.query("go")
        with pytest.raises(AgentDiedError):
            await agent.query("go")
        assert (await agent.query("and now?")).text == "back"
        messages = (await agent.show(50)).messages
        told = results(messages)
        assert [id for id, _ in told] == calls(messages)
        first, lost, revived, gone = (text for _, text in told)
        assert first.startswith("[.h_001: list, 5,000 items")
        assert "The Python process ended before a result of this was recorded: the code may have ended it" in lost
        assert "Names bound before are gone; what was stored under handles is kept." in lost
        assert f"cut short: its process ended ({how}); what it recorded is above" in str(messages)
        assert revived.splitlines() == [
            "[This is a new Python process: what earlier calls had bound is gone (kept). Handles are kept: .h_001.]",
            "5000",
        ]
        assert gone.endswith("NameError: name 'kept' is not defined")
        await other.query("go on")
        assert results((await other.show(50)).messages)[-1][1] == "2"


async def test_a_value_comes_with_the_answer(world: Callable[..., Any]) -> None:
    """A table that an agent has made is the caller's, as it was, without a word about it in any message."""
    root = await world()
    agent = await held(root, python("import pandas as pd\ndf = pd.DataFrame({'n': range(1000)})"), "It is in df.")
    got = await agent.query("Make it", return_name="df")
    pd.testing.assert_frame_equal(got.value, pd.DataFrame({"n": range(1000)}))
    assert (got.reply.text, got.type, got.extent) == ("It is in df.", "pandas.DataFrame", "1,000 rows x 1 column")
    assert got.path.endswith(".columns")
    assert "999" not in str((await agent.show(50)).messages)


async def test_values_that_cannot_be_had(tmp_path: Path) -> None:
    """Each error says which name and what to do; the answer is not lost by it."""
    async with AsyncOrchestrator(home=tmp_path, env={}) as root:
        agent = await held(root, python("f = lambda: 1\nn = {'a': (1, 2)}\nlist(range(5000))"), "done")
        with pytest.raises(NoValueError, match=r"no name 'df' is bound; bound are f, n"):
            await agent.query("go", return_name="df")
        assert (await agent.collect(again=True)).text == "done"  # type: ignore[union-attr]
        for name, why in [
            ("f", "'f' cannot leave its process: a value of type function .* return what it computes instead"),
            ("n['a']", "neither a variable name nor a handle"),
            (".h_009", r"There is no '\.h_009'. The last handles: \.h_001"),
        ]:
            with pytest.raises(NoValueError, match=why):
                await agent.value(name)
        assert await agent.value("n") == {"a": (1, 2)}
        with pytest.raises(ConfigError, match="not both"):
            await agent.query("go", returns=int, return_name="n")  # type: ignore[call-overload]
        reader = await root.spawn("read", preset="minimal", backend=ScriptedBackend(["hm"]))
        with pytest.raises(NoValueError, match="has no run_python"):
            await reader.query("go", return_name="n")


async def test_values_of_an_agent_without_a_process(tmp_path: Path) -> None:
    """What is stored under handles can be taken while no process is there; a name says that it went with the last."""
    async with AsyncOrchestrator(home=tmp_path, env={}) as root:
        agent = await held(root, python("xs = list(range(5000))\nxs"), "done", python("import os; os._exit(1)"))
        await agent.query("go")
        with pytest.raises(AgentDiedError):
            await agent.query("go on")
        assert await agent.value(".h_001") == list(range(5000))
        with pytest.raises(NoValueError, match="has no process, so its Python variables are lost"):
            await agent.value("xs")
        assert agent.pid is None


async def test_a_file_that_was_changed_is_not_taken(tmp_path: Path) -> None:
    """What is read is what was stored, by its hash; a link in its place is followed by nobody."""
    async with AsyncOrchestrator(home=tmp_path, env={}) as root:
        agent = await held(root, python("list(range(5000))"), "done")
        path = Path((await agent.query("go", return_name="h_001")).path)
        spoil(path)
        with pytest.raises(NoValueError, match="not the one that was stored"):
            await agent.value("h_001")
        spoil(path, "/etc/hostname")
        with pytest.raises(NoValueError, match="cannot be read"):
            await agent.value("h_001")


def test_return_name_from_the_shell(shell: Shell) -> None:
    """`orch query --return-name` prints the answer, and on stderr what the value is and in which file; collect does
    so too, and a name that is not bound is exit code 3 with the answer printed all the same."""
    script = shell.script(python("rows = [{'n': n} for n in range(3)]"), "They are in rows.", "again", "once more")
    shell.run("spawn", "Make rows", "--tools", "run_python", "--script", script)
    done = shell.run("query", "1", "Go", "--return-name", "rows", "--approve", "auto")
    assert done.stdout == b"They are in rows.\n"
    assert b"orch: rows is list, 3 items, in /" in done.stderr
    value = shell.data("collect", "1", "--again", "--return-name", "rows")["value"]
    assert (value["name"], value["kind"]) == ("rows", "json")
    assert json.loads(Path(value["path"]).read_bytes()) == [{"n": 0}, {"n": 1}, {"n": 2}]
    done = shell.run("query", "1", "Go", "--return-name", "cols", code=3)
    assert done.stdout == b"again\n"
    assert b"no name 'cols' is bound; bound are rows" in done.stderr
    assert (
        b"give it to orch collect" in shell.run("query", "1", "Go", "--no-wait", "--return-name", "rows", code=2).stderr
    )


async def test_a_host_lends_its_names(tmp_path: Path) -> None:
    """An agent in the host's process sees what the host has bound and binds there; what is the host's stays so, and
    nothing of ours is left in it."""
    names: dict[str, Any] = {"x": 20, "_": "the host's"}
    async with AsyncOrchestrator(home=tmp_path, env={}, launcher=InProcessLauncher) as root:
        script = ScriptedBackend([python("y = x + 1\ny"), python("list(range(5000))"), "done", python("y * 2"), "done"])
        agent = await root.spawn("compute", tools=["run_python"], backend=script, namespace=names)
        await agent.query("go")
        assert (names["y"], names["_"]) == (21, "the host's")
        names["y"] = 50
        await agent.cancel(hard=True)
        await agent.query("go on")
        told = [text for _, text in results((await agent.show(50)).messages)]
        assert (told[0], told[2]) == ("21", "100")
        assert 'handles["h_001"]' in told[1]
        assert await agent.value("y") == 50
    assert set(names) - {"__builtins__"} == {"x", "y", "_"}


@pytest.mark.parametrize(("namespace", "why"), [({}, "InProcessLauncher"), ([], "takes a dict of names, not list")])
async def test_who_has_a_process_of_its_own_is_lent_nothing(tmp_path: Path, namespace: Any, why: str) -> None:
    """Names cannot go where nobody could see them: that is an error, and no agent is left behind."""
    async with AsyncOrchestrator(home=tmp_path, env={}) as root:
        with pytest.raises(ConfigError, match=why):
            await root.spawn("compute", tools=["run_python"], backend=ScriptedBackend([]), namespace=namespace)
        assert await root.agents() == []


async def test_a_fork_has_the_handles_of_its_conversation(tmp_path: Path) -> None:
    """What the copied conversation names under handles is there for the copy too, and each keeps its own from there;
    names are the process's, and the copy hears that they are gone."""
    async with AsyncOrchestrator(home=tmp_path, env={}) as root:
        agent = await held(root, python("xs = list(range(5000))\nxs"), "one", python("sum(handles[1])"), "two")
        await agent.query("go")
        copy = await agent.session.fork()
        await agent.kill()
        await copy.query("go on")
        assert results((await copy.show(50)).messages)[-1][1].splitlines() == [
            "[This is a new Python process: what earlier calls had bound is gone (xs). Handles are kept: .h_001.]",
            str(sum(range(5000))),
        ]
