from __future__ import annotations

import asyncio
import os
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


def test_the_cli_knows_what_the_daemon_does_without_importing_it() -> None:
    """Constants that are repeated because importing them is expensive are the same."""
    assert connection.PROTOCOL == frames.VERSION
    assert connection.MAX_LINE == MAX_LINE
    assert DaemonLeaving.__name__ == connection.LEAVING
    assert starting.ALREADY_RUNNING == ALREADY_RUNNING


class Desk:
    """Handles requests for one server: answers its version, and what `then` says."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.busy = False
        self.leaves = 0
        """How many requests it does not take."""
        self.stopped = asyncio.Event()
        self.silence = asyncio.Event()

    async def __call__(self, method: str, params: msgspec.Raw, client: Client) -> Any:  # noqa: ARG002
        self.asked.append(method)
        if self.leaves:
            self.leaves -= 1
            raise DaemonLeaving("the daemon is leaving")
        if method == "daemon_stop":
            if self.busy:
                raise AgentBusyError("1 agents are at work (a)")
            self.stopped.set()
            return Stopping(2**22 + 1)  # above any pid there is
        if method == "show":
            raise AgentNotFoundError("no agent 'x'")
        if method == "query":
            client.tell({"n": 1})
            await self.silence.wait()
            client.tell({"n": 2})
        return {"asked": method}


class House:
    """An ORCH_HOME in which servers come and go."""

    def __init__(self, folder: Path) -> None:
        self.env = {"ORCH_HOME": str(folder)}
        paths.private_dir(folder / "daemon")
        self.desk = Desk()
        self.server: ControlServer | None = None
        self.starts = 0
        self.options: dict[str, Any] = {}
        """What daemons that are started here are like."""
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
        """Stand for starting a daemon; called in the CLI's thread."""
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


async def test_a_running_daemon_is_asked(house: House) -> None:
    """Several requests go over one connection, and nothing is started."""
    await house.open()
    client = house.client()
    assert await asyncio.to_thread(client.call, "list", {"all": True}) == {"asked": "list"}
    assert await asyncio.to_thread(client.call, "state") == {"asked": "state"}
    assert (house.starts, house.desk.asked) == (0, ["list", "state"])


