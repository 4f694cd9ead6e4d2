"""The items of `orch map`: files, lines and JSON lines. Nothing is sent to the daemon before they are valid."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from orch.api.fan_out import MapProgress
from orch.cli import run
from orch.cli.agents.map_items import progress_text
from orchestrator.daemon_double import Desk, opened

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    """A fake daemon, an empty home and a clean environment."""
    return opened(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["Review {item}", "--over", "*.py", "nope/*.py"], r"--over: no file matches 'nope/*.py' in "),
        (["Review {item}", "--over", "docs"], "--over: 'docs' is a folder; for all files in it, use 'docs/**/*'"),
        (
            ["Review {item}", "--over", "a.py", "docs/"],
            "--over: 'docs/' is a folder; for all files in it, use 'docs/**/*'",
        ),
        (["Review it", "--over", "a.py"], "has no {item}"),
        (["Q {item}", "--lines", "twice"], "two items have the key 'x'"),
        (["Q {item}", "--lines", "empty"], "no items: empty has no lines"),
        (["Q {item}", "--lines", "missing"], "cannot read items from missing"),
        (["Q {item}", "--lines", "twice", "--key", "id"], "use it with --json-lines"),
        (["Q {item}", "--json-lines", "twice"], "twice, item 1: not JSON"),
        (["Q {item}", "--json-lines", "data", "--key", "name"], "--key: the item {\"id\": 1} has no field 'name'"),
        (["Q {item.name}", "--json-lines", "data"], "has no 'name'"),
        (["-", "--lines", "-"], "'-' is given twice"),
        (["Q {item}"], "one of the arguments --over --lines --json-lines is required"),
        (["Q {item}", "--over", "a.py", "--workers", "0"], "'0' is not a whole number above 0"),
        (["Q {item}", "--over", "a.py", "--returns", "data.json"], "cannot read a JSON schema from data.json"),
    ],
)
def test_invalid_items_are_refused(
    desk: Desk, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], why: str
) -> None:
    """The message names the option, the file or the item. The exit code is 2."""
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    for name, text in (("a.py", ""), ("twice", "x\ny\nx\n"), ("empty", "\n"), ("data", '{"id": 1}\n')):
        Path(name).write_text(text)
    assert run(["map", *argv]) == 2
    assert why in capsys.readouterr().err
    assert desk.asked == []


@pytest.mark.parametrize("argv", [["map", "Q {item}", "--over", "a.py"], ["run", "Q"]])
def test_a_value_needs_a_configured_model(
    desk: Desk, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    """Without one, no agent is started, and the message says how to choose a model."""
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("")
    Path("schema.json").write_text('{"type": "integer"}')
    assert run([*argv, "--returns", "schema.json"]) == 2
    assert "no model configured: offline search quotes files" in capsys.readouterr().err
    assert not [method for method, _ in desk.asked if method != "daemon_status"]


def test_standard_input_without_items(desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` reads the items from standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"same\nsame\n")))
    assert run(["map", "Q {item}", "--lines", "-"]) == 2
    assert "two items have the key 'same'" in capsys.readouterr().err
    assert desk.asked == []


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (MapProgress(30, working=6), "0 of 30 done, 6 in progress, $0.0000"),
        (
            MapProgress(30, done=12, kept=2, failed=1, working=6, cost_usd=0.25, seconds=100.0),
            "12 of 30 done, 2 kept, 1 failed, 6 in progress, $0.2500, about 3 min left",
        ),
        (MapProgress(2, done=1, seconds=9000.0), "1 of 2 done, 0 in progress, $0.0000, about 2 h left"),
    ],
)
def test_progress_is_one_line(progress: MapProgress, text: str) -> None:
    """The line has the counts, the cost and the estimated time."""
    assert progress_text(progress) == text
