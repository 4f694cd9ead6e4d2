"""The API without an event loop: Ctrl-C at any time, threads, and close."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orch import Orchestrator, ScriptedBackend, Subagent
from orch.api.portal import BlockingProxy, ImportedLater, Portal, blocking
from orch.processes.base import LaunchRequest
from orch.testing import FakeLauncher, FakeWorker
from orch_protocol.core.errors import AgentBusyError, AgentDiedError, BackendError, ConfigError, LaunchError

Open = Callable[..., Orchestrator]


def press_ctrl_c() -> None:
    """Send SIGINT to the main thread, as a terminal does."""
    assert threading.main_thread().ident is not None
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


class AsyncCounter:
    """An asynchronous class with a blocking version."""

    async def count(self, start: int = 0) -> int:
        """Count."""
        return start + 1


Later: Any = ImportedLater(__name__, "AsyncCounter")


class Counter(BlockingProxy[Any]):
    """The blocking version. The asynchronous class is imported when a method is used."""

    count = blocking(Later.count)


class Twice(Counter):
    """A subclass that calls the method it overrides."""

    def count(self, start: int = 0) -> int:
        return super().count(super().count(start))


def test_overridden_method_can_be_called_before_it_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The method is built in the class that defines it, with the signature and docstring of the asynchronous one."""
    module = ModuleType("counters")
    module.AsyncCounter = AsyncCounter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, __name__, module)
    portal = Portal()
    try:
        assert Twice(portal, AsyncCounter()).count(5) == 7
        assert Counter(portal, AsyncCounter()).count(5) == 6
    finally:
        portal.close(lambda: asyncio.sleep(0))
    assert Counter.count.__doc__ == "Count."
    assert str(signature(Counter.count)) == "(self, start: 'int' = 0) -> 'int'"
    assert Counter.count.__qualname__ == "Counter.count"
    assert "count" in vars(Twice)


class Interrupting(FakeLauncher):
    """A launcher that sends Ctrl-C while it starts, launches or stops, and then waits for `heard`."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at
        self.heard = threading.Event()
        self.stopped = False

    async def interrupt(self, at: str) -> None:
        """Send Ctrl-C if `at` is the configured moment."""
        if at == self.at:
            press_ctrl_c()
            while not self.heard.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def start(self) -> None:
        await self.interrupt("start")

    async def launch(self, request: LaunchRequest) -> FakeWorker:
        await self.interrupt("launch")
        return await super().launch(request)

    async def stop(self) -> None:
        if not self.stopped:
            await self.interrupt("stop")
        await super().stop()
        self.stopped = True


@pytest.fixture
def open_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """A function that opens orchestrators whose agents run in the orchestrator's loop."""

    def open_one(launcher: FakeLauncher | None = None, **options: Any) -> Orchestrator:
        launcher = launcher or FakeLauncher()
        monkeypatch.setattr("orch.api.orchestrator.Router", launcher.connect)
        return Orchestrator(home=tmp_path, env={}, launcher=lambda _run, _folder: launcher, **options)

    return open_one


def scripted(o: Orchestrator, *items: Any, **options: Any) -> Subagent:
    """Spawn an agent that answers `items`."""
    return o.spawn("work", backend=ScriptedBackend(items), **options)


def test_string_instead_of_an_agent_list_is_refused(open_one: Open) -> None:
    """`ask_all` does not split a string into characters."""
    with open_one() as o:
        scripted(o, "done", name="reader")
        with pytest.raises(ConfigError, match="agents must be a list; got 'reader'"):
            o.ask_all("reader", "go")
        assert [each.reply.text for each in o.ask_all(["reader"], "go") if each.reply] == ["done"]


def test_ctrl_c_ends_the_wait_and_not_the_agent(open_one: Open) -> None:
    """After Ctrl-C during `query`, the agent still works, and its answer can be collected."""
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


def test_sync_api_works_inside_a_notebook_loop(open_one: Open) -> None:
    """The orchestrator uses a separate event loop, so the API also works while another loop is running."""

    async def cell() -> None:
        with open_one() as o:
            agent = scripted(o, "done")
            assert (agent.seq, agent.name, agent.pid) == (1, "agent-1", agent.state().pid)
            assert repr(agent) == f"<Subagent {agent.id} 'agent-1'>"
            assert agent.query("go").text == "done"

    asyncio.run(cell())


def test_ctrl_c_while_submitting_a_query_ends_the_wait(open_one: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Ctrl-C comes after the query was sent, its answer can be collected."""
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


def test_ctrl_c_while_acquiring_a_lock_releases_it(open_one: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C, the lock is free for the thread that delivers the answer."""
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


def test_ctrl_c_during_spawn_ends_the_agent(open_one: Open) -> None:
    """After Ctrl-C during `spawn`, the agent is ended, and its name can be used again."""
    launcher = Interrupting("launch")
    with open_one(launcher) as o:
        with pytest.raises(KeyboardInterrupt):
            scripted(o, "fine", name="x")
        launcher.heard.set()
        launcher.at = ""
        assert o.agents() == []
        assert scripted(o, "fine", name="x").query("go").text == "fine"
    assert all(worker.ended.done() for worker in launcher.workers)


def test_ctrl_c_during_start_leaves_nothing_behind(open_one: Open) -> None:
    """The launcher is stopped, the run is free, and the thread has ended."""
    launcher = Interrupting("start")
    threads = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        open_one(launcher, run="r")
    assert launcher.stopped
    assert set(threading.enumerate()) <= threads
    with open_one(run="r") as o:
        assert o.agents() == []


def test_ctrl_c_during_close_completes_the_close(open_one: Open) -> None:
    """KeyboardInterrupt is raised after the close is complete."""
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
    """A launcher that sends Ctrl-C `presses` times while it stops, and then waits for `go`."""

    def __init__(self, presses: int) -> None:
        super().__init__()
        self.presses = presses
        self.go = threading.Event()
        self.stopped = False

    async def stop(self) -> None:
        for _ in range(self.presses):
            press_ctrl_c()
            await asyncio.sleep(0)
        self.presses = 0
        await super().stop()
        while not self.go.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)
        self.stopped = True


