"""The commands that `orch demo` names at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch.cli.system.demo import shell_command

UV = {"UV": "/usr/bin/uv"}
UV_RUN = UV | {"UV_RUN_RECURSION_DEPTH": "1"}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program orch in a virtual environment of the current folder."""
    found = tmp_path / ".venv" / "bin" / "orch"
    found.parent.mkdir(parents=True)
    found.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    return found


@pytest.mark.parametrize(
    ("env", "path", "command"),
    [
        ({}, "{venv}:/nowhere", "orch"),
        ({}, "/nowhere", ".venv/bin/orch"),
        (UV_RUN, "{venv}:/nowhere", "uv run orch"),
        (UV_RUN, "{venv}:{venv}:/nowhere", "orch"),
        (UV_RUN, "/nowhere", "uv run orch"),
        (UV, "{venv}:/nowhere", ".venv/bin/orch"),
    ],
)
def test_next_steps_can_be_started_from_the_shell(program: Path, env: dict[str, str], path: str, command: str) -> None:
    """uv adds the folder of the program to the PATH of the program, and not to that of the shell."""
    env = env | {"PATH": path.replace("{venv}", str(program.parent))}
    assert shell_command(env, program, program.with_name("python")) == command


def test_without_a_program_orch_is_started_as_a_module(program: Path) -> None:
    """For example after `python -m orch demo`."""
    python = program.with_name("python")
    assert shell_command({"PATH": "/nowhere"}, Path("/x/orch/__main__.py"), python) == f"{python} -m orch"
