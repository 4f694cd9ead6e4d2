"""`orch chat` in a tmux pane, with a real daemon, real agents, and a model server whose answers the test can delay."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from integration.command_shell import Shell
from integration.model_server_process import Served
from integration.terminal import Pane, Pty, until
from wire.model_server import Answer, call, say

MODEL = "openai:gpt-4o"
READY = r"/help lists commands\n> *\n"
DOWN = {"call": "spawn_subagent", "input": {"task": "count pumps", "tools": ["list_files"], "query": "count"}}
EDIT = {"call": "replace_in_file", "input": {"path": "valves.txt", "old_text": "3 bar", "new_text": "4 bar"}}
NO_TMUX = pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux here")


@pytest.fixture
def served() -> Iterator[Served]:
    """A model server."""
    made = Served()
    yield made
    made.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """A stack that closes, after the test, the resources that the test opened."""
    with ExitStack() as stack:
        yield stack


@NO_TMUX
def test_typing_during_a_turn_steers_and_ctrl_c_cancels(
    shell: Shell, served: Served, stack: ExitStack, tmp_path: Path
) -> None:
    """The text reaches the model in that turn. The chat continues after a cancelled turn, accepts a long paste, and
    escapes control characters of the model.
    """
    first, never = asyncio.Event(), asyncio.Event()
    served.server.script += [
        Answer(blocks=({"text": "thought\x1b]0;owned\x07 hard"},), gate=first),
        say("left it is"),
        say("and right"),
        Answer(gate=never),
        say("pasted"),
    ]
    pane = stack.enter_context(closing(Pane(tmp_path / "tmux", shell, "chat", "--model", MODEL, **served.env())))
    until(pane, READY)
    pane.type("Which way?\n")
    until(pane, "works [0-9]")
    pane.type("Go left\n")
    until(pane, "delivered before the next step")
    pane.type("Then right")
    pane.press("M-Enter")
    until(pane, "delivered at the end of the turn")
    served.open(first)
    until(pane, "and right\n")
    shown = pane.shown()
    order = ["> Which way?", "> Go left", "> Then right", r"thought\x1b]0;owned\x07 hard", "steered: Go left"]
    order += ["left it is", "steered: Then right", "and right"]
    assert sorted(order, key=shown.index) == order
    assert "Then right" not in str(served.server.requests[1].body)
    pane.type("And now?\n")
    until(pane, "works [0-9]")
    served.until_asked(4)  # a turn that is cancelled before its request leaves the answer to the next turn
    pane.resize(60, 20)
    pane.press("C-c")
    until(pane, "ended early: cancelled")
    text = "valve 7 opens\n" * 7_500
    (tmp_path / "paste").write_text(text)
    pane.paste(tmp_path / "paste")
    until(pane, r"105,000 characters, 7,501 lines\]")
    pane.press("Enter")
    until(pane, "\npasted\n")
    assert served.server.requests[-1].body["messages"][-1]["content"].endswith(text)
    pane.press("C-d")
    until(pane, "orch chat 1 continues the chat")
    assert pane.end() == 0
    served.open(never)


@NO_TMUX
def test_closed_terminal_loses_nothing(shell: Shell, served: Served, stack: ExitStack, tmp_path: Path) -> None:
    """A question with its diff waits for the next client. Leaving the chat with a live subagent asks, and ends the
    subagent on request.
    """
    shell.home.mkdir()
    (shell.home / "config.toml").write_text("[subagents]\nallow_nested = true\n")
    valves = shell.folder / "valves.txt"
    valves.write_text("valve 1: 2 bar\nvalve 2: 3 bar\n")
    served.server.script += [call(EDIT, text="I change it."), say("Changed."), call(DOWN), say("Two."), say("Counted.")]
    argv = ["chat", "--model", MODEL, "--tools", "replace_in_file,spawn_subagent,list_files", "--name", "smith"]
    asked = r"-valve 2: 3 bar\n\+valve 2: 4 bar\n(.*\n)*Allow it\?"
    with closing(Pane(tmp_path / "one", shell, *argv, **served.env())) as pane:
        until(pane, READY)
        pane.type("Open it later\n")
        until(pane, asked)
    assert "3 bar" in valves.read_text()
    pane = stack.enter_context(closing(Pane(tmp_path / "two", shell, "chat", "smith", **served.env())))
    until(pane, asked)
    assert "> Open it later" in pane.shown()
    assert "ended before a result" not in pane.shown()  # the call still waits, because its process is alive
    pane.type("y\n")
    until(pane, r"allowed \(once\)\n(.*\n)*Changed\.")
    assert "4 bar" in valves.read_text()
    shell.run("steer", "smith", "Count the pumps", "--follow-up")
    until(pane, r"asked elsewhere: Count the pumps\n(.*\n)*Counted\.")
    pane.press("C-d")
    until(pane, "k: keep them, e: end them, s: stay")
    pane.type("e\n")
    until(pane, "orch chat 1 continues the chat")
    assert pane.end() == 0
    assert [row["name"] for row in shell.data("list")] == ["smith"]


def test_dumb_terminal_uses_plain_lines(shell: Shell, stack: ExitStack) -> None:
    """The chat reads lines and prints text and questions without control characters, and an answer with `no` denies."""
    shell.home.mkdir()
    (shell.home / "config.toml").write_text('[policy]\napproval_mode = "ask"\n')
    script = shell.script({"tool": "bash", "input": {"command": "touch made"}}, "so be it", "again")
    argv = ["chat", "--tools", "bash", "--script", script]
    terminal = stack.enter_context(closing(Pty(shell, *argv, TERM="dumb")))
    until(terminal, "/help lists")
    terminal.type("Make it\n")
    until(terminal, r"wants: touch made\n(.*\n)*Allow it\?")
    terminal.type("no, not today\n")
    until(terminal, "no: not today\n")
    until(terminal, "so be it\n")
    terminal.type("\x04")
    until(terminal, "orch chat 1 continues the chat")
    assert terminal.end() == 0
    assert "\x1b" not in terminal.shown()
    assert not (shell.folder / "made").exists()
