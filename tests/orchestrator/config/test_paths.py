from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from orch import Config
from orch.cli.scratch import scratch
from orch.config import paths
from orch.config.config import check_combination
from orch.supervisor.recovery import orphan_cleanup
from orch.supervisor.recovery.orphan_cleanup import sweep_runs
from orch_protocol.core.errors import ConfigError, StoreError
from orch_protocol.core.ids import new_id
from orch_worker.session.log.lock import FolderLock
from orch_worker.tools.files.gitignore import walk


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"ORCH_HOME": "/srv/o", "HOME": "/h"}, "/srv/o"),
        ({"ORCH_HOME": "", "XDG_DATA_HOME": "/x", "HOME": "/h"}, "/x/orch"),
        ({"XDG_DATA_HOME": "relative", "HOME": "/h"}, "/h/.local/share/orch"),
        ({"HOME": "/h"}, "/h/.local/share/orch"),
    ],
)
def test_home_is_found_by_variables_in_order(env: dict[str, str], expected: str) -> None:
    """The order is ORCH_HOME, XDG_DATA_HOME, HOME. Empty variables and a relative XDG_DATA_HOME are ignored."""
    assert paths.home(env) == Path(expected)


def test_relative_home_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later change of the working directory does not change the home."""
    monkeypatch.chdir(tmp_path)
    assert paths.home_text({"ORCH_HOME": "here"}) == str(tmp_path / "here")


def test_missing_home_names_the_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error is raised only if HOME and the password database have no home."""

    def nobody(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(ConfigError, match="Set ORCH_HOME"):
        paths.home({})
    assert paths.home({"ORCH_HOME": "/x"}) == Path("/x")
    assert paths.home({"HOME": "/h"}) == Path("/h/.local/share/orch")


@pytest.mark.parametrize("env", [{"ORCH_HOME": "/o\udcff"}, {"HOME": "/o\udcff"}], ids=str)
def test_undecodable_home_is_refused(env: dict[str, str]) -> None:
    """Messages cannot contain a path that is not UTF-8."""
    with pytest.raises(ConfigError, match=r"/o\\xff.* is not UTF-8: set ORCH_HOME"):
        paths.home(env)
    with pytest.raises(ConfigError, match="is not UTF-8"):
        paths.home({}, "/o\udcff")


def test_folders_of_a_home_lie_inside_it() -> None:
    home = Path("/o")
    assert [f(home) for f in (paths.sessions_dir, paths.runs_dir, paths.daemon_dir)] == [
        Path("/o/sessions"),
        Path("/o/runs"),
        Path("/o/daemon"),
    ]
    assert paths.run_dir(home, "daemon") == Path("/o/runs/daemon")


@pytest.mark.parametrize("mask", [0, 0o777])
def test_private_dir_is_0700_under_any_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        made = paths.private_dir(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(f.stat().st_mode) for f in (made, made.parent)] == [0o700, 0o700]


def test_private_dir_leaves_an_existing_folder_unchanged(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o755)
    before = (tmp_path / "a").stat().st_mode
    assert paths.private_dir(tmp_path / "a").stat().st_mode == before


def test_private_dir_names_a_file_in_the_way(tmp_path: Path) -> None:
    """The error names the variable or setting that must be changed."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file.*ORCH_HOME"):
        paths.private_dir(tmp_path / "file")
    with pytest.raises(StoreError, match=r"below.*ORCH_HOME"):
        paths.private_dir(tmp_path / "file" / "below")
    with pytest.raises(StoreError, match="or change session_dir"):
        paths.private_dir(tmp_path / "file" / "below", "session_dir")


@pytest.mark.parametrize(
    ("chosen", "there"),
    [(None, "/o/sessions"), ("/data//s/", "/data/s"), ("s/t", "/o/s/t"), ("../s", "/s"), ("~/s", "/me/s")],
)
def test_relative_sessions_folder_is_below_the_home(
    chosen: str | None, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result does not depend on the working directory."""
    monkeypatch.setenv("HOME", "/me")
    assert paths.sessions_of(Path("/o"), chosen) == Path(there)


@pytest.mark.parametrize("chosen", ["", " ", "a\0b", "~nobody-of-that-name/s"])
def test_invalid_sessions_folder_is_refused(chosen: str) -> None:
    """The configuration is refused as soon as it is checked."""
    with pytest.raises(ConfigError, match=r"session_dir = .* is not the path of a folder"):
        check_combination(Config(session_dir=chosen))


def test_short_socket_path_lies_in_its_folder() -> None:
    """A short path needs no folder outside the home."""
    assert paths.socket_path("/o/daemon", "control.sock", {}) == "/o/daemon/control.sock"
    assert paths.control_socket({"ORCH_HOME": "/o"}) == "/o/daemon/control.sock"


def test_long_socket_path_uses_the_runtime_folder(tmp_path: Path) -> None:
    """The path is short and unique for each folder, and its parent is private."""
    runtime = tmp_path / "r"
    runtime.mkdir()
    first, second = (paths.socket_path("/" + c * 120, "s", {"XDG_RUNTIME_DIR": str(runtime)}) for c in "ab")
    assert first != second
    assert Path(first).parent == runtime / "orch"
    assert stat.S_IMODE((runtime / "orch").stat().st_mode) == 0o700
    assert len(os.fsencode(first)) <= paths.MAX_SOCKET_PATH


def test_unsafe_runtime_folder_is_refused(tmp_path: Path) -> None:
    """The folder is a link, a file, or open to other users."""
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    trap = tmp_path / "orch"
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    trap.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"orch.*link"):
        paths.socket_path("/" + "a" * 120, "s", env)
    trap.unlink()
    trap.write_text("")
    with pytest.raises(StoreError, match="no folder"):
        paths.socket_path("/" + "a" * 120, "s", env)
    trap.unlink()
    trap.mkdir()
    trap.chmod(0o755)
    with pytest.raises(StoreError, match="0755"):
        paths.socket_path("/" + "a" * 120, "s", env)


