"""Custom backends in worker processes: loading, cancellation, and backends that block."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orch import AgentDiedError, AsyncOrchestrator, LaunchError, Limits
from orch.processes.in_process import InProcessLauncher

BACKENDS = '''
import os, threading, time
from orch import CustomBackend, Stop, ToolUse, Usage

class Model(CustomBackend):
    """Says where it runs, and streams."""

    def respond(self, request):
        for word in ("in ", "process ", str(os.getpid())):
            yield word
        yield Usage(10, 3)

class Slow(CustomBackend):
    """Ignores that it is canceled, until it is asked again."""

    asked = 0

    def respond(self, request):
        yield "begun"
        time.sleep(1000)

class Polite(CustomBackend):
    """Looks whether it is canceled."""

    def respond(self, request):
        yield "begun"
        request.cancelled.wait()
        open("canceled", "w").close()

class Blocking(CustomBackend):
    """Blocks the event loop in its first process."""

    async def respond(self, request):
        if not os.path.exists("blocked"):
            open("blocked", "w").close()
            sum(range(10**13))
        yield "back"

class Deaf(CustomBackend):
    """Swallows cancellation in its first process."""

    async def respond(self, request):
        import asyncio
        yield "begun"
        while not os.path.exists("left"):
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                open("left", "w").close()
                await asyncio.sleep(1000)
        yield " again"
'''


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in; the module `model_house` is on PYTHONPATH."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "model_house.py").write_text(BACKENDS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


async def test_a_class_is_loaded_in_the_worker(tmp_path: Path, work: Path) -> None:
    """The backend runs in the agent's process and streams its text. A missing class is a LaunchError."""
    async with AsyncOrchestrator(home=tmp_path / "home", env={}) as o:
        agent = await o.spawn("work", model="model_house:Model", cwd=work, tools=[])
        heard: list[str] = []
        reply = await agent.query("Where?", on_event=lambda event: heard.append(event.text))
        assert reply.text == f"in process {(await agent.state()).pid}"
        assert "process " in "".join(heard)
        assert (reply.usage.input_tokens, reply.usage.output_tokens) == (10, 3)
        with pytest.raises(LaunchError, match="cannot import the backend model_house:Missing"):
            await o.spawn("work", model="model_house:Missing", cwd=work)


async def begun(agent: object) -> asyncio.Task[object]:
    """Query the agent, and return the task of the query when the response has begun."""
    event = asyncio.Event()
    asking = asyncio.create_task(agent.query("Go", on_event=lambda each: each.text == "begun" and event.set()))  # type: ignore[attr-defined]
    await event.wait()
    return asking


async def test_a_response_is_canceled(tmp_path: Path, work: Path) -> None:
    """A generator that waits for `cancelled` ends, and the worker continues."""
    async with AsyncOrchestrator(home=tmp_path / "home", env={}) as o:
        agent = await o.spawn("work", model="model_house:Polite", cwd=work, tools=[])
        asking = await begun(agent)
        pid = (await agent.state()).pid
        await agent.cancel()
        reply = await asking
        assert reply.stop_reason == "cancelled"  # type: ignore[attr-defined]
        assert (work / "canceled").exists()
        assert (await agent.state()).pid == pid


@pytest.mark.parametrize("name", ["Slow", "Deaf"])
async def test_a_response_that_does_not_end_ends_with_its_process(tmp_path: Path, work: Path, name: str) -> None:
    """A cancel ends the turn, although the response continues, and the next query starts another process."""
    async with AsyncOrchestrator(home=tmp_path / "home", env={}) as o:
        agent = await o.spawn("work", model=f"model_house:{name}", cwd=work, tools=[])
        asking = await begun(agent)
        pid = (await agent.state()).pid
        await agent.cancel()
        reply = await asyncio.wait_for(asking, 20)
        assert (reply.stop_reason, reply.text.split()[0]) == ("cancelled", "begun")  # type: ignore[attr-defined]
        again = await begun(agent)
        assert (await agent.state()).pid != pid
        await agent.cancel(hard=True)
        await asyncio.wait((again,))
        again.exception()


@pytest.mark.usefixtures("impatient")
async def test_a_backend_that_blocks_the_event_loop_is_killed(tmp_path: Path, work: Path) -> None:
    """The root kills a process that answers no ping, and the next process answers."""
    limits = Limits(tool_seconds=0.5)
    async with AsyncOrchestrator(home=tmp_path / "home", env={}) as o:
        agent = await o.spawn("work", model="model_house:Blocking", cwd=work, tools=[], limits=limits)
        with pytest.raises(AgentDiedError, match="stuck and did not answer"):
            await agent.query("Go")
        assert (await agent.query("Go")).text == "back"


async def test_an_object_in_this_process(tmp_path: Path, work: Path) -> None:
    """An in-process agent uses the backend object of the program."""
    import os

    import model_house  # type: ignore[import-not-found]

    async with AsyncOrchestrator(home=tmp_path / "home", env={}, launcher=InProcessLauncher) as o:
        agent = await o.spawn("work", backend=model_house.Model(), cwd=work, tools=[])
        assert (await agent.query("Where?")).text == f"in process {os.getpid()}"
