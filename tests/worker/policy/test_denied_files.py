"""Denied paths on the disk: matching files, limits of the search, and cached listings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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


def test_two_stars_search_no_installed_packages_and_at_most_the_limit(tmp_path: Path) -> None:
    """The limits are those of names. Each folder counts once."""
    made(tmp_path, "node_modules/a/x.pem", *(f"{folder}/{number}.pem" for folder in "ab" for number in range(3)))
    rule = f"{tmp_path}/**/*.pem"
    found = DeniedFiles([rule, f"{tmp_path}/**/x", "x"], [str(tmp_path)], max_names=12).find()
    assert (len(found.paths), found.incomplete) == (6, "")
    assert DeniedFiles([rule], [], max_names=5).find().incomplete == "more than 5 names to look through"


def test_rule_over_the_limit_hides_what_was_found_and_the_paths_of_other_rules(tmp_path: Path) -> None:
    """A rule with wildcards does not prevent that a later rule without wildcards hides its path."""
    made(tmp_path, "other/a.key", *(f"other/sub/{number}" for number in range(9)), "vault/")
    found = DeniedFiles([f"{tmp_path}/other/**/*.key", f"{tmp_path}/vault"], [], max_names=6).find()
    assert found.paths == (str(tmp_path / "other/a.key"), str(tmp_path / "vault"))
    assert found.incomplete == "more than 6 names to look through"


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


def test_installed_packages_are_not_searched(tmp_path: Path) -> None:
    """Installed packages contain certificates that programs need, so these files are not denied."""
    made(tmp_path, "node_modules/a/cert.pem", ".venv/lib/site-packages/certifi/cacert.pem")
    [own] = made(tmp_path, "cert.pem")
    assert DeniedFiles(["*.pem"], [str(tmp_path)]).find().paths == (own,)


def test_system_folders_are_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """System folders are left out also if they are below the folder of the agent."""
    monkeypatch.setattr(denied_files, "SKIPPED_FOLDERS", frozenset({str(tmp_path / "usr")}))
    made(tmp_path, "usr/share/x.pem")
    assert DeniedFiles(["*.pem"], [str(tmp_path)]).find().paths == ()


def test_too_many_names_are_reported(tmp_path: Path) -> None:
    """A search of more names than the limit is reported as incomplete, also if its listings are cached."""
    made(tmp_path, *(f"{folder}/{number}" for folder in "abc" for number in range(5)))
    assert DeniedFiles(["*.pem"], [str(tmp_path)], max_names=30).find().incomplete == ""
    found = DeniedFiles(["*.pem"], [str(tmp_path)], max_names=10)
    assert found.find().incomplete == "more than 10 names to look through"
    assert found.find().incomplete == "more than 10 names to look through"


def test_too_many_denied_files_are_reported(tmp_path: Path) -> None:
    """Only as many paths as the limit allows are returned, and the total is reported."""
    paths = made(tmp_path, *(f"{number}.pem" for number in range(5)))
    found = DeniedFiles(["*.pem"], [str(tmp_path)], max_paths=3).find()
    assert found == (tuple(paths[:3]), "5 denied files, of which 3 can be covered")


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