def test_runtime_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of the folder could replace the socket."""
    (tmp_path / "orch").mkdir(mode=0o700)
    owner = (tmp_path / "orch").stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(StoreError, match=f"uid {owner}"):
        paths.ensure_private_folder(str(tmp_path / "orch"))


def test_missing_runtime_folder_falls_back_to_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder may be missing after sudo or in a container."""
    monkeypatch.setattr(paths, "ensure_private_folder", lambda _: None)
    path = paths.socket_path("/" + "a" * 120, "s", {"XDG_RUNTIME_DIR": str(tmp_path / "gone")})
    assert Path(path).parent == Path(f"/tmp/orch-{os.getuid()}")


def _taken(base: Path, how: str) -> None:
    """Take the name `base`, as another user or an earlier mistake can."""
    if how == "link":
        (base.parent / "elsewhere").mkdir(mode=0o700)
        base.symlink_to(base.parent / "elsewhere")
    elif how == "dangling link":
        base.symlink_to(base.parent / "gone")
    elif how == "file":
        base.write_text("")
    else:
        base.mkdir(mode=0o700)
        base.chmod(0o755 if how == "open" else 0o700)


@pytest.mark.parametrize("how", ["link", "dangling link", "file", "open", "another user"])
def test_taken_name_in_a_shared_folder_is_not_used(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user gets another private folder, and each later process finds the same one."""
    base = tmp_path / f"orch-{os.getuid()}"
    _taken(base, how)
    _taken(tmp_path / f"{base.name}-0", how if how != "link" else "file")  # a guessed name is not used either
    if how == "another user":
        found = os.lstat

        def lstat(path: str) -> os.stat_result:
            values = list(found(path))
            values[4] += str(path) in (str(base), f"{base}-0")  # the uid
            return os.stat_result(values)

        monkeypatch.setattr(os, "lstat", lstat)
    first, second = (Path(paths.shared_folder(str(tmp_path))) for _ in range(2))
    assert first == second
    assert first not in (base, Path(f"{base}-0"))
    assert first.name.startswith(f"{base.name}-")
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert first.stat().st_uid == os.getuid()


def test_free_name_in_a_shared_folder_is_used(tmp_path: Path) -> None:
    """The folder is created once and then reused."""
    base = tmp_path / f"orch-{os.getuid()}"
    assert [paths.shared_folder(str(tmp_path)) for _ in range(2)] == [str(base)] * 2
    assert os.listdir(tmp_path) == [base.name]


def test_daemon_records_its_socket_path(tmp_path: Path) -> None:
    """A command with another environment finds the socket through the link in the daemon's folder."""
    home = tmp_path / ("h" * 100)
    folder = paths.private_dir(paths.daemon_dir(home))
    for path in ("/run/one", "/run/two"):
        paths.link_socket(folder, path)
        assert paths.control_socket({"ORCH_HOME": str(home), "XDG_RUNTIME_DIR": str(tmp_path)}) == path
    assert os.listdir(folder) == [paths.CONTROL]
    paths.link_socket("/o/daemon", f"/o/daemon/{paths.CONTROL}")


def test_orch_folders_are_homes_sessions_and_folders_of_sockets(tmp_path: Path) -> None:
    """Missing folders are left out, and no folder is listed twice."""
    home, other, usual = tmp_path / "home", tmp_path / "other", tmp_path / ".local" / "share" / "orch"
    run = paths.run_dir(home, "r")
    env = {"HOME": str(tmp_path), "ORCH_HOME": str(other)}
    assert paths.orch_folders(home, run, paths.sessions_dir(home), env) == (str(home),)
    for folder in (other, usual):
        folder.mkdir(parents=True)
    assert paths.orch_folders(home, run, tmp_path / "talks", env) == tuple(
        str(each) for each in (home, other, usual, tmp_path / "talks")
    )
    runtime = tmp_path / "r"
    runtime.mkdir()
    long = tmp_path / ("h" * 120)
    found = paths.orch_folders(long, paths.run_dir(long, "r"), long, {"HOME": "/", "XDG_RUNTIME_DIR": str(runtime)})
    assert str(runtime / "orch") in found or f"/tmp/orch-{os.getuid()}" in found


def test_unnamed_runs_of_killed_programs_are_removed(tmp_path: Path) -> None:
    """Named runs, runs with an owner and new runs are not removed."""
    runs = paths.private_dir(paths.runs_dir(tmp_path))
    left, alive, new = (f"{paths.UNNAMED_RUN_PREFIX}{new_id()}" for _ in range(3))
    folders = {name: paths.private_dir(runs / name) for name in (left, alive, new, "mine", "run-mine")}
    lock = FolderLock.acquire(folders[alive])
    for name in (left, alive, "mine", "run-mine"):
        (folders[name] / "journal.jsonl").write_text("x")
        os.utime(folders[name], (0, 0))
    sweep_runs(tmp_path)
    lock.release()
    assert sorted(folder.name for folder in runs.iterdir()) == sorted(["mine", "run-mine", alive, new])


def test_folders_of_killed_commands_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that still run in these folders are ended."""
    ended: list[Path] = []
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    monkeypatch.setattr(orphan_cleanup, "kill_orphans", lambda run: ended.append(run) or 0)
    with scratch() as folder:
        left = paths.private_dir(tmp_path / f"{paths.SCRATCH_PREFIX}{new_id()}")
        run = paths.private_dir(paths.run_dir(left, "demo"))
        os.utime(left, (0, 0))
        os.utime(folder, (0, 0))
        with scratch() as another:
            assert sorted(tmp_path.iterdir()) == sorted([folder, another])
    assert ended == [left, run]
    assert list(tmp_path.iterdir()) == []


def test_socket_of_a_removed_run_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket of a run with a long home is outside the home."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    home = tmp_path / ("long" * 30)
    folder = paths.private_dir(paths.run_dir(home, f"run-{new_id()}"))
    socket = Path(paths.root_socket(folder))
    socket.touch()
    os.utime(folder, (0, 0))
    assert not socket.is_relative_to(home)
    sweep_runs(home)
    assert not socket.exists()


def test_failed_cleanup_of_other_runs_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An OSError during the cleanup is not raised."""

    def broken(*_: object) -> list[Path]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "glob", broken)
    sweep_runs(tmp_path)


class TestHide:
    """The .gitignore of a home."""

    def test_gitignore_of_the_home_hides_sessions_runs_and_logs(self, tmp_path: Path) -> None:
        """The configuration is not hidden."""
        home = tmp_path / "home"
        for name in ("sessions/a/session.jsonl", "runs/daemon/journal.jsonl", "daemon/log", "config.toml"):
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text("x")
        paths.write_gitignore(home)
        assert [name for name, _ in walk(tmp_path, tmp_path)] == ["home/.gitignore", "home/config.toml"]

    def test_existing_gitignore_is_kept(self, tmp_path: Path) -> None:
        """A missing home is not created."""
        (tmp_path / ".gitignore").write_text("mine")
        paths.write_gitignore(tmp_path)
        assert (tmp_path / ".gitignore").read_text() == "mine"
        paths.write_gitignore(tmp_path / "nowhere")
        assert not (tmp_path / "nowhere").exists()