def test_repeated_ctrl_c_during_close_raises_once(open_one: Open, caplog: pytest.LogCaptureFixture) -> None:
    """KeyboardInterrupt is raised after the complete close, and no warning about tasks is logged."""
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


def test_ctrl_c_at_program_end_prints_no_traceback(
    open_one: Open, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C during the exit handlers does not interrupt the close."""
    at_exit: list[Callable[[], object]] = []
    monkeypatch.setattr("orch.api.sync.atexit.register", at_exit.append)
    launcher = Hammered(3)
    launcher.go.set()
    open_one(launcher)
    for last in at_exit:
        last()
    assert launcher.stopped
    assert capfd.readouterr().err == ""


def test_hanging_close_can_be_interrupted(
    open_one: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted close completes later in its thread, without warnings about tasks."""
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


def test_waiters_in_other_threads_get_an_error_on_close(open_one: Open) -> None:
    """Each of several waiting threads gets AgentDiedError, and none waits forever."""
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
    """The second `submit` raises AgentBusyError, and the future of the first query is not affected."""
    with open_one() as o:
        agent = scripted(o, {"text": "late", "sleep": 60})
        first = agent.submit("go")
        with pytest.raises(AgentBusyError, match="is busy with: go"):
            agent.submit("again")
        assert not first.done()


def test_submit_from_a_hook_on_the_loop_thread_does_not_wait(open_one: Open) -> None:
    """Asynchronous hooks run in the orchestrator's thread, which must not wait for itself."""
    asked: list[Any] = []
    with open_one() as o:
        other = scripted(o, "fine")

        @o.on("before_system_prompt")
        async def ask_other(*_: object) -> None:
            if not asked:
                asked.append(other.submit("go"))

        assert scripted(o, "done").query("start").text == "done"
        assert asked[0].result(timeout=10).text == "fine"


def test_closed_root_refuses_requests(open_one: Open) -> None:
    """After `close`, requests raise ConfigError, and a second `close` has no effect."""
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


def test_failed_start_ends_the_thread(open_one: Open) -> None:
    """The error of the launcher is raised, and the run can be opened again."""

    class Broken(FakeLauncher):
        async def start(self) -> None:
            raise LaunchError("no shim")

    threads = set(threading.enumerate())
    with pytest.raises(LaunchError, match="no shim"):
        open_one(Broken(), run="r")
    assert set(threading.enumerate()) <= threads
    open_one(run="r").close()


def test_async_tool_calling_the_sync_api_is_refused(open_one: Open) -> None:
    """An async tool runs in the thread that would have to answer; a plain function may call the API."""
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
def test_base_exceptions_do_not_end_the_orchestrators_thread(open_one: Open, error: BaseException) -> None:
    """A tool or approver that raises SystemExit or KeyboardInterrupt fails, and later calls work."""

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

    collected: list[str] = []
    with open_one(approve=approve) as o:
        o._portal.loop.set_exception_handler(lambda _, context: collected.append(context["message"]))
        script = [{"tool": "leave"}, {"tool": "task_create", "input": {"tasks": ["Look"]}}, "done"]
        agent = scripted(o, *script, tools=[leave, "task_create"])
        future = agent.submit("go")
        future.add_done_callback(left)
        watched.set()
        assert future.result(timeout=10).text == "done"
        assert str(agent.show().messages).count(type(error).__name__) == 2
        o.agents()
    assert [text for text in collected if "tried to end the orchestrator's thread" in text]


def test_orchestrator_made_before_a_fork_is_refused_in_the_child(open_one: Open) -> None:
    """Calls in a forked child raise ConfigError, and its `close` has no effect on the parent."""
    with open_one() as o:
        agent = scripted(o, "fine")
        o._portal._pid = -1
        o.close()
        with pytest.raises(ConfigError, match="forked child"):
            agent.query("go")
        o._portal._pid = os.getpid()
        assert agent.query("go").text == "fine"


def test_errors_show_the_program_and_not_the_root(open_one: Open) -> None:
    """A traceback has the frame of the program, and at most two frames of the API."""
    with open_one() as o:
        agent = o.spawn("Fail", backend=ScriptedBackend([]))
        with pytest.raises(BackendError, match="the script has no more items") as caught:
            agent.query("go")
    assert [entry.path.name for entry in caught.traceback] == ["test_sync.py", "portal.py", "portal.py"]
