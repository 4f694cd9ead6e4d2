"""`orch memory`: add, list, show and forget notes."""

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


def printed(capsys: Captured, *argv: str) -> str:
    """Run `orch memory` and return its stdout."""
    assert run(["memory", *argv]) == 0
    return capsys.readouterr().out.strip()


def test_notes_are_added_listed_and_forgotten(capsys: Captured, tmp_path: Path) -> None:
    """Notes have ids, and belong to the current folder unless --cwd names another folder."""
    id = printed(capsys, "add", "Tea at five.")
    other = printed(capsys, "add", "The pump hums.")
    assert printed(capsys, "list").splitlines()[1].split() == [id, *printed(capsys, "list").splitlines()[1].split()[1:]]
    assert printed(capsys, "list", "--about", "which pump?").splitlines()[1].startswith(other)
    assert "a person" in printed(capsys, "show", id)
    assert printed(capsys, "show", id).endswith("Tea at five.")
    [row] = json.loads(printed(capsys, "show", id, "--json"))
    assert (row["id"], row["text"], row["source"]) == (id, "Tea at five.", "user")
    assert printed(capsys, "list", "--cwd", str(tmp_path)) == ""
    assert printed(capsys, "forget", id) == id
    assert json.loads(printed(capsys, "list", "--json"))[0]["id"] == other


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["add", " "], 2, "the note is empty"),
        (["add", "x" * 2_001], 2, "more than the limit of 2,000"),
        (["forget", "nobody"], 3, "no note with id 'nobody'"),
        (["show"], 2, "ID"),
    ],
)
def test_invalid_memory_commands_have_their_exit_codes(capsys: Captured, argv: list[str], code: int, says: str) -> None:
    assert run(["memory", *argv]) == code
    assert says in capsys.readouterr().err
