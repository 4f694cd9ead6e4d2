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
from orch_protocol.core.errors import AgentBusyError, ProtocolError, ToolNotGrantedError
from orch_protocol.services.registry import SERVICES
from orch_protocol.services.requests import AgentRow, Kill, ListAgents
from orch_protocol.services.service import AnyService, Empty
from orch_protocol.wire.frames import VERSION
from orch_worker.sandbox.probe import AvailableLevels
from virtual_clock import passed, virtual

US = Client(1, os.getuid())


def row(id: str, status: Any) -> AgentRow:
    """Return an agent that is called `id`."""
    from orch_protocol.core.messages import Usage

    return AgentRow(id, 1, id, None, 1, "agent", status, "", "", "", None, "", "", None, 0, 0, 0, Usage())


class Root:
    """A root as the daemon sees it: rows to list, and what else it was asked."""

    def __init__(self, *rows: AgentRow) -> None:
        self.rows = list(rows)
        self.asked: list[tuple[str, Any]] = []
        self.hold = asyncio.Event()

    async def call(self, root: Any, caller: Caller, service: AnyService, params: Any) -> Any:
        assert root is self
        assert caller.is_user
        if isinstance(params, ListAgents):
            return self.rows
        self.asked.append((service.name, params))
        if service.name == "query":
            await self.hold.wait()
        return Empty()


class Hour:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def open_daemon(root: Root, clock: Hour, minutes: float = 15) -> Daemon:
    config = Config(daemon=DaemonConfig(idle_minutes=minutes))
    return Daemon(root, root.call, home=Path("/o"), config=config, clock=clock, offered=little)


async def little() -> AvailableLevels:
    """A machine that has little to keep tools from anything."""
    return AvailableLevels({"L2": "no Landlock", "L3": "no bubblewrap"})


async def ask(served: Daemon, method: str, params: Any = None) -> Any:
    return await served.handle(method, msgspec.Raw(msgspec.json.encode(params or {})), US)


async def test_a_service_is_called_with_its_parameters() -> None:
    """JSON from the socket reaches the service table as the struct it takes."""
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
async def test_what_does_not_fit_is_an_error(method: str, params: Any, complaint: str) -> None:
    """An unknown method or parameter is named, and nothing is called."""
    root = Root()
    with pytest.raises(ProtocolError, match=complaint):
        await ask(open_daemon(root, Hour()), method, params)
    assert root.asked == []


async def test_status_tells_what_the_daemon_is() -> None:
    """Process, home, versions, counts; at which level tools run, and what the machine offers, in words."""
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


async def test_an_idle_daemon_leaves_in_time() -> None:
    """Without a request it stays for its minutes and no longer."""
    clock = Hour()
    served = open_daemon(Root(row("a", "idle")), clock)
    assert await served.seconds_left() == 900
    clock.now += 899
    assert await served.seconds_left() == 1
    clock.now += 1
    assert await served.until_done() == "idle for 15 minutes"


async def test_requests_keep_the_daemon_looks_do_not() -> None:
    """A request starts the minutes anew; asking how it is does not."""
    clock = Hour()
    served = open_daemon(Root(), clock)
    clock.now += 600
    await ask(served, "daemon_status")
    await ask(served, "ping")
    assert await served.seconds_left() == 300
    await ask(served, "list")
    assert await served.seconds_left() == 900


async def test_an_agent_at_work_keeps_the_daemon() -> None:
    """While an agent is busy the minutes do not run."""
    clock = Hour()
    root = Root(row("a", "busy"))
    served = open_daemon(root, clock)
    clock.now += 10_000
    assert await served.seconds_left() == 900
    root.rows = []
    clock.now += 900
    assert await served.seconds_left() == 0


async def test_a_request_under_way_keeps_the_daemon() -> None:
    """Somebody who waits is not left."""
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
async def test_a_daemon_whose_folder_is_gone_leaves_within_a_minute() -> None:
    """However busy it is: who looks for it in the folder does not find it any more."""
    loop, there = asyncio.get_running_loop(), [True]
    root = Root(row("a", "busy"))
    served = Daemon(root, root.call, home=Path("/o"), config=Config(), holds=lambda: there[0], clock=loop.time)
    leaving = asyncio.create_task(served.until_done())
    await passed(100)
    assert not leaving.done()
    there[0] = False
    assert await leaving == "/o was removed, or another daemon serves it"
    assert loop.time() <= 160


async def test_a_daemon_whose_folder_is_gone_takes_no_request() -> None:
    """Whoever still has a connection is sent to the next one, and this one leaves at once."""
    root = Root()
    served = Daemon(root, root.call, home=Path("/o"), config=Config(), holds=lambda: False)
    for method in ("kill", "daemon_status"):
        with pytest.raises(DaemonLeaving, match="its home /o was moved or deleted"):
            await ask(served, method)
    assert root.asked == []
    assert "was removed" in await served.until_done()


