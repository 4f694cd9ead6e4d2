"""`orch demo` with real processes: in a pipe, at a terminal, killed, and with a model."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.command_shell import SECONDS, Shell, ended
from integration.terminal import Pty, orch, until
from wire.model_server import Answer, Request, say
from wire.model_server_beside import Apart, reads_files

SNAPSHOTS = Path(__file__).parent / "snapshots"
QUEUED = "queued as 17-0329-0502"
MASKS = (
    (r"\S*orch-demo-\S+\.svg", "PICTURE"),
    (r"(question \d, step) +\d+: .*", r"\1 ..."),
    (r"^   +\d+k? \|.*|^   +\|.*", "   | ..."),
    (r"=> \d+ % of the tokens \((.|\n)*?\d\)$", "=> N % ..."),
    (r"=> \d+ ms", "=> N ms"),
    (r"=> \d+\.\d s", "=> N s"),
    (r"(kill -9|process) \d+", r"\1 PID"),
    (r"(conversation from disk:\n)(   > .*\n)+", r"\1   > ANSWER\n"),  # the quotation depends on the search
    (r"^ +PROCESS  STATE .*\n(?:   +\d+  (?:done|killed) .*\n)+", "   TABLE\n"),  # the agents end in any order
    (r"(kill -9 PID ended)(.|\n)*?none:$", r"\1 ..."),
    (r"in \d+ s$", "in N s"),
    (r"^      \S.*(?=(init|import ~.*|wrap claude --continue|proxy|map 'Review .*)$)", "      orch "),
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


def test_demo_in_a_pipe_matches_the_snapshot(shell: Shell) -> None:
    """The output has no control characters and no long lines, and the demo removes its home."""
    text = shell.run("demo", COLUMNS="120").stdout.decode()
    assert "\x1b" not in text
    assert QUEUED in text
    check_snapshot(text, "demo_pipe_120.txt", 120)
    assert not shell.home.exists()


def test_demo_at_a_terminal_matches_the_snapshot(shell: Shell) -> None:
    """The demo prints styles, and replaces its progress lines."""
    terminal = Pty(shell, script=f"COLUMNS=80 {orch('demo')}")
    try:
        assert terminal.end() == 0
        text = terminal.shown()
    finally:
        terminal.close()
    assert "\x1b[1m1. " in text
    screen = final_screen(text)
    assert screen.count("question ") < text.count("question ")
    check_snapshot(screen, "demo_terminal_80.txt", 80)


def check_snapshot(text: str, name: str, width: int) -> None:
    """Compare the output with a file. UPDATE_SNAPSHOTS=1 writes the file."""
    commands = re.compile(r"\.svg$|^      \S")  # paths and commands are not wrapped
    assert [line for line in text.splitlines() if len(line) > width and not commands.search(line)] == []
    if os.environ.get("UPDATE_SNAPSHOTS"):
        (SNAPSHOTS / name).write_text(masked(text))
    assert masked(text) == (SNAPSHOTS / name).read_text()


def test_demo_json_has_its_figures_and_removes_a_killed_demo(shell: Shell, pictures: Path) -> None:
    """The agents of a killed demo end, and the next demo removes its folder.

    The data of the next demo shows fewer tokens with archival, the recalled detail, another process after the kill,
    and a map in which only the killed question was asked again.
    """
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
    data = shell.data("demo", PYTHONIOENCODING="ascii", LANG="C")
    assert not left.exists()
    assert data["steps"] == 67
    assert data["tokens_with"] < data["tokens_without"] / 2
    assert data["usd_with"] < data["usd_without"]
    assert data["archives"] >= 5
    assert data["recalled"].endswith(QUEUED)
    assert data["recalled_turn"] == 1
    assert data["revived_pid"] not in (0, data["killed_pid"])
    assert data["revived_answer"]
    fan_out = data["fan_out"]
    assert fan_out["answers"]["tidegauge/alerts.py"] == {"functions": 4, "undocumented": ["__init__", "feed", "alerts"]}
    assert fan_out["questions"] == len(fan_out["answers"]) + 1
    assert all(isinstance(answer, dict) for answer in fan_out["answers"].values())
    assert fan_out["killed_file"] in fan_out["answers"]
    assert data["left"] == []
    assert Path(data["svg"]).read_text().startswith("<svg ")
    assert list(pictures.iterdir()) == [Path(data["svg"])]


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

    def model(request: Request) -> Answer:
        is_review = "have no docstring" in json.dumps(request.body)
        return say('{"functions": 7, "undocumented": []}') if is_review else reads_files(request)

    with Apart(model) as apart:
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
    assert re.search(r"kill -9 \d+ ended the work on tidegauge/", found)
    assert "0 of 7 functions" in found
    assert "=> 12 of 12 files answered, with 13 questions" in found
    assert "Processes left: 0." in found
    assert not shell.home.exists()
