"""`orch hooks`: list hooks, disable and enable hooks, and create a file of hooks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orch.cli import run
from orch.policy.hook_records import add_hook_totals, hook_lines, read_totals, set_enabled
from orch.render.resources import hooks as hook_rows
from orch_protocol.core.errors import ConfigError
from orch_protocol.hooks.events import ToolCall, ToolReturn
from orch_protocol.hooks.options import HookOptions
from orch_protocol.hooks.patches import Block
from orch_protocol.hooks.stages import HookRow, HookTally
from orch_worker.hooks.loader import BUILTIN, configured_hooks

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
    """A home whose configuration loads the hooks of a file."""
    file = tmp_path / "house.py"
    file.write_text(HOOKS)
    (tmp_path / "config.toml").write_text(f'[hooks]\nload = ["{file}"]\n')
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_in_use(home: Path) -> str:
    """The name of a run whose lock file has the id of this process."""
    folder = home / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "lock").write_text(f"{os.getpid()}\n")
    return folder.name


def data(capsys: Captured, *argv: str) -> Any:
    """Return what `orch hooks` prints with --json."""
    assert run(["hooks", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def own(rows: list[Any]) -> list[Any]:
    """Return the rows that are not built in."""
    return [row for row in rows if not row["source"].startswith("built-in")]


def test_list_shows_configured_and_reported_hooks(home: Path, run_in_use: str, capsys: Captured) -> None:
    """Each hook has its stages, kind, priority, state, source, mean time and errors."""
    tally = HookTally(FAR, calls=4, seconds=0.002, errors=1, last_error="failed: ValueError: x")
    add_hook_totals(home, [tally], run_in_use)
    rows = data(capsys, "list")
    assert [row["name"] for row in own(rows)] == ["house.redact", "watch", "far"]
    assert rows[-1]["name"] == "audit_log"
    first, _, far, *_ = rows
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


def test_list_shows_built_in_hooks_on_or_off(home: Path, capsys: Captured) -> None:
    """A built-in hook is on when the configuration loads it."""
    (home / "config.toml").write_text('[hooks]\nload = ["loop_detection"]\n')
    rows = {row["name"]: row["enabled"] for row in data(capsys, "list")}
    assert {name for name in rows if not name.endswith(".measure")} == {*BUILTIN, "audit_log"}
    assert [name for name, enabled in rows.items() if enabled] == ["loop_detection", "audit_log"]


def test_hook_of_an_ended_program_is_not_running_and_expires(home: Path, run_in_use: str) -> None:
    """The hook is removed 30 days after its last report. A hook of a running program stays."""
    day, gone = 86_400.0, replace(FAR, name="gone")
    add_hook_totals(home, [HookTally(FAR, 1)], run_in_use, now=day)
    add_hook_totals(home, [HookTally(gone, 1)], "ended", now=day)
    found = {line.name: line.running for line in hook_lines(home, [], now=30 * day) if line.source == FAR.source}
    assert found == {"far": True, "gone": False}
    table = hook_rows.table(hook_lines(home, [], now=30 * day))
    assert [line.split()[4:6] for line in table.splitlines() if line.startswith("gone")] == [["not", "running"]]
    assert "gone" not in [line.name for line in hook_lines(home, [], now=32 * day)]
    add_hook_totals(home, [], run_in_use, now=32 * day)
    assert list(read_totals(home)) == ["far"]


class TestEnable:
    """`orch hooks enable` for built-in hooks writes the configuration."""

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("", '[hooks]\nload = ["content_safety"]\n'),
            (
                "# mine\n[limits]\nmax_turns = 7\n",
                '# mine\n[limits]\nmax_turns = 7\n\n[hooks]\nload = ["content_safety"]\n',
            ),
            (
                "[hooks.loop_detection]\nedits = 9",
                '[hooks.loop_detection]\nedits = 9\n\n[hooks]\nload = ["content_safety"]\n',
            ),
            ("[ hooks ] # x\n\n[limits]\n", '[ hooks ] # x\nload = ["content_safety"]\n\n[limits]\n'),
            ("[hooks]", '[hooks]\nload = ["content_safety"]\n'),
            ("[hooks]\nload = []\r\n", '[hooks]\nload = ["content_safety"]\r\n'),
            (
                '[hooks]\nload = [ # mine\n  "cost_tracker", # ]\n]\n',
                '[hooks]\nload = ["content_safety",  # mine\n  "cost_tracker", # ]\n]\n',
            ),
            ('hooks.load = ["cost_tracker"]\n', 'hooks.load = ["content_safety", "cost_tracker"]\n'),
        ],
    )
    def test_built_in_hook_is_added_to_the_configuration(
        self, home: Path, capsys: Captured, before: str, after: str
    ) -> None:
        """The rest of the configuration file is unchanged."""
        (home / "config.toml").write_bytes(before.encode())
        assert data(capsys, "enable", "content_safety") == {"name": "content_safety", "enabled": True, "changed": True}
        assert (home / "config.toml").read_bytes().decode() == after
        assert next(row for row in data(capsys, "list") if row["name"] == "content_safety")["enabled"]
        assert data(capsys, "enable", "content_safety")["changed"] is False

    def test_file_that_cannot_be_edited_is_left_alone(self, home: Path, capsys: Captured) -> None:
        """The error says which name must be added to the list."""
        text = 'hooks = { load = ["cost_tracker"] }\n'
        (home / "config.toml").write_text(text)
        assert run(["hooks", "enable", "content_safety"]) == 2
        assert 'add "content_safety" to this list' in capsys.readouterr().err
        assert (home / "config.toml").read_text() == text

    def test_hook_that_lacks_a_setting_is_not_enabled(self, home: Path, capsys: Captured) -> None:
        """A hook without a required setting would fail every spawn, so the configuration is not changed."""
        before = (home / "config.toml").read_text()
        assert run(["hooks", "enable", "model_router"]) == 2
        assert "hooks.model_router.models must name at least two models" in capsys.readouterr().err
        assert (home / "config.toml").read_text() == before

    def test_other_source_of_the_list_is_reported(
        self, home: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The configuration file is changed, and a notice says that a variable overrides the list of the file."""
        monkeypatch.setenv("ORCH_HOOKS__LOAD", f"{home}/house.py")
        assert run(["hooks", "enable", "content_safety"]) == 0
        assert "stays off in this folder, because variable ORCH_HOOKS__LOAD sets hooks.load" in capsys.readouterr().err
        assert "content_safety" in (home / "config.toml").read_text()


