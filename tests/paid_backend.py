"""A backend that takes money, for tests: what it says is scripted, what it costs is a dollar a token of the answer."""

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
"""What a response may cost."""


def price(usd: float, text: str = "") -> dict[str, str]:
    """Return a script's item that costs so much."""
    return {"text": f"{text}${usd}"}


class Paid(ScriptedBackend):
    """Says `items`; a response costs what stands behind its last `$`, else a dollar, and never more than is covered."""

    def __init__(self, items: Sequence[Any]) -> None:
        super().__init__(items)
        self.covered: list[float | None] = []

    def quote(self, *, priced: bool) -> CostEstimate:  # noqa: ARG002
        """Return a dollar for the least, two for enough."""
        return CostEstimate(BudgetAmounts(usd=1.0), BudgetAmounts(usd=2.0), BudgetAmounts(usd=MOST))

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:
        """Return the next item as a response, cut short when it costs more than is covered."""
        most = self.most.usd if self.most is not None else None
        self.covered.append(most)
        turn = await super().assistant_turn(on_text)
        cost = float(text_of(turn.message).rpartition("$")[2] or 1) if "$" in text_of(turn.message) else 1.0
        stop = turn.stop_reason
        if most is not None and cost > most:
            cost, stop = most, "budget"
        return msgspec.structs.replace(turn, usage=Usage(10, 10, cost_usd=cost), stop_reason=stop)


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> Paid:  # noqa: ARG001
    """Return the backend of `spec`, whose model is the script, as JSON."""
    return Paid(msgspec.json.decode(spec.model))
