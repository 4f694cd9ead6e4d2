"""Lines of the control socket: a service asked for, and what comes of it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

__all__ = ["Request", "Response"]


class Request(Struct, frozen=True, omit_defaults=True):
    """One line from a client of the control socket."""

    id: int
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")
    version: int = 1


class Response(Struct, frozen=True, omit_defaults=True):
    """One line to a client: an `event` of a request under way, or its end with exactly one of `result` and `error`."""

    id: int
    result: Any = None
    event: Any = None
    error: dict[str, str] | None = None
