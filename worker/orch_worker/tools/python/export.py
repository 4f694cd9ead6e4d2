"""Letting a value of an agent go to another one, or to its user's program: by name, as a file of data."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from orch_protocol.core.errors import NoValueError
from orch_protocol.core.taint import bits_in, join_labels
from orch_protocol.core.values import ValueInfo

from ..api.base import ToolContext, ToolError
from ..values.codec import NotTransferableError
from ..values.store import SPELLING
from ..values.values import ValueStore

if TYPE_CHECKING:
    from .namespace import Namespace

__all__ = ["export", "stored_value"]

RUN: frozenset[str] = frozenset({"run_python"})


async def export(context: ToolContext, name: str) -> ValueInfo:
    """Return what `name` stands for in the agent of `context`, stored: a handle, or what its code has bound.

    Raises NoValueError, which says what is wrong with the name or the value and what to do.
    """
    if SPELLING.fullmatch(name.strip()):
        return await asyncio.to_thread(stored_value, context, name)
    if not name.isidentifier():
        raise NoValueError(
            f"{name!r} is neither a variable name nor a handle such as .h_001: let the agent assign the value to a name"
        )
    if context.granted.isdisjoint(RUN):
        raise NoValueError(f"cannot read variable {name!r}: the agent has no run_python, so it has only handles")
    from .namespace import Namespace

    return await asyncio.to_thread(_bound, context, context.own(Namespace), name)


def stored_value(context: ToolContext, handle: str) -> ValueInfo:
    """Return what is stored under `handle`. Raises NoValueError."""
    values = context.own(ValueStore)
    try:
        kept, file = values.get(handle), values.file(handle)
    except ToolError as error:
        raise NoValueError(str(error)) from error
    except OSError as error:
        raise NoValueError(f"{handle} cannot be read: {error.strerror}") from error
    note, marks = kept.note, values.marks(handle)
    return ValueInfo(
        handle=kept.handle,
        type=note.type,
        extent=note.extent,
        size=note.size,
        lines=note.lines,
        kind=note.kind,
        file=file.path.name,
        digest=file.digest,
        marks=join_labels(marks, context.told),
        local=note.local,
    )


def _bound(context: ToolContext, space: Namespace, name: str) -> ValueInfo:
    marks, local = space.brought
    try:
        kept = context.own(ValueStore).store(space.value(name), bits=bits_in(marks), local=local)
    except ToolError as error:
        raise NoValueError(str(error)) from error
    except NotTransferableError as error:
        raise NoValueError(f"{name!r} cannot leave its process: {error}") from error
    except OSError as error:
        raise NoValueError(f"{name!r} could not be written to a file: {error.strerror}") from error
    return stored_value(context, kept.handle)
