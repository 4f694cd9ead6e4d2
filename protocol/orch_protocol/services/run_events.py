"""What happened in a run, as its journal has it: one numbered row for each thing, and how to ask for them."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from .service import USERS_ONLY, Service

__all__ = ["LIST_EVENTS", "EventsSince", "RunEvent"]


class EventsSince(Struct, frozen=True, forbid_unknown_fields=True):
    """What happened after the event `since`, at most so much of it, the oldest first; with `ref` of that agent alone.

    When there is nothing yet it is waited for, at most `seconds`.
    """

    since: Annotated[int, Meta(ge=0)] = 0
    ref: str | None = None
    most: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    seconds: Annotated[float, Meta(ge=0, le=3600)] = 0.0


class RunEvent(Struct, frozen=True):
    """Something that happened. `n` counts the events of the run from 1 and stays what it is, whichever root reads it;
    `at` is Unix time in seconds.

    `kind` is `spawned`, `launched`, `up`, `asked`, `answered`, `archived`, `steered`, `heard`, `killed` or another name
    that the journal has. `turn` is the id of the query that it is about, "" when it is about none; `data` what else is
    to be said, in figures and names: no text of prompts or replies.
    """

    n: int
    at: float
    run: str
    kind: str
    agent_id: str = ""
    turn: str = ""
    data: dict[str, Any] = {}


LIST_EVENTS: Final = Service("events", EventsSince, list[RunEvent], USERS_ONLY, "List events of the run.")
