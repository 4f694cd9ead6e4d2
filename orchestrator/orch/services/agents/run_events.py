"""Service that lists the events of a run."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from orch_protocol.services.agents.run_events import LIST_EVENTS, EventsSince, RunEvent

from ...policy.caller import Caller
from ...supervisor.recorded_run import journal_of_run
from ...supervisor.run_events import read_events
from ...tree.agents.agent_refs import resolve
from ...tree.agents.state import TreeState
from ...tree.interface.topics import RunEventTopic
from ...tree.journal.journal import read_entries
from ..archives.recall import find_agent_or_holder
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["events"]

POLL_SECONDS: Final = 0.5
"""Interval in seconds between two checks of the journal of another run."""


@handles(LIST_EVENTS)
async def events(root: Supervisor, caller: Caller, params: EventsSince) -> list[RunEvent]:
    """Return the events after `params.since` from the journal of the run. If there are none, wait for new events.

    If an agent calls this service without a `ref`, it gets the events about itself. Raises AgentNotFoundError,
    AmbiguousRefError, EntryNotFoundError, StoreError.
    """
    if params.run not in ("", root.run_events.path.parent.name):
        return await _events_of_run(root, params)
    ref = params.ref if params.ref is not None else caller.agent_id
    agent = (await find_agent_or_holder(root, caller, ref, "look at", "read")).spec.id if ref is not None else None
    deadline = asyncio.get_running_loop().time() + params.seconds
    read_page = partial(
        read_events, root.run_events.path, root.run_events.path.parent.name, params.since, params.limit, agent
    )
    while True:
        new_entries = root.waiters.watch(RunEventTopic())
        try:
            rows = await root.disk.do(read_page)
            remaining_seconds = deadline - asyncio.get_running_loop().time()
            if rows or remaining_seconds <= 0:
                return rows
            await asyncio.wait([new_entries], timeout=remaining_seconds)
        finally:
            new_entries.cancel()


async def _events_of_run(root: Supervisor, params: EventsSince) -> list[RunEvent]:
    """Return events of another run. Another process may be writing these events."""
    journal = journal_of_run(root.run_events.path.parent.parent, params.run)
    agent = None
    if params.ref is not None:
        agent = (await root.disk.do(lambda ref: resolve(TreeState(read_entries(journal)), ref), params.ref)).spec.id
    loop = asyncio.get_running_loop()
    deadline = loop.time() + params.seconds
    while True:
        rows = await root.disk.do(read_events, journal, params.run, params.since, params.limit, agent)
        remaining_seconds = deadline - loop.time()
        if rows or remaining_seconds <= 0:
            return rows
        await asyncio.sleep(min(remaining_seconds, POLL_SECONDS))
