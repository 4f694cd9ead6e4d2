"""The API without an event loop: Ctrl-C at any time, threads, and the end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orch import Orchestrator, ScriptedBackend, Subagent
from orch.processes.base import LaunchRequest
from orch.testing import FakeLauncher, FakeWorker
from orch_protocol.core.errors import AgentBusyError, AgentDiedError, ConfigError, LaunchError

Open = Callable[..., Orchestrator]


def press_ctrl_c() -> None:
    """Send SIGINT to the main thread, as a terminal does."""
    assert threading.main_thread().ident is not None
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


class Interrupting(FakeLauncher):
    """A launcher that presses Ctrl-C while it starts, launches or stops, and goes on when it was heard."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at
        self.heard = threading.Event()
        self.stopped = False

    async def interrupt(self, at: str) -> None:
        """Press Ctrl-C if this is the time."""
        if at == self.at:
            press_ctrl_c()
            while not self.heard.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def start(self) -> None:
        """Start."""
        await self.interrupt("start")

    async def launch(self, request: LaunchRequest) -> FakeWorker:
        """Launch."""
        await self.interrupt("launch")
        return await super().launch(request)

    async def stop(self) -> None:
        """Stop."""
        if not self.stopped:
            await self.interrupt("stop")
        await super().stop()
        self.stopped = True


@pytest.fixture
def open_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens orchestrators whose agents run on their own loop."""

    def open_one(launcher: FakeLauncher | None = None, **options: Any) -> Orchestrator:
        launcher = launcher or FakeLauncher()
        monkeypatch.setattr("orch.api.orchestrator.Router", launcher.connect)
        return Orchestrator(home=tmp_path, env={}, launcher=lambda _run, _folder: launcher, **options)

    return open_one


def scripted(o: Orchestrator, *items: Any, **options: Any) -> Subagent:
    """Spawn an agent that says `items`."""
    return o.spawn("work", backend=ScriptedBackend(items), **options)


def test_a_name_is_no_list_of_agents(open_one: Open) -> None:
    """Nobody means its letters."""
    with open_one() as o:
        scripted(o, "done", name="reader")
        with pytest.raises(ConfigError, match="agents must be a list; got 'reader'"):
            o.ask_all("reader", "go")
        assert [each.reply.text for each in o.ask_all(["reader"], "go") if each.reply] == ["done"]


def test_ctrl_c_ends_the_waiting_and_not_the_agent(open_one: Open) -> None:
    """The answer is there to collect."""
    go = threading.Event()

    def interrupt() -> str:
        """Press Ctrl-C."""
        press_ctrl_c()
        go.wait(10)
        return "pressed"

    with open_one() as o:
        agent = scripted(o, {"tool": "interrupt"}, "done", tools=[interrupt])
        with pytest.raises(KeyboardInterrupt):
            agent.query("go")
        assert agent.state().status == "busy"
        go.set()
        reply = agent.collect()
        assert reply is not None
        assert reply.text == "done"


def test_in_a_notebook_where_another_loop_runs_all_is_as_elsewhere(open_one: Open) -> None:
    """Cells run in the loop of their kernel, which is not the orchestrator's."""

    async def cell() -> None:
        with open_one() as o:
            agent = scripted(o, "done")
            assert (agent.seq, agent.name, agent.pid) == (1, "agent-1", agent.state().pid)
            assert repr(agent) == f"<Subagent {agent.id} 'agent-1'>"
            assert agent.query("go").text == "done"

    asyncio.run(cell())


