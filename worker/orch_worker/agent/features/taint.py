"""Taint labels in a turn. The labels of the query are recorded, and the reply gets the labels of the conversation."""

from __future__ import annotations

from msgspec.structs import replace

from orch_protocol.core.messages import Reply
from orch_protocol.core.taint import TaintLabel
from orch_protocol.wire.worker_messages import Query

from ...policy.taint import TaintLabels
from .turn_extension import TurnExtension

__all__ = ["TaintExtension"]


class TaintExtension(TurnExtension):
    """The feature is on if the conversation or the query has labels, or if the agent was spawned with labels
    (`inherited`).
    """

    def __init__(self, labels: TaintLabels, inherited: tuple[TaintLabel, ...]) -> None:
        self._labels = labels
        self._inherited = inherited

    async def turn_began(self, query_id: str, query: Query) -> None:  # noqa: ARG002
        """Record the labels of the query. Raise StoreError if the labels cannot be written."""
        self._labels.record((*self._inherited, *query.marks))

    async def reply(self, reply: Reply) -> Reply:
        """Add the labels of the conversation to the reply."""
        return replace(reply, marks=self._labels.content)
