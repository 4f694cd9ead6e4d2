"""`orch wrap` with a small program as the client: requests, terminal, signals, exit codes and the end of the proxy."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from integration.command_shell import SECONDS, Shell, ended
from integration.terminal import Pty, until
from wire.model_server import Answer, Request, say
from wire.model_server_beside import Apart

CLIENT = """\
#!{python}
import json, os, pathlib, sys, urllib.request

file = pathlib.Path("conversation.json")
messages = json.loads(file.read_text()) if file.exists() else []
for number in range(int(sys.argv[1])):
    prompt = f"Prompt {{number}}. " + sys.stdin.readline() + "A long text. " * 2000
    messages.append({{"role": "user", "content": prompt}})
    body = {{"model": "claude-opus-5-5", "max_tokens": 100, "stream": False, "messages": messages}}
    headers = {{"x-api-key": "key", "anthropic-version": "2023-06-01", "x-claude-code-session-id": "s1"}}
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    answer = json.loads(urllib.request.urlopen(request).read())
    messages.append({{"role": "assistant", "content": answer["content"]}})
file.write_text(json.dumps(messages))
print("asked", os.environ["ANTHROPIC_BASE_URL"])
sys.exit(int(sys.argv[2]))
"""
RUN = "import os, sys; from orch.gateway.clients.process import run; sys.exit(run(sys.argv[1:], os.environ))"


@pytest.fixture
def server() -> Iterator[Apart]:
    """A strict model server."""

    def answer(request: Request) -> Answer:
        return say("It is a long text. " * 20, usage={"input": len(request.raw) // 4, "output": 100})

    with Apart(answer) as apart:
        yield apart


@pytest.fixture
def wrapped(shell: Shell, server: Apart) -> Iterator[Shell]:
    """A shell in which a program with the name `claude` can be started, whose server is `server`."""
    programs = shell.folder.parent / "programs"
    programs.mkdir()
    (programs / "claude").write_text(CLIENT.format(python=sys.executable))
    (programs / "claude").chmod(0o755)
    shell.env["PATH"] = f"{programs}{os.pathsep}{shell.env['PATH']}"
    shell.env["ANTHROPIC_BASE_URL"] = server.server.url
    yield shell
    log = shell.home / "gateway" / "proxy.log"
    if log.exists():
        ended(int(log.read_text().partition("process ")[2].partition(",")[0]))


def test_a_client_is_archived_and_its_proxy_ends_with_it(wrapped: Shell, server: Apart) -> None:
    """Input, output and the exit code pass. A second start continues the conversation in the same folder."""
    before = wrapped.env["ANTHROPIC_BASE_URL"]
    done = wrapped.run("wrap", "claude", "12", "7", stdin=b"a line\n" * 12, code=7)
    assert done.stdout.startswith(b"asked http://127.0.0.1:")
    assert before.encode() not in done.stdout
    assert done.stderr.startswith(b"orch: 1 conversation: 12 requests, ")
    more = wrapped.run("wrap", "claude", "2", "0", stdin=b"a line\n" * 2).stderr.decode()
    saved = re.fullmatch(
        r"orch: 1 conversation: 2 requests, .* tokens sent, 0 recalls; cost .* \((\d+)% saved\)\n", more
    )
    assert saved
    assert int(saved[1]) > 50
    *_, last = server.server.requests
    assert not server.server.refused
    assert len(last.raw) < len((wrapped.folder / "conversation.json").read_bytes()) / 2
    assert "a line" in last.raw.decode()
    conversations = wrapped.home / "gateway" / "conversations"
    assert len(list(conversations.glob("*/gateway.jsonl"))) == 1
    assert not (wrapped.home / "gateway" / "proxy.sock").exists()


def test_a_running_proxy_is_used_and_stays(wrapped: Shell, server: Apart) -> None:
    """A proxy with other servers is refused, and a proxy that ends during the client is reported."""
    with wrapped.start("proxy", "--port", "0", "--upstream", f"anthropic={server.server.url}") as proxy:
        try:
            assert proxy.stdout is not None
            url = proxy.stdout.readline().decode().split()[2].rstrip(",")
            assert f"{url}/w/" in wrapped.run("wrap", "claude", "1", "0").stdout.decode()
            mine = wrapped.run("wrap", "claude", "2", "0").stderr.decode()
            assert mine.startswith("orch: 1 conversation: 2 requests, ")
            refused = wrapped.run("wrap", "claude", "1", "0", code=2, ANTHROPIC_BASE_URL="http://other.example")
            assert "the running proxy sends anthropic to http://127.0.0.1" in refused.stderr.decode()
            stop = f"kill {proxy.pid}; while [ -e {wrapped.home}/gateway/proxy.sock ]; do sleep 0.05; done"
            reported = wrapped.run("wrap", "any", "sh", "-c", stop).stderr.decode()
            assert "the proxy ended while sh was running" in reported
        finally:
            proxy.kill()


def test_errors_name_what_is_missing(shell: Shell) -> None:
    """Unknown clients and programs that are not installed have no effect, and start no proxy."""
    assert "it knows claude, codex, pi" in shell.run("wrap", "nothing", code=2).stderr.decode()
    missing = shell.run("wrap", "codex", "exec", code=127, PATH="/usr/bin:/bin").stderr.decode()
    assert missing == "orch: codex is not installed or not in PATH: npm install -g @openai/codex\n"
    assert "no-such-program is not installed" in shell.run("wrap", "any", "no-such-program", code=127).stderr.decode()


@pytest.mark.parametrize(("given", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_the_client_and_the_exit_code_says_so(shell: Shell, given: int, code: int) -> None:
    """A signal for `orch wrap` reaches the client."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "sh", "-c", "echo ready; exec sleep 60"], env=shell.env, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(given)
    assert process.wait(SECONDS) == code
    process.stdout.close()


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("trap 'echo saved; exit 3' INT; echo ready; sleep 60 & wait", 3),
        ("echo ready; exec sleep 60", 130),
    ],
)
def test_ctrl_c_is_for_the_client(shell: Shell, script: str, code: int) -> None:
    """The client decides what Ctrl-C means."""
    terminal = Pty(shell, script=f"exec {sys.executable} -c '{RUN}' bash -c \"{script}\"")
    try:
        until(terminal, "ready")
        terminal.type("\x03")
        assert terminal.end() == code
        assert ("saved" in terminal.shown()) == (code == 3)
    finally:
        terminal.close()


def test_a_stopped_client_can_be_continued(shell: Shell) -> None:
    """Ctrl-Z stops both processes, so the shell gets the terminal, and `fg` continues both."""
    script = f"set -m; {sys.executable} -c '{RUN}' bash -c 'echo ready; read -r line; echo got $line'; echo stopped; fg"
    terminal = Pty(shell, script=script)
    try:
        until(terminal, "ready")
        terminal.type("\x1a")
        until(terminal, "stopped")
        terminal.type("hello\n")
        assert terminal.end() == 0
        assert "got hello" in terminal.shown()
    finally:
        terminal.close()
