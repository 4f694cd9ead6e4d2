"""Lines of the control socket: a service asked for, and what comes of it."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

__all__ = ["ALREADY_RUNNING", "ControlNotice", "ControlRequest", "ControlResponse"]

ALREADY_RUNNING: Final = 3
"""The exit code of a daemon that finds another one running in its ORCH_HOME."""


class ControlRequest(Struct, frozen=True, omit_defaults=True):
    """One line from a client of the control socket. `credentials` are variables of its shell, for models."""

    id: int
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")
    version: int = 1
    credentials: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Request(id={self.id}, method={self.method!r})"


class ControlResponse(Struct, frozen=True, omit_defaults=True):
    """One line to a client: an `event` of a request under way, or its end with exactly one of `result` and `error`."""

    id: int
    result: Any = None
    event: Any = None
    error: dict[str, str] | None = None


class ControlNotice(Struct, frozen=True):
    """An event with a line for people, which a client prints on stderr."""

    notice: str
