"""`orch demo` with real processes: in a pipe, at a terminal, killed, and with a model."""

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
    (r"(conversation from disk:\n)(   > .*\n)+", r"\1   > ANSWER\n"),  # the quotation depends on the search
    (r"demo +STATE.*", "demo ..."),
    (r"\d+ steps with \d+ %", "N steps with N %"),
    (r"in \d+ s\.", "in N s."),
    (r"^   \S.*( -m)? (orch )?(?=(run 'What|chat  |doctor  ))", "   orch "),
)


@pytest.fixture(autouse=True)
def pictures(shell: Shell, tmp_path: Path) -> Iterator[Path]:
    """The folder in which the demo writes its chart."""
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    shell.env["TMPDIR"] = str(folder)
    return folder


def masked(text: str) -> str:
    """Return the output with the parts that differ between runs replaced."""
    for pattern, replacement in MASKS:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def final_screen(text: str) -> str:
    """Return the text that is visible on the terminal at the end, without styles."""
    lines: list[str] = []
    for line in re.sub(r"\x1b\[\d*m", "", text).split("\n"):
        while found := re.match(r"\x1b\[(\d+)A\x1b\[J", line):
            del lines[-int(found[1]) :]
            line = line[found.end() :]
        lines.append(line)
    return "\n".join(lines)


@pytest.mark.parametrize("width", [80, 120])
def test_demo_in_a_pipe_matches_the_snapshot(shell: Shell, width: int) -> None:
    """The output has no control characters and no long lines, and the demo removes its home."""
    (shell.folder / "README.md").write_text(README)
    text = shell.run("demo", COLUMNS=str(width)).stdout.decode()
    assert "\x1b" not in text
    assert QUEUED in text
    check_snapshot(text, f"demo_pipe_{width}.txt", width)
    assert not shell.home.exists()


@pytest.mark.parametrize("width", [80, 120])
def test_demo_at_a_terminal_matches_the_snapshot(shell: Shell, width: int) -> None:
    """The demo prints styles, and replaces its progress lines."""
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
    commands = re.compile(r"\.svg$|  # ")  # paths and commands are not wrapped
    assert [line for line in text.splitlines() if len(line) > width and not commands.search(line)] == []
    if os.environ.get("UPDATE_SNAPSHOTS"):
        (SNAPSHOTS / name).write_text(masked(text))
    assert masked(text) == (SNAPSHOTS / name).read_text()


def test_demo_json_has_its_figures(shell: Shell, pictures: Path) -> None:
    """The data shows fewer tokens with archival, the recalled detail, and another process after the kill."""
    data = shell.data("demo", PYTHONIOENCODING="ascii", LANG="C")
    assert data["steps"] == 67
    assert data["tokens_with"] < data["tokens_without"] / 2
    assert data["usd_with"] < data["usd_without"]
    assert data["archives"] >= 5
    assert data["recalled"].endswith(QUEUED)
    assert data["recalled_turn"] == 1
    assert data["revived_pid"] not in (0, data["killed_pid"])
    assert data["revived_answer"]
    assert list(data["subagents"]) == ["overview", "tests", "errors"]
    assert data["left"] == []
    assert Path(data["svg"]).read_text().startswith("<svg ")
    assert list(pictures.iterdir()) == [Path(data["svg"])]
    assert not shell.home.exists()


def test_killed_demo_is_removed_by_the_next(shell: Shell) -> None:
    """The agents of a killed demo end, and the next demo removes the folder."""
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
    os.utime(left, (0, 0))  # a new folder may belong to a demo that has just started
    assert shell.data("demo")["left"] == []
    assert not left.exists()


def test_live_demo_needs_a_model_and_a_terminal(shell: Shell) -> None:
    """The command names what is missing, and starts no agent."""
    assert b"no model configured: set ORCH_MODEL" in shell.run("demo", "--live", code=1).stderr
    output = shell.run("demo", "--live", "--model", "anthropic:claude-sonnet-5", code=2)
    assert b"costs at most $2.00" in output.stdout
    assert b"run it at a terminal" in output.stderr
    assert not shell.home.exists()


def test_live_demo_asks_before_it_costs_money(shell: Shell) -> None:
    """If the user does not confirm, no request is made."""
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


def test_live_demo_works_with_a_model_that_reads_little(shell: Shell) -> None:
    """The demo shows all parts, although its search finds nothing."""
    with Apart(reads_files) as apart:
        terminal = Pty(shell, "demo", "--live", "--model", "anthropic:claude-sonnet-5", **apart.env)
        try:
            until(terminal, r"Continue\?")
            terminal.type("y\n")
            assert terminal.end() == 0
            found = final_screen(terminal.shown())
        finally:
            terminal.close()
        assert apart.server.refused == []
    assert "The model anthropic:claude-sonnet-5 decides each step." in found
    assert "The search found nothing." in found
    assert re.search(r"kill -9 \d+: the process is gone", found)
    assert "Processes left: 0." in found
    assert not shell.home.exists()
