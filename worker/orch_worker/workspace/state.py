"""The workspace as the fold of its steps. Only `apply` changes the workspace. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from orch_protocol.core.workspace import (
    Artifact,
    DropArtifacts,
    InvalidateArtifacts,
    KeepArtifact,
    PinArtifacts,
    Step,
    TouchArtifacts,
    WorkspaceSteps,
)

__all__ = ["Workspace", "artifacts_to_prune", "remove_artifacts", "resolve_names"]

SOURCE_IS_STALE: Final = "made from {name}, which is stale"
SOURCE_WAS_REPLACED: Final = "made from {name} as it was before"


class Workspace:
    """The artifacts of an agent, oldest first. Keys of `artifacts` are names."""

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self.artifacts: dict[str, Artifact] = {}
        """Do not assign this attribute. Call `apply` instead."""
        for step in steps:
            self.apply(step)

    @classmethod
    def of(cls, entries: Iterable[Any]) -> Workspace:
        """Return the workspace that results from the data of entries, in order."""
        workspace = cls()
        for data in entries:
            workspace.apply_entry(data)
        return workspace

    def __len__(self) -> int:
        return len(self.artifacts)

    def __iter__(self) -> Iterator[Artifact]:
        return iter(self.artifacts.values())

    def apply_entry(self, data: Any) -> None:
        """Apply the steps of an entry.

        Data that cannot be decoded is ignored, because it is damaged or from a later version.
        """
        try:
            steps = msgspec.convert(data, WorkspaceSteps)
        except (msgspec.ValidationError, RecursionError):
            return
        for step in steps.steps:
            self.apply(step)

    def apply(self, step: Step) -> None:
        """Apply the next step."""
        match step:
            case KeepArtifact(artifact, unchanged):
                self._add(artifact, unchanged=unchanged)
            case TouchArtifacts(names, turn):
                for each in self._existing(names):
                    self.artifacts[each.name] = replace(each, used=max(each.used, turn))
            case InvalidateArtifacts(names, why):
                self._mark_stale(names, why)
            case PinArtifacts(names, pinned):
                for each in self._existing(names):
                    self.artifacts[each.name] = replace(each, pinned=pinned)
            case DropArtifacts(names):
                for name in names:
                    self.artifacts.pop(name, None)

    def dependents(self, name: str) -> list[str]:
        """Return the names of all artifacts that directly or indirectly depend on `name`, without `name` itself."""
        users: dict[str, list[str]] = {}
        for each in self:
            for dep in each.deps:
                users.setdefault(dep, []).append(each.name)
        found: dict[str, None] = {}
        pending = [name]
        while pending:
            for user in users.get(pending.pop(), ()):
                if user != name and user not in found:
                    found[user] = None
                    pending.append(user)
        return list(found)

    def _existing(self, names: Iterable[str]) -> list[Artifact]:
        return [self.artifacts[name] for name in names if name in self.artifacts]

    def _add(self, artifact: Artifact, *, unchanged: bool) -> None:
        before = self.artifacts.pop(artifact.name, None)
        if before is not None and before.pinned and not artifact.pinned:
            artifact = replace(artifact, pinned=True)
        source = next((each.name for each in self._existing(artifact.deps) if each.stale), None)
        if source is not None and not artifact.stale:
            artifact = replace(artifact, stale=SOURCE_IS_STALE.format(name=source))
        self.artifacts[artifact.name] = artifact
        if not unchanged:
            self._mark_dependents_stale(artifact.name, SOURCE_WAS_REPLACED.format(name=artifact.name))

    def _mark_stale(self, names: Iterable[str], why: str) -> None:
        """Mark artifacts, and the artifacts that depend on them, as stale.

        An artifact that is already stale keeps its reason.
        """
        existing = self._existing(names)
        for each in existing:
            if not each.stale:
                self.artifacts[each.name] = replace(each, stale=why)
        for each in existing:
            self._mark_dependents_stale(each.name, SOURCE_IS_STALE.format(name=each.name))

    def _mark_dependents_stale(self, name: str, why: str) -> None:
        for each in self._existing(self.dependents(name)):
            if not each.stale:
                direct = name in each.deps
                reason = why if direct else SOURCE_IS_STALE.format(name=self._stale_source(each))
                self.artifacts[each.name] = replace(each, stale=reason)

    def _stale_source(self, artifact: Artifact) -> str:
        """Return the name of the stale artifact from which `artifact` was made."""
        return next((each.name for each in self._existing(artifact.deps) if each.stale), artifact.deps[0])


def artifacts_to_prune(
    workspace: Workspace, turn: int, *, turns: int, bytes: int, count: int
) -> tuple[DropArtifacts, ...]:
    """Return the artifacts to drop in the turn `turn`, with reasons.

    First, artifacts that were not used for `turns` turns are dropped. Then the largest artifacts are dropped until the
    total size is at most `bytes` bytes. Then the least recently used artifacts are dropped until at most `count`
    remain. Pinned artifacts are never dropped. The size limit never drops artifacts used in this turn or the previous
    turn.
    """
    unused = [each.name for each in workspace if not each.pinned and turn - each.used >= turns]
    remaining = [each for each in workspace if each.name not in set(unused)]
    size, large = sum(each.size for each in remaining), []
    for each in sorted(remaining, key=lambda each: (-each.size, each.name)):
        if size <= bytes:
            break
        if not each.pinned and turn - each.used > 1:
            large.append(each.name)
            size -= each.size
    dropped = {*unused, *large}
    droppable = [each for each in remaining if each.name not in dropped and not each.pinned]
    excess = max(0, len(remaining) - len(large) - count)
    oldest = [each.name for each in sorted(droppable, key=lambda each: (each.used, each.turn))[:excess]]
    reasons = (
        (unused, f"not used for {turns} turns"),
        (large, f"over {bytes:,} bytes together, and among the largest"),
        (oldest, f"over {count} of them, and not used for longest"),
    )
    return tuple(DropArtifacts(tuple(names), why) for names, why in reasons if names)


def remove_artifacts(steps: Iterable[Step], removed: set[str]) -> tuple[Step, ...]:
    """Return `steps` without the artifacts in `removed`.

    When a step adds a new artifact under a name in `removed`, the name is removed from `removed`.
    """
    kept_steps: list[Step] = []
    for step in steps:
        if isinstance(step, KeepArtifact):
            removed.discard(step.artifact.name)
            deps = tuple(name for name in step.artifact.deps if name not in removed)
            kept_steps.append(replace(step, artifact=replace(step.artifact, deps=deps)))
        elif names := tuple(name for name in step.names if name not in removed):
            kept_steps.append(replace(step, names=names))
    return tuple(kept_steps)


def resolve_names(workspace: Workspace, text: str) -> list[str]:
    """Return the names that match `text`: the exact name, or all names with `text` after the colon."""
    if text in workspace.artifacts:
        return [text]
    return [name for name in workspace.artifacts if name.partition(":")[2] == text]
