"""Budgets in a turn. Each response is reserved before its request, and settled as soon as the response is recorded."""

from __future__ import annotations

from orch_protocol.core.messages import Message, StopReason, Usage
from orch_protocol.wire.worker_messages import Query

from ...backends.base import AssistantTurn, BackendInfo
from ...tools.dispatch.budget_client import FREE, BudgetClient
from .prompt import TurnPrompt
from .turn_extension import TurnExtension, TurnState

__all__ = ["BudgetExtension"]


class BudgetExtension(TurnExtension):
    """Reserves budget with `client`.

    Warns the agent (through `prompt`) and watchers when a budget is nearly used up.
    """

    def __init__(self, client: BudgetClient, prompt: TurnPrompt) -> None:
        self._client = client
        self._prompt = prompt
        self._reservation = FREE
        self._warned = False

    async def turn_began(self, query_id: str, query: Query) -> None:  # noqa: ARG002
        """Forget the warnings of the last turn."""
        self._client.low, self._warned = "", False

    async def before_request(self, turn: TurnState) -> None:
        """Wait until the root has counted all usage so far. Warn watchers once per turn."""
        await self._client.settled()
        self._prompt.budget_warning = low = self._client.low
        if low and not self._warned:
            self._warned = True
            turn.emit("budget", low)

    async def request(self, turn: TurnState, info: BackendInfo) -> None:  # noqa: ARG002
        """Reserve the possible cost of the response.

        Raise BudgetExceededError if the budget is not sufficient. Raise ConfigError if the model's price is unknown.
        """
        self._reservation = await self._client.reserve(turn.backend)

    def request_refused(self) -> None:
        """Release the reservation, because a refused request costs nothing."""
        self._reservation.settle(Usage())

    def response_recorded(self, turn: TurnState, response: AssistantTurn, message: Message) -> None:  # noqa: ARG002
        """Settle the reservation with the actual usage of the response."""
        turn.budget_note = self._reservation.why
        self._reservation.settle(response.usage.with_one_model_call())

    async def after_turn(self, stop: StopReason | None) -> None:  # noqa: ARG002
        """Remove the warning, because the next turn may have no budget."""
        self._prompt.budget_warning = ""
