"""`orch runs`, and the option `--run`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

from orch.cli import VERBS, run
from orch.cli.agents import runs
from orch.cli.command import CliCommand, CommandGroup, Parser
from orch_protocol.services.agents.runs import RunRow
from orchestrator.daemon_double import ROW, Desk, opened

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    made = opened(monkeypatch, tmp_path)
    monkeypatch.setattr(runs, "Connection", made)
    made.answers["runs"] = msgspec.to_builtins(
        [
            RunRow(
                "report", "/h/runs/report", "running", 77, 3, 1, 0.25, "2026-01-01T00:00:00Z", "/p", cost_known=False
            ),
            RunRow("old", "/h/runs/old", "ended", None, 30, last_activity="2025-01-01T00:00:00Z", cwd="/\x1b[2J"),
            RunRow("lost", "/h/runs/lost", "ended", None, error="cannot read it"),
        ]
    )
    return made


@pytest.mark.usefixtures("desk")
def test_runs_are_a_table_with_folders_and_costs(capsys: Captured) -> None:
    """Control characters of folders are escaped. The error of a run that cannot be read is complete, on stderr."""
    assert run(["runs"]) == 0
    out, err = capsys.readouterr()
    head, *lines = (line.split() for line in out.splitlines())
    assert head == ["RUN", "STATE", "AGENTS", "BUSY", "COST", "ACTIVE", "FOLDER"]
    assert [*lines[0][:6], lines[0][-1]] == ["report", "process", "77", "3", "1", ">=$0.2500", "/p"]
    assert [*lines[1][:4], lines[1][-1]] == ["old", "ended", "30", "$0.0000", "/\\x1b[2J"]
    assert lines[2] == ["lost", "ended", "0"]
    assert err == "orch: run lost: cannot read it\n"
    assert run(["runs", "--running", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["report"]


@pytest.mark.parametrize(
    "argv",
    [
        "list",
        "list --json --all",
        "show reader",
        "query reader hi",
        "collect reader",
        "cancel reader",
        "steer reader hi",
        "kill reader",
        "session list",
        "session show reader",
        "session tree reader",
        "session title reader pumps",
        "session meta get reader",
        "archive list reader",
        "archive search pump",
        "archive read b0d9f3",
        "archive ask-all why b0d9f3",
        "archive prune --older-than 3d",
    ],
)
def test_run_option_selects_the_run(desk: Desk, argv: str) -> None:
    """The connection is about that run. Without the option it is about the daemon's own."""
    assert run(argv.split()) == 0
    assert set(desk.runs) == {None}
    desk.runs.clear()
    assert run([*argv.split(), "--run", "report"]) == 0
    assert set(desk.runs) == {"report"}
    assert all(not params.get("runs") for _, params in desk.asked[len(desk.asked) // 2 :])


def commands() -> Iterator[tuple[str, bool]]:
    """Yield the words of each command, and whether it has the option `--run`."""

    def walk(words: str, found: CliCommand | CommandGroup) -> Iterator[tuple[str, bool]]:
        if isinstance(found, CommandGroup):
            for word, (_, below) in found.verbs.items():
                yield from walk(f"{words} {word}", below)
            return
        parser = Parser(words, "", "")
        found.add_arguments(parser)
        yield words, "--run" in parser._option_string_actions

    for name, (module, _) in VERBS.items():
        yield from walk(name, import_module(module).VERBS[name])


def test_commands_about_agents_sessions_and_archives_have_the_run_option() -> None:
    """Commands that create agents and commands about the whole machine have no run."""
    groups = ("archive", "session", "workspace")
    modules = ("orch.cli.agents", "orch.cli.service_verbs")
    about_runs = {name for name, (module, _) in VERBS.items() if name in groups or module.startswith(modules)}
    missing = {words for words, has_run in commands() if words.partition(" ")[0] in about_runs and not has_run}
    assert missing == {"spawn", "run", "map", "chat", "runs", "session import"}
    others = {words for words, has_run in commands() if words.partition(" ")[0] not in about_runs and has_run}
    assert others == {"costs", "events", "forget", "skills package"}


def test_run_of_a_skill_needs_a_session(desk: Desk, capsys: Captured) -> None:
    """A package from instructions or a template comes from no run."""
    assert run(["skills", "package", "pumps", "--prompt", "p", "--description", "d", "--run", "report"]) == 2
    assert "--run needs --session" in capsys.readouterr().err
    assert desk.asked == []


def test_forget_finds_the_session_in_the_run(desk: Desk, capsys: Captured) -> None:
    """The agent is looked up in the run. The daemon deletes the session by its id."""
    desk.answers["forget_session"] = {"sessions": [], "archives": 0, "bytes": 0}
    assert run(["forget", "n", "--run", "report", "--yes", "--json"]) == 0
    assert desk.asked == [("state", {"ref": "n"}), ("forget_session", {"ref": ROW["id"]})]
    assert desk.runs == [None, "report"]
    assert json.loads(capsys.readouterr().out)["bytes"] == 0
