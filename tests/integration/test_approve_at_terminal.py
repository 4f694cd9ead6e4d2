"""`orch run --approve ask` at a real terminal: a grandchild's `rm` is asked for at the root and denied."""

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
    """A model server that has refused no conversation in the end."""
    made = Served()
    yield made
    made.close()
    assert made.server.refused == []


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is opened in a test, and closed after it."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(
    ("where", "model"),
    [
        ("pty", "anthropic:claude-sonnet-5-5"),
        ("pty", "openai:gpt-4o"),
        pytest.param(
            "tmux",
            "openai:gpt-6-luna",
            marks=pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux here"),
        ),
    ],
)
def test_a_grandchilds_rm_is_asked_for_at_the_terminal_and_denied(
    shell: Shell, served: Served, stack: ExitStack, tmp_path: Path, where: str, model: str
) -> None:
    """The person sees who asks, how deep, and for what, on lines that cannot be forged, and says no: nothing is
    removed, each agent of the tree hears of it, and every conversation goes on, which the server would refuse."""
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
    assert "the user said no" in str(served.server.requests[3].body)
    served.server.script += map(say, ["one", "two", "three"])
    said = [shell.run("query", ref, "And now?", **served.env()).stdout.decode().strip() for ref in ("1", "2", "3")]
    assert said == ["one", "two", "three"]


def test_a_yes_for_the_session_is_listed_and_taken_back(shell: Shell, stack: ExitStack) -> None:
    """A person who said yes for the session sees that it holds, and is asked again once it was revoked."""
    shell.home.mkdir()
    (shell.home / "config.toml").write_text('[policy]\napproval_mode = "ask"\n')
    touch = {"tool": "bash", "input": {"command": "touch made"}}
    script = shell.script(touch, "one", touch, "two", touch, "three")
    agent = shell.run("spawn", "Make it", "--tools", "bash", "--script", script, "--name", "n").stdout.decode().strip()

    def asked(said: str | None, answer: str) -> None:
        terminal = stack.enter_context(closing(Pty(shell, "query", "n", "Go", "--approve", "ask")))
        if said is not None:
            until(terminal, "anything else: no > ")
            terminal.type(f"{said}\n")
        until(terminal, answer)
        assert terminal.end() == 0
        assert ("Allow it?" in terminal.shown()) is (said is not None)

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
