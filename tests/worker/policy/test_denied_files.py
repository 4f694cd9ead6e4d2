"""Denied paths on the disk: matching files, limits of the search, and cached listings."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orch_protocol.core.text import plain_line
from orch_worker.policy import denied_files
from orch_worker.policy.denied_files import DeniedFiles


def made(folder: Path, *names: str) -> list[str]:
    """Create files, or folders for names that end with a slash, and return their paths."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(exist_ok=True) if name.endswith("/") else path.write_text("x")
    return [str(folder / name.rstrip("/")) for name in names]


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ("*.pem", ["in.pem", "sub/deep/key.pem"]),
        (".env", ["sub/.env"]),
        ("secrets", ["sub/secrets"]),
        ("k[ae]y.*", ["sub/deep/key.pem"]),
        ("{cwd}/sub/deep", ["sub/deep"]),
        ("{cwd}/sub/*/key.pem", ["sub/deep/key.pem"]),
        ("{cwd}/**/key.pem", ["sub/deep/key.pem"]),
        ("{cwd}/**/*.pem", ["in.pem", "sub/deep/key.pem"]),
        ("{cwd}/sub/**/.env", ["sub/.env"]),
        ("{cwd}/**/secrets/**", ["sub/secrets/a", "sub/secrets/secrets"]),
        ("{cwd}/sub/deep/**", ["sub/deep/key.pem"]),
        ("{cwd}/nothing", []),
        ("nothing", []),
    ],
)
def test_denied_rules_match_existing_files(tmp_path: Path, rule: str, found: list[str]) -> None:
    """Names match at any depth, and patterns and absolute paths match too. A matching folder is not searched."""
    made(tmp_path, "in.pem", "sub/deep/key.pem", "sub/.env", "sub/secrets/a", "sub/secrets/secrets", "plain.txt")
    assert DeniedFiles([rule.format(cwd=tmp_path)], [str(tmp_path)]).find() == (
        tuple(str(tmp_path / name) for name in found),
        "",
    )


REMEDY = "; remove or move files, or name folders instead of patterns in policy.denied_paths"


def test_each_folder_counts_once_for_all_rules(tmp_path: Path) -> None:
    """Names and rules with `**` have one limit together, and a folder that both search counts once."""
    made(tmp_path, *(f"{folder}/{number}.pem" for folder in "ab" for number in range(3)))
    rule = f"{tmp_path}/**/*.pem"
    found = DeniedFiles([rule, f"{tmp_path}/**/x", "x"], [str(tmp_path)], max_names=12).find()
    assert (len(found.paths), found.problem) == (6, "")
    assert DeniedFiles([rule], [], max_names=5).find().problem == (
        f"there are more than 5 names to look through (denied_paths: {plain_line(rule, 200)}){REMEDY}"
    )


def test_rule_over_the_limit_leaves_out_no_path_of_other_rules(tmp_path: Path) -> None:
    """A rule with wildcards does not prevent that a rule without wildcards denies its path."""
    made(tmp_path, "other/a.key", *(f"other/sub/{number}" for number in range(9)), "vault/")
    found = DeniedFiles([f"{tmp_path}/other/**/*.key", f"{tmp_path}/vault"], [], max_names=6).find()
    assert found.paths == (str(tmp_path / "other/a.key"), str(tmp_path / "vault"))
    assert found.problem.startswith("there are more than 6 names to look through (denied_paths: ")


def test_two_stars_search_folders_with_a_denied_name(tmp_path: Path) -> None:
    """Outside the agent's folders, a denied name hides no folder, so `**` must find the files in this folder."""
    made(tmp_path, "cwd/secret/x.key", "other/secret/x.key", "other/plain")
    found = DeniedFiles([f"{tmp_path}/**/*.key", "secret"], [str(tmp_path / "cwd")]).find()
    assert found.paths == (str(tmp_path / "cwd/secret"), str(tmp_path / "other/secret/x.key"))


def test_absolute_denied_paths_match_outside_the_agents_folder(tmp_path: Path) -> None:
    """An absolute denied path is found although it is not below the given folder."""
    [vault] = made(tmp_path, "vault/")
    assert DeniedFiles([vault, "*.pem"], [str(tmp_path / "cwd")]).find().paths == (vault,)


def test_denied_names_match_in_each_given_folder_only(tmp_path: Path) -> None:
    """A pattern for names finds files in both given folders and in no other folder."""
    paths = made(tmp_path, "a/x.pem", "b/x.pem", "c/x.pem")
    assert DeniedFiles(["*.pem"], [str(tmp_path / "a"), str(tmp_path / "b")]).find().paths == tuple(paths[:2])