class TestInit:
    """`orch hooks init` creates a file with example hooks."""

    def test_new_hook_works_unchanged(self, home: Path, capsys: Captured) -> None:
        """The new file is added to the configuration, and its hooks can be loaded and called."""
        (home / "config.toml").unlink()
        reported = data(capsys, "init")
        assert reported == {"file": f"{home}/house_hooks.py", "configured": True}
        rows = {row["name"]: row["stages"] for row in data(capsys, "list")}
        assert list(rows)[:3] == [f"house_hooks.{name}" for name in ("no_force_push", "shorten", "count")]
        guard, short, _ = configured_hooks([reported["file"]], HookOptions())
        push = ToolCall(id="1", name="bash", input={"command": "git push --force"})
        assert isinstance(guard(push, None), Block)
        assert guard(ToolCall(id="1", name="bash", input={"command": "ls"}), None) is None
        shown = short(ToolReturn(id="1", name="bash", input={}, text="x" * 60_000), None)
        assert len(shown.text) < 51_000

    def test_existing_hook_file_is_not_overwritten(self, home: Path, capsys: Captured) -> None:
        """`init` with an existing file fails; with another name, the new file is added to the list of hooks."""
        assert run(["hooks", "init", str(home / "house.py")]) == 2
        assert "already exists and was not changed" in capsys.readouterr().err
        assert (home / "house.py").read_text() == HOOKS
        assert data(capsys, "init", str(home / "other.py"))["configured"]
        assert (home / "config.toml").read_text() == f'[hooks]\nload = ["{home}/other.py", "{home}/house.py"]\n'

    def test_hook_init_keeps_the_rest_of_the_configuration(self, home: Path, capsys: Captured) -> None:
        """With an invalid configuration, `init` fails and creates no file."""
        (home / "config.toml").write_text("# mine\n[limits]\nmax_turns = 7\n")
        assert data(capsys, "init")["configured"]
        assert (home / "config.toml").read_text().startswith("# mine\n[limits]\nmax_turns = 7\n\n[hooks]\n")
        (home / "config.toml").write_text("[limits\n")
        assert run(["hooks", "init", str(home / "third.py")]) != 0
        assert not (home / "third.py").exists()


