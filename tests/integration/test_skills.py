"""`orch skills`: installation from folders, git repositories and zip files, tests, and packages."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from skills_ref import validate

from integration.command_shell import Shell, ended, opened
from orch.cli import run
from orch.resources import skill_install
from orch.resources.skill_install import install, installed_from, remove
from orch.resources.skill_package import write_zip
from orch.resources.skill_test import trials
from orch.sessions.findings import check_home
from orch_protocol.core.errors import ConfigError, EntryNotFoundError
from orch_protocol.resources.skills import SkillSpec

GIT = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


def put(place: Path, name: str = "fold", body: str = "Fold it.", description: str = "Fold letters.") -> Path:
    """Write a skill to `place`, and return its folder."""
    (place / name).mkdir(parents=True)
    (place / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\n---\n{body}\n")
    return place / name


def git(folder: Path, *argv: str) -> None:
    """Run git in `folder`."""
    env = os.environ | GIT
    subprocess.run(["git", *argv], cwd=folder, check=True, env=env, capture_output=True, timeout=40)


def bare(work: Path) -> Path:
    """Commit the files in `work`, and return a bare clone of this repository."""
    git(work, "init", "-q", "-b", "main")
    git(work, "add", "-A")
    git(work, "commit", "-qm", "first")
    git(work, "clone", "-q", "--bare", str(work), f"{work}.git")
    return Path(f"{work}.git")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home, in which the installations are recorded."""
    return tmp_path / "home"


