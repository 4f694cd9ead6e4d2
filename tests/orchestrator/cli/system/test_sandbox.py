"""Options and settings of the sandbox on the command line."""

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
    """A fake daemon, and a home whose configuration sets sandbox levels."""
    assert not desk.asked
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home" / "config.toml").write_text(CONFIG)
    return desk


def asked(desk: Desk) -> dict[str, Any]:
    """Return the sandbox settings of the first request."""
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
def test_flags_override_the_configuration(
    configured: Desk, flags: list[str], level: str, require: bool, presets: dict[str, str], tools: dict[str, str]
) -> None:
    """`--sandbox` sets the level of all presets. `--require-sandbox` raises all lower levels."""
    assert run(["spawn", "t", "--model", "a:b", *flags]) == 0
    found = asked(configured)
    assert (found["level"], found["require"], found["presets"], found["tools"]) == (level, require, presets, tools)


def test_sandbox_notices_go_to_stderr(desk: Desk, capsys: Captured) -> None:
    """stdout contains only the agent's id."""
    desk.answers["spawn"] = SPAWNED | {"note": "sandbox level L3 is not available here"}
    assert run(["spawn", "t", "--model", "a:b"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("abc\n", "orch: sandbox level L3 is not available here\n")


@pytest.mark.parametrize(
    ("level", "required", "code"),
    [("L3", True, 0), ("L2", True, 0), ("L1", True, 1), ("L3", False, 1)],
)
def test_running_daemon_must_require_the_same_level(
    desk: Desk, capsys: Captured, level: str, required: bool, code: int
) -> None:
    """`daemon start --require-sandbox` fails if the running daemon has a lower level or does not require its level."""
    desk.answers["daemon_status"] = desk.answers["daemon_status"] | {"sandbox": level, "sandbox_required": required}
    assert run(["daemon", "start", "--require-sandbox", "L2"]) == code
    if code:
        assert "daemon 7 is running without --require-sandbox L2; restart it" in capsys.readouterr().err


def test_require_flag_needs_daemon_start(desk: Desk, capsys: Captured) -> None:
    """With another action of `daemon`, the option is a usage error."""
    assert run(["daemon", "stop", "--require-sandbox", "L2"]) == 2
    assert (desk.asked, "needs `orch daemon start`" in capsys.readouterr().err) == ([], True)


def test_usable_credentials_come_from_flags_and_configuration(desk: Desk, tmp_path: Path) -> None:
    """The credentials of the flags are added to the configured ones."""
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home" / "config.toml").write_text('[policy]\nusable_credentials = ["~/.kube/config"]\n')
    assert run(["spawn", "Deploy", "--model", "local:m", "--credentials", "/keys/ssh", "--credentials", "keys"]) == 0
    rules = desk.asked[0][1]["policy"]["rules"]
    assert rules["usable_credentials"] == ["~/.kube/config", "/keys/ssh", str(Path("keys").absolute())]
