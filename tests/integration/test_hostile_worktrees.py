"""Repositories and agents that try to make the root's git run a program, or read or write files elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from orch.worktrees.agent_spec import check_readable, in_worktree
from orch.worktrees.lifecycle import create, lost_work, records, remove_at, remove_if_clean, restore
from orch.worktrees.merge import merge
from orch.worktrees.report import report
from orch.worktrees.snapshot import commit_of
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import WorktreeError
from orch_protocol.core.worktrees import WorktreeSpec
from orch_protocol.policy.policy import PolicyConfig, PolicySpec
from orch_protocol.policy.sandbox import SandboxSpec

ID = "abcabcabcabc"
RULES, SANDBOX = PolicyConfig(), SandboxSpec()
HOOKS = (
    *("post-checkout", "post-commit", "post-index-change", "post-merge", "post-rewrite", "pre-auto-gc", "pre-commit"),
    *("pre-merge-commit", "prepare-commit-msg", "commit-msg", "reference-transaction", "fsmonitor-watchman"),
    *("update", "pre-receive", "post-receive", "post-update"),
)
PROGRAMS = {
    "filter.x.clean": "{bait}",
    "filter.x.smudge": "{bait}",
    "filter.x.process": "{bait}",
    "filter.x.required": "true",
    "merge.x.driver": "{bait}",
    "merge.default": "x",
    "diff.external": "{bait}",
    "diff.x.textconv": "{bait}",
    "diff.x.command": "{bait}",
    "core.fsmonitor": "{bait}",
    "core.pager": "{bait}",
    "core.editor": "{bait}",
    "core.askPass": "{bait}",
    "core.sshCommand": "{bait}",
    "core.gitProxy": "{bait}",
    "core.alternateRefsCommand": "{bait}",
    "uploadpack.packObjectsHook": "{bait}",
    "pager.log": "{bait}",
    "pager.status": "{bait}",
    "commit.gpgSign": "true",
    "log.showSignature": "true",
    "gpg.program": "{bait}",
    "credential.helper": "!{bait}",
    "alias.status": "!{bait}",
    "hook.x.command": "{bait}",
    "hook.x.event": "reference-transaction",
    "remote.origin.url": "ext::{bait}",
    "remote.origin.uploadpack": "{bait}",
    "remote.origin.promisor": "true",
    "protocol.ext.allow": "always",
}


@pytest.fixture
def bait(tmp_path: Path) -> Path:
    """A program that passes its input on, and creates the file "ran" beside itself."""
    program = tmp_path / "bait"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\ncat\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's repository with one commit on the branch main. The user has a name."""
    (tmp_path / "gitconfig").write_text("[user]\nname = Ann\nemail = ann@example.test\n[init]\ndefaultBranch = main\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "a.txt").write_text("one\n")
    git(repo, "init", "-q")
    git(repo, "add", ".")
    git(repo, "commit", "-qm", "first")
    return repo


def git(folder: Path | str, *arguments: str) -> str:
    """Run git as the user does, and return the output."""
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True, timeout=30)
    return done.stdout.strip()


def spawned(repo: Path, id: str = ID) -> tuple[WorktreeSpec, Path]:
    """Create a worktree as a spawn in `repo` does. Return the worktree and its folder."""
    spec, _, _ = create(str(repo), run_of(repo), id)
    return spec, Path(spec.path)


def run_of(repo: Path) -> Path:
    """Return the folder of the run."""
    return repo.parent / "home" / "runs" / "work"


def settings(bait: Path, without: str = " ") -> str:
    """Return the text of a configuration file that names `bait` in each way, except settings that start `without`."""
    lines = []
    for name, value in PROGRAMS.items():
        if name.startswith(without):
            continue
        section, key = name.rsplit(".", 1)
        first, _, rest = section.partition(".")
        lines += [f'[{first} "{rest}"]' if rest else f"[{first}]", f'\t{key} = "{value.format(bait=bait)}"']
    return "\n".join([*lines, ""])


def add_hooks(folder: Path, bait: Path) -> None:
    """Make each hook in `folder` run `bait`."""
    folder.mkdir(exist_ok=True)
    for name in HOOKS:
        (folder / name).write_text(f"#!/bin/sh\nexec {bait} < /dev/null\n")
        (folder / name).chmod(0o755)


