"""Looking at repositories, friendly and hostile: what is shown, and that nothing of theirs is run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import Any

import msgspec
import pytest

from orch_protocol.core.taint import Bit
from orch_worker.policy.file_filter import FileFilter
from orch_worker.tools.api.base import Tool, ToolContext, ToolError
from orch_worker.tools.dispatch.presets import make_toolbox
from orch_worker.tools.shell.git import git_diff, git_log, git_status

Git = Callable[..., None]


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    """An agent in an empty folder, with a home that configures nothing."""
    (tmp_path / "repo").mkdir()
    env = {"CENSUS": os.environ["CENSUS"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    return ToolContext(tmp_path / "repo", env=env, seconds=30.0)


@pytest.fixture
def git(context: ToolContext) -> Git:
    """Runs git as its user would; the folder is a repository with two commits."""
    who = {"GIT_AUTHOR_NAME": "Ann", "GIT_AUTHOR_EMAIL": "a@a.test", "GIT_AUTHOR_DATE": "2024-05-06T07:08:09Z"}
    who |= {name.replace("AUTHOR", "COMMITTER"): value for name, value in who.items()}

    def run(*arguments: str) -> None:
        env = {"PATH": os.environ["PATH"], **context.env, **who}
        subprocess.run(["git", *arguments], cwd=context.cwd, env=env, check=True, capture_output=True, timeout=30)

    run("init", "-q", "-b", "main")
    (context.cwd / "a.txt").write_text("one\ntwo\n")
    (context.cwd / "sub").mkdir()
    (context.cwd / "sub/b.txt").write_text("b\n")
    run("add", ".")
    run("commit", "-qm", "first")
    (context.cwd / "a.txt").write_text("one\n2\n")
    run("commit", "-qam", "second")
    return run


async def ask(tool: Tool, context: ToolContext, **input: Any) -> str:
    """Return what `tool` says."""
    return (await tool.run(context, input)).text


@pytest.mark.usefixtures("git")
class TestFriendly:
    """What is shown."""

    async def test_status(self, context: ToolContext) -> None:
        """The branch, and what differs, below the folder asked for."""
        (context.cwd / "a.txt").write_text("changed\n")
        (context.cwd / "sub/n\u00e9w").write_text("")
        assert await ask(git_status, context) == "## main\n M a.txt\n?? sub/n\u00e9w"
        assert await ask(git_status, context, path="sub") == "## main\n?? sub/n\u00e9w"

    async def test_what_the_policy_keeps_away_is_in_no_difference(self, context: ToolContext, git: Git) -> None:
        """By whatever name it went before; the rest is shown as ever, and how much is not."""
        rules = ("b.txt",), {}, frozenset[Bit]()
        context.belongings.get("sieve", lambda: lambda tool, _: FileFilter(tool, *rules, bounded=True))
        (context.cwd / "sub/b.txt").write_text("secret\n")
        note = "[1 files passed over: the policy keeps them away]"
        assert await ask(git_diff, context) == f"No differences.\n{note}"
        (context.cwd / "a.txt").write_text("one\nthree\n")
        (context.cwd / "n\u00e9w [1].txt").write_text("*\n")
        git("add", ".")
        shown = await ask(git_diff, context, staged=True)
        assert ("secret" in shown, "-2\n+three" in shown, "+*" in shown) == (False, True, True)
        assert shown.endswith(note)
        assert "three" in await ask(git_diff, context, ref="HEAD~1", path="a.txt")
        inner = msgspec.structs.replace(context, cwd=context.cwd / "sub")
        assert await ask(git_diff, inner, staged=True) == f"No differences.\n{note}"

    async def test_what_was_below_a_folder_shows_by_no_file_that_is_there_instead(
        self, context: ToolContext, git: Git
    ) -> None:
        """What is kept away was in it; the folder became a file of its name."""
        rules = ("b.txt",), {}, frozenset[Bit]()
        context.belongings.get("sieve", lambda: lambda tool, _: FileFilter(tool, *rules, bounded=True))
        rmtree(context.cwd / "sub")
        (context.cwd / "sub").write_text("new\n")
        (context.cwd / "a.txt").write_text("one\nthree\n")
        git("add", "-A")
        shown = await ask(git_diff, context, staged=True)
        assert ("b.txt" in shown, "+three" in shown) == (False, True)

    @pytest.mark.parametrize("ref", ["HEAD:sub..HEAD", "HEAD:sub/b.txt", "HEAD:sub..HEAD:"])
    async def test_no_folder_of_a_commit_is_compared_where_some_are_kept_away(
        self, context: ToolContext, ref: str
    ) -> None:
        """There files go by other names than in the folder, which the policy does not know."""
        rules = (str(context.cwd.resolve() / "sub"),), {}, frozenset[Bit]()
        context.belongings.get("sieve", lambda: lambda tool, _: FileFilter(tool, *rules, bounded=True))
        with pytest.raises(ToolError, match="names a folder or file of a commit: name commits"):
            await ask(git_diff, context, ref=ref)
        assert "b.txt" not in await ask(git_diff, context, ref="HEAD@{10:00}")

    async def test_diff(self, context: ToolContext, git: Git) -> None:
        """Changes against the index, what is staged, and against commits."""
        assert await ask(git_diff, context) == "No differences."
        (context.cwd / "a.txt").write_text("one\nthree\n")
        assert "-2\n+three" in await ask(git_diff, context)
        assert await ask(git_diff, context, path="sub") == "No differences."
        git("add", ".")
        assert await ask(git_diff, context) == "No differences."
        assert "-2\n+three" in await ask(git_diff, context, staged=True)
        assert "-two\n+three" in await ask(git_diff, context, ref="HEAD~1")
        assert "-two\n+2" in await ask(git_diff, context, ref="HEAD~1..HEAD", context_lines=0)

    async def test_log(self, context: ToolContext) -> None:
        """Commits, newest first, of the folder and the range asked for."""
        lines = (await ask(git_log, context)).splitlines()
        assert [line.strip() for line in lines[1::2]] == ["second", "first"]
        assert lines[0].split()[1:3] == ["2024-05-06T07:08:09+00:00", "Ann"]
        assert len((await ask(git_log, context, count=1)).splitlines()) == 2
        assert "second" not in await ask(git_log, context, path="sub")
        assert await ask(git_log, context, ref="HEAD..HEAD") == "No commits."

    async def test_only_the_agents_folder(self, context: ToolContext) -> None:
        """An agent in a folder of a repository sees that folder."""
        (context.cwd / "a.txt").write_text("changed\n")
        below = ToolContext(context.cwd / "sub", env=context.env)
        assert await ask(git_status, below) == "## main"
        assert await ask(git_diff, below) == "No differences."
        assert "second" not in await ask(git_log, below)

    async def test_further_work_trees_and_submodules(self, context: ToolContext, git: Git) -> None:
        """Their repositories lie elsewhere, and say that these folders are theirs."""
        git("worktree", "add", "-q", "-b", "topic", "../tree")
        tree = ToolContext(context.cwd.parent / "tree", env=context.env)
        assert await ask(git_status, tree) == "## topic"
        assert "second" in await ask(git_log, tree)
        git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "-b", "main", str(context.cwd), "inner")
        inner = ToolContext(context.cwd / "inner", env=context.env)
        assert await ask(git_status, inner) == "## main...origin/main"
        assert "second" in await ask(git_log, inner)

    @pytest.mark.parametrize(
        ("tool", "input", "message"),
        [
            (git_diff, {"ref": "--output=stolen"}, "not the name of a commit"),
            (git_log, {"ref": "--exec=x"}, "not the name of a commit"),
            (git_diff, {"ref": "main;touch stolen"}, "not the name of a commit"),
            (git_diff, {"ref": "$(touch stolen)"}, "not the name of a commit"),
            (git_diff, {"ref": ""}, "not the name of a commit"),
            (git_log, {"ref": "nowhere"}, "bad revision 'nowhere'"),
            (git_log, {"path": "../.."}, "outside the working folder"),
            (git_status, {"path": "/etc"}, "outside the working folder"),
            (git_status, {"path": ":(exclude)a.txt"}, ""),
            (git_status, {"path": "--help"}, ""),
        ],
    )
    async def test_arguments_are_arguments(
        self, context: ToolContext, tool: Tool, input: dict[str, Any], message: str
    ) -> None:
        """Nothing in an argument is an option, a pattern or a command."""
        before = sorted(os.listdir(context.cwd))
        if message:
            with pytest.raises(ToolError, match=message):
                await ask(tool, context, **input)
        else:
            assert await ask(tool, context, **input) == "## main"
        assert sorted(os.listdir(context.cwd)) == before


class TestHostile:
    """Repositories that would run something."""

    @pytest.fixture
    def bait(self, context: ToolContext) -> str:
        """A program that leaves a trace when it is run."""
        program = context.cwd.parent / "bait"
        program.write_text(f"#!/bin/sh\ntouch {context.cwd.parent}/caught\ncat\n")
        program.chmod(0o755)
        return str(program)

    def settle(self, context: ToolContext, git: Git, bait: str, setting: str) -> None:
        """Have the repository of `context` run `bait` where `setting` says."""
        if setting == "hooks":
            for name in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
                hook = context.cwd / ".git/hooks" / name
                hook.write_text(f"#!/bin/sh\nexec {bait}\n")
                hook.chmod(0o755)
            return
        git("config", setting, "true" if setting == "log.showSignature" else bait)
        if setting == "log.showSignature":
            git("config", "gpg.program", bait)
        if setting.startswith(("filter", "diff.bait")):
            (context.cwd / ".git/info").mkdir(exist_ok=True)
            (context.cwd / ".git/info/attributes").write_text("* filter=bait diff=bait\n")
        if setting == "filter.bait.process":
            git("config", "filter.bait.required", "true")

    @pytest.mark.parametrize(
        "setting",
        [
            "core.fsmonitor",
            "core.pager",
            "pager.diff",
            "diff.external",
            "diff.bait.command",
            "diff.bait.textconv",
            "filter.bait.clean",
            "filter.bait.process",
            "log.showSignature",
            "hooks",
        ],
    )
    async def test_nothing_configured_is_run(self, context: ToolContext, git: Git, bait: str, setting: str) -> None:
        """Whatever a repository names to be run is not, and the answers are those of git itself."""
        self.settle(context, git, bait, setting)
        (context.cwd / "a.txt").write_text("changed\n")
        assert " M a.txt" in await ask(git_status, context)
        assert "+changed" in await ask(git_diff, context)
        assert "-two" in await ask(git_diff, context, ref="HEAD~1")
        assert "first" in await ask(git_log, context)
        assert "caught" not in os.listdir(context.cwd.parent)

    @pytest.mark.parametrize("setting", ["core.fsmonitor", "diff.external", "diff.bait.textconv", "filter.bait.clean"])
    async def test_the_bait_works(self, context: ToolContext, git: Git, bait: str, setting: str) -> None:
        """Plain git does run it, so the test above would notice."""
        self.settle(context, git, bait, setting)
        (context.cwd / "a.txt").write_text("changed\n")
        git("status")
        git("diff")
        assert "caught" in os.listdir(context.cwd.parent)

    async def test_filters_of_an_included_file(self, context: ToolContext, git: Git, bait: str) -> None:
        """A setting that the repository includes from elsewhere counts as its own."""
        (context.cwd / "more").write_text(f'[filter "bait"]\n\tclean = {bait}\n')
        git("config", "include.path", "../more")
        (context.cwd / ".gitattributes").write_text("* filter=bait\n")
        (context.cwd / "a.txt").write_text("changed\n")
        assert " M a.txt" in await ask(git_status, context)
        assert "caught" not in os.listdir(context.cwd.parent)

    async def test_submodules_are_not_entered(self, context: ToolContext, git: Git, bait: str) -> None:
        """A submodule with settings of its own does not get to run them either."""
        inner = context.cwd / "inner"
        git("init", "-q", str(inner))
        git("-C", str(inner), "commit", "-q", "--allow-empty", "-m", "inner")
        git("add", "inner")
        git("commit", "-qm", "with inner")
        git("-C", str(inner), "config", "core.fsmonitor", bait)
        assert await ask(git_status, context) == "## main"
        assert await ask(git_diff, context) == "No differences."
        assert "caught" not in os.listdir(context.cwd.parent)


class TestElsewhere:
    """Files and folders named `.git` that lead out of the agent's folder."""

    @pytest.fixture
    def bare(self, context: ToolContext, git: Git) -> ToolContext:
        """An agent beside a repository, in a folder without one."""
        (context.cwd / "a.txt").write_text("CANARY\n")
        git("commit", "-qam", "third")
        folder = context.cwd.parent / "bare"
        folder.mkdir()
        return ToolContext(folder, env=context.env)

    @pytest.mark.parametrize("way", ["a file", "a link", "a part of its own", "a folder that shares"])
    async def test_a_repository_of_another_folder_is_not_read(self, bare: ToolContext, way: str) -> None:
        """Whoever writes files here names what they like: a repository that does not know of this folder is not its."""
        link, others = bare.cwd / ".git", bare.cwd.parent / "repo" / ".git"
        if way == "a link":
            link.symlink_to(others)
        elif way == "a file":
            link.write_text(f"gitdir: {others}\n")
        else:
            part = bare.cwd / "part" if way == "a part of its own" else link
            part.mkdir()
            (part / "commondir").write_text(f"{others}\n")
            (part / "HEAD").write_text("ref: refs/heads/main\n")
            (part / "gitdir").write_text(f"{link}\n")
            if part != link:
                link.write_text("gitdir: part\n")
        for tool, input in ((git_status, {}), (git_diff, {"ref": "main~1"}), (git_log, {"ref": "main"})):
            with pytest.raises(ToolError, match="that does not list this folder as a work tree"):
                await ask(tool, bare, **input)

    async def test_files_of_another_folder_are_not_shown(self, context: ToolContext, git: Git) -> None:
        """A repository that says that its files are elsewhere is compared with those that are here."""
        secret = context.cwd.parent / "secret"
        secret.mkdir()
        (secret / "a.txt").write_text("CANARY\n")
        git("config", "core.worktree", str(secret))
        assert await ask(git_status, context) == "## main"
        assert await ask(git_diff, context) == "No differences."

    async def test_nothing_waits_for_a_pipe(self, bare: ToolContext) -> None:
        """What is no file is not read, and nobody waits for somebody to write there."""
        os.mkfifo(bare.cwd / ".git")
        with pytest.raises(ToolError, match="is not a git repository"):
            await ask(git_status, bare)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives files away")
    async def test_of_a_repository_of_another_user_git_says_what_it_thinks(
        self, context: ToolContext, git: Git
    ) -> None:
        """Git reads no repository of somebody else's unless its user said so."""
        os.chown(context.cwd / ".git", 65534, 65534)
        with pytest.raises(ToolError, match="dubious ownership"):
            await ask(git_log, context)
        git("config", "--global", "--add", "safe.directory", "*")
        assert "second" in await ask(git_log, context)


async def test_huge_diff_is_bounded(context: ToolContext, git: Git) -> None:
    """A diff of any size is told in a mebibyte."""
    (context.cwd / "a.txt").write_text("line\n" * 3_000_000)
    git("add", ".")
    text = await ask(git_diff, context, staged=True)
    assert text.startswith("diff --git")
    assert len(text) < 1_100_000


def test_not_in_a_repository(context: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a repository, and without git, the tools are not there."""
    tools = ("git_status", "git_diff", "git_log")
    assert make_toolbox(tools, (), context).specs() == ()
    (context.cwd / ".git").mkdir()
    (context.cwd / "sub").mkdir()
    below = ToolContext(context.cwd / "sub")
    assert [spec.name for spec in make_toolbox(tools, (), below).specs()] == list(tools)
    monkeypatch.setattr("orch_worker.tools.shell.git._installed", lambda: False)
    assert make_toolbox(tools, (), below).specs() == ()


async def test_broken_repository(context: ToolContext) -> None:
    """What git says of a repository that is none is the error."""
    (context.cwd / ".git").write_text("gitdir: nowhere\n")
    with pytest.raises(ToolError, match="not a git repository"):
        await ask(git_status, context)
