"""The git tools in ordinary and in hostile repositories: what they show, and that they run no program of a
repository.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any

import msgspec
import pytest

from orch_protocol.core.taint import Bit
from orch_protocol.policy.policy import FilterRules, PolicyConfig
from orch_protocol.policy.sandbox import Level, SandboxSpec
from orch_worker.sandbox.launcher_client import unavailable_reason
from orch_worker.tools.api.base import Tool, ToolContext, ToolError
from orch_worker.tools.dispatch.presets import make_toolbox
from orch_worker.tools.shell.git import git_diff, git_log, git_status

Git = Callable[..., None]


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToolContext]:
    """An agent in an empty folder, with a home without git configuration."""
    (tmp_path / "repo").mkdir()
    env = {"CENSUS": os.environ["CENSUS"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    context = ToolContext(tmp_path / "repo", env=env, seconds=30.0)
    yield context
    context.tool_state.close()


@pytest.fixture
def git(context: ToolContext) -> Git:
    """A function that runs git as the user does. The folder is a repository with two commits."""
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
    """Return the output of `tool`."""
    return (await tool.run(context, input)).text


@pytest.mark.usefixtures("git")
class TestFriendly:
    """The output of the tools."""

    async def test_status(self, context: ToolContext) -> None:
        """`git_status` shows the branch, and the changes in the given folder."""
        (context.cwd / "a.txt").write_text("changed\n")
        (context.cwd / "sub/n\u00e9w").write_text("")
        assert await ask(git_status, context) == "## main\n M a.txt\n?? sub/n\u00e9w"
        assert await ask(git_status, context, path="sub") == "## main\n?? sub/n\u00e9w"

    async def test_git_output_excludes_denied_files(self, context: ToolContext, git: Git) -> None:
        """Diffs leave out denied files, also under former names, and state the number of these files."""
        rules = ("b.txt",), {}, frozenset[Bit]()
        context.tool_state.get("filter_rules", lambda: lambda tool, _: FilterRules(tool, *rules, enforce_taint=True))
        (context.cwd / "sub/b.txt").write_text("secret\n")
        note = "[1 files were skipped because of the policy]"
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

    async def test_denied_folder_replaced_by_a_file_stays_hidden_in_git(self, context: ToolContext, git: Git) -> None:
        """The diff leaves out the files of the former folder."""
        rules = ("b.txt",), {}, frozenset[Bit]()
        context.tool_state.get("filter_rules", lambda: lambda tool, _: FilterRules(tool, *rules, enforce_taint=True))
        rmtree(context.cwd / "sub")
        (context.cwd / "sub").write_text("new\n")
        (context.cwd / "a.txt").write_text("one\nthree\n")
        git("add", "-A")
        shown = await ask(git_diff, context, staged=True)
        assert ("b.txt" in shown, "+three" in shown) == (False, True)

    @pytest.mark.parametrize("ref", ["HEAD:sub..HEAD", "HEAD:sub/b.txt", "HEAD:sub..HEAD:"])
    async def test_whole_commits_are_not_compared_beside_denied_files(self, context: ToolContext, ref: str) -> None:
        """With denied files, a folder or file of a commit is refused, because its files have other names there."""
        rules = (str(context.cwd.resolve() / "sub"),), {}, frozenset[Bit]()
        context.tool_state.get("filter_rules", lambda: lambda tool, _: FilterRules(tool, *rules, enforce_taint=True))
        with pytest.raises(ToolError, match="names a folder or file of a commit: name commits"):
            await ask(git_diff, context, ref=ref)
        assert "b.txt" not in await ask(git_diff, context, ref="HEAD@{10:00}")

    async def test_diff(self, context: ToolContext, git: Git) -> None:
        """`git_diff` shows changes against the index, staged changes, and changes against commits."""
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
        """`git_log` shows the commits of the given folder and range, newest first."""
        lines = (await ask(git_log, context)).splitlines()
        assert [line.strip() for line in lines[1::2]] == ["second", "first"]
        assert lines[0].split()[1:3] == ["2024-05-06T07:08:09+00:00", "Ann"]
        assert len((await ask(git_log, context, count=1)).splitlines()) == 2
        assert "second" not in await ask(git_log, context, path="sub")
        assert await ask(git_log, context, ref="HEAD..HEAD") == "No commits."

    async def test_git_tools_are_limited_to_the_agents_folder(self, context: ToolContext) -> None:
        """An agent in a subfolder of a repository sees the changes and commits of the subfolder only."""
        (context.cwd / "a.txt").write_text("changed\n")
        below = ToolContext(context.cwd / "sub", env=context.env)
        assert await ask(git_status, below) == "## main"
        assert await ask(git_diff, below) == "No differences."
        assert "second" not in await ask(git_log, below)

    async def test_worktrees_and_submodules_are_supported(self, context: ToolContext, git: Git) -> None:
        """Their repositories are in another folder, and list the worktree or the submodule."""
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
    async def test_git_arguments_cannot_be_options(
        self, context: ToolContext, tool: Tool, input: dict[str, Any], message: str
    ) -> None:
        """An argument is never an option, a pattern or a command."""
        before = sorted(os.listdir(context.cwd))
        if message:
            with pytest.raises(ToolError, match=message):
                await ask(tool, context, **input)
        else:
            assert await ask(tool, context, **input) == "## main"
        assert sorted(os.listdir(context.cwd)) == before


class TestHostile:
    """Repositories whose configuration or hooks name a program."""

    @pytest.fixture
    def bait(self, context: ToolContext) -> str:
        """A program that creates a file when it is run."""
        program = context.cwd.parent / "bait"
        program.write_text(f"#!/bin/sh\ntouch {context.cwd.parent}/caught\ncat\n")
        program.chmod(0o755)
        return str(program)

    def settle(self, context: ToolContext, git: Git, bait: str, setting: str) -> None:
        """Configure the repository of `context` to run `bait` by `setting`."""
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
    async def test_configured_programs_of_a_repository_are_not_run(
        self, context: ToolContext, git: Git, bait: str, setting: str
    ) -> None:
        """The tools show the changes and the commits without the program."""
        self.settle(context, git, bait, setting)
        (context.cwd / "a.txt").write_text("changed\n")
        assert " M a.txt" in await ask(git_status, context)
        assert "+changed" in await ask(git_diff, context)
        assert "-two" in await ask(git_diff, context, ref="HEAD~1")
        assert "first" in await ask(git_log, context)
        assert "caught" not in os.listdir(context.cwd.parent)

    @pytest.mark.parametrize("setting", ["core.fsmonitor", "diff.external", "diff.bait.textconv", "filter.bait.clean"])
    async def test_plain_git_runs_the_configured_programs(
        self, context: ToolContext, git: Git, bait: str, setting: str
    ) -> None:
        """Without the tools, git runs the program, so the test above can fail."""
        self.settle(context, git, bait, setting)
        (context.cwd / "a.txt").write_text("changed\n")
        git("status")
        git("diff")
        assert "caught" in os.listdir(context.cwd.parent)

    async def test_filters_of_an_included_configuration_are_not_run(
        self, context: ToolContext, git: Git, bait: str
    ) -> None:
        """A configuration file that the repository includes counts as a part of its configuration."""
        (context.cwd / "more").write_text(f'[filter "bait"]\n\tclean = {bait}\n')
        git("config", "include.path", "../more")
        (context.cwd / ".gitattributes").write_text("* filter=bait\n")
        (context.cwd / "a.txt").write_text("changed\n")
        assert " M a.txt" in await ask(git_status, context)
        assert "caught" not in os.listdir(context.cwd.parent)

    async def test_submodules_are_not_entered(self, context: ToolContext, git: Git, bait: str) -> None:
        """A program in the configuration of a submodule is not run."""
        inner = context.cwd / "inner"
        git("init", "-q", str(inner))
        git("-C", str(inner), "commit", "-q", "--allow-empty", "-m", "inner")
        git("add", "inner")
        git("commit", "-qm", "with inner")
        git("-C", str(inner), "config", "core.fsmonitor", bait)
        assert await ask(git_status, context) == "## main"
        assert await ask(git_diff, context) == "No differences."
        assert "caught" not in os.listdir(context.cwd.parent)


class TestProgramsOfGit:
    """The programs that git itself may run, and the git that orch runs."""

    @pytest.fixture
    def spy(self, context: ToolContext, git: Git) -> Iterator[ToolContext]:
        """An agent with a denied file and credentials. A filter of the user writes what it can read into "seen"."""
        home = context.cwd.parent
        (home / ".ssh").mkdir()
        for secret in (home / ".ssh/id", home / "denied"):
            secret.write_text("CANARY\n")
        program = home / "spy"
        program.write_text(f"#!/bin/sh\ncat\ncat {home}/denied {home}/.ssh/id > {context.cwd}/seen 2>&1\n")
        program.chmod(0o755)
        git("config", "--global", "filter.spy.clean", str(program))
        (context.cwd / ".gitattributes").write_text("a.txt filter=spy\n")
        (context.cwd / "a.txt").write_text("changed\n")
        policy = PolicyConfig(denied_paths=(str(home / "denied"),))
        yield msgspec.structs.replace(context, policy=policy)
        context.tool_state.close()

    @pytest.mark.skipif(bool(unavailable_reason()), reason="no mount namespaces on this machine")
    @pytest.mark.parametrize("level", ["L0", "L1"])
    async def test_programs_of_the_users_configuration_cannot_read_hidden_paths(
        self, spy: ToolContext, level: Level
    ) -> None:
        """A filter in the global configuration runs, and does not see denied files and credentials."""
        shown = await ask(git_diff, msgspec.structs.replace(spy, sandbox=SandboxSpec(level)))
        assert "+changed" in shown
        seen = (spy.cwd / "seen").read_text()
        assert ("CANARY" in seen, "denied" in seen, ".ssh/id" in seen) == (False, True, True)

    async def test_nothing_runs_if_hidden_paths_cannot_be_hidden(
        self, spy: ToolContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Git obeys `require_denied_paths` as commands do."""
        monkeypatch.setattr("orch_worker.sandbox.launcher_client.unavailable_reason", lambda: "no namespaces")
        policy = msgspec.structs.replace(spy.policy, require_denied_paths=True)
        with pytest.raises(ToolError, match=r"Nothing was run: policy\.require_denied_paths is set"):
            await ask(git_diff, msgspec.structs.replace(spy, policy=policy))
        assert not (spy.cwd / "seen").exists()

    @pytest.mark.usefixtures("git")
    @pytest.mark.parametrize("name", ["PATH", "GIT_EXEC_PATH", "HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "COUNT"])
    async def test_environment_of_a_subagent_does_not_change_git(self, context: ToolContext, name: str) -> None:
        """An agent sets the variables of its subagents. The tools run the git and the configuration of the user."""
        folder = context.cwd / "bin"
        (folder / "git").mkdir(parents=True)
        program = f"#!/bin/sh\ntouch {context.cwd.parent}/caught\ncat\n"
        for file in ("tool", "git-diff", "git-status"):
            (folder / file).write_text(program)
            (folder / file).chmod(0o755)
        for file in (".gitconfig", "git/config"):
            (folder / file).write_text(f'[filter "x"]\n\tclean = {folder}/tool\n[core]\n\tfsmonitor = {folder}/tool\n')
        (context.cwd / ".gitattributes").write_text("* filter=x\n")
        (context.cwd / "a.txt").write_text("changed\n")
        value = str(folder / ".gitconfig" if name == "GIT_CONFIG_GLOBAL" else folder)
        env = {name: value}
        if name == "PATH":
            rmtree(folder / "git")
            (folder / "tool").rename(folder / "git")
            env = {"PATH": f"{folder}:{os.environ['PATH']}"}
        elif name == "COUNT":
            env = {
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "filter.x.clean",
                "GIT_CONFIG_VALUE_0": f"{folder}/tool",
            }
        given = msgspec.structs.replace(context, env={**context.env, **env})
        assert " M a.txt" in await ask(git_status, given)
        assert "+changed" in await ask(git_diff, given)
        assert "second" in await ask(git_log, given)
        assert "caught" not in os.listdir(context.cwd.parent)


class TestElsewhere:
    """`.git` files and folders that lead out of the agent's folder."""

    @pytest.fixture
    def bare(self, context: ToolContext, git: Git) -> ToolContext:
        """An agent in a folder without a repository, next to a repository."""
        (context.cwd / "a.txt").write_text("CANARY\n")
        git("commit", "-qam", "third")
        folder = context.cwd.parent / "bare"
        folder.mkdir()
        return ToolContext(folder, env=context.env)

    @pytest.mark.parametrize("way", ["a file", "a link", "a part of its own", "a folder that shares"])
    async def test_foreign_git_directory_is_not_read(self, bare: ToolContext, way: str) -> None:
        """The tools refuse a repository that does not list the agent's folder as a work tree."""
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

    async def test_configured_worktree_elsewhere_is_ignored(self, context: ToolContext, git: Git) -> None:
        """The tools compare the repository with the agent's folder, and ignore `core.worktree`."""
        secret = context.cwd.parent / "secret"
        secret.mkdir()
        (secret / "a.txt").write_text("CANARY\n")
        git("config", "core.worktree", str(secret))
        assert await ask(git_status, context) == "## main"
        assert await ask(git_diff, context) == "No differences."

    async def test_fifo_in_a_repository_does_not_block(self, bare: ToolContext) -> None:
        """A FIFO named `.git` is not read, and the folder counts as no repository."""
        os.mkfifo(bare.cwd / ".git")
        with pytest.raises(ToolError, match="is not a git repository"):
            await ask(git_status, bare)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives files away")
    async def test_repository_of_another_user_is_refused_by_git(self, context: ToolContext, git: Git) -> None:
        """Git accepts the repository if the user configured it as safe."""
        os.chown(context.cwd / ".git", 65534, 65534)
        with pytest.raises(ToolError, match="dubious ownership"):
            await ask(git_log, context)
        git("config", "--global", "--add", "safe.directory", "*")
        assert "second" in await ask(git_log, context)


async def test_huge_diff_is_truncated(context: ToolContext, git: Git) -> None:
    """The output is at most about one mebibyte."""
    (context.cwd / "a.txt").write_text("line\n" * 3_000_000)
    git("add", ".")
    text = await ask(git_diff, context, staged=True)
    assert text.startswith("diff --git")
    assert len(text) < 1_100_000


def test_git_tools_are_hidden_outside_a_repository(context: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tools are offered in a repository and in its subfolders, if git is installed."""
    tools = ("git_status", "git_diff", "git_log")
    assert make_toolbox(tools, (), context).specs() == ()
    (context.cwd / ".git").mkdir()
    (context.cwd / "sub").mkdir()
    below = ToolContext(context.cwd / "sub")
    assert [spec.name for spec in make_toolbox(tools, (), below).specs()] == list(tools)
    monkeypatch.setattr("orch_worker.tools.shell.git._installed", lambda: False)
    assert make_toolbox(tools, (), below).specs() == ()


async def test_broken_repository_returns_gits_error(context: ToolContext) -> None:
    """The ToolError contains the message of git."""
    (context.cwd / ".git").write_text("gitdir: nowhere\n")
    with pytest.raises(ToolError, match="not a git repository"):
        await ask(git_status, context)
