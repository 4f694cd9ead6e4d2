"""The spec of an agent that works in a worktree instead of the folder in which the agent was spawned."""

from __future__ import annotations

import os
from collections.abc import Iterable

from msgspec.structs import replace

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.worktrees import WorktreeSpec
from orch_protocol.policy.policy import PolicyConfig
from orch_protocol.policy.sandbox import SandboxSpec

__all__ = ["in_worktree"]


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
    sandbox = _with_repository(spec.sandbox, worktree, cwd)
    return replace(spec, cwd=cwd, worktree=worktree, policy=policy, sandbox=sandbox)


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


def _with_repository(sandbox: SandboxSpec, worktree: WorktreeSpec, cwd: str) -> SandboxSpec:
    """Return `sandbox` with read access to the files that git needs outside the working folder."""
    more = [worktree.path] if cwd != worktree.path else []
    if max((sandbox.level, *sandbox.tools.values())) >= "L2":
        more.append(worktree.common)
    return replace(sandbox, read=tuple(dict.fromkeys((*sandbox.read, *more))))