def add_attributes(git_folder: Path) -> None:
    """Assign the filter and the drivers to all files."""
    (git_folder / "info").mkdir(exist_ok=True)
    (git_folder / "info" / "attributes").write_text("* filter=x merge=x diff=x\n")


def in_configuration(repo: Path, bait: Path) -> None:
    with (repo / ".git" / "config").open("a") as file:
        file.write(settings(bait))
    add_attributes(repo / ".git")


def in_include(repo: Path, bait: Path, condition: str = "") -> None:
    (repo / ".git" / "more").write_text(settings(bait, without="remote"))
    section = f'includeIf "{condition}"' if condition else "include"
    with (repo / ".git" / "config").open("a") as file:
        file.write(f'[remote "fork"]\n\turl = https://example.test/x\n[{section}]\n\tpath = more\n')
    add_attributes(repo / ".git")


def in_worktree_configuration(repo: Path, bait: Path) -> None:
    git(repo, "config", "core.repositoryformatversion", "1")
    git(repo, "config", "extensions.worktreeConfig", "true")
    (repo / ".git" / "config.worktree").write_text(settings(bait))
    add_attributes(repo / ".git")


def in_committed_attributes(repo: Path, bait: Path) -> None:
    (repo / ".gitattributes").write_text("* filter=x merge=x diff=x\n")
    git(repo, "add", ".")
    git(repo, "commit", "-qm", "attributes")
    with (repo / ".git" / "config").open("a") as file:
        file.write(settings(bait))


def in_hooks(repo: Path, bait: Path) -> None:
    add_hooks(repo / ".git" / "hooks", bait)


def in_hooks_elsewhere(repo: Path, bait: Path) -> None:
    add_hooks(repo / "hooks", bait)
    (repo / ".git" / "info" / "exclude").write_text("hooks\n")
    with (repo / ".git" / "config").open("a") as file:
        file.write(f"[core]\n\thooksPath = {repo / 'hooks'}\n")


def in_global_configuration(repo: Path, bait: Path) -> None:
    with (repo.parent / "gitconfig").open("a") as file:
        file.write(settings(bait))
    add_attributes(repo / ".git")


def in_linked_work_tree(repo: Path, bait: Path) -> None:
    """The user works in a worktree of the user's own, with a configuration for this worktree."""
    in_worktree_configuration(repo, bait)
    shutil.copyfile(
        repo / ".git" / "config.worktree", next((repo / ".git" / "worktrees").iterdir()) / "config.worktree"
    )
    in_configuration(repo, bait)
    in_hooks(repo, bait)


PLACES: dict[str, Callable[[Path, Path], None]] = {
    "configuration": in_configuration,
    "include": in_include,
    "onbranch:orch/": lambda repo, bait: in_include(repo, bait, "onbranch:orch/"),
    "onbranch:**": lambda repo, bait: in_include(repo, bait, "onbranch:**"),
    "gitdir:/": lambda repo, bait: in_include(repo, bait, "gitdir:/"),
    "hasconfig": lambda repo, bait: in_include(repo, bait, "hasconfig:remote.*.url:https://example.test/*"),
    "config.worktree": in_worktree_configuration,
    "attributes": in_committed_attributes,
    "hooks": in_hooks,
    "hooksPath": in_hooks_elsewhere,
    "global": in_global_configuration,
}


