"""Skills from elsewhere, tried and made: `orch skills` in a shell, with git repositories, zip files and links."""

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
from orch.resources.skill_package import packed
from orch.resources.skill_test import trials
from orch.sessions.findings import examine
from orch_protocol.core.errors import ConfigError
from orch_protocol.resources.skills import SkillSpec

GIT = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


def put(place: Path, name: str = "fold", body: str = "Fold it.", description: str = "Fold letters.") -> Path:
    """Write a skill below `place`."""
    (place / name).mkdir(parents=True)
    (place / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\n---\n{body}\n")
    return place / name


def git(folder: Path, *argv: str) -> None:
    """Run git in `folder`."""
    env = os.environ | GIT
    subprocess.run(["git", *argv], cwd=folder, check=True, env=env, capture_output=True, timeout=40)


def bare(work: Path) -> Path:
    """Commit what is in `work` and return a bare repository of it."""
    git(work, "init", "-q", "-b", "main")
    git(work, "add", "-A")
    git(work, "commit", "-qm", "first")
    git(work, "clone", "-q", "--bare", str(work), f"{work}.git")
    return Path(f"{work}.git")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return where a user's own things lie."""
    return tmp_path / "home"


@pytest.fixture
def into(home: Path) -> Path:
    """Return where skills are installed."""
    return home / "skills"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell with a folder of its own."""
    with opened(tmp_path) as shell:
        yield shell


class TestInstall:
    """From a folder, a zip file, a repository: checked first, whole or not at all."""

    def test_from_a_repository(self, tmp_path: Path, home: Path, into: Path) -> None:
        """By its address, under the name that the skill gives itself; where it is from, and the commit, is kept."""
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

    def test_one_of_several(self, tmp_path: Path, home: Path, into: Path) -> None:
        """Whoever asks for none is told which there are; a branch may be named."""
        work = tmp_path / "work"
        put(work / "skills", "fold")
        put(work / "skills", "cut")
        git(bare(work), "branch", "later")
        with pytest.raises(ConfigError, match=r"2 skills: choose one with --path; there are skills/cut, skills/fold"):
            install(f"{work}.git", into, home)
        assert install(f"{work}.git", into, home, path="skills/cut", ref="later")[0].name == "cut"
        with pytest.raises(ConfigError, match=r"cannot be had: .*none-such"):
            install(f"{work}.git", into, home, path="skills/cut", ref="none-such", force=True)
        assert [path.name for path in into.iterdir()] == ["cut"]

    def test_a_repository_takes_neither_for_ever_nor_all_of_the_disk(
        self, tmp_path: Path, home: Path, into: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What git has started ends with it, and nothing of it stays."""
        repository = bare(put(tmp_path))
        monkeypatch.setattr(skill_install, "MOST_CLONED", 100)
        with pytest.raises(ConfigError, match="it holds more than 0 MiB"):
            install(repository.as_uri(), into, home)
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "git").write_text("#!/bin/sh\nsleep 50 &\nwait\n")
        (tmp_path / "bin" / "git").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(skill_install, "GIT_SECONDS", 0.3)
        with pytest.raises(ConfigError, match=r"git did not end within 0.3 s"):
            install(repository.as_uri(), into, home)
        assert not list(into.iterdir())

    def test_what_is_there_stays_unless_it_is_forced(self, tmp_path: Path, home: Path, into: Path) -> None:
        """And what cannot be installed leaves it as it was, forced or not."""
        first = put(tmp_path / "a")
        second = put(tmp_path / "b", body="Fold it twice.")
        install(str(first), into, home)
        with pytest.raises(ConfigError, match=r"there is a skill 'fold' in .* already, from .*/a/fold: --force"):
            install(str(second), into, home)
        install(str(second), into, home, force=True)
        assert "twice" in (into / "fold" / "SKILL.md").read_text()
        (first / "SKILL.md").write_text("no skill\n")
        with pytest.raises(ConfigError, match="the first line is to be ---"):
            install(str(first), into, home, force=True)
        assert "twice" in (into / "fold" / "SKILL.md").read_text()
        assert [path.name for path in into.iterdir()] == ["fold"]

    @pytest.mark.parametrize("link", ["file", "folder", "the skill", "the way"])
    def test_nothing_is_reached_by_a_link(self, tmp_path: Path, home: Path, into: Path, link: str) -> None:
        """In a folder, or in a repository, which can hold one that leads anywhere."""
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
            with pytest.raises(ConfigError, match=r"not a regular file|leads out of"):
                install(source, into, home, path=path)
        assert list(into.iterdir()) == []

    def test_from_a_zip_file(self, tmp_path: Path, home: Path, into: Path) -> None:
        """What was packed is what is installed, executable files too; the same skill is the same bytes."""
        folder = put(tmp_path / "a")
        (folder / "scripts").mkdir()
        (folder / "scripts" / "fold.sh").write_text("true\n")
        (folder / "scripts" / "fold.sh").chmod(0o755)
        one = packed(folder, tmp_path / "one.zip")
        os.utime(folder / "SKILL.md", (1, 1))
        assert packed(folder, tmp_path / "two.zip").read_bytes() == one.read_bytes()
        install(str(one), into, home)
        assert (into / "fold" / "scripts" / "fold.sh").stat().st_mode & stat.S_IXUSR
        assert validate(into / "fold") == []
        mine = tmp_path / "mine"
        install(str(one), mine / "skills", mine)
        assert (mine / "skills" / "fold" / "scripts" / "fold.sh").stat().st_mode & stat.S_IXUSR
        assert list(examine(mine)) == []  # nobody else's, like all that is there

    @pytest.mark.parametrize("name", ["../out/SKILL.md", "/tmp/out/SKILL.md", "fold/link"])
    def test_a_zip_file_does_not_reach_out(self, tmp_path: Path, home: Path, into: Path, name: str) -> None:
        """Neither by a path nor by a link in it."""
        with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
            archive.writestr("fold/SKILL.md", "---\nname: fold\ndescription: d\n---\nFold.\n")
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFLNK | 0o777) << 16 if name == "fold/link" else 0o644 << 16
            archive.writestr(info, "/etc/hostname")
        with pytest.raises(ConfigError, match="is a link or lies outside the archive; nothing was unpacked"):
            install(str(tmp_path / "bad.zip"), into, home)

    def test_a_zip_file_that_is_damaged_is_refused_and_nothing_is_left(
        self, tmp_path: Path, home: Path, into: Path
    ) -> None:
        """Whatever the unpacker makes of it: with what it says, not as an accident."""
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
    def test_a_name_that_no_folder_can_have_is_told_as_a_broken_rule(
        self, tmp_path: Path, home: Path, into: Path, name: str
    ) -> None:
        """Also in a zip file whose top is the skill, which has no folder to be called after."""
        text = f"---\nname: {name}\ndescription: d\n---\nFold.\n"
        folder = put(tmp_path / "a")
        (folder / "SKILL.md").write_text(text)
        with zipfile.ZipFile(tmp_path / "top.zip", "w") as archive:
            archive.writestr("SKILL.md", text)
        for source in (folder, tmp_path / "top.zip"):
            with pytest.raises(ConfigError, match=r"SKILL\.md: .*name"):
                install(str(source), into, home)
        assert list(into.iterdir()) == []

    def test_a_name_that_is_a_path_is_none(self, tmp_path: Path, home: Path, into: Path) -> None:
        """A skill that calls itself ../../x lies nowhere else for that."""
        folder = put(tmp_path / "a")
        (folder / "SKILL.md").write_text("---\nname: ../../x\ndescription: d\n---\nFold.\n")
        with pytest.raises(ConfigError, match="has other signs than letters"):
            install(str(folder), into, home)
        assert not (tmp_path / "x").exists()

    def test_what_is_nothing_says_what_would_be_something(self, tmp_path: Path, home: Path, into: Path) -> None:
        """Not there, empty, and a password in an address, which is told to nobody."""
        with pytest.raises(ConfigError, match="neither a folder, nor a zip file, nor the address"):
            install("nowhere", into, home)
        (tmp_path / "empty").mkdir()
        with pytest.raises(ConfigError, match=r"empty holds no skill: no folder with a SKILL\.md"):
            install(str(tmp_path / "empty"), into, home)
        with pytest.raises(ConfigError) as caught:
            install("https://me:hunter2@127.0.0.1:1/x.git", into, home)
        assert "127.0.0.1:1/x.git cannot be had" in str(caught.value)
        assert "hunter2" not in str(caught.value)
        with pytest.raises(ConfigError) as caught:
            install("https://me:hun@ter2@127.0.0.1:1/x.git", into, home)
        assert "ter2" not in str(caught.value)

    def test_only_what_was_installed_and_is_as_it_was_is_removed(self, tmp_path: Path, home: Path, into: Path) -> None:
        """What somebody wrote, or changed, goes when that is forced."""
        put(into, "mine")
        install(str(put(tmp_path / "a")), into, home)
        with pytest.raises(ConfigError, match=r"'mine' .* was not installed from anywhere"):
            remove("mine", into, home)
        (into / "fold" / "more.md").write_text("more")
        with pytest.raises(ConfigError, match="was changed since it was installed"):
            remove("fold", into, home)
        (into / "fold" / "more.md").unlink()
        assert remove("fold", into, home) == into / "fold"
        assert installed_from(into / "fold", home) is None
        with pytest.raises(ConfigError, match="is not installed in"):
            remove("../skills/mine", into, home, force=True)
        with pytest.raises(ConfigError, match="is not installed in"):
            remove("", into, home, force=True)  # as of a variable that is not set
        remove("mine", into, home, force=True)
        assert list(into.iterdir()) == []