def test_link_with_a_denied_name_denies_its_target(tmp_path: Path) -> None:
    """A link without an existing target denies no path."""
    [target] = made(tmp_path, "elsewhere/real")
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd/link.pem").symlink_to(target)
    (tmp_path / "cwd/dangling.pem").symlink_to("nowhere")
    assert DeniedFiles(["*.pem"], [str(tmp_path / "cwd")]).find().paths == (target,)


def test_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    """The search follows links neither to outside folders nor back to its start."""
    made(tmp_path, "elsewhere/x.pem", "cwd/")
    (tmp_path / "cwd/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "cwd/round").symlink_to(tmp_path / "cwd")
    assert DeniedFiles(["*.pem"], [str(tmp_path / "cwd")]).find().paths == ()


CERTIFICATE = "# Issuer: CN=x\n-----BEGIN CERTIFICATE-----\nMIIB+/A=\n-----END CERTIFICATE-----\n\n"


@pytest.mark.parametrize("folder", ["node_modules/a", ".venv/lib/python3/site-packages/certifi"])
@pytest.mark.parametrize(
    ("content", "denied"),
    [
        (CERTIFICATE * 2, False),
        (CERTIFICATE + "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n", True),
        (CERTIFICATE + "password: 1234\n", True),
        ("# a comment\n", True),
        ("", True),
    ],
)
def test_installed_packages_keep_files_that_contain_only_certificates(
    tmp_path: Path, folder: str, content: str, denied: bool
) -> None:
    """Programs need these files. All other files are denied, because a command could have named the folder so."""
    made(tmp_path, f"{folder}/cert.pem")
    (tmp_path / folder / "cert.pem").write_text(content)
    (tmp_path / "cert.pem").write_text(CERTIFICATE)
    found = DeniedFiles(["*.pem"], [str(tmp_path)]).find()
    assert set(found.paths) == {str(tmp_path / name) for name in ("cert.pem", *[f"{folder}/cert.pem"] * denied)}
    explicit = DeniedFiles([str(tmp_path / folder / "cert.pem")], [str(tmp_path)]).find()
    assert explicit.paths == (str(tmp_path / folder / "cert.pem"),)


def test_skipped_folders_are_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """System folders and the given folders are left out also if they are below the folder of the agent."""
    monkeypatch.setattr(denied_files, "SYSTEM_FOLDERS", frozenset({str(tmp_path / "usr")}))
    made(tmp_path, "usr/share/x.pem", "python/x.pem")
    for rule in ("*.pem", f"{tmp_path}/**/*.pem"):
        assert DeniedFiles([rule], [str(tmp_path)], skipped=[str(tmp_path / "python")]).find().paths == ()


def test_too_many_names_are_a_problem(tmp_path: Path) -> None:
    """The problem remains if the listings are cached, and ends with the names."""
    made(tmp_path, *(f"{folder}/{number}" for folder in "abc" for number in range(5)))
    assert DeniedFiles(["*.pem"], [str(tmp_path)], max_names=30).find().problem == ""
    files = DeniedFiles(["*.pem", ".env"], [str(tmp_path)], max_names=10)
    problem = f"there are more than 10 names to look through (denied_paths: *.pem, .env){REMEDY}"
    assert files.find().problem == problem
    assert files.find().problem == problem
    shutil.rmtree(tmp_path / "a")
    shutil.rmtree(tmp_path / "b")
    assert files.find().problem == ""


def test_too_many_denied_files_are_a_problem_that_names_the_rules(tmp_path: Path) -> None:
    """The problem contains the limit, the number of files in total and for each rule, and what to do."""
    made(tmp_path, *(f"{number}.pem" for number in range(5)), "a.key", "zz/")
    rules = ["*.pem", "*.key", str(tmp_path / "zz")]
    found = DeniedFiles(rules, [str(tmp_path)], max_paths=3).find()
    assert str(tmp_path / "zz") in found.paths
    assert found.problem == (
        "7 paths are denied, of which at most 3 can be hidden (denied_paths: *.pem: 5, *.key: 1, "
        f"{tmp_path / 'zz'}: 1){REMEDY}"
    )
    assert DeniedFiles(rules, [str(tmp_path)], max_paths=7).find().problem == ""


def test_slow_search_is_a_problem(tmp_path: Path) -> None:
    """The search ends after its time limit."""
    found = DeniedFiles([str(tmp_path), "*.pem"], [str(tmp_path)], max_seconds=-1).find()
    assert found.paths == (str(tmp_path),)
    assert found.problem.startswith("the search for denied files takes longer than -1 s (denied_paths: *.pem); ")


def test_tree_deeper_than_a_path_can_name_is_a_problem(tmp_path: Path) -> None:
    """Such a folder cannot be listed by its path, but a command can enter it step by step."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(20):
            os.mkdir("d" * 250, dir_fd=descriptor)
            inner = os.open("d" * 250, os.O_RDONLY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        found = DeniedFiles(["*.pem"], [str(tmp_path)]).find()
    finally:
        os.close(descriptor)
        shutil.rmtree(tmp_path / ("d" * 250))  # Other tests list the folder above.
    assert "cannot be listed: File name too long (denied_paths: *.pem); " in found.problem


def test_failed_search_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The problem names the folder and the cause. A folder that was deleted in the meantime is no problem."""
    made(tmp_path, "sub/x.pem")
    scandir = os.scandir

    def failing(error: int) -> Callable[[str], object]:
        def scan(path: str) -> object:
            if path.endswith("sub"):
                raise OSError(error, os.strerror(error))
            return scandir(path)

        return scan

    monkeypatch.setattr(os, "scandir", failing(errno.EIO))
    problem = DeniedFiles(["*.pem"], [str(tmp_path)]).find().problem
    assert "sub cannot be listed: the disk reports an input/output error (denied_paths: *.pem); " in problem
    monkeypatch.setattr(os, "scandir", failing(errno.ENOENT))
    assert DeniedFiles(["*.pem"], [str(tmp_path)]).find() == ((), "")


@pytest.mark.parametrize("rule", ["*.pem", "{cwd}/**/*.pem", "{cwd}/sub/*.pem"])
@pytest.mark.parametrize("failing", ["open", "stat"])
def test_folder_without_access_is_denied_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, failing: str
) -> None:
    """A command can make its own folder accessible again. A folder that must stay visible is a problem."""
    made(tmp_path, "sub/x.pem", "sub/inner/y.pem")
    sub = tmp_path / "sub"
    refuse_access(monkeypatch, sub, failing)
    files = [rule.format(cwd=tmp_path)]
    assert DeniedFiles(files, [str(tmp_path)]).find() == ((str(sub),), "")
    problem = DeniedFiles(files, [str(tmp_path)], needed=[str(sub / "inner")]).find().problem
    assert "sub cannot be listed: permission denied (denied_paths: " in problem
    assert "sub cannot be listed: permission denied" in DeniedFiles(files, [str(sub)]).find().problem


