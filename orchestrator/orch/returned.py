"""What a query with `return_name` returns: the value, and the reply beside it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from orch_protocol.messages import Reply
from orch_protocol.values import Taken
from orch_worker.tools.adopting import value_of

__all__ = ["Returned", "loaded", "value_of"]


class Returned(Struct, frozen=True):
    """A value that an agent's Python held under `name`, as it was when the agent answered with `reply`.

    `type` and `extent` say what it is ("pandas.DataFrame", "99 rows x 2 columns"), `lines` are its schema and its
    beginning. `path` is the file that holds it as data of the kind `kind`; it stays as long as the agent's session.
    """

    value: Any
    name: str
    type: str
    extent: str
    lines: tuple[str, ...]
    kind: str
    path: str
    reply: Reply


def loaded(taken: Taken, reply: Reply) -> Returned:
    """Return the value that was `taken`, read from its file. Raises NoValueError."""
    value = taken.value
    return Returned(value_of(taken), taken.name, value.type, value.extent, value.lines, value.kind, taken.path, reply)
