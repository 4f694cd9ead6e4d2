"""`orch agent-types`: list, show and trust agent types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orch.cli import run

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the project's folder of agent types, which contains one type. The user's folder contains another type."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    folder = tmp_path / "here" / ".orch" / "agents"
    for place, name, tools in ((tmp_path / "home" / "agents", "scout", "Read"), (folder, "fixer", "Bash\ncolor: red")):
        place.mkdir(parents=True)
        (place / f"{name}.md").write_text(f"---\ndescription: A {name}.\ntools: {tools}\n---\nYou are a {name}.\n")
    monkeypatch.chdir(tmp_path / "here")
    return folder


def data_and_errors(capsys: Captured, *argv: str) -> tuple[Any, str]:
    """Run `orch agent-types` with --json. Return its data and its stderr."""
    assert run(["agent-types", *argv, "--json"]) == 0
    out, err = capsys.readouterr()
    return json.loads(out), err


def test_types_are_listed_without_an_action(capsys: Captured, tmp_path: Path) -> None:
    """The list is the default action, also after an option. stderr says why a type is off."""
    rows, err = data_and_errors(capsys)
    assert [(row["name"], row["on"], row["tools"]) for row in rows] == [
        ("scout", True, ["describe_data", "read_file"]),
        ("fixer", False, ["bash", "bg_kill", "bg_status"]),
    ]
    assert "fixer is off: it was not trusted: read it, then orch agent-types trust fixer" in err
    assert data_and_errors(capsys, "list")[0] == rows
    assert [row["name"] for row in data_and_errors(capsys, "--cwd", str(tmp_path))[0]] == ["scout"]
    assert run(["agent-types"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        *("scout", "user", "yes", "default", "describe_data,read_file", "A", "scout.")
    ]


def test_trust_applies_to_the_present_content(capsys: Captured, project: Path) -> None:
    """A trusted type is on until its file changes or the trust is revoked."""
    assert data_and_errors(capsys, "trust", "fixer")[0]["trusted"] == str(project / "fixer.md")
    rows, err = data_and_errors(capsys)
    assert (rows[1]["on"], "fixer: these fields have no effect: color" in err) == (True, True)
    assert data_and_errors(capsys, "untrust", "fixer")[0] == {"untrusted": True}
    assert "was not trusted" in data_and_errors(capsys)[1]


def test_a_type_is_shown_with_its_prompt(capsys: Captured) -> None:
    """The page has the tools under their names in orch, and the reason why the type is off."""
    assert run(["agent-types", "show", "fixer"]) == 0
    page = capsys.readouterr().out
    assert "tools:         bash bg_kill bg_status\n" in page
    assert "off:           it was not trusted" in page
    assert page.endswith("\n\nYou are a fixer.\n")


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["trust", "scout"], 2, "is your own"),
        (["trust", "critic"], 3, "no agent type named 'critic'; known: scout, fixer"),
        (["fly"], 2, "unknown action 'fly'; use one of list, show, trust, untrust"),
        (["show"], 2, "NAME"),
    ],
)
def test_errors_name_what_is_wrong(capsys: Captured, argv: list[str], code: int, says: str) -> None:
    """Each error has the exit code of its kind."""
    assert run(["agent-types", *argv]) == code
    assert says in capsys.readouterr().err
