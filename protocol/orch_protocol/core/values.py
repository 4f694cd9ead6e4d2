"""Values that pass from one agent to another, or to a program.

Values pass as data files, not as text in a conversation.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from .errors import ErrorInfo
from .taint import TaintLabel

__all__ = ["MAX_BOUND_NAMES", "BoundName", "ExportResult", "ExportValue", "ValueDescription", "ValueInfo"]

MAX_BOUND_NAMES: Final = 500
"""Maximum number of described variables of an agent's code."""


class ValueDescription(Struct, frozen=True):
    """The type name of a value, its approximate size in bytes, and a short description."""

    kind: str
    size: int = 0
    text: str = ""


class BoundName(Struct, frozen=True):
    """The value of a name: its object id, its description, and whether the agent's code created the value."""

    id: int
    description: ValueDescription
    created_by_agent: bool = True


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
