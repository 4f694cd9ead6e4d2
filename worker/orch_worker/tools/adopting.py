"""Taking over values of other agents: the file that one has stored is copied, and is a handle here. Nothing is run."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any, Final

from orch_protocol.errors import AgentError, NoValueError
from orch_protocol.messages import Reply
from orch_protocol.taint import bits_in, passed_on
from orch_protocol.values import Taken, TakeValue

from .base import ToolContext, ToolError
from .movable import EXTENSIONS, Kind, NotMovable, unpacked
from .regular import open_regular
from .stash import Note
from .taster import Deadly, taste
from .values import READERS, Kept, Values

__all__ = ["MOST", "adopted", "all_of", "data_of", "value_of"]

MOST: Final = 64 << 20
MOST_SECONDS: Final = 1.0
ASK: Final = "[Ask it for what was left out.]"
DEADLY: Final[dict[Kind, tuple[str, str]]] = {"arrow": ("polars", "read_ipc")}
"""What reads values of these kinds, and may end its process where they are not what they say."""


async def adopted(context: ToolContext, ref: str, name: str, *, local: bool) -> str:
    """Return the marker of the handle under which the value of `name` in the agent `ref` is kept here from now on; or
    that there is none, and why."""
    try:
        id, marker = await _taken_over(context, ref, name, local=local)
    except (AgentError, ToolError) as error:
        return f"[No value of {name!r} was returned: {error}]"
    except OSError as error:
        return f"[No value of {name!r} was returned: it cannot be kept here: {error.strerror}]"
    return f"{name} of agent {id} is kept here:\n{marker}"


async def all_of(context: ToolContext, reply: Reply) -> str:
    """Return the marker of the handle under which all of `reply`, which has a part of it, is kept here; where that
    cannot be had or read, what the agent can do instead."""
    if READERS.isdisjoint(context.granted):
        return ASK
    try:
        async with asyncio.timeout(MOST_SECONDS):  # the answer itself must still get through
            _, marker = await _taken_over(context, reply.id, reply.whole, local=reply.local)
    except (AgentError, ToolError, OSError) as error:
        print(f"{reply.whole} of {reply.id} was not taken over: {error}", flush=True)
        return ASK
    return f"All of it is kept here:\n{marker}"


async def _taken_over(context: ToolContext, ref: str, name: str, *, local: bool) -> tuple[str, str]:
    """Keep the value of `name` in the agent `ref` here; return that one's id, and the marker of the handle."""
    taken: Taken = await context.call_root("value", TakeValue(ref, name), context.seconds)
    values = context.own(Values)
    kept = await asyncio.to_thread(_keep, values, taken, local)
    return taken.id, "\n".join([kept.text(context.granted), *values.told()])


def data_of(taken: Taken) -> bytes:
    """Return the bytes of the file that holds a value. Raises NoValueError when they are not those that were stored."""
    try:
        with open_regular(Path(taken.path)) as file:
            data = file.read(MOST + 1)
    except OSError as error:
        raise NoValueError(f"what {taken.name!r} was cannot be read: {error.strerror or 'it is no file'}") from error
    if len(data) > MOST or not hashlib.sha256(data).hexdigest().startswith(taken.value.digest or "-"):
        raise NoValueError(f"the file of {taken.name!r} is not the one that was stored: ask for it again")
    return data


def value_of(taken: Taken) -> Any:
    """Return the value itself. Raises NoValueError, also where reading it would end this process."""
    data = _tasted(taken)
    try:
        return unpacked(taken.value.kind, data)
    except NotMovable as error:
        raise NoValueError(f"{taken.name!r} of agent {taken.id}: {error}") from error


def _tasted(taken: Taken) -> bytes:
    """Return the bytes that hold a value, of which nobody dies who reads them. Raises NoValueError."""
    data = data_of(taken)
    if (reader := DEADLY.get(taken.value.kind)) is not None:
        try:
            taste(*reader, data)
        except Deadly as error:
            raise NoValueError(f"{taken.name!r} of agent {taken.id} cannot be read: {error}") from error
    return data


def _keep(values: Values, taken: Taken, local: bool) -> Kept:
    value = taken.value
    if value.kind not in EXTENSIONS:
        raise NoValueError(f"{taken.name!r} is of a kind that is not known here: {value.kind!r}")
    data = _tasted(taken)
    note = Note(value.type, value.extent, value.size, value.lines, local=local or value.local)
    return values.adopt(value.kind, data, note, bits=bits_in(passed_on(value.marks, taken.id)))