class TestTrials:
    """What can be tried of a skill without a model."""

    def test_everything_that_is_wrong_is_told(self, tmp_path: Path) -> None:
        """Files that it names, scripts, tests that fail or do not end, prompts that nobody would match with it."""
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

    def test_a_test_that_does_not_end_is_ended(self, tmp_path: Path) -> None:
        """With all that it has started."""
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
    """Runs a command of `orch skills` where the shell is, in this process, and returns what it printed as data."""
    monkeypatch.setenv("ORCH_HOME", str(shell.home))
    monkeypatch.chdir(shell.folder)

    def typed(*argv: str, code: int = 0) -> Any:
        assert run(["skills", *argv, "--json"]) == code
        said = capfd.readouterr()
        return json.loads(said.out or said.err)

    return typed


def test_a_skill_from_a_session_to_another_agent(shell: Shell, typed: Callable[..., Any]) -> None:
    """What an agent did becomes a skill, is installed from a zip file, read by the next one, and removed."""
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
    assert "How it was done" in str(shell.data("show", "b"))
    typed("remove", "count-pumps")
    assert typed("list") == []
    assert "there is no skill 'count-pumps'" in typed("show", "count-pumps", code=3)["error"]["message"]


def test_a_skill_from_a_prompt_or_a_template(shell: Shell, typed: Callable[..., Any]) -> None:
    """It keeps the rules, its variables are left open, and trying it tells what is missing."""
    (shell.folder / "review.md").write_text("You review {{language}}, and \\{{braces}}.\n")
    folder = Path(typed("package", "review", "--template", "./review.md", "--description", "Reviews code.")["path"])
    text = (folder / "SKILL.md").read_text()
    assert "You review <language>, and {{braces}}." in text
    assert "What stands for <language> below is to be known from the task" in text
    odd = Path(typed("package", "fold", "--prompt", "x", "--description", "a: #b", "--output", ".orch/skills")["path"])
    assert validate(folder) == validate(odd) == []
    again = typed("package", "review", "--prompt", "x", "--description", "d", code=2)
    assert "is there already" in again["error"]["message"]
    assert [each["outcome"] for each in typed("test", "./review")["trials"]] == ["passed", "passed"]
    (folder / "tests").mkdir()
    (folder / "tests" / "a.py").write_text("raise SystemExit(7)")
    assert typed("test", "./review", code=1)["trials"][-1]["detail"] == "it ended with 7"
    (odd / "SKILL.md").write_text("---\nname: fold\n---\n")
    assert [each["valid"] for each in typed("validate", "review", ".orch/skills/fold", code=1)] == [True, False]
