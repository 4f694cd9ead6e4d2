"""Live Python in real processes: code that ends its process, handles, and values that are sent to other processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.command_shell import Shell
from integration.worker_processes import END, eventually, is_running, register_end
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
    """Return the id of the call and the text for each result."""
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
    """Replace the file at `path` by a link to `link`, or by other content."""
    path.unlink()
    if link:
        path.symlink_to(link)
    else:
        path.write_text("[]")


async def held(
    root: AsyncOrchestrator, *script: Any, limits: Limits | None = None, cwd: Path | None = None
) -> AsyncSubagent:
    """Return an agent with live Python and the script `script`."""
    tools = ["run_python", "read_handle", *(["end_process"] if END in script else [])]
    return await root.spawn("compute", tools=tools, backend=ScriptedBackend(list(script)), limits=limits, cwd=cwd)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; os._exit(3)", "ended before the call was done"),
        (SEGFAULT, "ended before the call was done"),
        (FOREVER, "did not finish within 0.5 s"),
    ],
)
async def test_code_ending_its_process_affects_one_agent(tmp_path: Path, code: str, how: str) -> None:
    """The call has one result, the agent continues, the next result reports the lost names, handles remain, and other
    agents are unaffected.
    """
    async with AsyncOrchestrator(home=tmp_path, env={}) as root:
        agent = await held(
            root,
            python("kept = list(range(5000))\nkept"),
            python("_ = open('pid', 'w').write(str(__import__('os').getpid()))"),
            python(code),
            "gone",
            python("len(handles[1])"),
            python("kept"),
            "back",
            limits=Limits(tool_seconds=0.5 if code == FOREVER else 30.0),
            cwd=tmp_path,
        )
        other = await held(root, python("x = 1"), "done", python("x + 1"), "done")
        await other.query("go")
        assert (await agent.query("go")).text == "gone"
        await eventually(lambda: not is_running(int((tmp_path / "pid").read_text())))  # a blocked process ends later
        assert (await agent.query("and now?")).text == "back"
        messages = (await agent.show(50)).messages
        outcomes = results(messages)
        assert [id for id, _ in outcomes] == calls(messages)
        first, _, lost, revived, gone = (text for _, text in outcomes)
        assert first.startswith("[.h_001: list, 5,000 items")
        assert how in lost
        told = revived if code == FOREVER else lost
        assert "The variables of run_python are lost." in told
        assert revived.splitlines()[:2] == [
            "[This is a new Python process: what earlier calls had bound is gone (kept). Handles are kept: .h_001.]",
            "5000",
        ]
        assert gone.endswith("NameError: name 'kept' is not defined")
        await other.query("go on")
        assert results((await other.show(50)).messages)[-1][1] == "2"


async def test_value_is_returned_with_the_answer(world: Callable[..., Any]) -> None:
    """The caller gets an equal table, which is in no message of the conversation."""
    root = await world()
    agent = await held(root, python("import pandas as pd\ndf = pd.DataFrame({'n': range(1000)})"), "It is in df.")
    got = await agent.query("Make it", return_name="df")
    pd.testing.assert_frame_equal(got.value, pd.DataFrame({"n": range(1000)}))
    assert (got.reply.text, got.type, got.extent) == ("It is in df.", "pandas.DataFrame", "1,000 rows x 1 column")
    assert got.path.endswith(".columns")
    assert "999" not in str((await agent.show(50)).messages)


async def test_unavailable_values_are_errors(tmp_path: Path) -> None:
    """Each error names the value and the reason, and the answer can still be collected."""
    async with AsyncOrchestrator(home=tmp_path, env={}) as root:
        agent = await held(root, python("f = lambda: 1\nn = {'a': (1, 2)}\nlist(range(5000))"), "done")
        with pytest.raises(NoValueError, match=r"no variable 'df'; variables: f, n"):
            await agent.query("go", return_name="df")
        assert (await agent.collect(again=True)).text == "done"  # type: ignore[union-attr]
        for name, why in [
            (
                "f",
                "'f' cannot be sent to another process: a value of type function .* return what it computes instead",
            ),
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


async def test_stored_values_are_available_without_a_process(tmp_path: Path) -> None:
    """Values under handles can be read after the process ended, and variables are reported as lost."""
    async with AsyncOrchestrator(home=tmp_path, env={}) as root:
        register_end(root)
        agent = await held(root, python("xs = list(range(5000))\nxs"), "done", END)
        await agent.query("go")
        with pytest.raises(AgentDiedError):
            await agent.query("go on")
        assert await agent.value(".h_001") == list(range(5000))
        with pytest.raises(NoValueError, match="has no process, so its Python variables are lost"):
            await agent.value("xs")
        assert agent.pid is None


async def test_changed_value_file_is_refused(tmp_path: Path) -> None:
    """The file must have the stored hash, and must not be a link."""
    async with AsyncOrchestrator(home=tmp_path, env={}) as root:
        agent = await held(root, python("list(range(5000))"), "done")
        path = Path((await agent.query("go", return_name="h_001")).path)
        spoil(path)
        with pytest.raises(NoValueError, match="differs from the stored file"):
            await agent.value("h_001")
        spoil(path, "/etc/hostname")
        with pytest.raises(NoValueError, match="cannot read the file"):
            await agent.value("h_001")


def test_return_name_prints_value_and_file(shell: Shell) -> None:
    """`query` prints the value's file to stderr. For an unbound name, it prints the answer and exits with 3."""
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
    assert b"no variable 'cols'; variables: rows" in done.stderr
    refused = shell.run("query", "1", "Go", "--no-wait", "--return-name", "rows", code=2)
    assert b"pass --return-name to `orch collect`" in refused.stderr


async def test_in_process_agent_shares_the_hosts_namespace(tmp_path: Path) -> None:
    """The agent reads and binds names of the host's dict, and adds no other names."""
    names: dict[str, Any] = {"x": 20, "_": "the host's"}
    async with AsyncOrchestrator(home=tmp_path, env={}, launcher=InProcessLauncher) as root:
        script = ScriptedBackend([python("y = x + 1\ny"), python("list(range(5000))"), "done", python("y * 2"), "done"])
        agent = await root.spawn("compute", tools=["run_python"], backend=script, namespace=names)
        await agent.query("go")
        assert (names["y"], names["_"]) == (21, "the host's")
        names["y"] = 50
        await agent.cancel(hard=True)
        await agent.query("go on")
        outcomes = [text for _, text in results((await agent.show(50)).messages)]
        assert (outcomes[0], outcomes[2]) == ("21", "100")
        assert 'handles["h_001"]' in outcomes[1]
        assert await agent.value("y") == 50
    assert set(names) - {"__builtins__"} == {"x", "y", "_"}


@pytest.mark.parametrize(("namespace", "why"), [({}, "InProcessLauncher"), ([], "must be a dict of names; got list")])
async def test_shared_namespace_requires_an_in_process_agent(tmp_path: Path, namespace: Any, why: str) -> None:
    """The spawn raises ConfigError with another launcher or without a dict, and creates no agent."""
    async with AsyncOrchestrator(home=tmp_path, env={}) as root:
        with pytest.raises(ConfigError, match=why):
            await root.spawn("compute", tools=["run_python"], backend=ScriptedBackend([]), namespace=namespace)
        assert await root.agents() == []


async def test_fork_has_the_handles_of_its_conversation(tmp_path: Path) -> None:
    """The fork can read a handle after its source was killed, and the result reports the lost names."""
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