def test_ctrl_c_in_the_instant_of_asking(open_one: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anybody could be told to stop waiting: nobody waits all the same, and the answer is there to collect."""
    go = threading.Event()

    def hold() -> str:
        """Wait."""
        go.wait(10)
        return "held"

    def pressed(work: Any, loop: Any) -> Any:
        future = start(work, loop)
        press_ctrl_c()
        return future

    start = asyncio.run_coroutine_threadsafe
    with open_one() as o:
        agent = scripted(o, {"tool": "hold"}, "done", tools=[hold])
        with monkeypatch.context() as patched:
            patched.setattr("orch.api.portal.asyncio.run_coroutine_threadsafe", pressed)
            with pytest.raises(KeyboardInterrupt):
                agent.query("go")
        assert agent.state().status == "busy"
        go.set()
        reply = agent.collect()
        assert reply is not None
        assert reply.text == "done"


def test_ctrl_c_in_the_instant_in_which_a_lock_is_taken(open_one: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for an answer shares a lock with what brings it: nobody keeps that who has gone."""
    armed = [True]
    enter = threading.Condition.__enter__

    def pressed(condition: threading.Condition) -> bool:
        entered = enter(condition)
        if threading.current_thread() is threading.main_thread() and armed:
            armed.clear()
            press_ctrl_c()
        return entered

    with open_one() as o:
        agent = scripted(o, "done")
        with monkeypatch.context() as patched:
            patched.setattr(threading.Condition, "__enter__", pressed)
            with pytest.raises(KeyboardInterrupt):
                agent.query("go")
        reply = agent.collect()
        assert reply is not None
        assert reply.text == "done"


def test_ctrl_c_while_an_agent_is_spawned(open_one: Open) -> None:
    """Nobody has it, so it is ended; its name is free for whoever tries again."""
    launcher = Interrupting("launch")
    with open_one(launcher) as o:
        with pytest.raises(KeyboardInterrupt):
            scripted(o, "fine", name="x")
        launcher.heard.set()
        launcher.at = ""
        assert o.agents() == []
        assert scripted(o, "fine", name="x").query("go").text == "fine"
    assert all(worker.ended.done() for worker in launcher.workers)


def test_ctrl_c_while_a_root_starts_leaves_nothing(open_one: Open) -> None:
    """Its launcher is stopped, its run is free, its thread has ended."""
    launcher = Interrupting("start")
    threads = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        open_one(launcher, run="r")
    assert launcher.stopped
    assert set(threading.enumerate()) <= threads
    with open_one(run="r") as o:
        assert o.agents() == []


def test_ctrl_c_while_a_root_closes_closes_it(open_one: Open) -> None:
    """Nothing is left half closed; then the interrupt goes its way."""
    launcher = Interrupting("stop")
    o = open_one(launcher, run="r")
    scripted(o)
    timer = threading.Timer(0.05, launcher.heard.set)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        o.close()
    timer.join()
    assert launcher.stopped
    with open_one(run="r") as again:
        assert len(again.agents()) == 1


class Hammered(FakeLauncher):
    """A launcher while whose stopping Ctrl-C is pressed again and again."""

    def __init__(self, presses: int) -> None:
        super().__init__()
        self.presses = presses
        self.go = threading.Event()
        self.stopped = False

    async def stop(self) -> None:
        """Stop, when it may."""
        for _ in range(self.presses):
            press_ctrl_c()
            await asyncio.sleep(0)
        self.presses = 0
        await super().stop()
        while not self.go.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)
        self.stopped = True


def test_ctrl_c_again_and_again_while_a_root_closes(open_one: Open, caplog: pytest.LogCaptureFixture) -> None:
    """It is closed whole; then one interrupt goes its way, and nobody is told of tasks."""
    launcher = Hammered(20)
    launcher.go.set()
    o = open_one(launcher, run="r")
    futures = [scripted(o, {"text": "late", "sleep": 60}).submit("go") for _ in range(3)]
    with pytest.raises(KeyboardInterrupt):
        o.close()
    assert launcher.stopped
    assert all(future.done() for future in futures)
    gc.collect()
    assert caplog.text == ""
    with open_one(run="r") as again:
        assert len(again.agents()) == 3


