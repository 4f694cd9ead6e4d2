"""The daemon of the command line: start, stop, signals, idle exit, hangs and the control socket."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.command_shell import SECONDS, Shell, ended, opened
from orch.config import paths
from orch_protocol.wire.control_socket import ALREADY_RUNNING
from orch_protocol.wire.frames import VERSION


def say(shell: Shell, line: dict[str, Any]) -> dict[str, Any]:
    """Send one line to the daemon, and return its answer."""
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(SECONDS)
        connected.connect(paths.control_socket(shell.env))
        connected.sendall(json.dumps(line).encode() + b"\n")
        answer: dict[str, Any] = json.loads(connected.makefile().readline())
        return answer


def test_daemon_verbs(shell: Shell) -> None:
    """`status` starts no daemon, `start` starts one daemon, `stop` can be repeated, and `logs` prints the log."""
    assert shell.run("daemon", "status", code=3).stdout == b""
    shell.run("daemon", "logs", code=3)
    first = shell.data("daemon", "start")
    assert (first["sandbox"], first["agents"], first["home"]) == ("L0", 0, str(shell.home))
    assert first["sandbox_offered"].startswith("up to L")
    assert shell.data("daemon", "start")["pid"] == first["pid"]
    assert (shell.home / "daemon" / "lock").read_text() == f"{first['pid']}\n"
    assert shell.data("daemon", "stop") == {"pid": first["pid"]}
    ended(first["pid"])
    assert shell.data("daemon", "stop") == {"pid": None}
    assert b'"why": "asked to stop"' in shell.run("daemon", "logs").stdout


def test_racing_commands_share_one_daemon(shell: Shell) -> None:
    """Six commands that start at the same time with a new home use the same daemon."""
    racing = [shell.start("spawn", f"task {number}", "--json") for number in range(6)]
    seqs = sorted(json.loads(each.communicate(timeout=SECONDS)[0])["seq"] for each in racing)
    assert seqs == [1, 2, 3, 4, 5, 6]
    assert shell.data("daemon", "status")["agents"] == 6


def test_second_daemon_exits_with_its_own_code(shell: Shell) -> None:
    """The error says that another daemon serves the home, and the first daemon continues."""
    first = shell.data("daemon", "start")
    second = subprocess.run(
        [sys.executable, "-P", "-m", "orch.daemon.daemon"],
        env=shell.env,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    assert second.returncode == ALREADY_RUNNING
    assert b"another daemon serves" in second.stderr
    assert shell.data("daemon", "status")["pid"] == first["pid"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_drains_the_daemon(shell: Shell, number: signal.Signals) -> None:
    """The agents end, the socket is removed, and the log names the signal."""
    shell.run("spawn", "t")
    os.kill(shell.data("daemon", "status")["pid"], number)
    for pid in shell.ours():
        ended(pid)
    assert not Path(paths.control_socket(shell.env)).exists()
    assert number.name.encode() in shell.run("daemon", "logs").stdout


def test_stopping_the_daemon_fails_pending_queries(shell: Shell) -> None:
    """A command with a pending query exits with 1, and starts no new daemon."""
    spawned = shell.data("spawn", "t", "--name", "a")
    os.kill(spawned["pid"], signal.SIGSTOP)
    waiting = shell.start("query", "a", "hi")
    shell.until("a", "busy")
    shell.run("daemon", "stop")
    out, err = waiting.communicate(timeout=SECONDS)
    assert (waiting.returncode, out) == (1, b"")
    assert err.startswith(b"orch: ")
    shell.run("daemon", "status", code=3)


def test_idle_daemon_exits(shell: Shell) -> None:
    """The log contains the reason, and the agents answer in the next daemon."""
    shell.run("spawn", "t", "--name", "a", "--script", shell.script("hello"), ORCH_DAEMON__IDLE_MINUTES="0.005")
    for pid in shell.ours():
        ended(pid)
    assert b'"why": "idle for 0.005 minutes"' in shell.run("daemon", "logs").stdout
    assert shell.run("query", "a", "?").stdout == b"hello\n"


def test_daemon_without_its_home_or_journal_exits(shell: Shell) -> None:
    """The daemon refuses requests after its files were removed, and commands start a new daemon."""
    shell.run("spawn", "t", "--name", "a")
    before = shell.ours()
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(SECONDS)
        connected.connect(paths.control_socket(shell.env))
        shutil.rmtree(shell.home)
        assert shell.data("list") == []
        connected.sendall(b'{"id":1,"method":"list","version":%d}\n' % VERSION)
        assert json.loads(connected.makefile().readline())["error"]["type"] == "DaemonLeaving"
    for pid in before:
        ended(pid)
    shell.run("spawn", "t", "--name", "b")
    before = shell.ours()
    (shell.home / "runs" / "daemon" / "journal.jsonl").unlink()
    shell.start("kill", "b").communicate(timeout=SECONDS)  # writes to the journal, so that the daemon notices the loss
    assert shell.data("list", "--all") == []
    for pid in before:
        ended(pid)


def test_hanging_daemon_is_reported(shell: Shell) -> None:
    """Every command names the process, its log, and `kill -9`."""
    shell.run("spawn", "t", "--name", "a")
    pid = shell.data("daemon", "status")["pid"]
    os.kill(pid, signal.SIGSTOP)
    verbs = [("list",), ("show", "a"), ("spawn", "t"), ("daemon", "status"), ("daemon", "stop"), ("doctor",)]
    asking = [shell.start(*verb) for verb in verbs]
    output = [(each.communicate(timeout=SECONDS), each.returncode) for each in asking]
    for (out, err), code in output:
        replies = (out + err).decode()
        assert code == 1
        assert f"kill -9 {pid}" in replies
        assert str(shell.home / "daemon" / "log") in replies
        assert "Traceback" not in replies
    os.kill(pid, signal.SIGKILL)
    ended(pid)
    assert [row["name"] for row in shell.data("list")] == ["a"]


def test_long_home_path_works(tmp_path: Path) -> None:
    """The socket is in another folder, which commands find with and without XDG_RUNTIME_DIR."""
    (tmp_path / ("d" * 100)).mkdir()
    (tmp_path / "runtime").mkdir(mode=0o700)
    with opened(tmp_path / ("d" * 100)) as shell:
        shell.env["XDG_RUNTIME_DIR"] = str(tmp_path / "runtime")
        shell.run("spawn", "t", "--name", "a", "--script", shell.script("hello"))
        del shell.env["XDG_RUNTIME_DIR"]  # as in a job of cron
        assert shell.run("query", "a", "?").stdout == b"hello\n"


def test_invalid_configuration_stops_the_daemon_with_file_and_line(shell: Shell) -> None:
    """The command exits with 2, and the error suggests a similar key."""
    shell.home.mkdir(mode=0o700)
    (shell.home / "config.toml").write_text("\nmodle = 1\n")
    errors = shell.run("list", code=2).stderr.decode()
    assert errors.startswith("orch: ")
    assert "config.toml, line 2" in errors
    assert "did you mean 'model'" in errors
    (shell.home / "config.toml").unlink()


def test_control_socket_speaks_json_lines(shell: Shell) -> None:
    """A client of another version gets VersionMismatchError, and can still read the status and stop the daemon."""
    shell.run("daemon", "start")
    assert say(shell, {"id": 1, "method": "list", "version": VERSION}) == {"id": 1, "result": []}
    error = say(shell, {"id": 2, "method": "list", "version": VERSION + 1})["error"]
    assert error["type"] == "VersionMismatchError"
    assert say(shell, {"id": 3, "method": "daemon_status", "version": VERSION + 1})["result"]["protocol"] == VERSION
    ended(say(shell, {"id": 4, "method": "daemon_stop", "version": VERSION + 1})["result"]["pid"])
