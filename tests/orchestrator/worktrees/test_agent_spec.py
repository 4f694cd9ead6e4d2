"""The rules in the spec of an agent that works in a worktree."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from orch.worktrees.agent_spec import in_worktree
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.taint import TaintConfig
from orch_protocol.core.worktrees import WorktreeSpec
from orch_protocol.policy.policy import PolicyConfig, PolicySpec
from orch_protocol.policy.sandbox import SandboxSpec


@pytest.fixture
def tree(tmp_path: Path) -> WorktreeSpec:
    """A worktree of a repository. The agent's folder is `sub`."""
    top = tmp_path / "repo"
    (top / "sub").mkdir(parents=True)
    return WorktreeSpec(
        str(tmp_path / "wt"), "orch/x", str(top), str(top / ".git"), str(top / "sub"), "main", base="0" * 40
    )


RULES, SANDBOX = PolicyConfig(), SandboxSpec()


def moved(tree: WorktreeSpec, rules: PolicyConfig = RULES, sandbox: SandboxSpec = SANDBOX) -> AgentSpec:
    """Return the spec of an agent in `sub` after it was moved to the worktree."""
    spec = AgentSpec(
        *("x", 1, "x", "t", BackendSpec("scripted"), "/f", tree.folder), policy=PolicySpec(rules=rules), sandbox=sandbox
    )
    return in_worktree(spec, tree, f"{tree.path}/sub")


def test_denied_paths_hold_in_both_folders(tree: WorktreeSpec) -> None:
    """Absolute and relative paths deny the file in both folders. A name pattern stays unchanged."""
    paths = (f"{tree.top}/keys", "inner/keys", "*.pem", "/etc/keys")
    taint = TaintConfig(untrusted_paths=(f"{tree.top}/inbox",), sensitive_paths=("out/x",))
    rules = moved(tree, PolicyConfig(denied_paths=paths, taint=taint)).policy.rules
    assert rules.denied_paths == (
        *(f"{tree.top}/keys", f"{tree.path}/keys"),
        *("inner/keys", f"{tree.folder}/inner/keys", f"{tree.path}/sub/inner/keys"),
        *("*.pem", "/etc/keys"),
    )
    assert f"{tree.path}/inbox" in rules.taint.untrusted_paths
    assert f"{tree.folder}/out/x" in rules.taint.sensitive_paths


def test_allowed_paths_move(tree: WorktreeSpec) -> None:
    """An allowed repository is replaced by its worktree, and other paths stay."""
    assert moved(tree, PolicyConfig(allowed_paths=(".", tree.top, "/data"))).policy.rules.allowed_paths == (
        *(".", tree.path, "/data"),
    )
    assert moved(tree).policy.rules.allowed_paths is None


def test_rules_move_again_for_a_fork(tree: WorktreeSpec) -> None:
    """The rules of a worktree also apply to the worktree of its fork."""
    first = moved(tree, PolicyConfig(denied_paths=(f"{tree.top}/keys",), allowed_paths=(tree.top,)))
    other = replace(tree, path=f"{tree.path}-2")
    rules = in_worktree(first, other, f"{other.path}/sub").policy.rules
    assert {f"{tree.path}/keys", f"{other.path}/keys"} < set(rules.denied_paths)
    assert rules.allowed_paths == (other.path,)


def test_git_has_the_files_that_it_needs_where_a_sandbox_hides_them(tree: WorktreeSpec) -> None:
    """The worktree is always readable. From L2, the objects of the user's repository are readable, too, and the agent's
    repository is writable.
    """
    assert (moved(tree).sandbox.read, moved(tree).sandbox.write) == ((tree.path,), ())
    objects, repository = f"{tree.common}/objects", f"{tree.path}/.git"
    sandbox = moved(tree, sandbox=SandboxSpec("L2", read=("~/.cargo",), write=("/data",))).sandbox
    assert (sandbox.read, sandbox.write) == (("~/.cargo", tree.path, objects), ("/data", repository))
    spec = moved(tree, sandbox=SandboxSpec(tools={"bash": "L3"}))
    assert (spec.sandbox.read, spec.cwd, spec.worktree) == ((tree.path, objects), f"{tree.path}/sub", tree)


def test_objects_of_a_shared_repository_are_readable(tree: WorktreeSpec, tmp_path: Path) -> None:
    """A clone with `--shared` or `--reference` names other folders with objects, by a relative or an absolute path."""
    info = Path(tree.common, "objects", "info")
    info.mkdir(parents=True)
    (info / "alternates").write_text(f"../../../other/objects\n{tmp_path}/third\n")
    read = moved(tree, sandbox=SandboxSpec("L2")).sandbox.read
    assert read == (tree.path, f"{tree.common}/objects", f"{tmp_path}/other/objects", f"{tmp_path}/third")


def test_a_fork_and_a_subagent_cannot_write_the_repository_of_their_origin(tree: WorktreeSpec) -> None:
    """The sandbox of the origin is copied, without the access to its repository."""
    first = moved(tree, sandbox=SandboxSpec("L2"))
    fork = replace(tree, path=f"{tree.path}-2")
    child = replace(fork, top=tree.path)
    for spec, other in ((first, fork), (replace(first, worktree=None), child)):
        assert in_worktree(spec, other, f"{other.path}/sub").sandbox.write == (f"{other.path}/.git",)
