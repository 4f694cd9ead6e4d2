from __future__ import annotations

import asyncio
import gc
import os
import warnings
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch.client import connection
from orch.client import start as starting
from orch.client.connection import Connection, await_end
from orch.client.failure import CommandError
from orch.config import paths
from orch.daemon.control_socket import MAX_LINE, Client, ControlServer, DaemonLeaving
from orch.daemon.daemon import Stopping
from orch_protocol.core.errors import AgentBusyError, AgentNotFoundError
from orch_protocol.wire import frames
from orch_protocol.wire.control_socket import ALREADY_RUNNING


def test_client_constants_equal_the_daemons() -> None:
    """The client repeats the constants to avoid a slow import."""
    assert connection.PROTOCOL == frames.VERSION
    assert connection.MAX_LINE == MAX_LINE
    assert DaemonLeaving.__name__ == connection.LEAVING
    assert starting.ALREADY_RUNNING == ALREADY_RUNNING


class Desk:
    """The handler of a server. Its attributes determine how it responds."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.runs: list[str] = []
        self.busy = False
        self.leaves = 0
        """The number of requests that fail with DaemonLeaving."""
        self.stopped = asyncio.Event()
        self.silence = asyncio.Event()

    async def __call__(self, method: str, params: msgspec.Raw, client: Client) -> Any:  # noqa: ARG002
        self.asked.append(method)
        self.runs.append(client.run)
        if self.leaves:
            self.leaves -= 1
            raise DaemonLeaving("the daemon is leaving")
        if method == "daemon_stop":
            if self.busy:
                raise AgentBusyError("1 agents are at work (a)")
            self.stopped.set()
            return Stopping(2**22 + 1)  # larger than any pid
        if method == "show":
            raise AgentNotFoundError("no agent 'x'")
        if method == "query":
            client.send_event({"n": 1})
            await self.silence.wait()
            client.send_event({"n": 2})
        return {"asked": method}


class House:
    """An ORCH_HOME in which servers start and stop."""

    def __init__(self, folder: Path) -> None:
        self.env = {"ORCH_HOME": str(folder)}
        paths.private_dir(folder / "daemon")
        self.desk = Desk()
        self.server: ControlServer | None = None
        self.starts = 0
        self.options: dict[str, Any] = {}
        """The options of servers that `start` opens."""
        self._clients: list[Connection] = []
        self._loop = asyncio.get_running_loop()

    def client(self, *, start: bool = True) -> Connection:
        self._clients.append(Connection(self.env, start=self.start if start else None))
        return self._clients[-1]

    async def open(self, **options: Any) -> None:
        self.server = ControlServer(paths.control_socket(self.env), self.desk, **options)
        await self.server.start()

    async def close(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            await server.close()

    def hang_up(self) -> None:
        for client in self._clients:
            client.close()

    def start(self, env: Mapping[str, str], log: str, seconds: float) -> bool:
        """Open a server instead of starting a daemon. The client calls this function in its thread."""
        assert env == self.env
        assert log == os.path.join(env["ORCH_HOME"], "daemon", "log")
        assert seconds > 0
        self.starts += 1
        asyncio.run_coroutine_threadsafe(self.open(**self.options), self._loop).result()
        return True


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    made = House(tmp_path / "h")
    yield made
    made.hang_up()
    await made.close()


async def test_running_daemon_is_asked_over_one_connection(house: House) -> None:
    """No daemon is started."""
    await house.open()
    client = house.client()
    assert await asyncio.to_thread(client.call, "list", {"all": True}) == {"asked": "list"}
    assert await asyncio.to_thread(client.call, "state") == {"asked": "state"}
    assert (house.starts, house.desk.asked) == (0, ["list", "state"])


async def test_requests_name_the_run_of_the_connection(house: House) -> None:
    """The default is the daemon's own run, "". A sibling of a connection is about the same run."""
    await house.open()
    other = Connection(house.env, start=None, run="report")
    for client in (house.client(), other, other.sibling()):
        await asyncio.to_thread(client.call, "list")
        client.close()
    assert house.desk.runs == ["", "report", "report"]


