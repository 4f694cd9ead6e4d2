"""Values that pass from one agent to another, or to a program.

Values pass as data files, not as text in a conversation.
"""

from __future__ import annotations

from msgspec import Struct

from .errors import ErrorInfo
from .taint import TaintLabel

__all__ = ["ExportResult", "ExportValue", "ValueInfo"]


class ValueInfo(Struct, frozen=True):
    """A value with a handle: its description, and the file in the agent's folder of values that contains it.

    `kind` is the file's format. `digest` is the beginning of the file's SHA-256 in hex. `size` is the value's size in
    memory in bytes. `marks` are the taint labels that the value adds to a conversation.
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
    """Write the value `name` (a Python variable or a handle) to a data file."""

    name: str


class ExportResult(Struct, frozen=True, gc=False, omit_defaults=True):
    """The exported value. Exactly one of `value` and `error` is set."""

    value: ValueInfo | None = None
    error: ErrorInfo | None = None
