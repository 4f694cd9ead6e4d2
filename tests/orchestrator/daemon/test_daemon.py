from __future__ import annotations

import asyncio
import io
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from orch.config.config import ROOT_WIDE
from orch.config.logs import _WithoutKeys
from orch.daemon import daemon
from orch.daemon.control_socket import Client, DaemonLeaving
from orch.daemon.daemon import Daemon, DaemonStatus, Stopping
from orch.policy.caller import Caller
from orch_protocol.agent.config import Config, DaemonConfig
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import AgentBusyError, ConfigError, ProtocolError, ToolNotGrantedError
from orch_protocol.services.agents.lifecycle import Kill
from orch_protocol.services.agents.status import AgentRow, ListAgents
from orch_protocol.services.dispatch.registry import SERVICES
from orch_protocol.services.service import AnyService, Empty, StreamingService
from orch_protocol.wire.frames import VERSION
from orch_worker.sandbox.probe import AvailableLevels
from virtual_clock import passed, virtual

US = Client(1, os.getuid())


def row(id: str, status: Any) -> AgentRow:
    """Return the row of an agent with this id and status."""
    from orch_protocol.core.messages import Usage

    return AgentRow(id, 1, id, None, 1, "agent", status, "", "", "", None, "", "", None, 0, 0, 0, Usage())


class Root:
    """A fake root. It lists rows of agents and records the other requests."""

    def __init__(self, *rows: AgentRow) -> None:
        self.rows = list(rows)
        self.asked: list[tuple[str, Any]] = []
        self.hold = asyncio.Event()

    async def call(self, root: Any, caller: Caller, service: AnyService, params: Any, _: Any = None) -> Any:
        assert root is self
        assert caller.is_user
        if isinstance(params, ListAgents):
            return self.rows
        self.asked.append((service.name, params))
        if service.name == "query":
            await self.hold.wait()
        return Empty()


