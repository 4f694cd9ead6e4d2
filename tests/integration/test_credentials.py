"""Two shells with different keys and servers share a daemon, and each agent uses the credentials of its shell."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.command_shell import SECONDS, Shell, ended
from integration.model_server_process import Served
from wire.model_server import Answer, Request, fail, say

pytestmark = pytest.mark.timeout(180)  # each starts a dozen commands

MODEL = "openai:gpt-4o"
KEYS = {"one": "sk-canary-of-shell-one", "two": "sk-canary-of-shell-two"}


class Provider:
    """A model server that accepts one key, and answers with its name."""

    def __init__(self, name: str) -> None:
        self.name, self.key = name, KEYS[name]
        self.served = Served()
        self.served.server.otherwise = self._answer

    def _answer(self, request: Request) -> Answer:
        if request.headers.get("authorization") != f"Bearer {self.key}":
            return fail(401, "authentication_error", "wrong key")
        return say(f"from {self.name}")

    def env(self, key: str | None = None) -> dict[str, str]:
        """Return the variables of a shell that uses this server."""
        return {"OPENAI_API_KEY": key or self.key, "OPENAI_BASE_URL": f"{self.served.server.url}/v1"}

    @property
    def requests(self) -> int:
        return len(self.served.server.requests)


@pytest.fixture
def providers() -> Iterator[tuple[Provider, Provider]]:
    """Two model servers with different keys."""
    made = Provider("one"), Provider("two")
    yield made
    for each in made:
        each.served.close()


def killed(shell: Shell) -> None:
    """Kill the daemon with SIGKILL, and return when its processes have ended."""
    pid = shell.data("daemon", "status")["pid"]
    processes = shell.ours()
    os.kill(pid, signal.SIGKILL)
    for each in processes:
        ended(each)


def code_of(shell: Shell, *argv: str) -> int:
    """Run one command and return its exit code."""
    running = shell.start(*argv, stderr=subprocess.DEVNULL)
    running.communicate(timeout=SECONDS)
    return running.returncode


def written(shell: Shell) -> list[Path]:
    """Return the files of the home that contain a key."""
    files = (path for path in shell.home.rglob("*") if path.is_file())
    return [path for path in files if b"sk-canary" in path.read_bytes()]


@pytest.mark.shared_daemon
def test_each_agent_uses_the_key_and_server_of_its_shell(shell: Shell, providers: tuple[Provider, Provider]) -> None:
    """A query from another shell uses the agent's credentials and prints one notice. No file contains a key."""
    one, two = providers
    shell.run("list", **one.env())
    for each in providers:
        shell.run("spawn", "answer", "--name", each.name, "--model", MODEL, **each.env())
        done = shell.run("query", each.name, "Who?", **each.env())
        assert (done.stdout.decode().strip(), b"uses its own" in done.stderr) == (f"from {each.name}", False)
    done = shell.run("query", "one", "Who?", **two.env())
    assert done.stdout.decode().strip() == "from one"
    notices = [line for line in done.stderr.decode().splitlines() if "uses its own" in line]
    assert len(notices) == 1
    assert "agent one uses its own OPENAI_API_KEY, OPENAI_BASE_URL, not the value in this shell" in notices[0]
    assert (one.requests, two.requests) == (2, 1)
    shown = shell.run("show", "one").stdout.decode()
    assert "credentials:   OPENAI_API_KEY OPENAI_BASE_URL (from the shell that ran orch spawn)" in shown
    assert written(shell) == []
    for pid in shell.ours():
        for name in ("environ", "cmdline"):
            assert b"sk-canary" not in Path(f"/proc/{pid}/{name}").read_bytes()


def test_agent_needs_credentials_after_the_daemon_was_killed(
    shell: Shell, providers: tuple[Provider, Provider]
) -> None:
    """Any command of a shell with the same variables supplies the credentials. Another shell cannot supply them."""
    one, two = providers
    shell.run("spawn", "answer", "--name", "a", "--model", MODEL, **one.env())
    shell.run("spawn", "answer", "--name", "scripted", "--script", shell.script("No key needed."))
    killed(shell)
    assert shell.status("a") == "needs credentials"
    assert shell.status("scripted") == "cold"
    assert shell.run("query", "scripted", "Hello?").stdout == b"No key needed.\n"
    refused = shell.run("query", "a", "Who?", code=1, **two.env()).stderr.decode()
    assert "agent 'a'" in refused
    assert "waits for OPENAI_API_KEY, with the value that it was spawned with" in refused
    assert "orch resume 1 --credentials" in refused
    assert shell.status("a") == "needs credentials"
    shell.run("list", **one.env())
    assert shell.status("a") == "cold"
    assert shell.run("query", "a", "Who?").stdout == b"from one\n"
    assert (two.requests, written(shell)) == (0, [])


