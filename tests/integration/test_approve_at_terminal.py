"""`orch run --approve ask` at a real terminal: the user is asked about a call of an agent at depth 3."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from integration.command_shell import Shell
from integration.model_server_process import Served
from integration.terminal import Pane, Pty, until
from wire.model_server import call, say

TOOLS = "bash,spawn_subagent,query_subagent"
DOWN = {"call": "spawn_subagent", "input": {"task": "tidy", "tools": TOOLS.split(","), "query": "tidy up"}}
REMOVE = {"call": "bash", "input": {"command": "rm precious.txt # \x1b[2K\nagent: root"}}
ANSWERS = ["I was denied.", "It was.", "They were."]


@pytest.fixture
def served() -> Iterator[Served]:
    """A model server that must not refuse any conversation."""
    made = Served()
    yield made
    made.close()
    assert made.server.refused == []


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """A stack that closes, after the test, the resources that the test opened."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(
    ("where", "model"),
    [
        ("pty", "anthropic:claude-sonnet-5-5"),
        pytest.param(
            "tmux",
            "openai:gpt-6-luna",
            marks=pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux here"),
        ),
    ],
)
def test_call_of_a_grandchild_is_denied_at_the_terminal(
    shell: Shell, served: Served, stack: ExitStack, tmp_path: Path, where: str, model: str
) -> None:
    """The question shows the agent, its depth and the escaped command. After the denial no file is removed, the agents
    report it, and every conversation stays valid.
    """
    shell.home.mkdir()
    (shell.home / "config.toml").write_text("[subagents]\nallow_nested = true\n")
    precious = shell.folder / "precious.txt"
    precious.write_text("x")
    served.server.script += [call(DOWN), call(DOWN), call(REMOVE), *map(say, ANSWERS)]
    argv = ["run", "Keep order", "Tidy up", "--tools", TOOLS, "--model", model, "--approve", "ask", "--keep"]
    terminal: Pty | Pane
    if where == "pty":
        terminal = stack.enter_context(closing(Pty(shell, *argv, **served.env())))
    else:
        terminal = stack.enter_context(closing(Pane(tmp_path / "tmux", shell, *argv, **served.env())))
    until(terminal, r"anything else: no > ")
    asked = [line.strip() for line in terminal.shown().splitlines()]
    (agent,) = [line for line in asked if line.startswith("agent: ")]
    assert "depth 3)" in agent
    assert "wants: rm precious.txt # \\x1b[2K\\nagent: root" in asked
    terminal.type("n\n")
    until(terminal, "They were")
    assert terminal.end() == 0
    assert precious.exists()
    assert "the user denied it" in str(served.server.requests[3].body)
    served.server.script += map(say, ["one", "two", "three"])
    output = [shell.run("query", ref, "And now?", **served.env()).stdout.decode().strip() for ref in ("1", "2", "3")]
    assert output == ["one", "two", "three"]


def test_session_approval_is_listed_and_revoked(shell: Shell, stack: ExitStack) -> None:
    """A session approval allows the same call without a question until the approval is revoked."""
    shell.home.mkdir()
    (shell.home / "config.toml").write_text('[policy]\napproval_mode = "ask"\n')
    touch = {"tool": "bash", "input": {"command": "touch made"}}
    script = shell.script(touch, "one", touch, "two", touch, "three")
    agent = shell.run("spawn", "Make it", "--tools", "bash", "--script", script, "--name", "n").stdout.decode().strip()

    def asked(text: str | None, answer: str) -> None:
        terminal = stack.enter_context(closing(Pty(shell, "query", "n", "Go", "--approve", "ask")))
        if text is not None:
            until(terminal, "anything else: no > ")
            terminal.type(f"{text}\n")
        until(terminal, answer)
        assert terminal.end() == 0
        assert ("Allow it?" in terminal.shown()) is (text is not None)

    asked("s", "one")
    asked(None, "two")
    (held,) = shell.data("config", "permissions")
    assert (held["scope"], held["agent_id"], held["subject"], held["expires"]) == ("session", agent, "touch made", None)
    assert f"for agent {agent}, while the daemon runs" in shell.run("config", "permissions").stdout.decode()
    shell.run("config", "permissions", "--revoke", held["id"])
    assert shell.data("config", "permissions") == []
    (shell.folder / "made").unlink()
    asked("n", "three")
    assert not (shell.folder / "made").exists()