class TestRepositoriesThatNamePrograms:
    """The user unpacked a repository with its `.git` folder, or an agent changed it."""

    @pytest.mark.parametrize("place", PLACES)
    def test_no_program_runs_from_spawn_to_removal(self, repo: Path, bait: Path, place: str) -> None:
        """The whole life of a worktree: creation, report, merge, removal and restoration."""
        PLACES[place](repo, bait)
        (repo / "a.txt").touch()
        (bait.parent / "ran").unlink(missing_ok=True)
        self.assert_life_works(repo, bait)

    def test_programs_of_a_linked_work_tree_do_not_run(self, repo: Path, bait: Path) -> None:
        """The user works in another work tree of the repository, which has its own configuration."""
        linked = repo.parent / "linked"
        git(repo, "worktree", "add", "-q", "-b", "topic", str(linked))
        in_linked_work_tree(repo, bait)
        self.assert_life_works(linked, bait)

    @pytest.mark.parametrize("place", ["configuration", "onbranch:**", "gitdir:/", "config.worktree", "attributes"])
    def test_plain_git_runs_the_programs(self, repo: Path, bait: Path, place: str) -> None:
        """Git as a user runs it would run the program, so the tests above can fail."""
        PLACES[place](repo, bait)
        (bait.parent / "ran").unlink(missing_ok=True)
        subprocess.run(["git", "worktree", "add", "-q", "../other"], cwd=repo, capture_output=True, timeout=30)
        assert (bait.parent / "ran").exists()

    def test_git_is_not_taken_from_the_repository(
        self, repo: Path, bait: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A program called git in a folder of PATH is not run, and variables of git do not count."""
        (repo / "bin").mkdir()
        shutil.copy(bait, repo / "bin" / "git")
        (repo / ".git" / "info" / "exclude").write_text("bin\n")
        with monkeypatch.context() as patched:
            patched.chdir(repo)
            patched.setenv("PATH", f"bin:{repo / 'bin'}:{os.environ['PATH']}")
            for name in ("GIT_EXTERNAL_DIFF", "GIT_SSH_COMMAND", "GIT_PAGER", "GIT_PROXY_COMMAND", "GIT_ASKPASS"):
                patched.setenv(name, str(bait))
            patched.setenv("GIT_EXEC_PATH", str(repo / "bin"))
            patched.setenv("GIT_DIR", str(repo.parent / "nowhere"))
            spec, place = spawned(repo)
            (place / "a.txt").write_text("two\n")
            merge(spec, "smith")
        assert ((repo / "a.txt").read_text(), (bait.parent / "ran").exists()) == ("two\n", False)

    def assert_life_works(self, top: Path, bait: Path) -> None:
        """Use a worktree of `top` in all ways. Assert that the results are right, and that no program ran."""
        spec, place = spawned(top)
        assert (place / "a.txt").read_text() == "one\n"
        (place / "a.txt").write_text("two\n")
        (place / "new.txt").write_text("new\n")
        changes = report(spec, "smith")
        assert (changes.problem, changes.files, changes.uncommitted) == ("", ("a.txt", "new.txt"), 2)
        assert commit_of(spec, "smith")
        assert lost_work(records(run_of(top))[0]) == "uncommitted changes"
        _, commit = merge(spec, "smith")
        assert (top / "a.txt").read_text() == "two\n"
        assert remove_if_clean(spec)
        restore(spec)
        assert (place / "new.txt").read_text() == "new\n"
        assert remove_at(place)
        assert not (bait.parent / "ran").exists()
        assert commit in git(top, "--no-pager", "-c", "core.fsmonitor=false", "rev-parse", "HEAD")


def link(path: Path, target: Path) -> None:
    """Replace `path` by a link to `target`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(target)


def fifo(path: Path) -> None:
    """Replace `path` by a pipe."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)


class TestAgentsThatChangeTheirRepository:
    """An agent writes every file in its worktree, also in `.git`."""

    @pytest.fixture
    def place(self, repo: Path) -> Path:
        """The worktree of the agent, which committed a change."""
        _, place = spawned(repo)
        (place / "a.txt").write_text("two\n")
        git(place, "commit", "-qam", "second")
        return place

    def spec(self, place: Path) -> WorktreeSpec:
        """Return the worktree in the folder `place`."""
        return records(place.parent.parent)[0].spec

    def test_programs_in_the_agents_repository_do_not_run(self, repo: Path, place: Path, bait: Path) -> None:
        """Configuration, attributes, hooks and a repository in the worktree name programs."""
        with (place / ".git" / "config").open("a") as file:
            file.write(settings(bait))
        add_attributes(place / ".git")
        add_hooks(place / ".git" / "hooks", bait)
        (place / ".gitattributes").write_text("* filter=x merge=x diff=x\n")
        (bait.parent / "ran").unlink(missing_ok=True)
        changes = report(self.spec(place), "smith")
        assert (changes.problem, changes.files, len(changes.commits)) == ("", (".gitattributes", "a.txt"), 1)
        merge(self.spec(place), "smith")
        assert ((repo / "a.txt").read_text(), (bait.parent / "ran").exists()) == ("two\n", False)

    @pytest.mark.parametrize("where", ["committed", "staged", "untracked"])
    def test_a_repository_inside_the_worktree_is_not_entered(self, place: Path, bait: Path, where: str) -> None:
        """Git would ask a submodule for its changes, and run the programs of the submodule."""
        inner = place / "inner"
        inner.mkdir()
        (inner / "x").write_text("x\n")
        git(inner, "init", "-q")
        git(inner, "add", ".")
        git(inner, "commit", "-qm", "inner")
        if where != "untracked":
            git(place, "-c", "advice.addEmbeddedRepo=false", "add", "inner")
        if where == "committed":
            git(place, "commit", "-qm", "with inner")
        with (inner / ".git" / "config").open("a") as file:
            file.write(settings(bait))
        add_attributes(inner / ".git")
        add_hooks(inner / ".git" / "hooks", bait)
        (inner / "x").write_text("changed\n")
        changes = report(self.spec(place), "smith")
        assert (bait.parent / "ran").exists() is False
        assert changes.problem == "" if where == "committed" else "is a separate repository" in changes.problem

    @pytest.mark.parametrize(
        "name", ["", "HEAD", "packed-refs", "index", "objects", "objects/pack", "refs", "refs/heads"]
    )
    @pytest.mark.parametrize("replace", [link, fifo])
    def test_links_and_pipes_are_not_followed(
        self, repo: Path, place: Path, name: str, replace: Callable[..., None]
    ) -> None:
        """Files of the agent's repository are links to files of the user, or pipes. No file elsewhere changes."""
        elsewhere = repo.parent / "elsewhere"
        shutil.copytree(repo / ".git", elsewhere)
        (elsewhere / "packed-refs").write_text("the user's\n")
        before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
        target = place / ".git" / name if name else place / ".git"
        if replace is fifo:
            if target.is_dir():
                shutil.rmtree(target)
            fifo(target)
        else:
            link(target, elsewhere / name)
        spec = self.spec(place)
        changes = report(spec, "smith")
        assert changes.problem or changes.files == ("a.txt",)
        try:
            merge(spec, "smith")
        except WorktreeError:
            assert (repo / "a.txt").read_text() == "one\n"
        else:
            assert (repo / "a.txt").read_text() == "two\n"
        assert {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()} == before

    @pytest.mark.parametrize("content", ["gitdir: {evil}/.git\n", "no link\n", ""])
    def test_a_git_file_of_the_agent_is_ignored(self, repo: Path, place: Path, bait: Path, content: str) -> None:
        """The last commit that orch saw, and the files of the worktree, are merged."""
        evil = repo.parent / "evil"
        evil.mkdir()
        git(evil, "init", "-q")
        with (evil / ".git" / "config").open("a") as file:
            file.write(settings(bait))
        shutil.rmtree(place / ".git")
        if content:
            (place / ".git").write_text(content.format(evil=evil))
        merge(self.spec(place), "smith")
        assert ((repo / "a.txt").read_text(), (bait.parent / "ran").exists()) == ("two\n", False)

    def test_objects_of_another_repository_are_not_copied(self, repo: Path, place: Path) -> None:
        """A list of alternate folders in the agent's repository does not count."""
        secret = repo.parent / "secret"
        secret.mkdir()
        (secret / "key").write_text("CANARY\n")
        git(secret, "init", "-q")
        git(secret, "add", ".")
        git(secret, "commit", "-qm", "secret")
        with (place / ".git" / "objects" / "info" / "alternates").open("a") as file:
            file.write(f"{secret / '.git' / 'objects'}\n")
        tree = git(secret, "rev-parse", "HEAD^{tree}")
        commit = git(place, "commit-tree", tree, "-p", "HEAD", "-m", "stolen")
        git(place, "update-ref", "HEAD", commit)
        assert "cannot be copied" in report(self.spec(place), "smith").problem
        with pytest.raises(WorktreeError, match="cannot be copied"):
            merge(self.spec(place), "smith")
        assert "CANARY" not in "".join(git(repo, "log", "--all", "-p"))

    def test_a_forged_object_does_not_replace_an_object_of_the_user(self, repo: Path, place: Path) -> None:
        """An object file whose content does not match its name is not used."""
        (repo / "b.txt").write_text("base\n")
        git(repo, "add", ".")
        git(repo, "commit", "-qm", "base")
        blob = git(repo, "rev-parse", "HEAD:b.txt")
        (place / "forged").write_text("forged\n")
        forged = git(place, "hash-object", "-w", "forged")
        objects = place / ".git" / "objects"
        (objects / blob[:2]).mkdir(exist_ok=True)
        shutil.copyfile(objects / forged[:2] / forged[2:], objects / blob[:2] / blob[2:])
        report(self.spec(place), "smith")
        assert git(repo, "cat-file", "-p", blob) == "base"

    def test_staged_files_that_are_ignored_are_part_of_the_work(self, repo: Path, place: Path) -> None:
        """A file that the agent added in spite of the list of ignored files is merged; other ignored files are not."""
        (place / ".gitignore").write_text("*.log\n")
        (place / "kept.log").write_text("kept\n")
        (place / "other.log").write_text("other\n")
        git(place, "add", "-f", "kept.log")
        assert report(self.spec(place), "smith").files == (".gitignore", "a.txt", "kept.log")
        merge(self.spec(place), "smith")
        assert ((repo / "kept.log").exists(), (repo / "other.log").exists()) == (True, False)
        assert git(place, "status", "--porcelain") == ""


def secret_repository(repo: Path) -> Path:
    """Return another repository of the user, with the file `key`."""
    secret = repo.parent / "secret"
    secret.mkdir()
    (secret / "key").write_text("CANARY\n")
    git(secret, "init", "-q")
    git(secret, "add", ".")
    git(secret, "commit", "-qm", "secret")
    return secret


def link_refs(git_folder: Path, secret: Path) -> None:
    """Lead all refs and objects to the repository `secret`."""
    for name in ("refs", "objects"):
        link(git_folder / name, secret / ".git" / name)


def link_branch(git_folder: Path, secret: Path) -> None:
    """Lead the branch that is checked out to a branch of the repository `secret`, and use its objects."""
    link(git_folder / "refs/heads/main", secret / ".git/refs/heads/main")
    list_objects(git_folder, secret)


def link_shards(git_folder: Path, secret: Path) -> None:
    """Lead folders with objects to the repository `secret`. Its commit is known."""
    for shard in (secret / ".git/objects").glob("??"):
        link(git_folder / "objects" / shard.name, shard)
    (git_folder / "refs/heads/main").write_bytes((secret / ".git/refs/heads/main").read_bytes())


def link_files(git_folder: Path, secret: Path) -> None:
    """Lead files with objects to the repository `secret`. Its commit is known."""
    for file in (secret / ".git/objects").glob("??/*"):
        (git_folder / "objects" / file.parent.name).mkdir(exist_ok=True)
        link(git_folder / "objects" / file.parent.name / file.name, file)
    (git_folder / "refs/heads/main").write_bytes((secret / ".git/refs/heads/main").read_bytes())


def link_log(git_folder: Path, secret: Path) -> None:
    """Lead the log of refs, which the root writes, to the repository `secret`."""
    link(git_folder / "logs", secret / ".git/logs")


def list_objects(git_folder: Path, secret: Path) -> None:
    """List the objects of the repository `secret` as objects of this one."""
    (git_folder / "objects/info/alternates").write_text(f"{secret}/.git/objects\n")


def list_objects_in_quotes(git_folder: Path, secret: Path) -> None:
    """List the objects as git lists paths with special characters."""
    (git_folder / "objects/info/alternates").write_text(
        f'"{str(secret)[:-1]}\\{ord(str(secret)[-1]):o}/.git/objects"\n'
    )


def list_objects_below_comments(git_folder: Path, secret: Path) -> None:
    """List the objects at the end of a long list."""
    list_objects(git_folder, secret)
    file = git_folder / "objects/info/alternates"
    file.write_text("# comment\n" * 5000 + file.read_text())


def list_objects_in_a_second_list(git_folder: Path, secret: Path) -> None:
    """List another folder of this repository, which has a list too."""
    (git_folder / "more/info").mkdir(parents=True)
    (git_folder / "objects/info/alternates").write_text("../more\n")
    (git_folder / "more/info/alternates").write_text(f"{secret}/.git/objects\n")


LINKS = (link_refs, link_branch, link_shards, link_files, link_log)
LISTS = (list_objects, list_objects_in_quotes, list_objects_below_comments, list_objects_in_a_second_list)


class TestAgentsThatChangeTheUsersRepository:
    """An agent writes every file in its folder, also in `.git`. It leads the root to a repository it may not read."""

    def spec(self, repo: Path, rules: PolicyConfig = RULES, sandbox: SandboxSpec = SANDBOX) -> AgentSpec:
        """Return the spec of a subagent in `repo`."""
        given = ("x", 1, "x", "t", BackendSpec("scripted"), "/f", str(repo))
        return AgentSpec(*given, policy=PolicySpec(rules=rules), sandbox=sandbox)

    @pytest.mark.parametrize("change", LINKS)
    def test_links_out_of_the_repository_are_refused(self, repo: Path, change: Callable[[Path, Path], None]) -> None:
        """The error names the link. Nothing is created, and the other repository does not change."""
        secret = secret_repository(repo)
        before = {path: path.read_bytes() for path in secret.rglob("*") if path.is_file()}
        change(repo / ".git", secret)
        with pytest.raises(WorktreeError, match=r"is a link to .*secret.*, outside the repository"):
            spawned(repo)
        assert list(run_of(repo).rglob("*")) == [run_of(repo) / "worktrees"]
        assert {path: path.read_bytes() for path in secret.rglob("*") if path.is_file()} == before

    @pytest.mark.parametrize("change", LINKS)
    def test_links_that_are_made_later_are_refused(self, repo: Path, change: Callable[[Path, Path], None]) -> None:
        """Neither the report nor the merge uses them."""
        spec, place = spawned(repo)
        (place / "a.txt").write_text("two\n")
        change(repo / ".git", secret_repository(repo))
        assert "outside the repository" in report(spec, "smith").problem
        with pytest.raises(WorktreeError, match="outside the repository"):
            merge(spec, "smith")

    def test_links_inside_the_repository_work(self, repo: Path) -> None:
        """Old versions of git made HEAD a link."""
        (repo / ".git" / "objects").rename(repo / ".git" / "data")
        (repo / ".git" / "objects").symlink_to("data")
        link(repo / ".git" / "HEAD", Path("refs/heads/main"))
        assert (spawned(repo)[1] / "a.txt").exists()

    @pytest.mark.parametrize("change", LISTS)
    @pytest.mark.parametrize("how", ["confined", "denied", "not allowed"])
    def test_objects_that_the_agent_may_not_read_are_refused(
        self, repo: Path, change: Callable[[Path, Path], None], how: str
    ) -> None:
        """A sandbox or a rule keeps the agent out of the folder. The user's own spawns use the folder."""
        secret = secret_repository(repo)
        change(repo / ".git", secret)
        rules = {"denied": PolicyConfig(denied_paths=(str(secret),)), "not allowed": PolicyConfig(allowed_paths=(".",))}
        spec = self.spec(repo, rules.get(how, RULES), SandboxSpec("L2") if how == "confined" else SANDBOX)
        with pytest.raises(WorktreeError, match=r"has objects in .*secret/.git/objects, which the agent may not read"):
            create(str(repo), run_of(repo), ID, check=partial(check_readable, spec))
        create(str(repo), run_of(repo), ID)
        confined = replace(spec, sandbox=SandboxSpec("L2", read=(str(secret),)), policy=PolicySpec())
        create(str(repo), run_of(repo), ID[::-1], check=partial(check_readable, confined))

    def test_a_denied_repository_in_the_folder_is_refused(self, repo: Path) -> None:
        """A `.git` file may name a repository below the folder."""
        secret_repository(repo).rename(repo / "secret")
        shutil.rmtree(repo / ".git")
        (repo / ".git").write_text("gitdir: secret/.git\n")
        spec = self.spec(repo, PolicyConfig(denied_paths=("secret",)))
        with pytest.raises(WorktreeError, match="which the agent may not read"):
            create(str(repo), run_of(repo), ID, check=partial(check_readable, spec))

    @pytest.mark.parametrize("name", ["info/exclude", "shallow"])
    def test_a_linked_file_is_not_copied(self, repo: Path, name: str) -> None:
        """The agent could read the copy in its own repository."""
        (repo.parent / "key").write_text("CANARY\n")
        link(repo / ".git" / name, repo.parent / "key")
        with pytest.raises(WorktreeError, match="outside the repository"):
            spawned(repo)
        assert not list(run_of(repo).rglob("exclude"))

    def test_a_sandbox_shows_no_folder_without_objects(self, repo: Path) -> None:
        """A list can name any folder, also the user's home."""
        (repo / ".git/objects/info/alternates").write_text(f"{repo.parent}\n")
        spec, place = spawned(repo)
        isolated = in_worktree(self.spec(repo, sandbox=SandboxSpec("L2")), spec, str(place))
        assert isolated.sandbox.read == (str(repo / ".git/objects"),)


class TestKindsOfRepositories:
    """Repositories of other formats and in other states."""

    def assert_merged(self, repo: Path) -> None:
        """Let an agent commit one file and leave another, and merge both into `repo`."""
        spec, place = spawned(repo)
        assert git(place, "status", "--porcelain") == ""
        (place / "new.txt").write_text("new\n")
        git(place, "add", ".")
        git(place, "commit", "-qm", "new")
        (place / "more.txt").write_text("more\n")
        changes = report(spec, "smith")
        assert (changes.problem, changes.files, len(changes.commits)) == ("", ("more.txt", "new.txt"), 1)
        _, commit = merge(spec, "smith")
        assert (git(repo, "rev-parse", "HEAD"), git(repo, "status", "--porcelain")) == (commit, "")
        assert (git(place, "rev-parse", "HEAD"), git(place, "status", "--porcelain")) == (commit, "")
        assert git(place, "log", "-1", "--format=%an <%ae>") == "Ann <ann@example.test>"
        assert remove_if_clean(spec)
        assert git(repo, "fsck", "--strict") == ""

    def test_sha256(self, repo: Path) -> None:
        """The ids of objects have 64 digits."""
        shutil.rmtree(repo / ".git")
        git(repo, "init", "-q", "--object-format=sha256")
        git(repo, "add", ".")
        git(repo, "commit", "-qm", "first")
        self.assert_merged(repo)

    @pytest.mark.parametrize("options", [("--depth=1",), ("--filter=blob:none",), ("--shared",), ("--no-checkout",)])
    def test_clones(self, repo: Path, options: tuple[str, ...]) -> None:
        """Shallow, partial and shared clones."""
        for name in ("second", "third"):
            (repo / "a.txt").write_text(f"{name}\n")
            git(repo, "commit", "-qam", name)
        git(repo, "config", "uploadpack.allowFilter", "true")
        git(repo.parent, "clone", "-q", *options, f"file://{repo}", "clone")
        clone = repo.parent / "clone"
        if options == ("--no-checkout",):
            git(clone, "checkout", "-q", "main")
        self.assert_merged(clone)

    def test_partial_clone_without_the_needed_files_is_refused(self, repo: Path, bait: Path) -> None:
        """Git does not fetch the missing objects, because this would run a program that the repository names."""
        git(repo, "config", "uploadpack.allowFilter", "true")
        git(repo.parent, "clone", "-q", "--filter=blob:none", "--no-checkout", f"file://{repo}", "clone")
        clone = repo.parent / "clone"
        for name, value in (("uploadpack", bait), ("url", f"ssh://host{repo}")):
            git(clone, "config", f"remote.origin.{name}", str(value))
        git(clone, "config", "core.sshCommand", str(bait))
        with pytest.raises(WorktreeError, match="is a partial clone: fetch all objects of"):
            spawned(clone)
        assert not (bait.parent / "ran").exists()
        assert git(clone, "branch") == "* main"

    def test_packed_refs_and_odd_files(self, repo: Path) -> None:
        """Packed refs and objects, an executable file, a link, and names with other characters."""
        (repo / "run").write_text("#!/bin/sh\n")
        (repo / "run").chmod(0o755)
        (repo / "link").symlink_to("a.txt")
        (repo / "n\u00e9w \n;").write_text("x")
        Path(os.fsdecode(os.fsencode(repo) + b"/\xff")).write_text("x")
        git(repo, "add", ".")
        git(repo, "commit", "-qm", "more")
        git(repo, "gc", "-q")
        git(repo, "pack-refs", "--all")
        self.assert_merged(repo)

    def test_sparse_checkout_of_the_user_stays(self, repo: Path) -> None:
        """The worktree has all files, and the user's work tree gets only the selected folders."""
        for name in ("left", "right"):
            (repo / name).mkdir()
            (repo / name / "x.txt").write_text("x\n")
        git(repo, "add", ".")
        git(repo, "commit", "-qm", "folders")
        git(repo, "sparse-checkout", "set", "left")
        spec, place = spawned(repo)
        (place / "right" / "x.txt").write_text("y\n")
        (place / "left" / "x.txt").write_text("y\n")
        merge(spec, "smith")
        assert ((repo / "left" / "x.txt").read_text(), (repo / "right").exists()) == ("y\n", False)
        assert git(repo, "status", "--porcelain") == ""

    def test_submodule_without_its_description_stays(self, repo: Path) -> None:
        """The repository has a link to a commit of another repository, and no `.gitmodules`."""
        inner = repo / "inner"
        git(repo, "init", "-q", str(inner))
        git(inner, "commit", "-q", "--allow-empty", "-m", "inner")
        git(repo, "-c", "advice.addEmbeddedRepo=false", "add", "inner")
        git(repo, "commit", "-qm", "with inner")
        self.assert_merged(repo)
        assert git(repo, "ls-files", "inner") == "inner"

    def test_refs_of_the_user_are_current_in_the_worktree(self, repo: Path) -> None:
        """The agent sees branches and tags, and a report updates them. Branches of the agent stay."""
        git(repo, "tag", "v1")
        spec, place = spawned(repo)
        git(place, "branch", "own")
        git(place, "pack-refs", "--all")
        (repo / "b.txt").write_text("b\n")
        git(repo, "add", ".")
        git(repo, "commit", "-qm", "second")
        git(repo, "tag", "v2")
        assert report(spec, "smith").problem == ""
        assert git(place, "rev-parse", "main", "v2") == git(repo, "rev-parse", "main", "v2")
        assert set(git(place, "branch", "--format=%(refname:short)").splitlines()) == {"main", "own", spec.branch}
        assert git(place, "merge", "-q", "main") == ""
        assert report(spec, "smith").files == ()

    def test_commits_that_the_user_adds_to_the_branch_stay(self, repo: Path) -> None:
        """The branch of an agent is not moved back while the agent has no newer commits."""
        spec, place = spawned(repo)
        git(repo, "worktree", "add", "-q", str(repo.parent / "review"), spec.branch)
        git(repo.parent / "review", "commit", "-q", "--allow-empty", "-m", "reviewed")
        tip = git(repo, "rev-parse", spec.branch)
        assert report(spec, "smith").problem == ""
        assert git(repo, "rev-parse", spec.branch) == tip
        git(place, "commit", "-q", "--allow-empty", "-m", "newer")
        assert "is checked out in" in report(spec, "smith").problem
        assert git(repo, "rev-parse", spec.branch) == tip

    def test_bare_repository_is_refused(self, repo: Path) -> None:
        """An agent needs a work tree."""
        git(repo.parent, "clone", "-q", "--bare", str(repo), "bare")
        with pytest.raises(WorktreeError, match="is not a git repository"):
            spawned(repo.parent / "bare")

    def test_linked_git_folder_elsewhere_is_refused(self, repo: Path) -> None:
        """`.git` is a link to the repository of another folder."""
        other = repo.parent / "other"
        other.mkdir()
        (other / ".git").symlink_to(repo / ".git")
        with pytest.raises(WorktreeError, match="does not list this folder as a work tree"):
            spawned(other)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives files away")
    def test_repository_of_another_user_needs_the_users_trust(self, repo: Path) -> None:
        """The user names it as safe in the global configuration. The repository cannot do this itself."""
        git(repo, "config", "safe.directory", "*")
        os.chown(repo / ".git", 65534, 65534)
        with pytest.raises(WorktreeError, match="dubious ownership"):
            spawned(repo)
        git(repo, "config", "--global", "safe.directory", "*")
        assert spawned(repo)[1].is_dir()

    def test_a_forged_record_beside_a_folder_is_not_used(self, repo: Path) -> None:
        """A repository in a folder called worktrees, with a file as orch writes it, is an ordinary repository."""
        spec, _ = spawned(repo)
        fake = repo.parent / "x" / "y" / "worktrees" / "z"
        shutil.copytree(repo, fake)
        shutil.copyfile(f"{spec.path}.json", f"{fake}.json")
        assert spawned(fake, "cbacbacbacba")[0].top == str(fake)
