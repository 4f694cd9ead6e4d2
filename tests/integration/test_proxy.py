"""`orch proxy` as a process: start, stop, signals, kills, and its control socket."""

from __future__ import annotations

import asyncio
import http.client
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from integration.command_shell import MAIN, SECONDS, Shell
from integration.model_server_process import Served
from integration.proxy_process import KilledWorld, ProxyProcess
from orch.cli import run
from orch.client.connection import await_end
from orch.client.failure import CommandError
from orch.gateway.proxy import connection
from orchestrator.gateway.gateway_world import CLIENTS
from orchestrator.gateway.test_random_conversations import live, worker_of
from wire.model_server import say

TOKEN = "a-token-of-16-characters"


@pytest.fixture
def served() -> Iterator[Served]:
    """A strict model server."""
    served = Served()
    yield served
    served.close()


def arguments(served: Served) -> list[str]:
    """Return the arguments with which a proxy uses `served`."""
    return ["--upstream", f"anthropic={served.server.url}", "--upstream", f"openai={served.server.url}"]


def test_kills_lose_and_double_nothing(tmp_path: Path, shell: Shell) -> None:
    """A proxy is killed between and within requests. Clients retry, and the server refuses nothing.

    Requests begin as before the kill, so archives and hidden exchanges are still there.
    """
    worker = worker_of(0)
    with KilledWorld(tmp_path, worker, shell.env, kills=0.2) as world:
        watch = live(world, "messages", 0, 14)
        assert world.apart.server.refused == []
        assert world.killed > 2
    assert watch.folds > 1
    assert worker.recalled


def test_one_home_has_one_proxy(shell: Shell, served: Served) -> None:
    """A second proxy names the first one. A proxy that was killed is no obstacle, and `stop` removes all traces."""
    first = ProxyProcess(shell.env | {"ORCH_PROXY_TOKEN": TOKEN}, *arguments(served), main=MAIN)
    folder = shell.home / "gateway"
    failed = shell.run("proxy", "--port", "0", code=1)
    assert first.status["url"].encode() in failed.stderr
    assert f"process {first.status['pid']}".encode() in failed.stderr
    token = folder / "token"
    assert (token.read_text(), stat.S_IMODE(token.stat().st_mode)) == (TOKEN, 0o600)
    shown = f"{first.status['url']}/t/$ORCH_PROXY_TOKEN"  # The output may be a log file.
    assert first.status["base_url"] == shell.data("proxy", "status")["base_url"] == shown
    first.kill()
    assert token.exists()
    second = ProxyProcess(shell.env, *arguments(served), main=MAIN)
    assert not token.exists()
    assert shell.data("proxy", "status") == second.status
    assert shell.data("proxy", "stop") == {"pid": second.status["pid"]}
    assert second.process.wait(0) == 0
    assert second.errors() == ""
    assert sorted(each.name for each in folder.iterdir()) == ["lock"]
    assert shell.data("proxy", "stop") == {"pid": None}
    shell.run("proxy", "status", code=3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--host", "0.0.0.0"], "set a token"),
        (["--host", "::"], "set a token"),
        (["--host", "example.com"], "set a token"),
        (["--token", "short"], "at least 16 characters"),
        (["--host", "0.0.0.0", "--token", ""], "set a token"),
        (["--upstream", "openai"], "NAME=URL"),
        (["--upstream", "v1=http://127.0.0.1"], "NAME=URL"),
        (["--upstream", "openai=http://127.0.0.1:/v1"], "port is missing"),
        (["--upstream", "openai=ftp://127.0.0.1"], "http://"),
        (["--upstream", "openai=https://user:word@127.0.0.1"], "user or a password"),
        (["--upstream", "openai=http://localhost:6724/v1"], "the proxy itself"),
        (["--profile", "enormous"], "enormous"),
        (["--port", "99999"], "port"),
    ],
)
def test_unusable_options_are_named(
    given: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An option that cannot be used ends the command with a reason. Passwords are not printed."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    assert run(["proxy", *given]) != 0
    error = capsys.readouterr().err
    assert message in error
    assert "word@" not in error


@contextmanager
def unfinished_response(port: int) -> Iterator[http.client.HTTPResponse]:
    """Send a request whose response the server does not finish, and yield the response."""
    client = CLIENTS["messages"]()
    client.say("hi")
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as opened:
        opened.request("POST", client.path, client.body(), client.headers)
        response = opened.getresponse()
        assert response.readline()
        yield response


def await_leaving(shell: Shell) -> None:
    """Wait until the proxy accepts no connection any more."""
    deadline = time.monotonic() + SECONDS
    while connection.call(shell.home, "status") is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_signal_lets_requests_finish(shell: Shell, served: Served) -> None:
    """After SIGTERM, the proxy accepts no connection and ends when the responses in progress have ended."""
    gate = asyncio.Event()
    served.server.script.append(say("x", pause=(2, gate)))
    proxy = ProxyProcess(shell.env, *arguments(served), main=MAIN)
    with unfinished_response(proxy.port) as response:
        proxy.process.terminate()
        await_leaving(shell)
        assert proxy.process.poll() is None
        served.open(gate)
        assert b"message_stop" in response.read()
    assert proxy.errors() == ""
    assert proxy.process.returncode == 0


def test_a_second_signal_ends_the_proxy_at_once(shell: Shell, served: Served) -> None:
    """A client that reads a response does not keep the proxy."""
    gate = asyncio.Event()
    served.server.script.append(say("x", pause=(2, gate)))
    proxy = ProxyProcess(shell.env, *arguments(served), main=MAIN)
    with unfinished_response(proxy.port):
        proxy.process.terminate()
        await_leaving(shell)
        proxy.process.terminate()
        proxy.errors()
        served.open(gate)
    assert proxy.process.returncode == 1


def test_a_proxy_ends_with_the_last_program_that_uses_it(shell: Shell, served: Served) -> None:
    """Programs share one proxy. It ends when all have closed their connection, and can be started again at once."""
    first = connection.start(shell.home, arguments(served), shell.env | {"ORCH_PROXY_TOKEN": TOKEN})
    assert first.base_url == f"{first.url}/t/{TOKEN}"
    with connection.start(shell.home, arguments(served), shell.env) as second:
        assert second.pid == first.pid
        first.close()
        assert connection.call(shell.home, "status")["pid"] == second.pid
    connection.stop(shell.home)
    assert not [each for each in shell.home.rglob("*") if each.is_file() and TOKEN in each.read_text()]
    with connection.start(shell.home, arguments(served), shell.env) as third:
        assert third.pid != first.pid
        assert third.status["attached"] == 0
        with pytest.raises(CommandError, match="unknown verb 'dance'; available: status, stop"):
            connection.call(shell.home, "dance")
    connection.stop(shell.home)
    await_end(third.pid)
    with pytest.raises(CommandError, match=r"(?s)did not start.*NAME=URL"):
        connection.start(shell.home, ["--upstream", "x"], shell.env)
