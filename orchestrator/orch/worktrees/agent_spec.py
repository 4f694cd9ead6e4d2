"""The spec of an agent that works in a worktree instead of the folder in which the agent was spawned."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from msgspec.structs import replace

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import WorktreeError
from orch_protocol.core.worktrees import WorktreeSpec
from orch_protocol.policy.policy import PolicyConfig
from orch_protocol.policy.sandbox import SandboxSpec
from orch_worker.policy.path_rules import absolute_rules, credential_rules, shell_context
from orch_worker.policy.rules import path_matches

from .agent_repository import GIT_FOLDER, alternates
from .repository import check_links

__all__ = ["check_readable", "in_worktree"]


def in_worktree(spec: AgentSpec, worktree: WorktreeSpec, cwd: str) -> AgentSpec:
    """Return `spec` with the working folder `cwd` in `worktree`.

    Some rules restrict files of the original work tree, or of a worktree named in `spec`. These rules also restrict the
    same files in `worktree`.
    """
    rules = spec.policy.rules
    if spec.worktree is not None:
        rules = _moved_rules(rules, replace(worktree, top=spec.worktree.path))
    rules = _moved_rules(rules, worktree)
    policy = replace(spec.policy, rules=rules)
    others = [worktree.top, *([spec.worktree.path] if spec.worktree is not None else [])]
    sandbox = _with_repository(spec.sandbox, worktree, cwd, [os.path.join(other, GIT_FOLDER) for other in others])
    return replace(spec, cwd=cwd, worktree=worktree, policy=policy, sandbox=sandbox)


def check_readable(spec: AgentSpec, common: str, granted: Iterable[str] = ()) -> None:
    """Raise WorktreeError unless an agent that may do what `spec` says may read the repository `common`.

    The agent can write the repository in its folder, and name other folders with objects there. The folders `granted`
    are checked too.
    """
    check_links(common)
    shell, rules = shell_context(Path(spec.cwd), spec.env), spec.policy.rules
    denied = absolute_rules((*rules.denied_paths, *credential_rules(shell)), shell)
    allowed = None if rules.allowed_paths is None else absolute_rules(rules.allowed_paths, shell)
    places = [os.path.realpath(os.path.join(spec.cwd, os.path.expanduser(path))) for path in _places(spec.sandbox)]
    repository = os.path.realpath(common)
    for folder in (repository, *alternates(common), *granted):
        may_read = not any(path_matches(folder, rule) for rule in denied)
        if not path_matches(folder, repository):
            may_read = may_read and (allowed is None or any(path_matches(folder, rule) for rule in allowed))
            may_read = may_read and (not _is_confined(spec.sandbox) or any(path_matches(folder, at) for at in places))
        if not may_read:
            raise WorktreeError(f"the repository {common} has objects in {folder}, which the agent may not read")


def _places(sandbox: SandboxSpec) -> tuple[str, ...]:
    return (".", *sandbox.read, *sandbox.write)


def _is_confined(sandbox: SandboxSpec) -> bool:
    return max((sandbox.level, *sandbox.tools.values())) >= "L2"


def _moved_rules(rules: PolicyConfig, worktree: WorktreeSpec) -> PolicyConfig:
    """Return rules for the worktree.

    The rules deny the same files in both folders, and allow only files in the worktree.
    """
    taint = replace(
        rules.taint,
        untrusted_paths=_both(rules.taint.untrusted_paths, worktree),
        sensitive_paths=_both(rules.taint.sensitive_paths, worktree),
    )
    allowed = rules.allowed_paths
    return replace(
        rules,
        taint=taint,
        denied_paths=_both(rules.denied_paths, worktree),
        personal_paths=_both(rules.personal_paths, worktree),
        code_paths=_both(rules.code_paths, worktree),
        allowed_paths=None if allowed is None else tuple(_moved(path, worktree) or path for path in allowed),
    )


def _both(paths: Iterable[str], worktree: WorktreeSpec) -> tuple[str, ...]:
    """Return `paths` for the worktree and for the original work tree.

    A plain file name is unchanged, because it matches in every folder.
    """
    found: dict[str, None] = {}
    for path in paths:
        found[path] = None
        if "/" in path or path in (".", ".."):
            absolute = path if path.startswith(("/", "~")) else os.path.normpath(os.path.join(worktree.folder, path))
            found |= dict.fromkeys(filter(None, (absolute, _moved(absolute, worktree))))
    return tuple(found)


def _moved(path: str, worktree: WorktreeSpec) -> str:
    """Return the path in the worktree that corresponds to `path` in the original work tree.

    Return "" if `path` is outside the original work tree.
    """
    absolute = os.path.expanduser(path)
    real = os.path.realpath(absolute) if os.path.isabs(absolute) else ""
    is_inside = real == worktree.top or real.startswith(f"{worktree.top}/")
    return worktree.path + real[len(worktree.top) :] if is_inside else ""


def _with_repository(sandbox: SandboxSpec, worktree: WorktreeSpec, cwd: str, others: Collection[str]) -> SandboxSpec:
    """Return `sandbox` with access to the files that git needs outside the working folder.

    Git reads the objects of the user's repository, and writes the agent's repository. `others` are repositories of
    other agents; the sandbox of an agent from which this agent was made may have write access to them.
    """
    read, write = ([worktree.path], [os.path.join(worktree.path, GIT_FOLDER)]) if cwd != worktree.path else ([], [])
    if _is_confined(sandbox):
        read += (path for path in alternates(worktree.common) if _may_have_objects(path))
    else:
        write = []
    return replace(
        sandbox,
        read=tuple(dict.fromkeys((*sandbox.read, *read))),
        write=tuple(dict.fromkeys((*(path for path in sandbox.write if path not in others), *write))),
    )


def _may_have_objects(folder: str) -> bool:
    """Return whether `folder` can be a folder with objects. A list in a repository can name any folder."""
    return not os.path.isdir(folder) or any(os.path.isdir(os.path.join(folder, name)) for name in ("info", "pack"))
