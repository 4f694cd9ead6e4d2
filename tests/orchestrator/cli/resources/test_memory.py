"""`orch memory`: notes by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orch.cli import run

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def told(capsys: Captured, *argv: str) -> str:
    """Run it and return what it printed."""
    assert run(["memory", *argv]) == 0
    return capsys.readouterr().out.strip()


def test_what_is_added_is_listed_shown_and_forgotten(capsys: Captured, tmp_path: Path) -> None:
    """By id, in this folder alone unless another is named."""
    id = told(capsys, "add", "Tea at five.")
    other = told(capsys, "add", "The pump hums.")
    assert told(capsys, "list").splitlines()[1].split() == [id, *told(capsys, "list").splitlines()[1].split()[1:]]
    assert told(capsys, "list", "--about", "which pump?").splitlines()[1].startswith(other)
    assert "a person" in told(capsys, "show", id)
    assert told(capsys, "show", id).endswith("Tea at five.")
    [row] = json.loads(told(capsys, "show", id, "--json"))
    assert (row["id"], row["text"], row["source"]) == (id, "Tea at five.", "user")
    assert told(capsys, "list", "--cwd", str(tmp_path)) == ""
    assert told(capsys, "forget", id) == id
    assert json.loads(told(capsys, "list", "--json"))[0]["id"] == other


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["add", " "], 2, "nothing to remember"),
        (["add", "x" * 2_001], 2, "more than the limit of 2,000"),
        (["forget", "nobody"], 3, "no note with id 'nobody'"),
        (["show"], 2, "ID"),
    ],
)
def test_what_cannot_be_is_said(capsys: Captured, argv: list[str], code: int, says: str) -> None:
    """With the exit code of its kind."""
    assert run(["memory", *argv]) == code
    assert says in capsys.readouterr().err
