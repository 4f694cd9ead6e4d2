"""`orch hooks`: the list, and switching hooks off and on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orch.cli import run
from orch.policy.hook_records import add_hook_totals, hook_lines, read_totals, set_enabled
from orch_protocol.core.errors import ConfigError
from orch_protocol.hooks.events import ToolCall, ToolReturn
from orch_protocol.hooks.options import HookOptions
from orch_protocol.hooks.patches import Block
from orch_protocol.hooks.stages import HookRow, HookTally
from orch_worker.hooks.loader import configured_hooks

Captured = pytest.CaptureFixture[str]

HOOKS = """
from orch import hook

@hook("tool_result", "tool_call", priority=7)
def redact(event, ctx): ...

@hook("*", name="watch")
async def look(event, ctx): ...
"""
FAR = HookRow(name="far", stages=("turn_end",), kind="observe", source="program: /x.py")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose configuration names the hooks of a file."""
    file = tmp_path / "house.py"
    file.write_text(HOOKS)
    (tmp_path / "config.toml").write_text(f'[hooks]\nload = ["{file}"]\n')
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def data(capsys: Captured, *argv: str) -> Any:
    """Return what `orch hooks` prints with --json."""
    assert run(["hooks", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_is_configured_and_what_was_heard_of(home: Path, capsys: Captured) -> None:
    """Each hook is a row with its stages, kind, priority, whether it is on, where it is from, time and errors."""
    add_hook_totals(home, [HookTally(FAR, calls=4, seconds=0.002, errors=1, last_error="failed: ValueError: x")])
    rows = data(capsys, "list")
    assert [row["name"] for row in rows] == ["house.redact", "watch", "far", "audit_log"]
    first, _, far, _ = rows
    asked = ("name", "stages", "priority", "kind", "enabled", "source", "mean_ms", "errors")
    assert [first[key] for key in asked] == [
        *("house.redact", ["tool_result", "tool_call"], 7, "control", True),
        *(f"config: {home}/house.py", None, 0),
    ]
    assert [far[key] for key in asked] == ["far", ["turn_end"], 50, "observe", True, "program: /x.py", 0.5, 1]
    assert run(["hooks", "list"]) == 0
    out, err = capsys.readouterr()
    assert "0.50 ms" in out
    assert "ValueError: x" in err


class TestInit:
    """A file of hooks to begin with."""

    def test_it_works_as_it_is(self, home: Path, capsys: Captured) -> None:
        """The file and the line that names it are enough: the hooks are in the list, and act."""
        (home / "config.toml").unlink()
        said = data(capsys, "init")
        assert said == {"file": f"{home}/house_hooks.py", "configured": True}
        rows = {row["name"]: row["stages"] for row in data(capsys, "list")}
        assert list(rows) == [*(f"house_hooks.{name}" for name in ("no_force_push", "shorten", "count")), "audit_log"]
        guard, short, _ = configured_hooks([said["file"]], HookOptions())
        push = ToolCall(id="1", name="bash", input={"command": "git push --force"})
        assert isinstance(guard(push, None), Block)
        assert guard(ToolCall(id="1", name="bash", input={"command": "ls"}), None) is None
        shown = short(ToolReturn(id="1", name="bash", input={}, text="x" * 60_000), None)
        assert len(shown.text) < 51_000

    def test_what_is_there_stays(self, home: Path, capsys: Captured) -> None:
        """A file is not overwritten, and a table of hooks not written into: what is to stand there is said."""
        before = (home / "config.toml").read_bytes()
        assert run(["hooks", "init", str(home / "house.py")]) == 2
        assert "is left as it is" in capsys.readouterr().err
        assert (home / "house.py").read_text() == HOOKS
        assert run(["hooks", "init", str(home / "other.py")]) == 0
        assert f'put "{home}/other.py" under load in [hooks]' in capsys.readouterr().out
        assert (home / "config.toml").read_bytes() == before
        assert (home / "other.py").exists()

    def test_the_rest_of_the_configuration_stays(self, home: Path, capsys: Captured) -> None:
        """The line is added behind what there is; a configuration that is none is left alone, and no file is made."""
        (home / "config.toml").write_text("# mine\n[limits]\nmax_turns = 7\n")
        assert data(capsys, "init")["configured"]
        assert (home / "config.toml").read_text().startswith("# mine\n[limits]\nmax_turns = 7\n\n[hooks]\n")
        (home / "config.toml").write_text("[limits\n")
        assert run(["hooks", "init", str(home / "third.py")]) != 0
        assert not (home / "third.py").exists()


def test_off_and_on_again(home: Path, capsys: Captured) -> None:
    """A hook that is disabled stays so, whoever looks, until it is enabled."""
    assert data(capsys, "disable", "house.redact") == {"name": "house.redact", "enabled": False, "changed": True}
    assert data(capsys, "disable", "house.redact")["changed"] is False
    assert [row["enabled"] for row in data(capsys, "list")] == [False, True, True]
    assert json.loads((home / "hooks.json").read_text()) == {"disabled": ["house.redact"]}
    assert data(capsys, "enable", "house.redact")["changed"] is True
    assert [row["enabled"] for row in data(capsys, "list")] == [True, True, True]


def test_the_audit_log_is_never_off(home: Path, capsys: Captured) -> None:
    """It is in the list and on, cannot be switched off by a command or a program, and need not be loaded."""
    assert data(capsys, "list")[-1]["source"] == "built-in, always on"
    assert run(["hooks", "disable", "audit_log"]) == 2
    assert "always on: read it with orch session audit" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="always on"):
        set_enabled(home, "audit_log", enabled=False)
    assert not (home / "hooks.json").exists()
    with pytest.raises(ConfigError, match=r"take it out, and read it with orch session audit"):
        configured_hooks(["audit_log"], HookOptions())


def test_a_name_that_is_none(capsys: Captured) -> None:
    """A hook that nobody knows is not found, and the error says which there are."""
    assert run(["hooks", "disable", "redcat"]) == 3
    assert "there are: house.redact, watch, audit_log" in capsys.readouterr().err


def test_one_that_is_gone_can_be_enabled(home: Path, capsys: Captured) -> None:
    """What is switched off can be switched on though it is configured no more."""
    set_enabled(home, "old", enabled=False)
    assert data(capsys, "enable", "old")["changed"] is True


def test_what_cannot_be_imported_is_told(home: Path, capsys: Captured) -> None:
    """A module that fails does not hide the hooks of the others."""
    (home / "bad.py").write_text("import nowhere\n")
    (home / "config.toml").write_text(f'[hooks]\nload = ["{home}/bad.py", "{home}/house.py:redact"]\n')
    assert run(["hooks", "list", "--json"]) == 0
    out, err = capsys.readouterr()
    assert [row["name"] for row in json.loads(out)] == ["house.redact", "audit_log"]
    assert "No module named 'nowhere'" in err


def test_an_untrusted_projects_hooks_are_not_run(home: Path, tmp_path: Path, capsys: Captured) -> None:
    """A project's file that nobody trusted cannot name hooks: its module is not even imported."""
    project = tmp_path / "project"
    (project / ".orch").mkdir(parents=True)
    marker = tmp_path / "ran"
    (project / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    (project / ".orch" / "config.toml").write_text(f'[hooks]\nload = ["{project}/evil.py"]\n')
    assert run(["hooks", "list", str(project), "--json"]) == 0
    out, err = capsys.readouterr()
    assert [row["name"] for row in json.loads(out)] == ["house.redact", "watch", "audit_log"]
    assert "hooks.load" in err
    assert not marker.exists()
    assert home == tmp_path


class TestRecords:
    """What is kept of what hooks did."""

    def test_figures_add_up_over_processes(self, tmp_path: Path) -> None:
        """Calls, time and errors are those of all turns; the last error is the last there was."""
        add_hook_totals(tmp_path, [HookTally(FAR, 1, 0.1, 1, 1, "old")], now=1.0)
        add_hook_totals(tmp_path, [HookTally(FAR, 3, 0.3)], now=2.0)
        assert read_totals(tmp_path)["far"].tally == HookTally(FAR, 4, 0.4, 1, 1, "old")
        assert hook_lines(tmp_path, [])[0].mean_ms == 100.0

    def test_the_oldest_are_forgotten(self, tmp_path: Path) -> None:
        """Of so many hooks those are kept that were heard of last."""
        from msgspec.structs import replace

        for number in range(3):
            names = [replace(FAR, name=f"h{number}-{each}") for each in range(100)]
            add_hook_totals(tmp_path, [HookTally(row) for row in names], now=float(number))
        assert len(read_totals(tmp_path)) == 200
        assert not any(name.startswith("h0-") for name in read_totals(tmp_path))

    def test_a_damaged_file_counts_as_nothing(self, tmp_path: Path) -> None:
        """Figures that cannot be read begin anew."""
        (tmp_path / "hook-stats.json").write_text("{")
        add_hook_totals(tmp_path, [HookTally(FAR, 1, 0.1)])
        assert read_totals(tmp_path)["far"].tally.calls == 1
