"""Approvals of commands with redirected streams, in the background, without a terminal, and in parallel."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from integration.command_shell import SECONDS, Shell
from integration.terminal import Pty, orch, until

pytestmark = pytest.mark.shared_daemon

TOUCH = {"tool": "bash", "input": {"command": "touch made"}}
PROMPT = "anything else: no > "
DENIED = "denied because no user could be asked"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """A stack that closes, after the test, the resources that the test opened."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def run(shell: Shell) -> list[str]:
    """The arguments of `orch run` for an agent that calls bash once."""
    return ["run", "Make it", "--tools", "bash", "--script", shell.script(TOUCH, "Done.")]


def made(shell: Shell) -> bool:
    """Return whether the command of the agent ran."""
    return (shell.folder / "made").exists()


def text(shell: Shell, name: str) -> str:
    """Return the text of a file in the agent's folder."""
    return Path(shell.folder / name).read_text()


@pytest.mark.parametrize(
    ("redirected", "answer"),
    [
        ("echo 'Make it' | {run} - >out", "y"),
        ("{run} 'Make it' 2>log >out", "n"),
        ("{run} 'Make it' </dev/null 2>log >out", "y"),
        ("echo 'Make it' | xargs -I TASK {run} TASK 2>log >out", "n"),
    ],
    ids=["stdin", "stderr", "all", "xargs"],
)
def test_redirected_command_asks_on_the_terminal(
    shell: Shell, stack: ExitStack, run: list[str], redirected: str, answer: str
) -> None:
    """If streams are pipes or files, the command asks on its controlling terminal, and the answer decides."""
    script = redirected.format(run=orch("run", *run[2:]))
    terminal = stack.enter_context(closing(Pty(shell, script=f"{script}; exit $?")))
    until(terminal, PROMPT)
    assert "wants: touch made" in terminal.shown()
    assert not made(shell)
    terminal.type(f"{answer}\n")
    assert terminal.end() == 0
    assert text(shell, "out") == "Done.\n"
    assert made(shell) is (answer == "y")


def test_command_in_the_background_denies(shell: Shell, stack: ExitStack, run: list[str]) -> None:
    """The command first prints a notice that names `--approve auto`, prints the answer, and exits with 1."""
    script = f"set -m; {orch(*run)} >out 2>log & wait $!; echo code $?"
    terminal = stack.enter_context(closing(Pty(shell, script=script)))
    assert terminal.end() == 0
    assert "code 1" in terminal.shown()
    assert PROMPT not in terminal.shown()
    assert not made(shell)
    assert text(shell, "out") == "Done.\n"
    log = text(shell, "log")
    assert "1 call that needed approval was denied because this command is not in the foreground" in log


def test_command_brought_to_the_foreground_asks(shell: Shell, stack: ExitStack) -> None:
    """At each question, the command checks again whether it is in the foreground."""
    wait = {"tool": "bash", "input": {"command": "while [ ! -e go ]; do sleep 0.05; done"}}
    argv = ["run", "Make it", "--tools", "bash", "--script", shell.script(wait, TOUCH, "Done.")]
    shell.home.mkdir(exist_ok=True)
    (shell.home / "config.toml").write_text('[policy.permissions]\nbash = "ask"\n')
    script = f"set -m; {orch(*argv)} >out 2>log & fg; echo code $?"
    terminal = stack.enter_context(closing(Pty(shell, script=script)))
    until(terminal, r"wants: while")
    terminal.type("y\n")
    (shell.folder / "go").touch()
    until(terminal, r"wants: touch made")
    terminal.type("y\n")
    until(terminal, "code 0")
    assert terminal.end() == 0
    assert made(shell)


def test_calls_without_a_terminal_are_denied(shell: Shell, run: list[str]) -> None:
    """As in CI and cron, the command prints the answer and what allows the calls, and exits with 1."""
    done = shell.run(*run, code=1)
    assert done.stdout == b"Done.\n"
    assert not made(shell)
    errors = done.stderr.decode()
    assert "1 call that needed approval was denied because there is no terminal to ask on." in errors
    for way in ("--approve auto", "ORCH_APPROVE", "[policy.permissions]"):
        assert way in errors


def test_denied_calls_are_in_the_json(shell: Shell, run: list[str]) -> None:
    """The field `denied` counts the denied calls, also when the answer is collected later."""
    assert json.loads(shell.run(*run, "--json", code=1).stdout)["denied"] == 1
    shell.run("spawn", "Make it", "--name", "n", *run[2:])
    shell.run("query", "n", "Go", "--no-wait")
    assert json.loads(shell.run("collect", "n", "--json", code=1).stdout)["denied"] == 1
    assert not made(shell)


@pytest.mark.parametrize("way", ["flag", "variable", "permission"])
def test_script_allows_calls_in_three_ways(shell: Shell, run: list[str], way: str) -> None:
    """`--approve auto`, ORCH_APPROVE and `[policy.permissions]` each allow the call, and the command exits with 0."""
    flags, variables = [], {}
    if way == "flag":
        flags = ["--approve", "auto"]
    elif way == "variable":
        variables = {"ORCH_APPROVE": "auto"}
    else:
        shell.home.mkdir(exist_ok=True)
        (shell.home / "config.toml").write_text('[policy.permissions]\nbash = "allow"\n')
    done = shell.run(*run, *flags, **variables)
    assert done.stdout == b"Done.\n"
    assert made(shell)
    assert (b"allowed: " in done.stderr) is (way != "permission")