def test_explicit_path_in_a_folder_without_access_denies_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of another user is left out, because commands cannot change its access."""
    [path] = made(tmp_path, "sub/x.pem")
    refuse_access(monkeypatch, tmp_path / "sub", "stat")
    assert DeniedFiles([path], []).find() == ((str(tmp_path / "sub"),), "")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert DeniedFiles([path], []).find() == ((), "")


def refuse_access(monkeypatch: pytest.MonkeyPatch, folder: Path, failing: str) -> None:
    """Let the folder be unreadable ("open") or not searchable ("stat") as for a user without special rights."""
    inside = f"{folder}/"
    real_stat, scandir, listdir, access = os.stat, os.scandir, os.listdir, os.access

    def refused(path: object) -> bool:
        return os.fspath(path) == str(folder) if failing == "open" else str(path).startswith(inside)  # type: ignore[call-overload]

    def guarded(function: Callable[..., object], *, at: str) -> Callable[..., object]:
        def call(path: object, *args: object, **kwargs: object) -> object:
            if at == failing and refused(path):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return function(path, *args, **kwargs)

        return call

    monkeypatch.setattr(os, "stat", guarded(real_stat, at="stat"))
    monkeypatch.setattr(os, "scandir", guarded(scandir, at="open"))
    monkeypatch.setattr(os, "listdir", guarded(listdir, at="open"))
    monkeypatch.setattr(
        os, "access", lambda path, mode: access(path, mode) and not (failing == "stat" and str(path) == str(folder))
    )


def test_searches_in_two_threads_find_the_same(tmp_path: Path) -> None:
    """Commands of an agent can start at the same time. No search uses the listings of an unfinished search."""
    made(tmp_path, *(f"{number}/{number}.pem" for number in range(50)))
    files = DeniedFiles(["*.pem"], [str(tmp_path)])
    with ThreadPoolExecutor(4) as threads:
        found = [each.result() for each in [threads.submit(files.find) for _ in range(20)]]
    assert {(len(each.paths), each.problem) for each in found} == {(50, "")}


def test_only_changed_folders_are_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is listed again if its change time differs or lies within the last second."""
    made(tmp_path, "a/x", "b/y")
    listed: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(os.path.basename(path)) or scandir(path))
    monkeypatch.setattr(denied_files, "SETTLED_NS", 0)
    files = DeniedFiles(["*.pem"], [str(tmp_path)])
    assert files.find().paths == ()
    assert sorted(listed[1:]) == ["a", "b"]
    listed.clear()
    files.find()
    assert listed == []
    monkeypatch.setattr(denied_files, "SETTLED_NS", 10**18)
    [new] = made(tmp_path, "a/new.pem")
    os.utime(tmp_path / "a", ns=(0, 0))  # the modification time is not compared
    assert files.find().paths == (new,)
    assert listed == ["a"]
    files.find()
    assert listed == ["a", "a"]
