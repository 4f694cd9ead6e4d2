"""A conversation with a model, whose requests are retried, priced, and limited by a budget."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import BudgetExceededError, ConfigError
from orch_protocol.core.messages import Block, Message, StopReason, ToolUse, Usage
from orch_protocol.policy.budget import BudgetAmounts, amounts_of

from ...conversation.tokens import input_tokens
from ..base import AssistantTurn, BackendInfo, Conversation, CostEstimate, OnText
from ..model_families import ratios_of
from ..models import Model
from ..prices import RequestCost, cost, request_cost, without_answer_limits
from ..thinking import thinking
from .reported_usage import CheckedUsage
from .retry import RetryPolicy, Sleep, send_with_retries

__all__ = ["MALFORMED_BLOCK", "CompleteResponse", "MeteredConversation", "model_in", "storable"]

MAX_OUTPUT: Final = 64_000
CHARS_AN_ANSWER_TOKEN: Final = 8
"""Upper bound of characters per answer token. A longer text is not a normal answer."""

MALFORMED_BLOCK: Final = "a block of the response lacks a field, or has one of a wrong type"


class CompleteResponse(Struct, frozen=True):
    """A complete response. If the reported usage has a `cost_usd`, this cost is used instead of listed prices."""

    content: tuple[Block, ...]
    stop: StopReason
    usage: CheckedUsage


def storable(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Return `blocks` as a tuple. Raise ValueError if the blocks cannot be stored in a transcript."""
    try:
        msgspec.json.decode(msgspec.json.encode(blocks), type=list[Block])
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(MALFORMED_BLOCK) from error
    return tuple(blocks)


def model_in(spec: BackendSpec) -> Model:
    """Return the options of `spec`, with its thinking level in the request body.

    Raise ConfigError for invalid options.
    """
    try:
        return thinking(msgspec.convert(spec.options, Model), spec.thinking)
    except msgspec.ValidationError as error:
        raise ConfigError(f"invalid options of {spec.provider}:{spec.model}: {error}") from error