def test_resume_gives_an_agent_the_credentials_of_this_shell(
    shell: Shell, providers: tuple[Provider, Provider]
) -> None:
    """`resume --credentials` replaces key and server of one agent, or with `--all` of all agents with the same ones."""
    one, two = providers
    for name in ("a", "b", "c"):
        shell.run("spawn", "answer", "--name", name, "--model", MODEL, **one.env())
    shell.run("query", "a", "Who?", **one.env())
    shell.run("resume", "a", "--credentials", **two.env())
    assert shell.run("query", "a", "Who?", **two.env()).stdout == b"from two\n"
    assert shell.run("query", "b", "Who?", **one.env()).stdout == b"from one\n"
    shell.run("resume", "b", "--credentials", "--all", **two.env())
    for name in ("b", "c"):
        done = shell.run("query", name, "Who?", **two.env())
        assert (done.stdout, b"uses its own" in done.stderr) == (b"from two\n", False)
    assert "has no OPENAI_API_KEY" in shell.run("resume", "a", "--credentials", code=2).stderr.decode()
    killed(shell)
    assert shell.status("c") == "needs credentials"
    assert shell.run("query", "c", "Who?", **two.env()).stdout == b"from two\n"


@pytest.mark.shared_daemon
def test_refused_key_names_the_command_that_replaces_it(shell: Shell, providers: tuple[Provider, Provider]) -> None:
    """The error names `resume --credentials` if the shell has another key, and the agent answers after that command."""
    one, _ = providers
    shell.run("spawn", "answer", "--name", "a", "--model", MODEL, **one.env("sk-canary-expired"))
    refused = shell.run("query", "a", "Who?", code=1, **one.env("sk-canary-expired")).stderr.decode()
    assert "401" in refused
    assert "--credentials" not in refused
    refused = shell.run("query", "a", "Who?", code=1, **one.env()).stderr.decode()
    assert "this shell has another OPENAI_API_KEY: `orch resume " in refused
    assert " --credentials` gives it to the agent" in refused
    assert "--all" in refused
    shell.run("resume", "a", "--credentials", **one.env())
    assert shell.run("query", "a", "Who?", **one.env()).stdout == b"from one\n"
    assert written(shell) == []


def test_only_an_explicit_start_serves_callers_without_keys(shell: Shell, providers: tuple[Provider, Provider]) -> None:
    """If another command started the daemon, the keys of that command are not used for other callers."""
    one, _ = providers
    shell.run("list", **one.env())
    refused = shell.run("spawn", "answer", "--name", "a", "--model", MODEL, code=2).stderr.decode()
    assert "needs a key: set OPENAI_API_KEY" in refused
    shell.run("daemon", "start", **one.env())
    shell.run("spawn", "answer", "--name", "a", "--model", MODEL)
    assert shell.run("query", "a", "Who?").stdout == b"from one\n"
    assert "(from orch daemon start)" in shell.run("show", "a").stdout.decode()
    killed(shell)
    assert shell.status("a") == "needs credentials"
    shell.run("daemon", "start", **one.env())
    assert shell.run("query", "a", "Who?").stdout == b"from one\n"


def test_daemon_in_the_foreground_serves_callers_without_keys(
    shell: Shell, providers: tuple[Provider, Provider]
) -> None:
    """`orch daemon run` runs until it gets SIGTERM, and its environment contains no key."""
    one, _ = providers
    running = shell.start("daemon", "run", stderr=subprocess.DEVNULL, **one.env())
    try:
        while code_of(shell, "daemon", "status"):
            assert running.poll() is None
        shell.run("spawn", "answer", "--name", "a", "--model", MODEL)
        assert shell.data("daemon", "status")["pid"] == running.pid
        assert shell.run("query", "a", "Who?").stdout == b"from one\n"
        assert "(from orch daemon run)" in shell.run("show", "a").stdout.decode()
        assert b"sk-canary" not in Path(f"/proc/{running.pid}/environ").read_bytes()
        assert code_of(shell, "daemon", "run") == 1
    finally:
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=SECONDS)
    assert running.returncode == 0
    assert written(shell) == []


def test_children_use_the_credentials_of_their_agent(shell: Shell, providers: tuple[Provider, Provider]) -> None:
    """A subagent uses the credentials of its parent, also for a query from another shell."""
    one, two = providers
    shell.env |= {"ORCH_SUBAGENTS__ALLOW_NESTED": "true", "ORCH_MODEL": MODEL}
    spawned = {"tool": "spawn_subagent", "input": {"task": "answer", "tools": [], "query": "Who?"}}
    script = shell.script(spawned, "Spawned.")
    tools = "spawn_subagent,query_subagent"
    shell.run("spawn", "lead", "--name", "lead", "--script", script, "--tools", tools, **one.env())
    shell.run("query", "lead", "Spawn one", **two.env())
    assert (one.requests, two.requests) == (1, 0)
    assert shell.run("query", "2", "Who?", **two.env()).stdout == b"from one\n"
    assert (one.requests, two.requests) == (2, 0)
