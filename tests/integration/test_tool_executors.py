"""Tool executors in worker processes and in the program's process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncOrchestrator, Executor, LaunchError, Limits, ScriptedBackend, ToolContext, ToolSpec
from orch_protocol.core.messages import Message, ToolResult, text_of
from orch_worker.session.session_reader import read_session

HOUSE = """
import os, threading
from orch import Executor, ToolSpec

class House(Executor):
    def list(self):
        return [ToolSpec(name, "", {"type": "object"}) for name in ("where", "wait")]

    def call(self, name, arguments, context):
        if name == "where":
            return {"process": os.getpid()}
        open("begun", "w").close()
        threading.Event().wait()

    def cancel(self, call_id):
        open("canceled", "w").close()
"""


class Shop(Executor):
    """An executor whose calls run in the program."""

    def __init__(self) -> None:
        self.begun, self.canceled = asyncio.Event(), asyncio.Event()

    def list(self) -> list[ToolSpec]:
        return [ToolSpec(name, "", {"type": "object"}) for name in ("where", "wait")]

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> Any:  # noqa: ARG002
        if name == "where":
            return {"process": os.getpid()}
        self.begun.set()
        return await asyncio.Event().wait()

    async def cancel(self, call_id: str) -> None:  # type: ignore[override]
        assert call_id
        self.canceled.set()


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in; the module `tool_house` is on PYTHONPATH."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "tool_house.py").write_text(HOUSE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def call(name: str) -> dict[str, Any]:
    """Return a scripted response that calls the tool `name`."""
    return {"tool": name, "input": {}}


def results(folder: str) -> list[str]:
    """Return the texts of the results in the session of `folder`."""
    blocks = [block for message in read_session(Path(folder)).messages for block in message.content]
    return [text_of(Message("user", block.content)) for block in blocks if isinstance(block, ToolResult)]


async def test_class_runs_in_each_process_of_the_agent(home: Path, work: Path) -> None:
    """Each process of the agent loads the class. A cancelled turn calls `cancel` of the executor."""
    async with AsyncOrchestrator(home=home, env={}) as o:
        script = ScriptedBackend([call("where"), "one", call("where"), "two", call("wait"), "three"])
        session = await o.session(tool_executor="tool_house:House", backend=script, cwd=work)
        pids = []
        for text in ("one", "two"):
            assert (await session.run("Go")).text == text
            pids.append((await session.state()).pid)
            if text == "one":
                await session.kill()
                await o.resume(session.id)
        assert len(set(pids)) == 2
        assert results((await session.state()).folder) == [f'{{"process":{pid}}}' for pid in pids]
        running = asyncio.create_task(session.run("Go"))
        await until((work / "begun").exists)
        await session.cancel()
        assert (await running).stop_reason == "cancelled"
        await until((work / "canceled").exists)


async def test_object_runs_in_the_program(home: Path, work: Path) -> None:
    """Calls run in the program's process, and a cancelled turn cancels its call there."""
    async with AsyncOrchestrator(home=home, env={}) as o:
        shop, script = Shop(), ScriptedBackend([call("where"), "one", call("wait"), "two"])
        session = await o.session(tool_executor=shop, backend=script, cwd=work)
        await session.run("Go")
        assert results((await session.state()).folder) == [f'{{"process":{os.getpid()}}}']
        running = asyncio.create_task(session.run("Go"))
        await shop.begun.wait()
        await session.cancel()
        assert (await running).stop_reason == "cancelled"
        async with asyncio.timeout(10):
            await shop.canceled.wait()


async def test_call_without_answer_ends_at_its_deadline(home: Path, work: Path) -> None:
    """The call has an error result, and the turn continues, for executors in the program and in the worker."""
    async with AsyncOrchestrator(home=home, env={}) as o:
        for executor, name in ((Shop(), f"{__name__}:Shop"), ("tool_house:House", "tool_house:House")):
            script, limits = ScriptedBackend([call("wait"), "done"]), Limits(tool_seconds=0.2)
            session = await o.session(tool_executor=executor, backend=script, cwd=work, limits=limits)
            assert (await session.run("Go")).text == "done"
            [late] = results((await session.state()).folder)
            assert late.startswith(f"Tool 'wait' of executor '{name}' did not finish within 0.2 s")


async def test_class_that_cannot_be_loaded_is_a_launch_error(home: Path, work: Path) -> None:
    """The error names the class."""
    async with AsyncOrchestrator(home=home, env={}) as o:
        with pytest.raises(LaunchError, match="cannot import the tool executor 'tool_house:Missing'"):
            await o.session(tool_executor="tool_house:Missing", backend=ScriptedBackend(["done"]), cwd=work)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` is true."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - other processes change it
            await asyncio.sleep(0.01)