@pytest.fixture
def into(home: Path) -> Path:
    """The folder in which skills are installed."""
    return home / "skills"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell with a separate folder."""
    with opened(tmp_path) as shell:
        yield shell


class TestInstall:
    """Installation of a skill: the skill is checked first, and installed completely or not at all."""

    def test_skill_is_installed_from_a_repository(self, tmp_path: Path, home: Path, into: Path) -> None:
        """The folder has the skill's name, and the home records address, commit and hash."""
        work = tmp_path / "some-clone"
        put(work.parent, work.name)
        (work / "SKILL.md").write_text("---\nname: fold\ndescription: d\n---\nFold.\n")
        repository = bare(work)
        skill, row = install(repository.as_uri(), into, home)
        assert (skill.name, skill.path) == ("fold", str(into / "fold"))
        assert sorted(path.name for path in (into / "fold").iterdir()) == ["SKILL.md"]
        assert [path.name for path in into.iterdir()] == ["fold"]
        assert installed_from(into / "fold", home) == row
        assert (row.source, len(row.commit), row.hash) == (repository.as_uri(), 40, skill.hash)

    def test_one_of_several_skills_is_chosen(self, tmp_path: Path, home: Path, into: Path) -> None:
        """Without `path`, the error lists the skills. `ref` names a branch."""
        work = tmp_path / "work"
        put(work / "skills", "fold")
        put(work / "skills", "cut")
        git(bare(work), "branch", "later")
        with pytest.raises(ConfigError, match=r"2 skills: choose one with --path; there are skills/cut, skills/fold"):
            install(f"{work}.git", into, home)
        assert install(f"{work}.git", into, home, path="skills/cut", ref="later")[0].name == "cut"
        with pytest.raises(ConfigError, match=r"cannot download .*none-such"):
            install(f"{work}.git", into, home, path="skills/cut", ref="none-such", force=True)
        assert [path.name for path in into.iterdir()] == ["cut"]

    def test_repository_clone_is_bounded_in_time_and_size(
        self, tmp_path: Path, home: Path, into: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Above a bound, the processes of git end, and no downloaded file stays."""
        repository = bare(put(tmp_path))
        monkeypatch.setattr(skill_install, "MAX_CLONED", 100)
        with pytest.raises(ConfigError, match="it is larger than 0 MiB"):
            install(repository.as_uri(), into, home)
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "git").write_text("#!/bin/sh\nsleep 50 &\nwait\n")
        (tmp_path / "bin" / "git").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(skill_install, "GIT_SECONDS", 0.3)
        with pytest.raises(ConfigError, match=r"git did not end within 0.3 s"):
            install(repository.as_uri(), into, home)
        assert not list(into.iterdir())

    def test_installed_skill_is_replaced_only_with_force(self, tmp_path: Path, home: Path, into: Path) -> None:
        """A failed installation does not change the installed skill."""
        first = put(tmp_path / "a")
        second = put(tmp_path / "b", body="Fold it twice.")
        install(str(first), into, home)
        with pytest.raises(ConfigError, match=r"already contains a skill 'fold', from .*/a/fold: use --force"):
            install(str(second), into, home)
        install(str(second), into, home, force=True)
        assert "twice" in (into / "fold" / "SKILL.md").read_text()
        (first / "SKILL.md").write_text("no skill\n")
        with pytest.raises(ConfigError, match="the first line must be ---"):
            install(str(first), into, home, force=True)
        assert "twice" in (into / "fold" / "SKILL.md").read_text()
        assert [path.name for path in into.iterdir()] == ["fold"]

    @pytest.mark.parametrize("link", ["file", "folder", "the skill", "the way"])
    def test_links_in_a_skill_are_refused(self, tmp_path: Path, home: Path, into: Path, link: str) -> None:
        """Links are refused in the skill and on the path to it, in folders and in repositories."""
        work = tmp_path / "work"
        secret = put(tmp_path / "elsewhere", "secret")
        put(work, "fold")
        path = "fold"
        if link == "file":
            (work / "fold" / "key.txt").symlink_to("/etc/hostname")
        elif link == "folder":
            (work / "fold" / "more").symlink_to(secret)
        elif link == "the skill":
            (work / "secret").symlink_to(secret)
            path = "secret"
        else:
            (work / "way").symlink_to(secret.parent)
            path = "way/secret"
        for source in (str(work), str(bare(work))):
            with pytest.raises(ConfigError, match=r"not a regular file|outside"):
                install(source, into, home, path=path)
        assert list(into.iterdir()) == []

    def test_skill_is_installed_from_a_zip_file(self, tmp_path: Path, home: Path, into: Path) -> None:
        """Installed files have the modes in the zip file. Packing a folder twice gives the same bytes."""
        folder = put(tmp_path / "a")
        (folder / "scripts").mkdir()
        (folder / "scripts" / "fold.sh").write_text("true\n")
        (folder / "scripts" / "fold.sh").chmod(0o755)
        one = write_zip(folder, tmp_path / "one.zip")
        os.utime(folder / "SKILL.md", (1, 1))
        assert write_zip(folder, tmp_path / "two.zip").read_bytes() == one.read_bytes()
        install(str(one), into, home)
        assert (into / "fold" / "scripts" / "fold.sh").stat().st_mode & stat.S_IXUSR
        assert validate(into / "fold") == []
        mine = tmp_path / "mine"
        install(str(one), mine / "skills", mine)
        assert (mine / "skills" / "fold" / "scripts" / "fold.sh").stat().st_mode & stat.S_IXUSR
        assert list(check_home(mine)) == []  # the files are private, like all files of the home

    @pytest.mark.parametrize("name", ["../out/SKILL.md", "/tmp/out/SKILL.md", "fold/link"])
    def test_zip_file_cannot_write_outside(self, tmp_path: Path, home: Path, into: Path, name: str) -> None:
        """An entry that is a link, or whose path leads outside, is an error, and nothing is unpacked."""
        with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
            archive.writestr("fold/SKILL.md", "---\nname: fold\ndescription: d\n---\nFold.\n")
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFLNK | 0o777) << 16 if name == "fold/link" else 0o644 << 16
            archive.writestr(info, "/etc/hostname")
        with pytest.raises(ConfigError, match="is a link or lies outside the archive; nothing was unpacked"):
            install(str(tmp_path / "bad.zip"), into, home)

    def test_damaged_zip_file_is_refused(self, tmp_path: Path, home: Path, into: Path) -> None:
        """The error names the file, and nothing is installed."""
        for kind in (zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA):
            bad = tmp_path / "bad.zip"
            with zipfile.ZipFile(bad, "w", kind) as archive:
                archive.writestr("fold/SKILL.md", "---\nname: fold\ndescription: d\n---\n" + "Fold. " * 500)
            data = bytearray(bad.read_bytes())
            data[50:80] = b"\xff" * 30
            bad.write_bytes(data)
            with pytest.raises(ConfigError, match=r"bad\.zip cannot be unpacked"):
                install(str(bad), into, home)
        assert list(into.iterdir()) == []

    @pytest.mark.parametrize("name", ['"a\\0b"', "x" * 300, '".source"', '""'])
    def test_invalid_skill_name_is_a_rule_violation(self, tmp_path: Path, home: Path, into: Path, name: str) -> None:
        """The ConfigError names the rule, for a folder and for a zip file without a folder."""
        text = f"---\nname: {name}\ndescription: d\n---\nFold.\n"
        folder = put(tmp_path / "a")
        (folder / "SKILL.md").write_text(text)
        with zipfile.ZipFile(tmp_path / "top.zip", "w") as archive:
            archive.writestr("SKILL.md", text)
        for source in (folder, tmp_path / "top.zip"):
            with pytest.raises(ConfigError, match=r"SKILL\.md: .*name"):
                install(str(source), into, home)
        assert list(into.iterdir()) == []

    def test_skill_name_that_is_a_path_is_refused(self, tmp_path: Path, home: Path, into: Path) -> None:
        """A skill named `../../x` is not installed, and no file is written outside the folder of skills."""
        folder = put(tmp_path / "a")
        (folder / "SKILL.md").write_text("---\nname: ../../x\ndescription: d\n---\nFold.\n")
        with pytest.raises(ConfigError, match="has other signs than letters"):
            install(str(folder), into, home)
        assert not (tmp_path / "x").exists()

    def test_invalid_source_explains_valid_ones(self, tmp_path: Path, home: Path, into: Path) -> None:
        """The error for an unknown or empty source gives the reason, and no error shows a password of a URL."""
        with pytest.raises(ConfigError, match="neither a folder, nor a zip file, nor the address"):
            install("nowhere", into, home)
        (tmp_path / "empty").mkdir()
        with pytest.raises(ConfigError, match=r"empty holds no skill: no folder with a SKILL\.md"):
            install(str(tmp_path / "empty"), into, home)
        with pytest.raises(ConfigError) as caught:
            install("https://me:hunter2@127.0.0.1:1/x.git", into, home)
        assert "127.0.0.1:1/x.git" in str(caught.value)
        assert "hunter2" not in str(caught.value)
        with pytest.raises(ConfigError) as caught:
            install("https://me:hun@ter2@127.0.0.1:1/x.git", into, home)
        assert "ter2" not in str(caught.value)

    def test_only_unchanged_installed_skills_are_removed(self, tmp_path: Path, home: Path, into: Path) -> None:
        """`force` also removes changed skills, and skills that orch did not install."""
        put(into, "mine")
        install(str(put(tmp_path / "a")), into, home)
        with pytest.raises(ConfigError, match=r"'mine' .* was not installed by orch"):
            remove("mine", into, home)
        (into / "fold" / "more.md").write_text("more")
        with pytest.raises(ConfigError, match="was changed after the installation"):
            remove("fold", into, home)
        (into / "fold" / "more.md").unlink()
        assert remove("fold", into, home) == into / "fold"
        assert installed_from(into / "fold", home) is None
        with pytest.raises(EntryNotFoundError, match="is not installed in"):
            remove("../skills/mine", into, home, force=True)
        with pytest.raises(EntryNotFoundError, match="is not installed in"):
            remove("", into, home, force=True)  # for example from a variable that is not set
        remove("mine", into, home, force=True)
        assert list(into.iterdir()) == []


class TestTrials:
    """Tests of a skill without a model."""

    def test_skill_test_reports_every_problem(self, tmp_path: Path) -> None:
        """The problems are missing files, syntax errors, failing tests, and prompts that do not match the
        description.
        """
        folder = put(tmp_path, body="Run scripts/a.py, see [more](references/gone.md) and [this](https://x.example/y).")
        for name, text in {
            "scripts/a.py": "print(1",
            "scripts/b.sh": "if true",
            "scripts/c.py": "print(1)",
            "tests/good.py": "import os; assert open(os.environ['SKILL_DIR'] + '/SKILL.md'); open('here', 'w')",
            "tests/bad.sh": "echo broken; exit 3",
            "tests/keys.py": "import os; assert 'ANTHROPIC_API_KEY' not in os.environ",
            "tests/prompts.txt": "# what people ask\nFold this letter\nmend the pump\ncut and fold letters\n",
        }.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        os.environ["ANTHROPIC_API_KEY"] = "k"
        try:
            others = [SkillSpec("cut", "Cut and fold letters and paper.")]
            tried = {trial.name: trial for trial in trials(folder, others)}
        finally:
            del os.environ["ANTHROPIC_API_KEY"]
        failed = {name: trial.detail for name, trial in tried.items() if trial.outcome == "failed"}
        assert sorted(failed) == [
            *("files", "prompt: cut and fold letters", "prompt: mend the pump"),
            *("scripts/a.py", "scripts/b.sh", "tests/bad.sh"),
        ]
        assert failed["files"] == "its text names references/gone.md, which it does not have"
        assert failed["prompt: cut and fold letters"] == "the description of cut shares more with this"
        assert "shares no word" in failed["prompt: mend the pump"]
        assert "never closed" in failed["scripts/a.py"]
        assert failed["tests/bad.sh"] == "it ended with 3: broken"
        assert len(tried) == 11
        assert not (folder / "here").exists()

    def test_tests_beside_the_skill_file_run(self, tmp_path: Path) -> None:
        """Files named `test_*.py` and `test_*.sh` run. Test functions run with pytest, without the settings of an outer
        project.
        """
        (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
        folder = put(tmp_path)
        for name, text in {
            "test_script.py": "import os; assert os.path.isfile(os.environ['SKILL_DIR'] + '/SKILL.md')",
            "test_shell.sh": "exit 3",
            "test_good.py": "def test_sum():\n    assert 1 + 1 == 2\n",
            "test_wrong.py": "def test_sum():\n    assert 1 + 1 == 3\n",
            "test_notes.md": "no test",
            "fold.py": "raise SystemExit(1)",
            "references/test_x.py": "raise SystemExit(1)",
        }.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        before = sorted(folder.rglob("*"))
        ran = {each.name: each for each in trials(folder) if each.name not in ("rules", "files")}
        assert {name: each.outcome for name, each in ran.items()} == {
            "test_good.py": "passed",
            "test_script.py": "passed",
            "test_shell.sh": "failed",
            "test_wrong.py": "failed",
        }
        assert "assert (1 + 1) == 3" in ran["test_wrong.py"].detail
        assert sorted(folder.rglob("*")) == before

    def test_hanging_skill_test_is_ended(self, tmp_path: Path) -> None:
        """The processes that the test started end with it."""
        folder = put(tmp_path)
        (folder / "tests").mkdir()
        started = tmp_path / "pid"
        (folder / "tests" / "stuck.sh").write_text(
            f"cat /dev/zero > /dev/null & echo $! > {started}; cat /dev/zero > /dev/null\n"
        )
        *_, stuck = trials(folder, seconds=0.5)
        assert stuck.detail == "it did not end within 0.5 s"
        if started.exists():
            ended(int(started.read_text()))


@pytest.fixture
def typed(shell: Shell, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """A function that runs a command of `orch skills` in this process, in the shell's folder, and returns the printed
    data.
    """
    monkeypatch.setenv("ORCH_HOME", str(shell.home))
    monkeypatch.chdir(shell.folder)

    def typed(*argv: str, code: int = 0) -> Any:
        assert run(["skills", *argv, "--json"]) == code
        output = capfd.readouterr()
        return json.loads(output.out or output.err)

    return typed


def test_skill_is_made_from_a_session_packed_installed_and_removed(shell: Shell, typed: Callable[..., Any]) -> None:
    """The steps of an agent become a skill, which another agent reads after the installation."""
    steps = shell.script({"tool": "list_files", "input": {}}, "There are none.")
    shell.run("spawn", "Count pumps", "--tools", "file", "--script", steps, "--name", "a", "--query", "How many pumps?")
    made = shell.data("skills", "package", "count-pumps", "--session", "a", "--description", "Counts pumps.", "--zip")
    typed("install", made["path"])
    [row] = typed("list")
    assert (row["name"], row["on"], row["installed"]["changed"]) == ("count-pumps", True, False)
    shown = typed("show", "count-pumps")
    assert "1. Asked: How many pumps?\n2. `list_files` {}" in shown["body"]
    assert shown["installed"]["source"] == made["path"]
    reading = shell.script({"tool": "read_skill", "input": {"name": "count-pumps"}}, "As before.")
    shell.run("spawn", "Count", "--skills", "count-pumps", "--script", reading, "--name", "b", "--query", "How many?")
    assert "# Steps" in str(shell.data("show", "b"))
    typed("remove", "count-pumps")
    assert typed("list") == []
    assert "no skill named 'count-pumps'" in typed("show", "count-pumps", code=3)["error"]["message"]


def test_skill_is_made_from_a_prompt_or_template(shell: Shell, typed: Callable[..., Any]) -> None:
    """The skill leaves the variables of the template open, and `test` and `validate` report problems of the skill."""
    (shell.folder / "review.md").write_text("You review {{language}}, and \\{{braces}}.\n")
    folder = Path(typed("package", "review", "--template", "./review.md", "--description", "Reviews code.")["path"])
    text = (folder / "SKILL.md").read_text()
    assert "You review <language>, and {{braces}}." in text
    assert "Take the values of <language> below from the task" in text
    odd = Path(typed("package", "fold", "--prompt", "x", "--description", "a: #b", "--output", ".orch/skills")["path"])
    assert validate(folder) == validate(odd) == []
    again = typed("package", "review", "--prompt", "x", "--description", "d", code=2)
    assert "already exists" in again["error"]["message"]
    assert [each["outcome"] for each in typed("test", "./review")["trials"]] == ["passed", "passed"]
    (folder / "tests").mkdir()
    (folder / "tests" / "a.py").write_text("raise SystemExit(7)")
    assert typed("test", "./review", code=1)["trials"][-1]["detail"] == "it ended with 7"
    (odd / "SKILL.md").write_text("---\nname: fold\n---\n")
    assert [each["valid"] for each in typed("validate", "review", ".orch/skills/fold", code=1)] == [True, False]