class MeteredConversation(Conversation, ABC):
    """A conversation with `model`, the model named in `spec`. A subclass sends the requests in `_attempt`."""

    def __init__(self, spec: BackendSpec, model: Model) -> None:
        super().__init__(ratios_of(spec))
        self.policy = RetryPolicy()
        self.sleep: Sleep = asyncio.sleep
        self.model = model
        self._provider, self._name = spec.provider, spec.model
        self._full_name = f"{spec.provider}:{spec.model}"
        self._server_address = ""
        """The address of the server for messages: " at ADDRESS"."""
        self._uncounted_usage = Usage()
        self._warned = False
        self._max_answer_tokens = min(model.output, MAX_OUTPUT, max(1, model.context // 2))
        self._shortened = False
        self.max_text_chars = CHARS_AN_ANSWER_TOKEN * (self._max_answer_tokens or max(1, model.context // 2))

    @abstractmethod
    async def _attempt(self, on_text: OnText | None) -> CompleteResponse:
        """Send one request and return its response. Raise RequestFailure if the request fails."""

    def estimate_cost(self, *, priced: bool) -> CostEstimate:
        """Return an estimate for the next response. Raise ConfigError if `priced` is True and the price is unknown."""
        return self._request_cost(priced=priced).estimate(amounts_of(self._uncounted_usage))

    def info(self) -> BackendInfo:
        """Return the provider and the model."""
        return BackendInfo(self._provider, self._name, self.model.context, self.model.flags.images)

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:
        """Return the next response. The usage of the response includes failed attempts since the last response."""
        raw = self._raw_request()
        response = await send_with_retries(
            partial(self._attempt_through_gate, on_text), self.policy, self.on_retry, self.sleep
        )
        if not response.usage.problem:
            self.estimator.observe(raw, input_tokens(response.usage.usage))
        message = Message("assistant", response.content)
        stop = response.stop
        if stop == "end_turn" and any(isinstance(block, ToolUse) for block in message.content):
            stop = "tool_use"  # Some servers report the end of the turn even if the response contains calls.
        if stop == "max_tokens" and self._shortened:
            stop = "budget"
        usage, self._uncounted_usage = self._uncounted_usage + self._counted_usage(response.usage, message), Usage()
        return AssistantTurn(message, stop, usage)

    def lost(self) -> Usage:
        """Return the usage of failed and abandoned attempts since the last response. Reset this usage to zero."""
        lost, self._uncounted_usage = self._uncounted_usage, Usage()
        return lost

    async def _attempt_through_gate(self, on_text: OnText | None) -> CompleteResponse:
        if self.gate is None:
            return await self._attempt(on_text)
        return await self.gate.run_admitted(self._full_name, partial(self._attempt, on_text))

    def _affordable_limit(self) -> tuple[Model, int]:
        """Return the model and the answer limit allowed by `reserved`. 0 means the provider's default.

        Raise BudgetExceededError if `reserved` does not cover even a short answer, for example after failed attempts.
        """
        self._shortened = False
        if self.reserved is None:
            return self.model, self._max_answer_tokens
        # A kind without a budget has no reservation: its amount here is 0.
        kinds = frozenset(kind for kind in ("usd", "tokens") if getattr(self.reserved, kind))
        expected, lost = self._request_cost(priced="usd" in kinds), amounts_of(self._uncounted_usage)
        remaining = BudgetAmounts(
            usd=max(0.0, self.reserved.usd - lost.usd), tokens=max(0.0, self.reserved.tokens - lost.tokens)
        )
        tokens = expected.max_answer_tokens(remaining, kinds)
        if tokens == expected.maximum:
            return self.model, self._max_answer_tokens
        if not tokens:
            raise BudgetExceededError(
                f"failed requests used ${lost.usd:.6f} and {lost.tokens:g} tokens of the ${self.reserved.usd:.6f} and "
                f"{self.reserved.tokens:g} tokens reserved for this response: the rest does not cover another request"
            )
        self._shortened = True
        return without_answer_limits(self.model), tokens

    def _request_cost(self, *, priced: bool) -> RequestCost:
        try:
            sent = self.estimator.max_request_tokens(self._raw_request())
            return request_cost(self.model, sent, self._max_answer_tokens, priced=priced)
        except ConfigError as error:
            raise ConfigError(f"{self._full_name} cannot have a budget: {error}") from error

    def _counted_usage(self, reported: CheckedUsage, message: Message) -> Usage:
        """Return the usage with its cost. Missing or invalid counts are estimated."""
        used = reported.usage
        # With a budget, an estimate replaces a reported usage of zero, so that the budget decreases.
        is_unreported = self.reserved is not None and not (input_tokens(used) or used.output_tokens)
        if not reported.problem and not is_unreported:
            return self._with_cost(used)
        if reported.problem and not self._warned:
            self._warned = True
            treatment = "are clamped" if reported.input_known and reported.output_known else "are estimated instead"
            print(
                f"{self._full_name}{self._server_address} reported unusable token counts "
                f"({reported.problem}): such counts {treatment} (shown once)",
                flush=True,
            )
        if is_unreported or not reported.input_known:
            used = msgspec.structs.replace(used, input_tokens=self._estimated_input(used))
        if is_unreported or not reported.output_known:
            used = msgspec.structs.replace(used, output_tokens=self._estimated_output(message))
        return msgspec.structs.replace(self._with_cost(used), cost_known=self.model.is_free)

    def _with_cost(self, used: Usage) -> Usage:
        return used if used.cost_usd else cost(self.model, used)

    def _estimated_input(self, used: Usage) -> int:
        cached = used.cache_read_tokens + used.cache_write_tokens
        return max(0, min(self.context_tokens(), self.model.context) - cached)

    def _estimated_output(self, message: Message) -> int:
        return min(self.estimator.message(message), self.model.context)

    def _count_failed_attempt(self, reported: Usage, received: Sequence[Block], *, sent: bool = False) -> None:
        """Count the usage of a failed attempt. `reported` is the usage that the provider reported.

        With a budget, count at least the request and the received part of the answer. These minimum amounts count if
        anything was received. They also count if the request was sent and then abandoned (`sent`).
        """
        used = self._with_cost(reported)
        if self.reserved is not None and (received or sent):
            answer = self.estimator.message(Message("assistant", tuple(received))) if received else 0
            request_tokens = reported.input_tokens if input_tokens(reported) else self.context_tokens()
            minimum = msgspec.structs.replace(
                reported, input_tokens=request_tokens, output_tokens=max(reported.output_tokens, answer)
            )
            if minimum != reported:
                used = msgspec.structs.replace(self._with_cost(minimum), cost_known=False)
        if used != Usage():
            self._uncounted_usage += used