def test_hook_is_disabled_and_enabled(home: Path, capsys: Captured) -> None:
    """The name of a disabled hook is stored in hooks.json, so that the hook is disabled in all processes."""
    assert data(capsys, "disable", "house.redact") == {"name": "house.redact", "enabled": False, "changed": True}
    assert data(capsys, "disable", "house.redact")["changed"] is False
    assert [row["enabled"] for row in own(data(capsys, "list"))] == [False, True]
    assert json.loads((home / "hooks.json").read_text()) == {"disabled": ["house.redact"]}
    assert data(capsys, "enable", "house.redact")["changed"] is True
    assert [row["enabled"] for row in own(data(capsys, "list"))] == [True, True]


def test_audit_log_cannot_be_disabled(home: Path, capsys: Captured) -> None:
    """Neither a command nor a program can disable the audit log, and the configuration may not load it."""
    assert data(capsys, "list")[-1]["source"] == "built-in, always on"
    assert run(["hooks", "disable", "audit_log"]) == 2
    assert "always on: read it with orch session audit" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="always on"):
        set_enabled(home, "audit_log", enabled=False)
    assert not (home / "hooks.json").exists()
    with pytest.raises(ConfigError, match=r"remove the name, and read its records with orch session audit"):
        configured_hooks(["audit_log"], HookOptions())


def test_unknown_hook_lists_the_known_ones(capsys: Captured) -> None:
    """An unknown name exits with 3."""
    assert run(["hooks", "disable", "redcat"]) == 3
    assert "known: house.redact, watch, completion_checklist, " in capsys.readouterr().err


def test_disabled_hook_missing_in_the_configuration_can_be_enabled(home: Path, capsys: Captured) -> None:
    """A hook that is disabled and not configured any more is removed from the list of disabled hooks."""
    set_enabled(home, "old", enabled=False)
    assert data(capsys, "enable", "old")["changed"] is True


def test_failing_hook_module_hides_no_other(home: Path, capsys: Captured) -> None:
    """If a module cannot be imported, the hooks of the other modules are listed, and stderr has the reason."""
    (home / "bad.py").write_text("import nowhere\n")
    (home / "config.toml").write_text(f'[hooks]\nload = ["{home}/bad.py", "{home}/house.py:redact"]\n')
    assert run(["hooks", "list", "--json"]) == 0
    out, err = capsys.readouterr()
    assert [row["name"] for row in own(json.loads(out))] == ["house.redact"]
    assert "No module named 'nowhere'" in err


def test_hooks_of_an_untrusted_project_are_not_imported(tmp_path: Path, capsys: Captured) -> None:
    """The `hooks.load` of an untrusted project is ignored with a notice, and the module is not imported."""
    project = tmp_path / "project"
    (project / ".orch").mkdir(parents=True)
    marker = tmp_path / "ran"
    (project / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    (project / ".orch" / "config.toml").write_text(f'[hooks]\nload = ["{project}/evil.py"]\n')
    assert run(["hooks", "list", str(project), "--json"]) == 0
    out, err = capsys.readouterr()
    assert [row["name"] for row in own(json.loads(out))] == ["house.redact", "watch"]
    assert "hooks.load" in err
    assert not marker.exists()


class TestRecords:
    """The stored statistics of hooks."""

    def test_hook_statistics_add_up_over_processes(self, home: Path) -> None:
        """Calls, times and errors are summed. A report without errors leaves the last error unchanged."""
        add_hook_totals(home, [HookTally(FAR, 1, 0.1, 1, 1, "old")], "a", now=1.0)
        add_hook_totals(home, [HookTally(FAR, 3, 0.3)], "b", now=2.0)
        assert read_totals(home)["far"].tally == HookTally(FAR, 4, 0.4, 1, 1, "old")
        assert hook_lines(home, [], now=3.0)[0].mean_ms == 100.0

    def test_hook_statistics_keep_the_latest_hooks(self, home: Path) -> None:
        """The file contains at most 200 hooks."""
        for number in range(3):
            names = [replace(FAR, name=f"h{number}-{each}") for each in range(100)]
            add_hook_totals(home, [HookTally(row) for row in names], "a", now=float(number))
        assert len(read_totals(home)) == 200
        assert not any(name.startswith("h0-") for name in read_totals(home))

    def test_damaged_hook_statistics_start_anew(self, home: Path) -> None:
        (home / "hook-stats.json").write_text("{")
        add_hook_totals(home, [HookTally(FAR, 1, 0.1)], "a")
        assert read_totals(home)["far"].tally.calls == 1
