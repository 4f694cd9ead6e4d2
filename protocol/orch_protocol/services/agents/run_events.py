"""The service that lists the events of a run from its journal."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from ..service import USERS_ONLY, Service

__all__ = ["LIST_EVENTS", "EventsSince", "RunEvent"]


class EventsSince(Struct, frozen=True, forbid_unknown_fields=True):
    """List at most `limit` events after the event `since`, oldest first. With `ref`, list only events of this agent.

    If there are no such events, wait for at most `seconds`. `run` is the name of another run below the same home, ""
    for this one.
    """

    since: Annotated[int, Meta(ge=0)] = 0
    ref: str | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    seconds: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    run: str = ""


class RunEvent(Struct, frozen=True):
    """An event of a run.

    `n` is the number of the event in the run, counted from 1. A restart does not change this number. `at` is Unix time
    in seconds. `kind` is `agent_spawned`, `worker_launched`, `worker_ready`, `query_started`, `query_finished`,
    `turns_archived`, `steering_queued`, `steering_delivered`, `agent_killed` or another type of a journal entry.
    `turn` is the id of the query, or "" if the event belongs to no query. `data` contains numbers and names, but no
    text of prompts or replies. The `data` of a `custom_event` contains the event's name and the program's own data.
    """

    n: int
    at: float
    run: str
    kind: str
    agent_id: str = ""
    turn: str = ""
    data: dict[str, Any] = {}


LIST_EVENTS: Final = Service("events", EventsSince, list[RunEvent], USERS_ONLY, "List events of the run.")