async def test_dropped_connection_closes_its_socket(house: House) -> None:
    """Commands that send one request do not close their connection, and Python must not warn about it."""
    await house.open()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            client = Connection(house.env, start=None)
            assert await asyncio.to_thread(client.dial)
            del client
            gc.collect()
    assert [str(each.message) for each in caught if each.category is ResourceWarning] == []


async def test_events_and_keepalives_are_delivered_while_waiting(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without callbacks the result is returned, too."""
    monkeypatch.setattr(connection, "TICK_SECONDS", 0.01)
    await house.open()
    client, collected = house.client(), list[Any]()
    loop = asyncio.get_running_loop()

    def on_silence() -> None:
        collected.append("silence")
        loop.call_soon_threadsafe(house.desk.silence.set)

    answer = await asyncio.to_thread(client.call, "query", on_event=collected.append, on_silence=on_silence)
    assert answer == {"asked": "query"}
    assert [collected[0], collected[1], collected[-1]] == [{"n": 1}, "silence", {"n": 2}]
    assert await asyncio.to_thread(client.call, "query") == {"asked": "query"}


async def test_daemon_is_started_when_none_listens(house: House) -> None:
    """The socket is missing, or no process listens on it."""
    client = house.client()
    assert await asyncio.to_thread(client.call, "list") == {"asked": "list"}
    client.close()
    await house.close()
    os.mknod(paths.control_socket(house.env))
    assert await asyncio.to_thread(house.client().call, "list") == {"asked": "list"}
    assert house.starts == 2


async def test_missing_daemon_without_start_exits_with_3(house: House) -> None:
    client = house.client(start=False)
    assert not client.dial()
    with pytest.raises(CommandError, match="no daemon is running") as raised:
        client.call("daemon_status")
    assert raised.value.exit_code == 3


async def test_status_without_a_daemon_is_none(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """No daemon is started for the status."""
    monkeypatch.setenv("ORCH_HOME", house.env["ORCH_HOME"])
    assert connection.daemon_status() is None
    await house.open()
    assert await asyncio.to_thread(connection.daemon_status) == {"asked": "daemon_status"}
    assert house.starts == 0


async def test_daemon_errors_keep_class_and_exit_code(house: House) -> None:
    """The error that a service raises determines the exit code of the command."""
    await house.open()
    with pytest.raises(CommandError, match="no agent 'x'") as raised:
        await asyncio.to_thread(house.client(start=False).call, "show")
    assert (raised.value.kind, raised.value.exit_code) == ("AgentNotFoundError", 3)


async def test_request_to_a_leaving_daemon_goes_to_the_next(house: House) -> None:
    """The request is repeated on a new daemon without an error."""
    await house.open()
    client = house.client()
    await asyncio.to_thread(client.call, "list")
    await house.close()
    assert await asyncio.to_thread(client.call, "state") == {"asked": "state"}
    assert house.starts == 1


async def test_repeatedly_leaving_daemons_are_given_up(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client stops after some attempts, for example if each daemon fails right after its start."""
    monkeypatch.setattr(connection, "START_SECONDS", 0)
    house.desk.leaves = 2
    await house.open()
    with pytest.raises(CommandError, match="no daemon accepted this request") as raised:
        await asyncio.to_thread(house.client().call, "list")
    assert (raised.value.kind, house.desk.asked) == ("DaemonNotRunning", ["list", "list"])


async def test_late_error_of_the_next_daemon_is_reported(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client returns the error of the daemon, and not an error about a missing daemon."""
    monkeypatch.setattr(connection, "START_SECONDS", 0)
    house.desk.leaves = 1
    await house.open()
    with pytest.raises(CommandError, match="no agent 'x'") as raised:
        await asyncio.to_thread(house.client().call, "show")
    assert (raised.value.kind, house.desk.asked) == ("AgentNotFoundError", ["show", "show"])


async def test_idle_daemon_of_another_version_is_replaced(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    """The client stops the daemon, waits until it has ended, and sends the request to the new daemon."""
    await house.open(version=99)
    asking = asyncio.create_task(asyncio.to_thread(house.client().call, "list"))
    await house.desk.stopped.wait()
    await house.close()
    assert await asking == {"asked": "list"}
    assert house.desk.asked == ["daemon_stop", "list"]
    assert "has another version" in capsys.readouterr().err


async def test_successor_of_another_version_is_an_error_naming_both(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise two installations would replace each other's daemon forever."""
    house.options = {"version": 99}
    await house.open(version=99)
    asking = asyncio.create_task(asyncio.to_thread(house.client().call, "list"))
    await house.desk.stopped.wait()
    await house.close()
    with pytest.raises(CommandError, match=rf"version {frames.VERSION} .* version 99") as raised:
        await asking
    assert (raised.value.kind, raised.value.exit_code, house.starts) == ("VersionMismatchError", 2, 1)
    assert capsys.readouterr().err.count("has another version") == 1


async def test_busy_daemon_of_another_version_is_an_error_naming_both(house: House) -> None:
    """The daemon and its agents continue."""
    house.desk.busy = True
    await house.open(version=99)
    with pytest.raises(
        CommandError, match=rf"version {frames.VERSION} .*version 99.*1 agents are at work \(a\)"
    ) as raised:
        await asyncio.to_thread(house.client().call, "list")
    assert (raised.value.kind, raised.value.exit_code, house.starts) == ("VersionMismatchError", 2, 0)


async def test_oversized_request_is_refused_before_connecting(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error states the limit."""
    monkeypatch.setattr(connection, "MAX_LINE", 100)
    with pytest.raises(CommandError, match="at most 100 are allowed") as raised:
        house.client(start=False).call("query", {"prompt": "x" * 100})
    assert raised.value.exit_code == 2


class Mute:
    """A server that sends no response. With `hangs_up` it closes the connection after the first request."""

    def __init__(self, *, hangs_up: bool) -> None:
        self.hangs_up = hangs_up
        self.heard: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            self.heard.append(line)
            if self.hangs_up:
                break
        writer.close()


@pytest.mark.parametrize("listens", [None, lambda: None], ids=["waits", "looks"])
@pytest.mark.parametrize(
    ("hangs_up", "kind", "lines"), [(True, "DaemonGone", 1), (False, "DaemonSilent", 2)], ids=["dies", "hangs"]
)
async def test_dead_or_hanging_daemon_is_an_error_naming_its_log(
    house: House, monkeypatch: pytest.MonkeyPatch, hangs_up: bool, kind: str, lines: int, listens: Any
) -> None:
    """A closed connection is an error at once. Silence is an error after a ping without a response."""
    if not hangs_up:
        monkeypatch.setattr(connection, "SILENCE_SECONDS", 0.02)
        monkeypatch.setattr(connection, "TICK_SECONDS", 0.01)
    mute = Mute(hangs_up=hangs_up)
    async with await asyncio.start_unix_server(mute, paths.control_socket(house.env)):
        with pytest.raises(CommandError, match=r"h/daemon/log") as raised:
            await asyncio.to_thread(house.client(start=False).call, "query", on_silence=listens)
    assert raised.value.kind == kind
    assert (f"kill -9 {os.getpid()}" in str(raised.value)) is not hangs_up
    assert len(mute.heard) == lines
    assert (b'"ping"' in mute.heard[-1]) is not hangs_up


def test_hanging_daemon_times_out_after_ten_seconds() -> None:
    """The time includes the wait after a ping."""
    assert 2 * connection.SILENCE_SECONDS <= 10


def test_end_of_a_missing_process_is_not_awaited() -> None:
    await_end(2**22 + 1)


def test_process_that_does_not_end_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command that ends the process."""
    monkeypatch.setattr(connection, "STOP_SECONDS", 0)
    with pytest.raises(CommandError, match=f"kill -9 {os.getpid()}"):
        await_end(os.getpid())