async def test_a_daemon_whose_journal_can_be_written_no_more_leaves() -> None:
    """After a sync that failed, say: only who opens it anew knows what it holds, and that is the next daemon."""
    root, why = Root(row("a", "busy")), [""]
    served = Daemon(root, root.call, home=Path("/o"), config=Config(), fault=lambda: why[0])
    await ask(served, "kill", {"all": True})
    why[0] = "cannot sync journal.jsonl: the disk reports an input/output error"
    for method in ("kill", "daemon_status"):
        with pytest.raises(DaemonLeaving, match=r"leaving: cannot sync journal\.jsonl.*; ask the next one"):
            await ask(served, method)
    assert len(root.asked) == 1
    assert await served.until_done() == why[0]


async def test_stop_stops() -> None:
    """Whoever asks gets the pid to wait for, and the daemon leaves, busy or not."""
    served = open_daemon(Root(row("a", "busy")), Hour())
    leaving = asyncio.create_task(served.until_done())
    assert await ask(served, "daemon_stop") == Stopping(os.getpid())
    assert await leaving == "told to stop"


async def test_stop_if_idle_spares_work() -> None:
    """A client that merely wants another version does not end what runs."""
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


def test_keys_come_through_a_descriptor() -> None:
    """A JSON object to the end of the pipe; an empty pipe is no key."""
    for sent, expected in ((b'{"A_KEY":"x"}', {"A_KEY": "x"}), (b"", {})):
        read, write = os.pipe()
        os.write(write, sent)
        os.close(write)
        assert daemon.read_keys(read) == expected


def test_a_starter_that_is_gone_is_no_error() -> None:
    """Nobody has to listen when the daemon says that it is up."""
    read, write = os.pipe()
    os.close(read)
    daemon.report(write, pid=1)
    daemon.report(None, pid=1)


def test_the_log_has_no_key() -> None:
    """A line, or the report of an error, that quotes one is written without it."""
    handler = logging.StreamHandler(out := io.StringIO())
    handler.setFormatter(_WithoutKeys(("sk-planted-1",)))
    handler.emit(
        logging.LogRecord("orch", logging.ERROR, "", 0, '{"event": "x", "exception": "sk-planted-1"}', (), None)
    )
    assert out.getvalue() == '{"event": "x", "exception": "[a key]"}\n'


async def test_command_of_an_agent_is_served_as_that_agent() -> None:
    """What one of its tools asks for is called on its behalf, without a watcher; the daemon may be looked at."""
    asked: list[tuple[str | None, str]] = []

    async def call(_: Any, caller: Caller, service: AnyService, params: Any) -> Any:
        asked.append((caller.agent_id, service.name))
        return [] if isinstance(params, ListAgents) else Empty()

    served = Daemon(agents(), call, home=Path("/o"), config=Config(), offered=little)
    command = Client(7, os.getuid(), agent_id="a1")
    params = msgspec.Raw(b'{"ref": "x", "prompt": "hi", "approve": true, "stream": true}')
    await served.handle("query", params, command)
    assert isinstance(await served.handle("daemon_status", msgspec.Raw(b"{}"), command), DaemonStatus)
    assert asked == [("a1", "query"), (None, "list")]


BY_TOOL = {name for name, service in SERVICES.items() if service.agents.tools}
"""Services that tools call."""


@pytest.mark.parametrize("method", sorted({*SERVICES, "daemon_stop", "fly"} - BY_TOOL))
async def test_command_of_an_agent_is_refused_what_is_for_users(method: str) -> None:
    """Every service that no tool asks for, those of the agent's own worker included, and the daemon's end."""

    async def call(*_: Any) -> Any:
        raise AssertionError(method)

    served = Daemon(agents(), call, home=Path("/o"), config=Config(), offered=little)
    with pytest.raises(ToolNotGrantedError, match=rf"'{method}' is for users, .* agent 'worker' \(a1\).* terminal"):
        await served.handle(method, msgspec.Raw(b"{}"), Client(7, os.getuid(), agent_id="a1"))


@pytest.mark.parametrize("method", sorted(BY_TOOL))
async def test_command_of_an_agent_is_refused_what_its_tools_do_not_ask_for(method: str) -> None:
    """With bash alone it may ask for nothing."""

    async def call(*_: Any) -> Any:
        raise AssertionError(method)

    served = Daemon(agents("bash"), call, home=Path("/o"), config=Config(), offered=little)
    with pytest.raises(ToolNotGrantedError, match=f"may not call '{method}': it was not granted"):
        await served.handle(method, msgspec.Raw(b"{}"), Client(7, os.getuid(), agent_id="a1"))


def agents(*tools: str) -> Any:
    """Return a root with the agent a1, which has those tools, or all that ask for services."""
    tools = tools or tuple({tool for name in BY_TOOL for tool in SERVICES[name].agents.tools})
    spec = AgentSpec("a1", 1, "worker", "t", BackendSpec("scripted"), "/f", "/", tools=tools)
    node = SimpleNamespace(spec=spec)
    return SimpleNamespace(tree=SimpleNamespace(agents={"a1": node}))