async def test_events_and_silence_are_passed_on_while_waiting(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events reach whoever asked for them; who did not, gets the answer all the same."""
    monkeypatch.setattr(connection, "TICK", 0.01)
    await house.open()
    client, told = house.client(), list[Any]()
    loop = asyncio.get_running_loop()

    def on_silence() -> None:
        told.append("silence")
        loop.call_soon_threadsafe(house.desk.silence.set)

    answer = await asyncio.to_thread(client.call, "query", on_event=told.append, on_silence=on_silence)
    assert answer == {"asked": "query"}
    assert [told[0], told[1], told[-1]] == [{"n": 1}, "silence", {"n": 2}]
    assert await asyncio.to_thread(client.call, "query") == {"asked": "query"}


async def test_a_daemon_is_started_when_none_listens(house: House) -> None:
    """A missing socket, or one that nobody listens on any more, means: start one and ask it."""
    client = house.client()
    assert await asyncio.to_thread(client.call, "list") == {"asked": "list"}
    client.close()
    await house.close()
    os.mknod(paths.control_socket(house.env))
    assert await asyncio.to_thread(house.client().call, "list") == {"asked": "list"}
    assert house.starts == 2


async def test_without_a_daemon_and_without_starting_one(house: House) -> None:
    """Looking at the daemon does not make one; exit code 3 says that it is not there."""
    client = house.client(start=False)
    assert not client.dial()
    with pytest.raises(CommandError, match="no daemon is running") as raised:
        client.call("daemon_status")
    assert raised.value.exit_code == 3


async def test_the_status_of_a_daemon_that_may_not_be_there(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing when none is running, and none is started for it; what it says when there is one."""
    monkeypatch.setenv("ORCH_HOME", house.env["ORCH_HOME"])
    assert connection.daemon_status() is None
    await house.open()
    assert await asyncio.to_thread(connection.daemon_status) == {"asked": "daemon_status"}
    assert house.starts == 0


async def test_an_error_of_the_daemon_keeps_class_and_exit_code(house: House) -> None:
    """What the root raises is what the command exits with."""
    await house.open()
    with pytest.raises(CommandError, match="no agent 'x'") as raised:
        await asyncio.to_thread(house.client(start=False).call, "show")
    assert (raised.value.kind, raised.value.exit_code) == ("AgentNotFoundError", 3)


async def test_a_daemon_that_leaves_is_succeeded(house: House) -> None:
    """A request that was not taken goes to the next daemon, without a word."""
    await house.open()
    client = house.client()
    await asyncio.to_thread(client.call, "list")
    await house.close()
    assert await asyncio.to_thread(client.call, "state") == {"asked": "state"}
    assert house.starts == 1


async def test_daemons_that_leave_one_after_the_other_are_given_up(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those that fail as soon as they serve: nobody waits for the next one for ever."""
    monkeypatch.setattr(connection, "START_SECONDS", 0)
    house.desk.leaves = 2
    await house.open()
    with pytest.raises(CommandError, match="no daemon took this request") as raised:
        await asyncio.to_thread(house.client().call, "list")
    assert (raised.value.kind, house.desk.asked) == ("DaemonNotRunning", ["list", "list"])


async def test_what_the_next_daemon_says_of_a_request_that_it_took_is_told(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it took to say so: an error is no sign of a daemon that does not come."""
    monkeypatch.setattr(connection, "START_SECONDS", 0)
    house.desk.leaves = 1
    await house.open()
    with pytest.raises(CommandError, match="no agent 'x'") as raised:
        await asyncio.to_thread(house.client().call, "show")
    assert (raised.value.kind, house.desk.asked) == ("AgentNotFoundError", ["show", "show"])


async def test_an_idle_daemon_of_another_version_is_replaced(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    """It is asked to stop if idle, its end is awaited, and its successor gets the request."""
    await house.open(version=99)
    asking = asyncio.create_task(asyncio.to_thread(house.client().call, "list"))
    await house.desk.stopped.wait()
    await house.close()
    assert await asking == {"asked": "list"}
    assert house.desk.asked == ["daemon_stop", "list"]
    assert "spoke another version" in capsys.readouterr().err


async def test_a_successor_of_another_version_too_is_an_error_naming_both(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of two installations that each find the other's daemon: nobody replaces it again and again."""
    house.options = {"version": 99}
    await house.open(version=99)
    asking = asyncio.create_task(asyncio.to_thread(house.client().call, "list"))
    await house.desk.stopped.wait()
    await house.close()
    with pytest.raises(CommandError, match=r"version 1 .* version 99") as raised:
        await asking
    assert (raised.value.kind, raised.value.exit_code, house.starts) == ("VersionMismatchError", 2, 1)
    assert capsys.readouterr().err.count("spoke another version") == 1


async def test_a_busy_daemon_of_another_version_is_an_error_naming_both(house: House) -> None:
    """Nobody's work is ended for a version."""
    house.desk.busy = True
    await house.open(version=99)
    with pytest.raises(CommandError, match=r"version 1 .*version 99.*1 agents are at work \(a\)") as raised:
        await asyncio.to_thread(house.client().call, "list")
    assert (raised.value.kind, raised.value.exit_code, house.starts) == ("VersionMismatchError", 2, 0)


async def test_a_request_that_is_too_long_is_not_sent(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is told before anything is connected or started."""
    monkeypatch.setattr(connection, "MAX_LINE", 100)
    with pytest.raises(CommandError, match="the most is 100") as raised:
        house.client(start=False).call("query", {"prompt": "x" * 100})
    assert raised.value.exit_code == 2


class Mute:
    """A server that accepts and never says a word, or hangs up after the first."""

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
async def test_a_daemon_that_dies_or_hangs_is_an_error_naming_its_log(
    house: House, monkeypatch: pytest.MonkeyPatch, hangs_up: bool, kind: str, lines: int, listens: Any
) -> None:
    """A closed connection is noticed at once, silence after the daemon was asked for a sign of life."""
    if not hangs_up:
        monkeypatch.setattr(connection, "PATIENCE", 0.02)
        monkeypatch.setattr(connection, "TICK", 0.01)
    mute = Mute(hangs_up=hangs_up)
    async with await asyncio.start_unix_server(mute, paths.control_socket(house.env)):
        with pytest.raises(CommandError, match=r"h/daemon/log") as raised:
            await asyncio.to_thread(house.client(start=False).call, "query", on_silence=listens)
    assert raised.value.kind == kind
    assert (f"kill -9 {os.getpid()}" in str(raised.value)) is not hangs_up
    assert len(mute.heard) == lines
    assert (b'"ping"' in mute.heard[-1]) is not hangs_up


def test_a_daemon_that_hangs_is_given_up_in_ten_seconds() -> None:
    """Two silences, before and after it was asked for a sign of life, are no longer together."""
    assert 2 * connection.PATIENCE <= 10


def test_the_end_of_a_process_that_is_gone_is_not_awaited() -> None:
    """A pid above any there is, is gone."""
    await_end(2**22 + 1)


def test_a_process_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting has an end; the message says what to do."""
    monkeypatch.setattr(connection, "STOP_SECONDS", 0)
    with pytest.raises(CommandError, match=f"kill -9 {os.getpid()}"):
        await_end(os.getpid())
