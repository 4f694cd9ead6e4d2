"""The workspace of an agent: the files, searches, pages, tables and values that the agent has used, with their origin.

Each change is recorded as a step in a custom entry of the session. The workspace is the result of all steps.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

__all__ = [
    "WORKSPACE",
    "Artifact",
    "DropArtifacts",
    "FileState",
    "InvalidateArtifacts",
    "KeepArtifact",
    "PinArtifacts",
    "Step",
    "TouchArtifacts",
    "WorkspaceConfig",
    "WorkspaceSpec",
    "WorkspaceSteps",
]

WORKSPACE: Final = "workspace"
"""The type of the custom entries that contain workspace steps."""

Tokens = Annotated[int, Meta(ge=0, le=1_000_000)]
Chars = Annotated[int, Meta(ge=40, le=100_000)]
Count = Annotated[int, Meta(ge=1, le=10**9)]
Bytes = Annotated[int, Meta(ge=1, le=10**15)]


class FileState(Struct, frozen=True, omit_defaults=True):
    """The state of a file: `mtime` in ns and `size` in bytes. For a small file, `sha256` is the beginning of its hash.

    If the file is in the agent's folder, `path` is relative to this folder.
    """

    path: str
    mtime: int = 0
    size: int = 0
    sha256: str = ""


class Artifact(Struct, frozen=True, omit_defaults=True):
    """One item of a workspace. `name` is `file:PATH`, `value:NAME`, `search:...`, `page:URL` and so on.

    - `kind`: the type of a value, otherwise `file`, `search`, `page`, `table` or `result`.
    - `tool`, `arguments` (shortened text), `call`, `query`, `turn` (number of the turn), `at`: the call that created
      the artifact.
    - `used`: the turn in which the artifact was last used.
    - `deps`, `files`: the artifacts, and the states of the files, from which the artifact was made.
    - `size`: the size in bytes. `handle`: the handle for reading the complete content.
    - `untrusted`: other people wrote the content.
    - `stale`: why the artifact is out of date; "" if the artifact is current.
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
    """Add an artifact, or replace the artifact of the same name.

    Artifacts made from the replaced artifact become stale.

    If `same` is True, the content has not changed, and no artifact becomes stale.
    """

    artifact: Artifact
    same: bool = False


class TouchArtifacts(Struct, frozen=True, tag="touch"):
    """The artifacts `names` were used in turn `turn`."""

    names: tuple[str, ...]
    turn: int


class InvalidateArtifacts(Struct, frozen=True, tag="stale"):
    """The artifacts `names`, and all artifacts that were made from them, are out of date."""

    names: tuple[str, ...]
    why: str


class PinArtifacts(Struct, frozen=True, tag="pin"):
    """Pin the artifacts `names`: list these artifacts first and never drop them.

    If `pinned` is False, unpin these artifacts.
    """

    names: tuple[str, ...]
    pinned: bool = True


class DropArtifacts(Struct, frozen=True, tag="drop"):
    """Remove the artifacts `names`."""

    names: tuple[str, ...]
    why: str = ""


Step: TypeAlias = KeepArtifact | TouchArtifacts | InvalidateArtifacts | PinArtifacts | DropArtifacts


class WorkspaceSteps(Struct, frozen=True, omit_defaults=True):
    """The steps of the query `query`, in order.

    `deleted` is the time at which the steps were permanently deleted, or "" if they were not deleted.
    """

    query: str = ""
    steps: tuple[Step, ...] = ()
    deleted: str = ""


class WorkspaceConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the workspace."""

    enabled: bool = False
    budget_tokens: Tokens = 1_000
    """Maximum size of the workspace in each request. The most relevant artifacts come first.

    0: requests contain no workspace.
    """
    capture_results: bool = True
    """Add the results of tools to the workspace."""
    capture_values: bool = True
    """Add the variables that run_python sets to the workspace."""
    max_summary_chars: Chars = 300
    """Maximum length of an artifact's summary."""
    prune_turns: Count = 50
    """Drop an artifact that was not used during this number of turns."""
    prune_bytes: Bytes = 500_000_000
    """Drop the largest artifacts when the total size of all artifacts exceeds this number of bytes."""
    prune_count: Count = 500
    """Drop the least recently used artifacts when the number of artifacts exceeds this number."""


class WorkspaceSpec(Struct, frozen=True):
    """The workspace settings of one agent."""

    budget_tokens: int = 1_000
    capture_results: bool = True
    capture_values: bool = True
    max_summary_chars: int = 300
    prune_turns: int = 50
    prune_bytes: int = 500_000_000
    prune_count: int = 500
