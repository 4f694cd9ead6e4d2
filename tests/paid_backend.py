"""A backend with costs, for tests. The responses are scripted, and each token of an answer costs one dollar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.messages import Usage, text_of
from orch_protocol.policy.budget import BudgetAmounts
from orch_worker.backends.base import AssistantTurn, CostEstimate, OnText
from orch_worker.backends.offline.scripted import ScriptedBackend

__all__ = ["MOST", "Paid", "from_spec", "price"]

MOST = 8.0
"""The maximum cost of a response."""


def price(usd: float, text: str = "") -> dict[str, str]:
    """Return an item of a script that costs `usd`."""
    return {"text": f"{text}${usd}"}


class Paid(ScriptedBackend):
    """Returns `items`.

    A response costs the number after its last `$`, or one dollar, but never more than is covered.
    """

    def __init__(self, items: Sequence[Any]) -> None:
        super().__init__(items)
        self.covered: list[float | None] = []

    def estimate_cost(self, *, priced: bool) -> CostEstimate:  # noqa: ARG002
        """Return an estimate of one dollar as the minimum and two dollars as enough."""
        return CostEstimate(BudgetAmounts(usd=1.0), BudgetAmounts(usd=2.0), BudgetAmounts(usd=MOST))

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:
        """Return the next item as a response. Cut the response if it costs more than is covered."""
        limit = self.reserved.usd if self.reserved is not None else None
        self.covered.append(limit)
        turn = await super().assistant_turn(on_text)
        cost = float(text_of(turn.message).rpartition("$")[2] or 1) if "$" in text_of(turn.message) else 1.0
        stop = turn.stop_reason
        if limit is not None and cost > limit:
            cost, stop = limit, "budget"
        return msgspec.structs.replace(turn, usage=Usage(10, 10, cost_usd=cost), stop_reason=stop)


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> Paid:  # noqa: ARG001
    """Return the backend of `spec`. The model of `spec` is the script, as JSON."""
    return Paid(msgspec.json.decode(spec.model))