def test_flag_beats_variable(shell: Shell, run: list[str]) -> None:
    """`--approve deny` overrides ORCH_APPROVE, and a call that it denies does not change the exit code."""
    done = shell.run(*run, "--approve", "deny", ORCH_APPROVE="auto")
    assert (done.stdout, done.stderr.count(b"approval")) == (b"Done.\n", 0)
    assert not made(shell)


@pytest.mark.parametrize(("flags", "asks"), [([], False), (["--approve", "ask"], True)], ids=["default", "ask"])
def test_json_output_asks_only_by_flag(
    shell: Shell, stack: ExitStack, run: list[str], flags: list[str], asks: bool
) -> None:
    """Programs that read JSON do not expect a question, so the command asks only with `--approve ask`."""
    script = f"{orch(*run, '--json', *flags)} >out 2>log; echo code $?"
    terminal = stack.enter_context(closing(Pty(shell, script=script, ORCH_APPROVE="ask")))
    if asks:
        until(terminal, PROMPT)
        terminal.type("y\n")
    until(terminal, "code [01]")
    assert terminal.end() == 0
    assert (f"code {int(not asks)}" in terminal.shown(), PROMPT in terminal.shown()) == (True, asks)
    assert json.loads(text(shell, "out"))["denied"] == int(not asks)
    assert made(shell) is asks


def test_questions_of_several_processes_are_asked_one_at_a_time(shell: Shell, stack: ExitStack) -> None:
    """Each answer applies to the question that is shown."""
    for name in "abc":
        call = {"tool": "bash", "input": {"command": f"touch {name}"}}
        (shell.folder / f"{name}.json").write_text(json.dumps([call, "Done."]))
    argv = orch("run", "Make it", "--tools", "bash", "--script", "NAME.json")
    script = f"printf '%s\\n' a b c | xargs -P 3 -I NAME {argv} >out 2>log; echo code $?"
    terminal = stack.enter_context(closing(Pty(shell, script=script)))
    asked = []
    for number in range(1, 4):
        until(terminal, rf"(?s)({PROMPT}.*){{{number}}}")
        assert terminal.shown().count(PROMPT) == number
        wants = [line.split()[-1] for line in terminal.shown().splitlines() if "wants: touch" in line]
        assert len(wants) == number
        asked.append(wants[-1])
        terminal.type("y\n" if number != 2 else "n\n")
    until(terminal, "code 0")
    assert terminal.end() == 0
    assert sorted(asked) == ["a", "b", "c"]
    assert {name for name in "abc" if (shell.folder / name).exists()} == {asked[0], asked[2]}


def test_killed_process_releases_its_place_in_the_question_queue(shell: Shell, stack: ExitStack) -> None:
    """After SIGKILL of the process that asks, the next process asks."""
    for name in "ab":
        call = {"tool": "bash", "input": {"command": f"touch {name}"}}
        (shell.folder / f"{name}.json").write_text(json.dumps([call, "Done."]))
    first, second = (orch("run", "Make it", "--tools", "bash", "--script", f"{name}.json") for name in "ab")
    script = (
        f"{first} >out 2>log & first=$!; until [ -e one ]; do sleep 0.05; done; "
        f"{second} >out2 2>log2 & second=$!; until [ -e two ]; do sleep 0.05; done; "
        "kill -9 $first; wait $second; echo code $?"
    )
    terminal = stack.enter_context(closing(Pty(shell, script=script)))
    until(terminal, "wants: touch a")
    (shell.folder / "one").touch()
    deadline = time.monotonic() + SECONDS
    while [row["status"] for row in shell.data("list")] != ["busy", "busy"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (shell.folder / "two").touch()
    until(terminal, "wants: touch b")
    terminal.type("y\n")
    until(terminal, "code 0")
    assert terminal.end() == 0
    assert (shell.folder / "b").exists()
    assert not (shell.folder / "a").exists()


@pytest.mark.parametrize("answer", ["y", "n"])
def test_piped_chat_asks_on_the_terminal(shell: Shell, stack: ExitStack, answer: str) -> None:
    """Lines of the pipe are prompts, and the terminal gives the answers to questions."""
    argv = ["chat", "--tools", "bash", "--script", shell.script(TOUCH, "Done.")]
    script = f"printf 'Make it\\ny\\n' | {orch(*argv)} >out 2>log; echo code $?"
    terminal = stack.enter_context(closing(Pty(shell, script=script)))
    until(terminal, PROMPT)
    assert not made(shell)
    terminal.type(f"{answer}\n")
    until(terminal, "code [01]")
    assert terminal.end() == 0
    assert "Done." in text(shell, "out")
    assert made(shell) is (answer == "y")


def test_piped_chat_without_a_terminal_denies(shell: Shell) -> None:
    """The chat prints a notice after the denied call, and exits with 1."""
    argv = ["chat", "--tools", "bash", "--script", shell.script(TOUCH, "Done.")]
    done = shell.run(*argv, stdin=b"Make it\n", code=1)
    assert DENIED.encode() in done.stderr
    assert not made(shell)
