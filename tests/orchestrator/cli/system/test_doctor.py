from __future__ import annotations

import json
import os
import resource
import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orch.cli import run
from orch.config import paths
from orch.config.config import OFFLINE, default_model
from orch.diagnostics import checks as doctor
from orch.render.terminal import count
from orch.supervisor.recovery import orphan_cleanup
from orch.supervisor.recovery.orphan_cleanup import processes_with_token, run_token, stored_token
from orch_protocol.core.errors import StoreError
from orch_protocol.core.ids import new_id
from orch_worker.backends import models
from orch_worker.sandbox.probe import AvailableLevels
from orch_worker.session.log.lock import FolderLock
from orch_worker.session.log.record_format import seal_lines

LEFT = "of ended programs; the next start, or orch doctor --clean, removes them: "


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of an ORCH_HOME that does not exist yet. The current folder is no project."""
    for name in [name for name in os.environ if name.startswith("ORCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_healthy_machine_passes_and_is_unchanged(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each check prints one line, no check fails, and the home is not created."""
    assert run(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["check"] for each in found] == [check.__name__ for check in doctor.CHECKS]
    assert {each["level"] for each in found} <= {"ok", "warn"}
    assert not home.exists()
    assert run(["doctor"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(doctor.CHECKS)


def test_failed_check_sets_exit_code_1(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An invalid configuration is reported as a failed check, and the exit code is 1."""
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text("modle = 1\n")
    assert run(["doctor"]) == 1
    assert "fail configuration" in capsys.readouterr().out


def test_journal_of_another_version_fails(home: Path) -> None:
    """No daemon can start with it, although none is running."""
    folder = home / "runs" / "daemon"
    folder.mkdir(parents=True)
    header, _, _ = seal_lines([b'{"type":"orch_journal","version":1}'], 0, 0)
    (folder / "journal.jsonl").write_bytes(header)
    level, text = doctor.run_check(doctor.daemon)
    assert level == "fail"
    assert text.startswith(f"{folder}/journal.jsonl has version 1, but this orch reads only version 2: use the older")


def test_unwritable_home_fails(home: Path) -> None:
    """The check fails if the home is a file."""
    home.write_text("")
    assert doctor.run_check(doctor.home).level == "fail"


def test_home_readable_by_others_warns(home: Path) -> None:
    """The warning has the mode and the command that closes the home."""
    home.mkdir()
    home.chmod(0o755)
    assert doctor.home() == ("warn", f"{home} is open to others (mode 0755): chmod 700")
    home.chmod(0o700)
    assert doctor.home() == ("ok", str(home))
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(("free", "level"), [(10 << 20, "fail"), (500 << 20, "warn"), (2 << 30, "ok")])
@pytest.mark.usefixtures("home")
def test_low_disk_space_and_inodes_are_reported(monkeypatch: pytest.MonkeyPatch, free: int, level: str) -> None:
    """Less than a gigabyte is a warning. Less than 100 megabytes, or too few inodes, is a failure."""
    there = SimpleNamespace(f_bavail=free >> 10, f_frsize=1 << 10, f_files=1 << 20, f_favail=1 << 19)
    monkeypatch.setattr(os, "statvfs", lambda _: there)
    assert doctor.disk().level == level
    there.f_favail = 12
    assert doctor.disk() == ("fail", f"{count(free)}B free, but only 12 more files can be made: delete some")
    there.f_files = 0
    assert doctor.disk().level == level


@pytest.mark.parametrize(("platform", "level"), [("linux", "ok"), ("darwin", "warn"), ("win32", "fail")])
def test_platforms_are_rated(monkeypatch: pytest.MonkeyPatch, platform: str, level: str) -> None:
    """Linux passes, macOS is a warning, and Windows fails."""
    monkeypatch.setattr(sys, "platform", platform)
    assert doctor.platform().level == level


def test_missing_dependency_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MODULES", ("json", "no_such_module_at_all"))
    level, detail = doctor.dependencies()
    assert (level, "no_such_module_at_all" in detail) == ("fail", True)


def test_kernel_without_pidfd_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pidfd the check fails on Linux and warns on other systems."""

    def refuse(_: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert doctor.processes().level == "fail"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert doctor.processes().level == "warn"


def test_long_home_uses_a_short_socket_path(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding has the path of the socket and, for a long home, the reason."""
    assert doctor.socket() == ("ok", str(home / "daemon" / "control.sock"))
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / ("x" * 120)))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert "too long" in doctor.socket().detail


def test_untrusted_project_warns(home: Path, tmp_path: Path) -> None:
    """The check warns about an ignored setting of an untrusted project, and does not create the home."""
    (tmp_path / ".orch").mkdir()
    (tmp_path / ".orch" / "config.toml").write_text('model = "evil:m"\n')
    assert doctor.configuration().level == "warn"
    assert not home.exists()


def test_runs_of_dead_programs_are_found(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unnamed run without an owner is a warning; processes of such a run are a failure."""
    runs = paths.private_dir(paths.runs_dir(home))
    alive, dead = (f"{paths.UNNAMED_RUN_PREFIX}{new_id()}" for _ in range(2))
    lock = FolderLock.acquire(runs / alive)
    assert doctor.leftovers() == ("ok", "none")
    (runs / dead).mkdir()
    assert doctor.leftovers() == (
        "warn",
        f"of ended programs; the next start, or orch doctor --clean, removes them: {runs / dead}",
    )
    there: list[Any] = [(7, {"ORCH_RUN": run_token(runs / dead)}), (8, {"ORCH_RUN": run_token(runs / alive)})]
    monkeypatch.setattr(doctor, "processes_with_token", lambda: iter(there))
    assert doctor.leftovers() == ("fail", "processes without their root: 7; orch doctor --clean ends them")
    lock.release()


def test_named_runs_are_not_leftovers(home: Path) -> None:
    """A named run can be opened again, so it is no leftover, even if its name resembles an unnamed run."""
    runs = paths.private_dir(paths.runs_dir(home))
    for name in ("mine", "run-mine", "run-2026"):
        FolderLock.acquire(runs / name).release()
    assert doctor.leftovers() == ("ok", "none")


def test_processes_of_an_unowned_named_run_are_leftovers(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`doctor --clean` ends these processes and does not delete the run's folder."""
    runs = paths.private_dir(paths.runs_dir(home))
    lock = FolderLock.acquire(runs / "alive")
    FolderLock.acquire(runs / "daemon").release()
    tokens = [run_token(runs / "daemon"), run_token(runs / "alive"), "of-another-home", ""]
    there = [(number, {"ORCH_RUN": token}) for number, token in enumerate(tokens)]
    ended: list[Path] = []

    def end(run: Path) -> int:
        ended.append(run)
        del there[0]
        return 1

    monkeypatch.setattr(doctor, "processes_with_token", lambda: iter(there))
    monkeypatch.setattr(doctor, "kill_orphans", end)
    assert doctor.leftovers() == ("fail", "processes without their root: 0; orch doctor --clean ends them")
    assert run(["doctor", "--clean", "--json"]) == 0
    found = {each["check"]: each["detail"] for each in json.loads(capsys.readouterr().out)}
    assert (found["cleaned"], found["leftovers"]) == ("processes that were ended: 1", "none")
    assert ended == [runs / "daemon"]
    assert sorted(folder.name for folder in runs.iterdir()) == ["alive", "daemon"]
    lock.release()


def test_run_token_is_random_stored_and_kept(tmp_path: Path) -> None:
    """The first call stores the token in a private file. A folder without a token has an empty one."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    assert stored_token(one) == ""
    token = run_token(one)
    assert token == run_token(one) == stored_token(one)
    assert token != run_token(other)
    assert len(bytes.fromhex(token)) == 16
    assert stat.S_IMODE((one / "token").stat().st_mode) == 0o600


def test_run_token_that_cannot_be_stored_is_a_store_error(tmp_path: Path) -> None:
    """The error names the file."""
    with pytest.raises(StoreError, match=r"cannot write .*gone/token"):
        run_token(tmp_path / "gone")


def test_marked_processes_are_found_by_their_environment(tmp_path: Path) -> None:
    """Processes without the variable, or without a readable environment, are skipped."""
    for name, environ in (("12", b"A=1\0ORCH_RUN=r\0"), ("13", b"A=1\0"), ("self", b"ORCH_RUN=x\0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "environ").write_bytes(environ)
    (tmp_path / "14").mkdir()
    assert list(processes_with_token(str(tmp_path))) == [(12, {"A": "1", "ORCH_RUN": "r"})]


def test_leftovers_are_cleaned_on_request(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`doctor --clean` removes runs without an owner and leaves the other runs unchanged."""
    runs = paths.private_dir(paths.runs_dir(home))
    alive, dead = (f"{paths.UNNAMED_RUN_PREFIX}{new_id()}" for _ in range(2))
    lock = FolderLock.acquire(runs / alive)
    (runs / dead).mkdir()
    monkeypatch.setattr(orphan_cleanup, "SETTLED_SECONDS", 0)
    assert run(["doctor", "--clean", "--json"]) == 0
    found = {each["check"]: each["detail"] for each in json.loads(capsys.readouterr().out)}
    assert (found["cleaned"], found["leftovers"]) == (f"removed {runs / dead}; processes that were ended: 0", "none")
    assert [folder.name for folder in runs.iterdir()] == [alive]
    assert run(["doctor", "--clean"]) == 0
    assert "nothing to remove" in capsys.readouterr().out
    lock.release()


@pytest.mark.parametrize(
    ("why", "config", "level", "expected"),
    [
        ("", "", "ok", "unreadable for commands"),
        ("no namespaces", "", "warn", "denied paths: by name only (no namespaces)"),
        ("no namespaces", "", "warn", "can also end its shim and worker, and then act as the user"),
        (
            "no namespaces",
            '[policy]\ndenied_paths = ["a"]\nrequire_denied_paths = true\n',
            "fail",
            "commands are refused",
        ),
    ],
)
def test_protection_of_denied_paths_is_reported(
    home: Path, monkeypatch: pytest.MonkeyPatch, why: str, config: str, level: str, expected: str
) -> None:
    """Without namespaces the check warns; if the protection is required, the check fails."""
    monkeypatch.setattr(doctor, "unavailable_reason", lambda: why)
    home.mkdir()
    (home / "config.toml").write_text(config)
    finding = doctor.denied_paths()
    assert finding.level == level
    assert expected in finding.detail


@pytest.mark.parametrize(
    ("text", "variables", "level", "expected"),
    [
        ("", {}, "ok", "model extractive: (offline: no model is configured, and no key is set)"),
        ("", {"OPENAI_API_KEY": "k"}, "ok", "model openai:"),
        ("", {"OPENAI_API_KEY": "k"}, "ok", "(its key is set, and no model is configured)"),
        ("", {"OPENAI_API_KEY": ""}, "ok", "model extractive:"),
        ('model = "openai:gpt-x"\n', {"OPENAI_API_KEY": "k"}, "ok", "model openai:gpt-x ("),
        ('model = "openai:gpt-x"\n', {"OPENAI_API_KEY": "k", "ORCH_MODEL": "extractive:"}, "ok", "ORCH_MODEL"),
        ('model = "openai:gpt-x"\n', {}, "warn", "cannot be used"),
    ],
)
def test_the_model_of_new_agents_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, text: str, variables: dict[str, str], level: str, expected: str
) -> None:
    """It is the model of `orch run` in this folder and with these variables."""
    for name in models.load().credentials:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(text)
    finding = doctor.configuration()
    assert finding.level == level
    assert expected in finding.detail
    default = default_model(home, os.environ).model
    assert text or finding.detail.startswith(f"model {default or OFFLINE}")


def test_sandbox_levels_are_reported(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A required level that the machine does not support is a failure; another missing level is a warning."""
    monkeypatch.setattr(doctor, "available_levels", lambda: AvailableLevels({"L3": "bubblewrap is not installed"}))
    words = "this machine has up to L2 (files by Landlock, no network, no signals to others); no L3: bubblewrap is not"
    level, detail = doctor.sandbox()
    assert (level, detail.startswith("tools run at L0 (a session,"), words in detail) == ("ok", True, True)
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text('[sandbox]\nlevel = "L3"\n')
    level, detail = doctor.sandbox()
    assert (level, detail.startswith("sandbox.level is L3, and tools run at L2")) == ("warn", True)
    monkeypatch.setenv("ORCH_SANDBOX__REQUIRE", "true")
    level, detail = doctor.sandbox()
    assert (level, "level L3 is required, but this machine supports L2 (no L3: bubblewrap" in detail) == ("fail", True)


@pytest.mark.usefixtures("home")
def test_keys_are_reported_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding has the names of the variables, never their values."""
    for name in [name for name in os.environ if name.endswith("_KEY")]:
        monkeypatch.delenv(name)
    assert doctor.keys().detail.startswith("none; ")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    monkeypatch.setenv("TAVILY_API_KEY", "tvly-planted")
    assert doctor.keys() == ("ok", "OPENAI_API_KEY, TAVILY_API_KEY")


@pytest.mark.usefixtures("home")
def test_withheld_variables_are_listed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list has no model keys, no variables of the shell, and no variables of `environment.pass`."""
    for name in list(os.environ):
        if not name.startswith(("ORCH_", "PYTHON", "PATH")):
            monkeypatch.delenv(name)
    assert doctor.environment() == ("ok", "nothing is withheld from workers")
    model = ("OPENAI_API_KEY", "OPENAI_BASE_URL")
    for name in ("SLACK_WEBHOOK", "STRIPE_ACCOUNT", "DATABASE_URL", "SHLVL", "LANG", *model):
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv("ORCH_ENVIRONMENT__PASS", "STRIPE_*")
    found = doctor.environment()
    assert found == ("ok", "not passed to workers: DATABASE_URL SLACK_WEBHOOK (environment.pass adds some)")


@pytest.mark.parametrize(
    ("processes", "memory", "expected", "level"),
    [
        (None, None, "processes: no limit, memory: no limit", "ok"),
        (100, None, "processes: 100, memory: no limit", "warn"),
        (None, 100 << 20, "memory: 105MB", "warn"),
        (4000, 8 << 30, "processes: 4.0k", "ok"),
    ],
)
def test_container_limits_warn(
    monkeypatch: pytest.MonkeyPatch, processes: int | None, memory: int | None, expected: str, level: str
) -> None:
    """A low limit of processes or memory is a warning."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    monkeypatch.setattr(doctor, "_cgroup_limit", {"pids.max": processes, "memory.max": memory}.get)
    found = doctor.limits()
    assert (found.level, expected in found.detail) == (level, True), found
