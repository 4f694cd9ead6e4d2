"""What the command line says of the sandbox: what is asked for, what is required, what is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch.cli import run
from orchestrator.daemon_double import SPAWNED, Desk, opened

Captured = pytest.CaptureFixture[str]

CONFIG = """
[sandbox]
level = "L1"
[sandbox.presets]
minimal = "L0"
[sandbox.tools]
bash = "L2"
py_help = "L0"
"""


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    """A fake daemon."""
    return opened(monkeypatch, tmp_path)


@pytest.fixture
def configured(desk: Desk, tmp_path: Path) -> Desk:
    """A user who has said what the sandbox is to be."""
    assert not desk.asked
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home" / "config.toml").write_text(CONFIG)
    return desk


def asked(desk: Desk) -> dict[str, Any]:
    """Return the sandbox that an agent was asked for with."""
    sandbox: dict[str, Any] = desk.asked[0][1]["sandbox"]
    return sandbox


@pytest.mark.parametrize(
    ("flags", "level", "require", "presets", "tools"),
    [
        ([], "L1", False, {"minimal": "L0"}, {"bash": "L2", "py_help": "L0"}),
        (["--sandbox", "L3"], "L3", False, {}, {"bash": "L2", "py_help": "L0"}),
        (["--require-sandbox", "L2"], "L2", True, {"minimal": "L2"}, {"bash": "L2", "py_help": "L2"}),
        (["--require-sandbox", "L1", "--sandbox", "L3"], "L3", True, {}, {"bash": "L2", "py_help": "L1"}),
    ],
)
def test_flags_beat_the_configuration(
    configured: Desk, flags: list[str], level: str, require: bool, presets: dict[str, str], tools: dict[str, str]
) -> None:
    """What is asked for is for every preset; what is required is the least for every tool."""
    assert run(["spawn", "t", "--model", "a:b", *flags]) == 0
    said = asked(configured)
    assert (said["level"], said["require"], said["presets"], said["tools"]) == (level, require, presets, tools)


def test_what_is_said_of_the_sandbox_is_told(desk: Desk, capsys: Captured) -> None:
    """On stderr; the id is all there is on stdout."""
    desk.answers["spawn"] = SPAWNED | {"note": "sandbox level L3 cannot be had here"}
    assert run(["spawn", "t", "--model", "a:b"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("abc\n", "orch: sandbox level L3 cannot be had here\n")


@pytest.mark.parametrize(
    ("level", "required", "code"),
    [("L3", True, 0), ("L2", True, 0), ("L1", True, 1), ("L3", False, 1)],
)
def test_a_daemon_that_runs_already_must_require_as_much(
    desk: Desk, capsys: Captured, level: str, required: bool, code: int
) -> None:
    """One that does not is named, with what to do."""
    desk.answers["daemon_status"] = {"pid": 7, "sandbox": level, "sandbox_required": required}
    assert run(["daemon", "start", "--require-sandbox", "L2"]) == code
    if code:
        assert "daemon 7 is running and does not require L2: orch daemon stop" in capsys.readouterr().err


def test_only_a_daemon_that_starts_can_be_told_to_require(desk: Desk, capsys: Captured) -> None:
    """With another word the flag is an error of use."""
    assert run(["daemon", "stop", "--require-sandbox", "L2"]) == 2
    assert (desk.asked, "goes with: orch daemon start" in capsys.readouterr().err) == ([], True)


def test_credentials_that_commands_can_use_are_asked_for(desk: Desk, tmp_path: Path) -> None:
    """Those of the flags, beside those that are configured."""
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home" / "config.toml").write_text('[policy]\nusable_credentials = ["~/.kube/config"]\n')
    assert run(["spawn", "Deploy", "--model", "local:m", "--credentials", "/keys/ssh", "--credentials", "keys"]) == 0
    rules = desk.asked[0][1]["policy"]["rules"]
    assert rules["usable_credentials"] == ["~/.kube/config", "/keys/ssh", str(Path("keys").absolute())]
