"""`orch run` ended from outside in each phase: its agent and the agent's commands end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from integration.command_shell import MAIN, SECONDS, Shell, ended
from integration.terminal import Pty

pytestmark = pytest.mark.shared_daemon


def eventually(condition: Callable[[], Any]) -> Any:
    """Return the value of `condition` when it is true."""
    deadline = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.1)  # the condition may start a command
    return found


def no_agents(shell: Shell) -> bool:
    return shell.data("list") == []


def started_command(shell: Shell) -> int:
    """Return the process id of the agent's command, when the command has started."""
    file = shell.folder / "pid"
    return int(eventually(lambda: file.exists() and file.read_text().strip()))


def working(shell: Shell, *options: str, **more: Any) -> tuple[subprocess.Popen[bytes], int]:
    """Start `orch run` and return it, and the process of its agent's command, when that command works."""
    command = "echo $$ > pid.new; mv pid.new pid; exec sleep 300"
    script = shell.script({"tool": "bash", "input": {"command": command}}, "late")
    (shell.folder / "pid").unlink(missing_ok=True)
    running = shell.start("run", "t", "--tools", "bash", "--approve", "auto", "--script", script, *options, **more)
    return running, started_command(shell)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL])
def test_agent_ends_with_a_run_that_a_signal_ends(shell: Shell, number: signal.Signals) -> None:
    """The command ends by the signal, and the process of the agent's command ends too."""
    running, command = working(shell, "--name", number.name.lower())
    running.send_signal(number)
    running.communicate(timeout=SECONDS)
    assert running.returncode == -number
    ended(command)
    eventually(lambda: no_agents(shell))
    assert shell.status(number.name.lower()) == "killed"


def test_closed_terminal_ends_the_agent(shell: Shell) -> None:
    """The agent waits for an approval, but the command that would ask the user has ended."""
    script = shell.script({"tool": "bash", "input": {"command": "sleep 300"}}, "late")
    terminal = Pty(shell, "run", "t", "--tools", "bash", "--script", script)
    try:
        eventually(lambda: "sleep 300" in terminal.shown())
        assert [row["status"] for row in shell.data("list")] == ["busy"]
    finally:
        terminal.close()
    eventually(lambda: no_agents(shell))


def test_kept_agent_outlives_a_killed_run(shell: Shell) -> None:
    running, command = working(shell, "--keep")
    running.kill()
    running.communicate(timeout=SECONDS)
    assert [row["status"] for row in shell.data("list")] == ["busy"]
    os.kill(command, 0)


def test_stopped_run_keeps_its_agent(shell: Shell) -> None:
    """A command that is suspended, for example by Ctrl-Z, still owns its agent. The agent ends with the command."""
    running, command = working(shell)
    running.send_signal(signal.SIGSTOP)
    assert [row["status"] for row in shell.data("list")] == ["busy"]
    os.kill(command, 0)
    running.kill()
    running.communicate(timeout=SECONDS)
    eventually(lambda: no_agents(shell))


def test_only_the_agent_of_the_killed_run_ends(shell: Shell) -> None:
    first, _ = working(shell, "--name", "first")
    second, command = working(shell, "--name", "second")
    first.terminate()
    first.communicate(timeout=SECONDS)
    eventually(lambda: [row["name"] for row in shell.data("list")] == ["second"])
    second.terminate()
    second.communicate(timeout=SECONDS)
    ended(command)


AFTER_REQUEST = f"""
import os, signal, socket, time
sent = socket.socket.sendall
def sendall(self, data, *flags):
    sent(self, data, *flags)
    if b'"method": "spawn"' in data:
        time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
socket.socket.sendall = sendall
{MAIN}
"""
"""`orch` that is killed while the daemon handles its spawn request."""
AFTER_SPAWN = f"""
import os, signal
from orch.cli.agents import run_once
run_once._ask_and_end = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
{MAIN}
"""
"""`orch run` that is killed between the spawn and the query."""
AFTER_REPLY = f"""
import os, signal
from orch.cli.agents import run_once
run_once._kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
{MAIN}
"""
"""`orch run` that is killed after the reply, before it ends its agent."""


@pytest.mark.parametrize("main", [AFTER_REQUEST, AFTER_SPAWN, AFTER_REPLY])
def test_run_killed_in_each_phase_leaves_no_agent(shell: Shell, main: str) -> None:
    for options in ((), ("--no-persist",)):
        running = shell.start("run", "t", "--script", shell.script("hi"), *options, main=main)
        running.communicate(timeout=SECONDS)
        assert running.returncode == -signal.SIGKILL
        eventually(lambda: no_agents(shell))


def test_run_that_was_resumed_ends_with_the_command(shell: Shell) -> None:
    """An agent that `orch run --resume` resumed is killed again; an agent that was alive continues."""
    script = shell.script("hi", {"text": "late", "sleep": 300})
    shell.run("run", "t", "--name", "a", "--script", script)
    resumed = shell.start("run", "go on", "--resume", "a")
    shell.until("a", "busy")
    resumed.kill()
    resumed.communicate(timeout=SECONDS)
    shell.until("a", "killed")


def test_agent_of_a_run_ends_with_its_daemon_and_its_command(shell: Shell) -> None:
    """Both processes that could end the agent are killed. The next daemon ends it before it accepts requests."""
    running, command = working(shell, "--name", "owned")
    running.send_signal(signal.SIGSTOP)
    os.kill(shell.data("daemon", "status")["pid"], signal.SIGKILL)
    running.kill()
    running.communicate(timeout=SECONDS)
    ended(command)
    assert shell.status("owned") == "killed"


def test_reader_that_closes_the_pipe_ends_the_agent(shell: Shell) -> None:
    """As in `orch run --stream | head -1`."""
    script = shell.script({"text": "first\n", "tool": "list_files"}, *({"text": "more\n", "tool": "list_files"},) * 50)
    running = shell.start("run", "t", "--stream", "--script", script)
    assert running.stdout is not None
    assert running.stdout.readline() == b"first\n"
    running.stdout.close()
    assert running.wait(SECONDS) == 1
    assert running.stderr is not None
    running.stderr.close()
    eventually(lambda: no_agents(shell))
