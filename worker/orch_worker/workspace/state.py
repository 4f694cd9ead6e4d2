"""A workspace: the fold of its steps. No I/O, and nothing in it changes but by `apply`."""

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

CAME_OF: Final = "made from {name}, which is stale"
MADE_ANEW: Final = "made from {name} as it was before"


class Workspace:
    """What an agent has at hand, by name, in the order in which it came."""

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self.artifacts: dict[str, Artifact] = {}
        """Read, never assigned."""
        for step in steps:
            self.apply(step)

    @classmethod
    def of(cls, said: Iterable[Any]) -> Workspace:
        """Return what the data of entries, in order, amount to."""
        workspace = cls()
        for data in said:
            workspace.take(data)
        return workspace

    def __len__(self) -> int:
        return len(self.artifacts)

    def __iter__(self) -> Iterator[Artifact]:
        return iter(self.artifacts.values())

    def take(self, data: Any) -> None:
        """Apply what an entry says; what cannot be read, because it is damaged or of a later version, says nothing."""
        try:
            said = msgspec.convert(data, WorkspaceSteps)
        except (msgspec.ValidationError, RecursionError):
            return
        for step in said.steps:
            self.apply(step)

    def apply(self, step: Step) -> None:
        """Take the next step."""
        match step:
            case KeepArtifact(artifact, same):
                self._keep(artifact, same=same)
            case TouchArtifacts(names, turn):
                for each in self._there(names):
                    self.artifacts[each.name] = replace(each, used=max(each.used, turn))
            case InvalidateArtifacts(names, why):
                self._spoil(names, why)
            case PinArtifacts(names, pinned):
                for each in self._there(names):
                    self.artifacts[each.name] = replace(each, pinned=pinned)
            case DropArtifacts(names):
                for name in names:
                    self.artifacts.pop(name, None)

    def below(self, name: str) -> list[str]:
        """Return the names of what was made from `name`, directly or not, each once; `name` itself is not among it."""
        users: dict[str, list[str]] = {}
        for each in self:
            for dep in each.deps:
                users.setdefault(dep, []).append(each.name)
        found: dict[str, None] = {}
        waiting = [name]
        while waiting:
            for user in users.get(waiting.pop(), ()):
                if user != name and user not in found:
                    found[user] = None
                    waiting.append(user)
        return list(found)

    def _there(self, names: Iterable[str]) -> list[Artifact]:
        return [self.artifacts[name] for name in names if name in self.artifacts]

    def _keep(self, artifact: Artifact, *, same: bool) -> None:
        before = self.artifacts.pop(artifact.name, None)
        if before is not None and before.pinned and not artifact.pinned:
            artifact = replace(artifact, pinned=True)
        source = next((each.name for each in self._there(artifact.deps) if each.stale), None)
        if source is not None and not artifact.stale:
            artifact = replace(artifact, stale=CAME_OF.format(name=source))
        self.artifacts[artifact.name] = artifact
        if not same:
            self._spoil_below(artifact.name, MADE_ANEW.format(name=artifact.name))

    def _spoil(self, names: Iterable[str], why: str) -> None:
        """Let artifacts be stale, and then what was made from them; one that is so already keeps its reason."""
        there = self._there(names)
        for each in there:
            if not each.stale:
                self.artifacts[each.name] = replace(each, stale=why)
        for each in there:
            self._spoil_below(each.name, CAME_OF.format(name=each.name))

    def _spoil_below(self, name: str, why: str) -> None:
        for each in self._there(self.below(name)):
            if not each.stale:
                direct = name in each.deps
                why_this = why if direct else CAME_OF.format(name=self._through(each))
                self.artifacts[each.name] = replace(each, stale=why_this)

    def _through(self, artifact: Artifact) -> str:
        """Return the stale artifact that `artifact` was made from."""
        return next((each.name for each in self._there(artifact.deps) if each.stale), artifact.deps[0])


def artifacts_to_prune(
    workspace: Workspace, turn: int, *, turns: int, bytes: int, count: int
) -> tuple[DropArtifacts, ...]:
    """Return what is to be forgotten in the turn `turn`, with why.

    That is what was not used for `turns` turns; of the rest the largest, until they have at most `bytes` bytes
    together; and of the rest what was not used for longest, until there are at most `count`. Not what is pinned, and
    not what was used in this turn or the one before it: but for the number of them.
    """
    old = [each.name for each in workspace if not each.pinned and turn - each.used >= turns]
    left = [each for each in workspace if each.name not in set(old)]
    size, large = sum(each.size for each in left), []
    for each in sorted(left, key=lambda each: (-each.size, each.name)):
        if size <= bytes:
            break
        if not each.pinned and turn - each.used > 1:
            large.append(each.name)
            size -= each.size
    gone = {*old, *large}
    free = [each for each in left if each.name not in gone and not each.pinned]
    over = max(0, len(left) - len(large) - count)
    oldest = [each.name for each in sorted(free, key=lambda each: (each.used, each.turn))[:over]]
    reasons = (
        (old, f"not used for {turns} turns"),
        (large, f"over {bytes:,} bytes together, and among the largest"),
        (oldest, f"over {count} of them, and not used for longest"),
    )
    return tuple(DropArtifacts(tuple(names), why) for names, why in reasons if names)


def remove_artifacts(steps: Iterable[Step], gone: set[str]) -> tuple[Step, ...]:
    """Return `steps` without a word of the artifacts that are `gone`, whose names are in it no more once they are kept
    anew."""
    left: list[Step] = []
    for step in steps:
        if isinstance(step, KeepArtifact):
            gone.discard(step.artifact.name)
            deps = tuple(name for name in step.artifact.deps if name not in gone)
            left.append(replace(step, artifact=replace(step.artifact, deps=deps)))
        elif names := tuple(name for name in step.names if name not in gone):
            left.append(replace(step, names=names))
    return tuple(left)


def resolve_names(workspace: Workspace, said: str) -> list[str]:
    """Return the names that `said` may mean: the one it is, or those that end with it behind their colon."""
    if said in workspace.artifacts:
        return [said]
    return [name for name in workspace.artifacts if name.partition(":")[2] == said]
