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
def test_home_follows_the_variables_in_order(env: dict[str, str], expected: str) -> None:
    """ORCH_HOME beats XDG_DATA_HOME beats HOME; an empty or relative one does not count."""
    assert paths.home(env) == Path(expected)


def test_a_relative_home_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that changes its folder later still finds the same home."""
    monkeypatch.chdir(tmp_path)
    assert paths.home_text({"ORCH_HOME": "here"}) == str(tmp_path / "here")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder called ~ is made wherever the program happens to be; with a variable all is well."""

    def nobody(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(ConfigError, match="Set ORCH_HOME"):
        paths.home({})
    assert paths.home({"ORCH_HOME": "/x"}) == Path("/x")
    assert paths.home({"HOME": "/h"}) == Path("/h/.local/share/orch")


@pytest.mark.parametrize("env", [{"ORCH_HOME": "/o\udcff"}, {"HOME": "/o\udcff"}], ids=str)
def test_a_home_that_is_not_utf8_is_refused(env: dict[str, str]) -> None:
    """Its path goes through messages that are: it is told before anything is made in it."""
    with pytest.raises(ConfigError, match=r"/o\\xff.* is not UTF-8: set ORCH_HOME"):
        paths.home(env)
    with pytest.raises(ConfigError, match="is not UTF-8"):
        paths.home({}, "/o\udcff")


def test_folders_of_a_home_lie_inside_it() -> None:
    """Sessions, runs and the daemon live under the home."""
    home = Path("/o")
    assert [f(home) for f in (paths.sessions_dir, paths.runs_dir, paths.daemon_dir)] == [
        Path("/o/sessions"),
        Path("/o/runs"),
        Path("/o/daemon"),
    ]
    assert paths.run_dir(home, "daemon") == Path("/o/runs/daemon")


@pytest.mark.parametrize("mask", [0, 0o777])
def test_private_dir_is_0700_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    """Neither an open nor a closed umask changes the mode of the folders made."""
    before = os.umask(mask)
    try:
        made = paths.private_dir(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(f.stat().st_mode) for f in (made, made.parent)] == [0o700, 0o700]


def test_private_dir_leaves_an_existing_folder_alone(tmp_path: Path) -> None:
    """The mode of a folder that was there is its owner's business."""
    (tmp_path / "a").mkdir(mode=0o755)
    before = (tmp_path / "a").stat().st_mode
    assert paths.private_dir(tmp_path / "a").stat().st_mode == before


def test_private_dir_says_what_stands_in_the_way(tmp_path: Path) -> None:
    """A file where the folder should be is named, with what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file.*ORCH_HOME"):
        paths.private_dir(tmp_path / "file")
    with pytest.raises(StoreError, match=r"below.*ORCH_HOME"):
        paths.private_dir(tmp_path / "file" / "below")
    with pytest.raises(StoreError, match="or set session_dir to one that is"):
        paths.private_dir(tmp_path / "file" / "below", "session_dir")


@pytest.mark.parametrize(
    ("chosen", "there"),
    [(None, "/o/sessions"), ("/data//s/", "/data/s"), ("s/t", "/o/s/t"), ("../s", "/s"), ("~/s", "/me/s")],
)
def test_sessions_are_in_the_same_place_from_whichever_folder(
    chosen: str | None, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is below the home, for a daemon and for whoever is started somewhere."""
    monkeypatch.setenv("HOME", "/me")
    assert paths.sessions_of(Path("/o"), chosen) == Path(there)


@pytest.mark.parametrize("chosen", ["", " ", "a\0b", "~nobody-of-that-name/s"])
def test_what_names_no_folder_is_refused(chosen: str) -> None:
    """As soon as it is read: else sessions would be in the home, or nowhere."""
    with pytest.raises(ConfigError, match=r"session_dir = .* names no folder"):
        check_combination(Config(session_dir=chosen))


def test_a_socket_lies_in_its_folder_when_the_path_is_short() -> None:
    """The usual case creates nothing."""
    assert paths.socket_path("/o/daemon", "control.sock", {}) == "/o/daemon/control.sock"
    assert paths.control_socket({"ORCH_HOME": "/o"}) == "/o/daemon/control.sock"


def test_a_long_path_falls_back_to_the_runtime_folder(tmp_path: Path) -> None:
    """The fallback is private, short, and differs from folder to folder."""
    runtime = tmp_path / "r"
    runtime.mkdir()
    first, second = (paths.socket_path("/" + c * 120, "s", {"XDG_RUNTIME_DIR": str(runtime)}) for c in "ab")
    assert first != second
    assert Path(first).parent == runtime / "orch"
    assert stat.S_IMODE((runtime / "orch").stat().st_mode) == 0o700
    assert len(os.fsencode(first)) <= paths.MAX_SOCKET_PATH


def test_a_fallback_somebody_else_prepared_is_refused(tmp_path: Path) -> None:
    """A link, a file, or a folder open to others in its place is an error that names it."""
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


def test_a_fallback_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who owns the folder owns the socket, so it must be us."""
    (tmp_path / "orch").mkdir(mode=0o700)
    owner = (tmp_path / "orch").stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(StoreError, match=f"uid {owner}"):
        paths.check_private_folder(str(tmp_path / "orch"))


def test_a_runtime_folder_that_is_not_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after sudo, or in a container: then sockets lie in /tmp."""
    monkeypatch.setattr(paths, "check_private_folder", lambda _: None)
    path = paths.socket_path("/" + "a" * 120, "s", {"XDG_RUNTIME_DIR": str(tmp_path / "gone")})
    assert Path(path).parent == Path(f"/tmp/orch-{os.getuid()}")


def test_a_daemon_shows_where_its_socket_is(tmp_path: Path) -> None:
    """Commands find it whatever their environment says; one that is found by itself needs no showing."""
    home = tmp_path / ("h" * 100)
    folder = paths.private_dir(paths.daemon_dir(home))
    for path in ("/run/one", "/run/two"):
        paths.link_socket(folder, path)
        assert paths.control_socket({"ORCH_HOME": str(home), "XDG_RUNTIME_DIR": str(tmp_path)}) == path
    assert os.listdir(folder) == [paths.CONTROL]
    paths.link_socket("/o/daemon", f"/o/daemon/{paths.CONTROL}")


def test_orch_folders_are_homes_sessions_and_folders_of_sockets(tmp_path: Path) -> None:
    """The run's home, the existing homes of the user, sessions elsewhere and the folder of a socket; nothing twice."""
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


def test_unnamed_runs_of_killed_programs_are_swept(tmp_path: Path) -> None:
    """What nobody opens again goes; a named run, one that somebody works in and one that is just made stay."""
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


def test_folders_of_killed_commands_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as `orch demo`: the next one takes it away, and what still runs in it; that of one that runs stays."""
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


def test_the_socket_of_a_swept_run_goes_with_it_wherever_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in a long home lies in another folder, which nobody else would tidy up."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    home = tmp_path / ("long" * 30)
    folder = paths.private_dir(paths.run_dir(home, f"run-{new_id()}"))
    socket = Path(paths.root_socket(folder))
    socket.touch()
    os.utime(folder, (0, 0))
    assert not socket.is_relative_to(home)
    sweep_runs(home)
    assert not socket.exists()


def test_a_disk_that_fails_as_runs_are_swept_fails_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeping can wait; a program that opens its own run is told of that one."""

    def broken(*_: object) -> list[Path]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "glob", broken)
    sweep_runs(tmp_path)


class TestHide:
    """What orch keeps is nobody's to look through."""

    def test_an_agent_that_looks_through_the_folder_around_it_finds_none_of_it(self, tmp_path: Path) -> None:
        """What the user keeps there is found, such as the configuration."""
        home = tmp_path / "home"
        for name in ("sessions/a/session.jsonl", "runs/daemon/journal.jsonl", "daemon/log", "config.toml"):
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text("x")
        paths.write_gitignore(home)
        assert [name for name, _ in walk(tmp_path, tmp_path)] == ["home/.gitignore", "home/config.toml"]

    def test_what_is_there_stays(self, tmp_path: Path) -> None:
        """The user may want something else."""
        (tmp_path / ".gitignore").write_text("mine")
        paths.write_gitignore(tmp_path)
        assert (tmp_path / ".gitignore").read_text() == "mine"
        paths.write_gitignore(tmp_path / "nowhere")
        assert not (tmp_path / "nowhere").exists()
