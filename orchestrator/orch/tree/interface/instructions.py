"""Decisions of the tree, and the instructions for the supervisor in them. The module contains only data types."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from orch_protocol.core.errors import ErrorInfo

from ..journal.entries import Entry
from .events import Event
from .topics import Topic


class Launch(Struct, frozen=True, gc=False):
    """Start a process for agent `id`."""

    id: str
    incarnation: int


class Signal(Struct, frozen=True, gc=False):
    """End a process.

    `how` is `stop` to request the exit, `kill` to kill the process, or `late` to kill it because it exceeded a time
    limit.
    """

    id: str
    incarnation: int
    how: str


class Send(Struct, frozen=True, gc=False):
    """Send a frame of the kind `kind` about the query `query_id` to the worker of agent `id`.

    If `body` is None, the frame contains the query.
    """

    id: str
    query_id: str
    kind: str = "query"
    body: Struct | None = None


class Timer(Struct, frozen=True, gc=False):
    """Pass `event` to the tree after `seconds`. The delay varies at random by at most the fraction `spread`."""

    seconds: float
    event: Event
    spread: float = 0.0


class Notify(Struct, frozen=True, gc=False):
    """Notify the callers that wait for `topic`."""

    topic: Topic
    value: Any = None
    error: ErrorInfo | None = None


class Wake(Struct, frozen=True, gc=False):
    """Start a turn with the messages that wait for agent `id`."""

    id: str


Instruction: TypeAlias = Launch | Signal | Send | Timer | Notify | Wake


class Decision(Struct, frozen=True, gc=False):
    """The result of an event.

    A decision contains entries to write, instructions to execute after the write, and a value for the caller.
    """

    entries: list[Entry] = []
    instructions: list[Instruction] = []
    value: Any = None
