"""The programs of examples/README.md run without a key."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from integration.command_shell import SECONDS, Shell
from source_tree import ROOT

PROJECT = "examples/bug_hunt/project"
PAST, OWN_LOOP, MAP = (ROOT / "examples" / "README.md").read_text().split("```")[1].splitlines()[1:]
"""The commands of the first block of the page."""


def example(shell: Shell, command: str) -> list[str]:
    """Run `command` in the folder of the checkout. Return the lines that it prints."""
    environment = shell.env | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command.split(),
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def found(lines: list[str]) -> None:
    """Check that the last answer of `agent.py` is the archived log that contains the text."""
    assert re.match(r"\w+ entry \d+ \(turn \d+, \d+ turns ago; line \d+; What is in examples/bug_", lines[0])
    assert "TG-4471-B" in lines[2]


def test_past_sessions_are_searched_and_priced(shell: Shell) -> None:
    """The search finds the entry that answers the question, and archival costs less than compaction."""
    lines = example(shell, PAST)
    assert lines[0].startswith("1 session in 1 file: 1 new; 6 turns")
    assert "The log has one mail that could not be sent. It belongs to the warning, not to a flood alert." in str(lines)
    costs = {words[0]: float(words[1][1:]) for words in map(str.split, lines) if words[1:] and words[1][0] == "$"}
    assert costs["balanced"] < costs["compaction"] <= costs["none"]


def test_the_gateway_archives_below_an_own_loop(shell: Shell) -> None:
    """The model reads a file again that is no longer in the conversation, and few of the tokens are sent."""
    lines = example(shell, OWN_LOOP)
    found(lines)
    sent, received = (int(number.replace(",", "")) for number in re.findall(r"[\d,]{5,}", lines[-1]))
    assert sent < received / 3


def test_the_own_loop_answers_before_anything_is_archived(shell: Shell, tmp_path: Path) -> None:
    """In a small folder nothing is archived, so the model has no tool to search with. A file need not be text."""
    (tmp_path / "a file.bin").write_bytes(b"\xff")
    lines = example(shell, f"{OWN_LOOP.rpartition(' ')[0]} {tmp_path}")
    assert lines[0].startswith("Nothing is archived yet.")
    assert lines[1].startswith("1 files: sent ")


def test_the_proxy_archives_below_an_own_loop_by_its_url(shell: Shell) -> None:
    """With the URL of `orch proxy`, the same program gets the same answer."""
    model = [sys.executable, ROOT / "examples/own_loop/offline_model.py"]
    with subprocess.Popen(model, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        upstream = f"anthropic={server.stdout.readline().strip()}"
        proxy = shell.start("proxy", "--port", "0", "--upstream", upstream)
        assert proxy.stdout is not None
        address = re.search(rb"http://\S+:\d+", proxy.stdout.readline())
        assert address is not None
        try:
            command = [ROOT / "examples/own_loop/agent.py", PROJECT, "--url", f"{address[0].decode()}/anthropic"]
            done = subprocess.run(
                [sys.executable, *command], cwd=ROOT, env=shell.env, capture_output=True, text=True, timeout=SECONDS
            )
            assert done.returncode == 0, done.stderr
            found(done.stdout.splitlines())
            [conversation] = shell.data("proxy", "stats")["conversations"]
            assert conversation["sent_tokens"] < conversation["received_tokens"] / 3
        finally:
            shell.run("proxy", "stop")
            proxy.communicate(timeout=SECONDS)
            server.communicate()


def test_a_fan_out_keeps_its_answers(shell: Shell) -> None:
    """The second run of the map keeps the answers of the first."""
    first, second = (example(shell, MAP) for _ in range(2))
    assert len(first) == len(list((ROOT / PROJECT).rglob("*.py")))
    assert all(" lines, undocumented: " in line for line in first)
    assert second == [f"{line} (kept)" for line in first]