class Hour:
    """A clock that advances only when a test changes it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def open_daemon(root: Root, clock: Hour, minutes: float = 15) -> Daemon:
    config = Config(daemon=DaemonConfig(idle_minutes=minutes))
    return Daemon(root, root.call, home=Path("/o"), config=config, clock=clock, find_levels=little)


async def little() -> AvailableLevels:
    """Return the sandbox levels of a machine without Landlock and bubblewrap."""
    return AvailableLevels({"L2": "no Landlock", "L3": "no bubblewrap"})


async def ask(served: Daemon, method: str, params: Any = None) -> Any:
    return await served.handle(method, msgspec.Raw(msgspec.json.encode(params or {})), US)


async def test_service_is_called_with_typed_parameters() -> None:
    """JSON from the socket is converted to the parameter struct of the service."""
    root = Root()
    await ask(open_daemon(root, Hour()), "kill", {"refs": ["1"], "dry_run": True})
    assert root.asked == [("kill", Kill(("1",), dry_run=True))]


@pytest.mark.parametrize(
    ("method", "params", "complaint"),
    [
        ("fly", {}, "unknown method 'fly'; available: spawn, query, .*daemon_stop, ping"),
        ("kill", {"force": True}, "parameters of 'kill': Object contains unknown field `force`"),
        ("query", {"ref": "1"}, "parameters of 'query': Object missing required field `prompt`"),
        ("daemon_stop", {"now": 1}, "parameters of 'daemon_stop': Object contains unknown field `now`"),
    ],
)
async def test_unknown_method_or_parameter_is_an_error(method: str, params: Any, complaint: str) -> None:
    """The error has the unknown name, and no service is called."""
    root = Root()
    with pytest.raises(ProtocolError, match=complaint):
        await ask(open_daemon(root, Hour()), method, params)
    assert root.asked == []


@pytest.mark.parametrize(
    ("method", "params", "field"),
    [
        ("spawn", {"task": "t"}, "cwd"),
        ("spawn", {"task": "t", "cwd": ""}, "cwd"),
        ("spawn", {"task": "t", "cwd": "."}, "cwd"),
        ("spawn", {"task": "t", "cwd": "project"}, "cwd"),
        ("import", {"path": "a.jsonl", "here": "."}, "here"),
    ],
)
async def test_new_agent_needs_an_absolute_folder(method: str, params: Any, field: str) -> None:
    """The daemon runs in its own home, so a missing or relative folder would be a folder of orch."""
    root = Root()
    with pytest.raises(ConfigError, match=f"{field} must be the absolute path of the agent's working folder"):
        await ask(open_daemon(root, Hour()), method, params)
    assert root.asked == []


@pytest.mark.parametrize("method", [name for name in SERVICES if isinstance(SERVICES[name], StreamingService)])
async def test_streaming_service_sends_its_events_to_the_client(method: str) -> None:
    """The watcher of each streaming service is the client that called the service."""
    watchers: list[Any] = []

    async def call(_: Any, __: Caller, ___: AnyService, params: Any, watcher: Any = None) -> Any:
        if isinstance(params, ListAgents):
            return []
        watchers.append(watcher)
        return Empty()

    client = Client(7, os.getuid())
    required = {each.name: "1" for each in msgspec.structs.fields(SERVICES[method].params) if each.required}
    served = Daemon(agents(), call, home=Path("/o"), config=Config(), find_levels=little)
    await served.handle(method, msgspec.Raw(msgspec.json.encode(required)), client)
    assert watchers == [client.send_event]


async def test_status_has_process_home_versions_counts_and_sandbox() -> None:
    """The sandbox is described by the level of tools and by the levels that the machine supports."""
    status = await ask(open_daemon(Root(row("a", "busy"), row("b", "idle")), Hour()), "daemon_status")
    assert isinstance(status, DaemonStatus)
    assert (status.pid, status.sandbox, status.agents, status.busy) == (os.getpid(), "L0", 2, 1)
    assert not status.sandbox_required
    assert status.sandbox_offered == (
        "up to L1 (no rights beyond an ordinary program's); no L2: no Landlock; no L3: no bubblewrap"
    )
    assert (status.protocol, status.home, status.model) == (VERSION, "/o", None)
    assert status.settings.keys() == set(ROOT_WIDE)
    assert (status.settings["daemon.idle_minutes"], status.settings["subagents.enabled"]) == (15, True)


async def test_idle_daemon_exits_after_its_timeout() -> None:
    """The timeout begins with the last request."""
    clock = Hour()
    served = open_daemon(Root(row("a", "idle")), clock)
    assert await served.seconds_left() == 900
    clock.now += 899
    assert await served.seconds_left() == 1
    clock.now += 1
    assert await served.until_done() == "idle for 15 minutes"


async def test_requests_restart_the_idle_timer_and_status_does_not() -> None:
    """`daemon_status` and `ping` do not restart the timer; other requests do."""
    clock = Hour()
    served = open_daemon(Root(), clock)
    clock.now += 600
    await ask(served, "daemon_status")
    await ask(served, "ping")
    assert await served.seconds_left() == 300
    await ask(served, "list")
    assert await served.seconds_left() == 900


async def test_busy_agent_stops_the_idle_timer() -> None:
    """The timeout begins when no agent is busy any more."""
    clock = Hour()
    root = Root(row("a", "busy"))
    served = open_daemon(root, clock)
    clock.now += 10_000
    assert await served.seconds_left() == 900
    root.rows = []
    clock.now += 900
    assert await served.seconds_left() == 0


async def test_pending_request_stops_the_idle_timer() -> None:
    """The timeout begins when the request is answered."""
    clock = Hour()
    root = Root()
    served = open_daemon(root, clock)
    waiting = asyncio.create_task(ask(served, "query", {"ref": "1", "prompt": "?"}))
    await asyncio.sleep(0)
    clock.now += 10_000
    assert await served.seconds_left() == 900
    root.hold.set()
    await waiting
    clock.now += 900
    assert await served.seconds_left() == 0


@virtual
async def test_daemon_without_its_folder_exits_within_a_minute() -> None:
    """A busy daemon exits, too, because clients cannot find it."""
    loop, there = asyncio.get_running_loop(), [True]
    root = Root(row("a", "busy"))
    served = Daemon(root, root.call, home=Path("/o"), config=Config(), owns_folder=lambda: there[0], clock=loop.time)
    leaving = asyncio.create_task(served.until_done())
    await passed(100)
    assert not leaving.done()
    there[0] = False
    assert await leaving == "/o was removed, or another daemon serves it"
    assert loop.time() <= 160


async def test_daemon_without_its_folder_refuses_requests() -> None:
    """The error makes clients connect to the next daemon, and the daemon exits at once."""
    root = Root()
    served = Daemon(root, root.call, home=Path("/o"), config=Config(), owns_folder=lambda: False)
    for method in ("kill", "daemon_status"):
        with pytest.raises(DaemonLeaving, match="its home /o was moved or deleted"):
            await ask(served, method)
    assert root.asked == []
    assert "was removed" in await served.until_done()


async def test_daemon_with_an_unwritable_journal_exits() -> None:
    """The journal could not be synced, so the next daemon must read it from the disk."""
    root, why = Root(row("a", "busy")), [""]
    served = Daemon(root, root.call, home=Path("/o"), config=Config(), fault=lambda: why[0])
    await ask(served, "kill", {"all": True})
    why[0] = "cannot sync journal.jsonl: the disk reports an input/output error"
    for method in ("kill", "daemon_status"):
        with pytest.raises(DaemonLeaving, match=r"shutting down: cannot sync journal\.jsonl.*; retry"):
            await ask(served, method)
    assert len(root.asked) == 1
    assert await served.until_done() == why[0]


async def test_stop_returns_the_pid_and_ends_the_daemon() -> None:
    """The client needs the pid to wait for the end of the daemon. A busy daemon is stopped, too."""
    served = open_daemon(Root(row("a", "busy")), Hour())
    leaving = asyncio.create_task(served.until_done())
    assert await ask(served, "daemon_stop") == Stopping(os.getpid())
    assert await leaving == "asked to stop"


async def test_stop_if_idle_refuses_while_busy() -> None:
    """With `if_idle`, busy agents and pending requests prevent the stop."""
    root = Root(row("a", "busy"), row("b", "starting"))
    served = open_daemon(root, Hour())
    with pytest.raises(AgentBusyError, match=r"2 agents are at work \(a, b\)"):
        await ask(served, "daemon_stop", {"if_idle": True})
    root.rows = []
    waiting = asyncio.create_task(ask(served, "query", {"ref": "1", "prompt": "?"}))
    await asyncio.sleep(0)
    with pytest.raises(AgentBusyError, match="1 other requests are under way"):
        await ask(served, "daemon_stop", {"if_idle": True})
    root.hold.set()
    await waiting
    assert isinstance(await ask(served, "daemon_stop", {"if_idle": True}), Stopping)


def test_keys_are_read_from_a_descriptor() -> None:
    """The keys are a JSON object. An empty pipe means no keys."""
    for sent, expected in ((b'{"A_KEY":"x"}', {"A_KEY": "x"}), (b"", {})):
        read, write = os.pipe()
        os.write(write, sent)
        os.close(write)
        assert daemon.read_keys(read) == expected


def test_vanished_starter_is_no_error() -> None:
    """`report` ignores a closed pipe and a missing descriptor."""
    read, write = os.pipe()
    os.close(read)
    daemon.report(write, pid=1)
    daemon.report(None, pid=1)


def test_daemon_log_contains_no_key() -> None:
    """A key in a log record is replaced by `[a key]`."""
    handler = logging.StreamHandler(out := io.StringIO())
    handler.setFormatter(_WithoutKeys(("sk-planted-1",)))
    handler.emit(
        logging.LogRecord("orch", logging.ERROR, "", 0, '{"event": "x", "exception": "sk-planted-1"}', (), None)
    )
    assert out.getvalue() == '{"event": "x", "exception": "[a key]"}\n'


async def test_command_of_an_agent_is_served_as_that_agent() -> None:
    """A service that a tool of the agent uses is called as the agent. The status of the daemon may be read."""
    asked: list[tuple[str | None, str]] = []

    async def call(_: Any, caller: Caller, service: AnyService, params: Any) -> Any:
        asked.append((caller.agent_id, service.name))
        return [] if isinstance(params, ListAgents) else Empty()

    served = Daemon(agents(), call, home=Path("/o"), config=Config(), find_levels=little)
    command = Client(7, os.getuid(), agent_id="a1")
    params = msgspec.Raw(b'{"ref": "x", "prompt": "hi", "approve": true, "stream": true}')
    await served.handle("query", params, command)
    assert isinstance(await served.handle("daemon_status", msgspec.Raw(b"{}"), command), DaemonStatus)
    assert asked == [("a1", "query"), (None, "list")]


async def test_command_of_an_agent_reads_no_other_run() -> None:
    """Only the user reads the runs of other programs."""

    async def call(*_: Any) -> Any:
        raise AssertionError

    served = Daemon(agents(), call, home=Path("/o"), config=Config(), find_levels=little)
    with pytest.raises(ToolNotGrantedError, match="agent a1 cannot read the run 'report'; only the user can"):
        await served.handle("list", msgspec.Raw(b"{}"), Client(7, os.getuid(), agent_id="a1", run="report"))


BY_TOOL = {name for name, service in SERVICES.items() if service.agents.tools}
"""Services that tools call."""


@pytest.mark.parametrize("method", sorted({*SERVICES, "daemon_stop", "fly"} - BY_TOOL))
async def test_services_for_users_are_refused_to_agents(method: str) -> None:
    """An agent may call no service that no tool uses, and may not stop the daemon."""

    async def call(*_: Any) -> Any:
        raise AssertionError(method)

    served = Daemon(agents(), call, home=Path("/o"), config=Config(), find_levels=little)
    with pytest.raises(
        ToolNotGrantedError, match=rf"'{method}' is a command for users, .* agent 'worker' \(a1\).* terminal"
    ):
        await served.handle(method, msgspec.Raw(b"{}"), Client(7, os.getuid(), agent_id="a1"))


@pytest.mark.parametrize("method", sorted(BY_TOOL))
async def test_command_of_an_agent_without_subagent_tools_is_refused(method: str) -> None:
    """An agent with the tool `bash` only may call no service."""

    async def call(*_: Any) -> Any:
        raise AssertionError(method)

    served = Daemon(agents("bash"), call, home=Path("/o"), config=Config(), find_levels=little)
    with pytest.raises(ToolNotGrantedError, match=f"may not call '{method}': it was not granted"):
        await served.handle(method, msgspec.Raw(b"{}"), Client(7, os.getuid(), agent_id="a1"))


def agents(*tools: str) -> Any:
    """Return a root with the agent a1, which has `tools`, or by default all tools that call services."""
    tools = tools or tuple({tool for name in BY_TOOL for tool in SERVICES[name].agents.tools})
    spec = AgentSpec("a1", 1, "worker", "t", BackendSpec("scripted"), "/f", "/", tools=tools)
    node = SimpleNamespace(spec=spec)
    return SimpleNamespace(tree=SimpleNamespace(agents={"a1": node}))
