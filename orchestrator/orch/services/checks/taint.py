"""The taint labels of conversations, from the root's record of agents."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.core.errors import OrchError
from orch_protocol.core.taint import TaintLabel, inherited_labels, join_labels, without_sources
from orch_protocol.wire.worker_messages import AddLabels
from orch_worker.session.session_reader import read_taint_labels
from orch_worker.system.threads import DAEMON_THREADS

from ...policy.caller import AgentCaller, Caller
from ...tree.agents.state import AgentRecord
from ...tree.interface import events

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["label_caller", "label_command", "labels_from", "labels_of"]


async def labels_of(agent: AgentRecord) -> tuple[TaintLabel, ...]:
    """Return the taint labels of the agent's conversation: those in its session, and those that it inherits.

    Raises StoreError if the session cannot be read.
    """
    loop, folder = asyncio.get_running_loop(), Path(agent.spec.folder)
    recorded = await loop.run_in_executor(DAEMON_THREADS, read_taint_labels, folder)
    labels = join_labels(agent.spec.marks, recorded)
    return labels if agent.spec.persist else without_sources(labels)


async def labels_from(root: Supervisor, caller: Caller) -> tuple[TaintLabel, ...]:
    """Return the labels that another conversation inherits with text from `caller`. The user has no labels.

    A worker or a command does not name the labels itself, because it could leave them out. Raises StoreError.
    """
    agent = caller.find_agent(root.tree.agents)
    return inherited_labels(await labels_of(agent), agent.spec.id) if agent is not None else ()


def label_command(root: Supervisor, caller: Caller, labels: Iterable[TaintLabel]) -> None:
    """Add `labels` to the caller's conversation if a command of an agent is about to receive content with them.

    The tools of a worker add the labels of what they return. The output of a command has no labels of its own.
    """
    if isinstance(caller, AgentCaller) and caller.from_command:
        label_caller(root, caller, labels)


def label_caller(root: Supervisor, caller: Caller, labels: Iterable[TaintLabel]) -> None:
    """Add `labels` to the conversation of the agent `caller`, also in the turn that it runs."""
    received = join_labels((), labels)
    if not isinstance(caller, AgentCaller) or not received:
        return
    root.handle(events.AddTaint(caller.agent_id, received))
    with suppress(OrchError, KeyError):  # the process has ended; the next one gets the labels with its query
        root.workers.send(caller.agent_id, "taint", AddLabels(received))
