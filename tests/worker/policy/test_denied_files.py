"""Denied paths on the disk: what is found of them, within which limits, and from which listings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orch_worker.policy import denied_files
from orch_worker.policy.denied_files import DeniedFiles


def made(folder: Path, *names: str) -> list[str]:
    """Make files, or folders where a name ends with a slash, and return their paths."""
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
        ("{cwd}/nothing", []),
        ("nothing", []),
    ],
)
def test_rules_find_what_exists(tmp_path: Path, rule: str, found: list[str]) -> None:
    """Names at any depth, patterns, absolute paths; nothing below what was found."""
    made(tmp_path, "in.pem", "sub/deep/key.pem", "sub/.env", "sub/secrets/a", "sub/secrets/secrets", "plain.txt")
    assert DeniedFiles([rule.format(cwd=tmp_path)], [str(tmp_path)]).find() == (
        tuple(str(tmp_path / name) for name in found),
        "",
    )


def test_absolute_paths_are_found_outside_the_agents_folder(tmp_path: Path) -> None:
    """Wherever they are."""
    [vault] = made(tmp_path, "vault/")
    assert DeniedFiles([vault, "*.pem"], [str(tmp_path / "cwd")]).find().paths == (vault,)


def test_names_are_found_in_each_folder_given(tmp_path: Path) -> None:
    """And in no other."""
    paths = made(tmp_path, "a/x.pem", "b/x.pem", "c/x.pem")
    assert DeniedFiles(["*.pem"], [str(tmp_path / "a"), str(tmp_path / "b")]).find().paths == tuple(paths[:2])


def test_link_with_a_denied_name_denies_its_target(tmp_path: Path) -> None:
    """A dangling link denies nothing."""
    [target] = made(tmp_path, "elsewhere/real")
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd/link.pem").symlink_to(target)
    (tmp_path / "cwd/dangling.pem").symlink_to("nowhere")
    assert DeniedFiles(["*.pem"], [str(tmp_path / "cwd")]).find().paths == (target,)


def test_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    """Neither out of the folder nor in circles."""
    made(tmp_path, "elsewhere/x.pem", "cwd/")
    (tmp_path / "cwd/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "cwd/round").symlink_to(tmp_path / "cwd")
    assert DeniedFiles(["*.pem"], [str(tmp_path / "cwd")]).find().paths == ()


def test_installed_packages_are_not_searched(tmp_path: Path) -> None:
    """They hold certificates that programs need."""
    made(tmp_path, "node_modules/a/cert.pem", ".venv/lib/site-packages/certifi/cacert.pem")
    [own] = made(tmp_path, "cert.pem")
    assert DeniedFiles(["*.pem"], [str(tmp_path)]).find().paths == (own,)


def test_system_folders_are_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent may work in the folder above them."""
    monkeypatch.setattr(denied_files, "SKIPPED", frozenset({str(tmp_path / "usr")}))
    made(tmp_path, "usr/share/x.pem")
    assert DeniedFiles(["*.pem"], [str(tmp_path)]).find().paths == ()


def test_too_many_names_are_reported(tmp_path: Path) -> None:
    """Each time, also when the listings are known."""
    made(tmp_path, *(f"{folder}/{number}" for folder in "abc" for number in range(5)))
    assert DeniedFiles(["*.pem"], [str(tmp_path)], most_names=30).find().incomplete == ""
    found = DeniedFiles(["*.pem"], [str(tmp_path)], most_names=10)
    assert found.find().incomplete == "more than 10 names to look through"
    assert found.find().incomplete == "more than 10 names to look through"


def test_too_many_denied_files_are_reported(tmp_path: Path) -> None:
    """As many as can be covered are found."""
    paths = made(tmp_path, *(f"{number}.pem" for number in range(5)))
    found = DeniedFiles(["*.pem"], [str(tmp_path)], most_paths=3).find()
    assert found == (tuple(paths[:3]), "5 denied files, of which 3 can be covered")


def test_only_changed_folders_are_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is known by its change time; one that changed within the last second is always listed again."""
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
    os.utime(tmp_path / "a", ns=(0, 0))  # its modification time tells nothing
    assert files.find().paths == (new,)
    assert listed == ["a"]
    files.find()
    assert listed == ["a", "a"]
