"""What an agent has at hand, as data: files it read, searches, pages, tables and values, each with where it is from.

What happens to it is recorded as steps, in custom entries of the agent's session; the workspace is their fold.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

__all__ = [
    "WORKSPACE",
    "Artifact",
    "ChangeWorkspace",
    "DropArtifacts",
    "FileState",
    "InvalidateArtifacts",
    "KeepArtifact",
    "PinArtifacts",
    "ShowWorkspace",
    "Step",
    "TouchArtifacts",
    "WorkspaceChanged",
    "WorkspaceConfig",
    "WorkspaceShown",
    "WorkspaceSpec",
    "WorkspaceSteps",
]

WORKSPACE: Final = "workspace"
"""The type of the custom entries that tell of it."""

Tokens = Annotated[int, Meta(ge=0, le=1_000_000)]
Chars = Annotated[int, Meta(ge=40, le=100_000)]
Count = Annotated[int, Meta(ge=1, le=10**9)]
Bytes = Annotated[int, Meta(ge=1, le=10**15)]


class FileState(Struct, frozen=True, omit_defaults=True):
    """A file as it was: by its time of change (`mtime`, in ns) and `size`, and `sha256` (its beginning) if it is small.

    `path` is relative to the agent's folder where it is below it.
    """

    path: str
    mtime: int = 0
    size: int = 0
    sha256: str = ""


class Artifact(Struct, frozen=True, omit_defaults=True):
    """One thing that an agent has at hand, by its name: `file:PATH`, `value:NAME`, `search:...`, `page:URL`, ...

    `kind` is the type of a value, else `file`, `search`, `page`, `table` or `result`. It came of the call `call` of
    `tool` with `arguments` (as text, clipped), in the query `query`, which was the `turn`-th turn, at `at`, and was
    `used` last in that turn. It was made from the artifacts `deps` and from `files` as they were then; `size` is how
    many bytes it has, `handle` where the whole of it can be read. `stale` says why it is not to be relied on any more,
    "" while it is. Of an `untrusted` one others wrote the text.
    """

    name: str
    kind: str
    summary: str = ""
    tool: str = ""
    arguments: dict[str, str] = {}
    query: str = ""
    call: str = ""
    turn: int = 0
    at: str = ""
    used: int = 0
    deps: tuple[str, ...] = ()
    files: tuple[FileState, ...] = ()
    size: int = 0
    handle: str = ""
    untrusted: bool = False
    stale: str = ""
    pinned: bool = False


class KeepArtifact(Struct, frozen=True, tag="keep"):
    """There is an artifact, in place of the one of its name; what was made from that one is stale then, and all below.

    One that is the `same` as before makes nothing stale.
    """

    artifact: Artifact
    same: bool = False


class TouchArtifacts(Struct, frozen=True, tag="touch"):
    """The artifacts called `names` were used in that turn."""

    names: tuple[str, ...]
    turn: int


class InvalidateArtifacts(Struct, frozen=True, tag="stale"):
    """The artifacts called `names` are not to be relied on any more, and neither is what was made from them."""

    names: tuple[str, ...]
    why: str


class PinArtifacts(Struct, frozen=True, tag="pin"):
    """The artifacts called `names` are told of first, and kept; not `pinned`: they are like others again."""

    names: tuple[str, ...]
    pinned: bool = True


class DropArtifacts(Struct, frozen=True, tag="drop"):
    """The artifacts called `names` are not kept any more."""

    names: tuple[str, ...]
    why: str = ""


Step: TypeAlias = KeepArtifact | TouchArtifacts | InvalidateArtifacts | PinArtifacts | DropArtifacts


class WorkspaceSteps(Struct, frozen=True, omit_defaults=True):
    """What happened to a workspace in the query `query`, in order; `deleted` is when that was deleted for good."""

    query: str = ""
    steps: tuple[Step, ...] = ()
    deleted: str = ""


class WorkspaceConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether agents are told what they have at hand, and how much."""

    enabled: bool = False
    budget_tokens: Tokens = 1_000
    """What of it each request is told at most, by relevance; 0: nothing, it is kept for people alone."""
    capture_results: bool = True
    """Keep track of what tools answered."""
    capture_values: bool = True
    """And of what run_python bound."""
    max_summary_chars: Chars = 300
    """How much is said of each."""
    prune_turns: Count = 50
    """Out of use for so many turns, it is forgotten."""
    prune_bytes: Bytes = 500_000_000
    """When all of it together has more, the largest is forgotten first."""
    prune_count: Count = 500
    """When it is more than so many, what was not used for longest."""


class WorkspaceSpec(Struct, frozen=True):
    """What one agent is told of what it has at hand, as its configuration says."""

    budget_tokens: int = 1_000
    capture_results: bool = True
    capture_values: bool = True
    max_summary_chars: int = 300
    prune_turns: int = 50
    prune_bytes: int = 500_000_000
    prune_count: int = 500


class ShowWorkspace(Struct, frozen=True, forbid_unknown_fields=True):
    """The workspace of `ref`; those first that say most about `about`, None: the latest first."""

    ref: str
    about: str | None = None


class WorkspaceShown(Struct, frozen=True):
    """The workspace of the agent `id` after `turn` turns, its files compared with the disk just now.

    `enabled`: the agent keeps one. `digest` says in a line what there is.
    """

    id: str
    turn: int
    artifacts: tuple[Artifact, ...] = ()
    digest: str = ""
    enabled: bool = True


class ChangeWorkspace(Struct, frozen=True, forbid_unknown_fields=True):
    """Change the workspace of `ref`: `pin`, `unpin` or `drop` artifacts, by name or its end behind the colon.

    With `prune`, forget what the agent's rules would have it forget; `turns` and `bytes` are other bounds than theirs.
    """

    ref: str
    pin: tuple[str, ...] = ()
    unpin: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    prune: bool = False
    turns: Count | None = None
    bytes: Bytes | None = None


class WorkspaceChanged(Struct, frozen=True):
    """What was asked for is on record: the full names of the artifacts that were pinned, unpinned and dropped."""

    id: str
    pinned: tuple[str, ...] = ()
    unpinned: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