def test_ctrl_c_at_the_end_of_the_program_is_no_complaint(open_one: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would tell of an interrupt that nobody can catch any more, with a traceback."""
    at_exit: list[Callable[[], object]] = []
    monkeypatch.setattr("orch.api.sync.atexit.register", at_exit.append)
    launcher = Hammered(3)
    launcher.go.set()
    open_one(launcher)
    for last in at_exit:
        last()
    assert launcher.stopped


def test_an_end_that_does_not_come_can_be_left(
    open_one: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When Ctrl-C is let through, what hangs is left; it may still come to its end, and nobody is told of tasks."""
    launcher = Hammered(0)
    o = open_one(launcher)

    def impatient(work: Any, loop: Any) -> Any:
        future = start(work, loop)
        future.result = interrupted  # type: ignore[method-assign]
        return future

    def interrupted() -> None:
        raise KeyboardInterrupt

    start = asyncio.run_coroutine_threadsafe
    monkeypatch.setattr("orch.api.portal.asyncio.run_coroutine_threadsafe", impatient)
    with pytest.raises(KeyboardInterrupt):
        o.close()
    assert not launcher.stopped
    o.close()
    launcher.go.set()
    o._portal.thread.join(10)
    assert launcher.stopped
    assert not o._portal.thread.is_alive()
    o._portal.loop.close()
    gc.collect()
    assert caplog.text == ""


def test_who_waits_in_another_thread_is_told_of_the_end(open_one: Open) -> None:
    """Every one of many gets an error, and none waits for ever."""
    called = threading.Barrier(5)

    def hang() -> None:
        """Hang."""
        called.wait(10)
        done.wait(10)

    done = threading.Event()
    o = open_one()
    agents = [scripted(o, {"tool": "hang"}, "done", tools=[hang]) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(agent.query, "go") for agent in agents]
        called.wait(10)
        o.close()
        for future in futures:
            with pytest.raises(AgentDiedError, match="closed"):
                future.result(timeout=10)
    done.set()


def test_submit_to_a_busy_agent_raises_at_the_call(open_one: Open) -> None:
    """The second call raises; the first query's future is unaffected."""
    with open_one() as o:
        agent = scripted(o, {"text": "late", "sleep": 60})
        first = agent.submit("go")
        with pytest.raises(AgentBusyError, match="is busy with: go"):
            agent.submit("again")
        assert not first.done()


def test_submit_from_a_hook_on_the_loop_thread_does_not_wait(open_one: Open) -> None:
    """Asynchronous hooks run on the orchestrator's own thread."""
    asked: list[Any] = []
    with open_one() as o:
        other = scripted(o, "fine")

        @o.on("before_system_prompt")
        async def ask_other(*_: object) -> None:
            if not asked:
                asked.append(other.submit("go"))

        assert scripted(o, "done").query("start").text == "done"
        assert asked[0].result(timeout=10).text == "fine"


def test_a_closed_root_says_so(open_one: Open) -> None:
    """Closing again does nothing, asking is an error, and handles still show themselves."""
    o = open_one()
    agent = scripted(o, name="x")
    assert repr(agent) == f"<Subagent {agent.id} 'x'>"
    o.close()
    o.close()
    for attempt in (lambda: agent.query("go"), lambda: agent.submit("go"), o.agents):
        with pytest.raises(ConfigError, match="closed"):
            attempt()
    assert repr(agent) == f"<Subagent {agent.id}>"
    assert not o._portal.thread.is_alive()


def test_a_root_that_cannot_start_ends_its_thread(open_one: Open) -> None:
    """The error is the launcher's, and nothing is left."""

    class Broken(FakeLauncher):
        async def start(self) -> None:
            raise LaunchError("no shim")

    threads = set(threading.enumerate())
    with pytest.raises(LaunchError, match="no shim"):
        open_one(Broken(), run="r")
    assert set(threading.enumerate()) <= threads
    open_one(run="r").close()


def test_an_async_tool_that_would_wait_for_itself_is_told(open_one: Open) -> None:
    """It runs on the very thread that would have to answer; a plain function may ask."""
    with open_one() as o:
        helper = scripted(o, "helped", name="helper")

        async def ask() -> str:
            """Ask."""
            return helper.query("go").text

        def ask_plainly() -> str:
            """Ask."""
            return helper.query("go").text

        agent = scripted(o, {"tools": [{"tool": "ask"}, {"tool": "ask_plainly"}]}, "done", tools=[ask, ask_plainly])
        agent.query("go")
        results = str(agent.show().messages)
        assert "would wait forever" in results
        assert "helped" in results


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_what_would_end_the_thread_of_an_orchestrator_ends_nothing(open_one: Open, error: BaseException) -> None:
    """Nobody who asks after that waits for ever, and it can be closed; a tool or an approver that does it fails."""

    watched = threading.Event()

    async def leave() -> None:
        """Leave."""
        while not watched.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)
        raise error

    async def approve(_: object) -> None:
        raise error

    def left(_: object) -> None:
        raise error

    told: list[str] = []
    with open_one(approve=approve) as o:
        o._portal.loop.set_exception_handler(lambda _, context: told.append(context["message"]))
        script = [{"tool": "leave"}, {"tool": "task_create", "input": {"tasks": ["Look"]}}, "done"]
        agent = scripted(o, *script, tools=[leave, "task_create"])
        future = agent.submit("go")
        future.add_done_callback(left)
        watched.set()
        assert future.result(timeout=10).text == "done"
        assert str(agent.show().messages).count(type(error).__name__) == 2
        o.agents()
    assert [text for text in told if "would have ended the orchestrator's thread" in text]


def test_a_fork_of_the_program_makes_its_own(open_one: Open) -> None:
    """What was made before the fork refuses to work in the child, and is not closed by it."""
    with open_one() as o:
        agent = scripted(o, "fine")
        o._portal._pid = -1
        o.close()
        with pytest.raises(ConfigError, match="forked child"):
            agent.query("go")
        o._portal._pid = os.getpid()
        assert agent.query("go").text == "fine"
