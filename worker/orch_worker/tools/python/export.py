"""Exports a value of an agent to another agent, or to the user's program. The value is stored as a data file."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orch_protocol.core.errors import NoValueError
from orch_protocol.core.taint import bits_in, join_labels
from orch_protocol.core.values import ValueInfo

from ..api.base import ToolContext, ToolError
from ..values.codec import NotTransferableError
from ..values.store import HANDLE_TEXT
from ..values.values import ValueStore

if TYPE_CHECKING:
    from .namespace import Namespace

__all__ = ["export", "export_own", "stored_value"]

RUN: frozenset[str] = frozenset({"run_python"})


async def export(context: ToolContext, name: str) -> ValueInfo:
    """Store the value called `name`, and return its description. `name` is a handle or a variable of the agent's code.

    If the value cannot be exported, raise NoValueError with the reason and a recommendation.
    """
    if (host := context.host_of("run_python")) is None:
        return await export_own(context, name)
    value = await host.export(name, context)
    return replace(value, marks=join_labels(value.marks, context.taint_labels))


async def export_own(context: ToolContext, name: str) -> ValueInfo:
    """Store the value called `name` of code in this process; see `export`."""
    if HANDLE_TEXT.fullmatch(name.strip()):
        return await asyncio.to_thread(stored_value, context, name)
    if not name.isidentifier():
        raise NoValueError(
            f"{name!r} is neither a variable name nor a handle such as .h_001: let the agent assign the value to a name"
        )
    if context.granted.isdisjoint(RUN):
        raise NoValueError(f"cannot read variable {name!r}: the agent has no run_python, so it has only handles")
    from .namespace import Namespace

    return await asyncio.to_thread(_export_variable, context, context.agent_object(Namespace), name)


def stored_value(context: ToolContext, handle: str) -> ValueInfo:
    """Return the description of the value stored under `handle`. Raise NoValueError if there is no such value."""
    values = context.agent_object(ValueStore)
    try:
        stored, file = values.get(handle), values.file(handle)
    except ToolError as error:
        raise NoValueError(str(error)) from error
    except OSError as error:
        raise NoValueError(f"{handle} cannot be read: {error.strerror}") from error
    note, labels = stored.note, values.taint_labels(handle)
    return ValueInfo(
        handle=stored.handle,
        type=note.type,
        extent=note.extent,
        size=note.size,
        lines=note.lines,
        kind=note.kind,
        file=file.path.name,
        digest=file.digest,
        marks=join_labels(labels, context.taint_labels),
        local=note.local,
    )


def _export_variable(context: ToolContext, namespace: Namespace, name: str) -> ValueInfo:
    labels, local = namespace.read_labels
    try:
        stored = context.agent_object(ValueStore).store(namespace.value(name), bits=bits_in(labels), local=local)
    except ToolError as error:
        raise NoValueError(str(error)) from error
    except NotTransferableError as error:
        raise NoValueError(f"the value {name!r} cannot be sent to another process: {error}") from error
    except OSError as error:
        raise NoValueError(f"{name!r} could not be written to a file: {error.strerror}") from error
    return stored_value(context, stored.handle)
