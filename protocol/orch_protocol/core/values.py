"""Values that go from one agent to another, or to a program: as files of data, never through a model's words."""

from __future__ import annotations

from msgspec import Struct

from .errors import ErrorInfo
from .taint import TaintLabel

__all__ = ["ExportResult", "ExportValue", "TakeValue", "TakenValue", "ValueInfo"]


class ValueInfo(Struct, frozen=True):
    """A value under a handle of an agent: what it is, as in a marker, and the file of its stash that holds it.

    `kind` says what the file's bytes are, `digest` is the beginning of their SHA-256 in hex, `size` what the value took
    in memory. `marks` is what it brings into a conversation.
    """

    handle: str
    type: str
    extent: str
    size: int
    lines: tuple[str, ...]
    kind: str
    file: str
    digest: str
    marks: tuple[TaintLabel, ...] = ()
    local: bool = False


class ExportValue(Struct, frozen=True, gc=False):
    """Let the value that `name` stands for, bound by code or a handle, be a file of data."""

    name: str


class ExportResult(Struct, frozen=True, gc=False, omit_defaults=True):
    """It is. Exactly one of `value` and `error` is set."""

    value: ValueInfo | None = None
    error: ErrorInfo | None = None


class TakeValue(Struct, frozen=True, forbid_unknown_fields=True):
    """Take the value of `name` in the Python of the agent `ref`: a name that its code has bound, or a handle."""

    ref: str
    name: str


class TakenValue(Struct, frozen=True):
    """A value of the agent `id`, in the file at `path`, which stays the agent's: who wants to keep it copies it."""

    id: str
    name: str
    path: str
    value: ValueInfo
