"""`orch demo` with real processes: in a pipe, at a terminal, interrupted, killed, and with a model."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.command_shell import SECONDS, Shell, ended
from integration.terminal import Pty, orch, until
from wire.model_server_beside import Apart, reads_files

SNAPSHOTS = Path(__file__).parent / "snapshots"
QUEUED = "queued as 17-0329-0502"
README = "# Pump\n\nThe pump keeps the sump dry.\n\n## Tests\n\nRun `make test`.\n"
MASKS = (
    (r"\S*orch-demo-\S+\.svg", "PICTURE"),
    (r"(question \d, step) +\d+: .*", r"\1 ..."),
    (r"(tokens sent to the model|cost in dollars) .*", r"\1 ..."),
    (r"^   +\d+k? \|.*|^   +\|.*", "   | ..."),
    (r"(kill -9|process) \d+", r"\1 PID"),
    (r"([├└] \w+) .*", r"\1 ..."),
    (r"(conversation from disk:\n)(   > .*\n)+", r"\1   > ANSWER\n"),  # how it is quoted depends on the search
    (r"demo +STATE.*", "demo ..."),
    (r"\d+ steps with \d+ %", "N steps with N %"),
    (r"in \d+ s\.", "in N s."),
    (r"^   \S.*( -m)? (orch )?(?=(run 'What|chat  |doctor  ))", "   orch "),
)


@pytest.fixture(autouse=True)
def pictures(shell: Shell, tmp_path: Path) -> Iterator[Path]:
    """The folder that the chart is written to."""
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    shell.env["TMPDIR"] = str(folder)
    return folder


def masked(text: str) -> str:
    """Return the output without what differs from run to run."""
    for pattern, replacement in MASKS:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def final_screen(text: str) -> str:
    """Return what stays on a terminal: replaced lines are gone, and styles."""
    lines: list[str] = []
    for line in re.sub(r"\x1b\[\d*m", "", text).split("\n"):
        while found := re.match(r"\x1b\[(\d+)A\x1b\[J", line):
            del lines[-int(found[1]) :]
            line = line[found.end() :]
        lines.append(line)
    return "\n".join(lines)


@pytest.mark.parametrize("width", [80, 120])
def test_demo_in_a_pipe_prints_what_the_snapshot_has(shell: Shell, width: int) -> None:
    """One line per question, no control character, no line too long; nothing is left, neither process nor file."""
    (shell.folder / "README.md").write_text(README)
    text = shell.run("demo", COLUMNS=str(width)).stdout.decode()
    assert "\x1b" not in text
    assert QUEUED in text
    check_snapshot(text, f"demo_pipe_{width}.txt", width)
    assert not shell.home.exists()


@pytest.mark.parametrize("width", [80, 120])
def test_demo_at_a_terminal_leaves_what_the_snapshot_has(shell: Shell, width: int) -> None:
    """The progress is one line, which is replaced."""
    (shell.folder / "README.md").write_text(README)
    terminal = Pty(shell, script=f"COLUMNS={width} {orch('demo')}")
    try:
        assert terminal.end() == 0
        text = terminal.shown()
    finally:
        terminal.close()
    assert "\x1b[1m1. " in text
    screen = final_screen(text)
    assert screen.count("question ") < text.count("question ")
    check_snapshot(screen, f"demo_terminal_{width}.txt", width)


def check_snapshot(text: str, name: str, width: int) -> None:
    """Compare the output with a file. UPDATE_SNAPSHOTS=1 writes the file."""
    commands = re.compile(r"\.svg$|  # ")  # a path and commands are never cut
    assert [line for line in text.splitlines() if len(line) > width and not commands.search(line)] == []
    if os.environ.get("UPDATE_SNAPSHOTS"):
        (SNAPSHOTS / name).write_text(masked(text))
    assert masked(text) == (SNAPSHOTS / name).read_text()


def test_demo_prints_data(shell: Shell, pictures: Path) -> None:
    """In an empty folder too: fewer tokens, the detail word for word, another process after the kill."""
    told = shell.data("demo", PYTHONIOENCODING="ascii", LANG="C")
    assert told["steps"] == 67
    assert told["tokens_with"] < told["tokens_without"] / 2
    assert told["usd_with"] < told["usd_without"]
    assert told["archives"] >= 5
    assert told["recalled"].endswith(QUEUED)
    assert told["recalled_turn"] == 1
    assert told["revived_pid"] not in (0, told["killed_pid"])
    assert told["revived_answer"]
    assert list(told["subagents"]) == ["overview", "tests", "errors"]
    assert told["left"] == []
    assert Path(told["svg"]).read_text().startswith("<svg ")
    assert list(pictures.iterdir()) == [Path(told["svg"])]
    assert not shell.home.exists()


def test_demo_that_was_killed_is_removed_by_the_next(shell: Shell) -> None:
    """Its agents end with it; its folder is removed when the next one starts."""
    demo = shell.start("demo")
    assert demo.stdout is not None
    while not demo.stdout.readline().startswith(b"   question 1"):
        assert demo.poll() is None
    agents = [pid for pid in shell.ours() if pid != demo.pid]
    demo.kill()
    demo.communicate(timeout=SECONDS)
    for pid in agents:
        ended(pid)
    (left,) = shell.home.iterdir()
    os.utime(left, (0, 0))  # what is new may belong to a command that has just begun
    assert shell.data("demo")["left"] == []
    assert not left.exists()


def test_live_demo_needs_a_model_and_a_terminal(shell: Shell) -> None:
    """Nothing is started without both."""
    assert b"no model configured: set ORCH_MODEL" in shell.run("demo", "--live", code=1).stderr
    told = shell.run("demo", "--live", "--model", "anthropic:claude-sonnet-5", code=2)
    assert b"costs at most $2.00" in told.stdout
    assert b"run it at a terminal" in told.stderr
    assert not shell.home.exists()


def test_live_demo_asks_before_it_costs_money(shell: Shell) -> None:
    """Without a yes, no request is made."""
    with Apart(reads_files) as apart:
        terminal = Pty(shell, "demo", "--live", "--model", "anthropic:claude-sonnet-5", **apart.env)
        try:
            until(terminal, r"costs at most \$2\.00: all agents share a budget of that size")
            until(terminal, r"Continue\? \[y/N\]")
            terminal.type("n\n")
            assert terminal.end() == 1
            assert "nothing was started" in terminal.shown()
        finally:
            terminal.close()
        assert apart.server.requests == []
    assert not shell.home.exists()


def test_live_demo_with_a_model_that_reads_little(shell: Shell) -> None:
    """All four parts are shown with a model that never reads the detail, and nothing is left."""
    with Apart(reads_files) as apart:
        terminal = Pty(shell, "demo", "--live", "--model", "anthropic:claude-sonnet-5", **apart.env)
        try:
            until(terminal, r"Continue\?")
            terminal.type("y\n")
            assert terminal.end() == 0
            said = final_screen(terminal.shown())
        finally:
            terminal.close()
        assert apart.server.refused == []
    assert "The model anthropic:claude-sonnet-5 decides each step." in said
    assert "The search found nothing." in said
    assert re.search(r"kill -9 \d+: the process is gone", said)
    assert "Processes left: 0." in said
    assert not shell.home.exists()
