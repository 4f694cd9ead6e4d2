"""A conversation with a model, whose requests are retried, priced, and limited by a budget."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Final

import msgspec
from msgspec import Struct

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import BudgetExceededError, ConfigError, ContextOverflowError
from orch_protocol.core.messages import Block, Image, Message, StopReason, Text, ToolResult, ToolUse, Usage
from orch_protocol.policy.budget import BudgetAmounts, amounts_of

from ...conversation.framing import is_project
from ...conversation.tokens import CHARS_PER_TOKEN, clip, image_tokens, input_tokens
from ..base import CLIP_HINT, AssistantTurn, BackendInfo, Conversation, CostEstimate, OnText
from ..formats.normalize_messages import with_model
from ..formats.reported_usage import CheckedUsage
from ..model_families import ratios_of
from ..models import UNKNOWN_CONTEXT, Model
from ..prices import RequestCost, cost, request_cost, without_answer_limits
from ..thinking import thinking
from .overflow import NEAR, ReportedLimit
from .retry import RequestFailure, RetryPolicy, Sleep, send_with_retries

__all__ = ["MALFORMED_BLOCK", "CompleteResponse", "MeteredConversation", "model_in", "storable"]

MAX_OUTPUT: Final = 64_000
CHARS_AN_ANSWER_TOKEN: Final = 8
"""Upper bound of characters per answer token. A longer text is not a normal answer."""

STEP_SHARE: Final = 0.75
"""Share of the free part of the context window that the results of one step may fill."""
KEPT_FREE: Final = 0.2
"""Share of the context window that the results of a step leave free, for the answer and a summary."""
MIN_FIXED: Final = 0.67
"""Factor for a lower bound of the tokens of system text and tools: schemas may need fewer tokens than estimated."""
MIN_RESULT_CHARS: Final = 300
MIN_WARNED_TOKENS: Final = 1_000
"""Size of a request below which a size that is far too small needs no warning."""
LIMIT_ATTEMPTS: Final = 2
REFUSAL_LIFETIME: Final = 50
"""Number of accepted requests after which a larger request is tried again at a server that names no window."""
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
        self._provider, self._name = spec.provider, model.served_name or spec.model
        self._spec_name = spec.model
        self._full_name = f"{spec.provider}:{spec.model}"
        self._server_address = ""
        """The address of the server for messages: " at ADDRESS"."""
        self._uncounted_usage = Usage()
        self._warned = self._warned_of_size = False
        self._shortened = False
        self._reported_window = 0
        self._refused_limit = ReportedLimit()
        self._refused_raw = 0.0
        """The uncorrected estimate of the last request that was refused as too long for an unnamed window."""
        self._accepted_requests = 0
        """How many smaller requests were accepted since then."""
        self.max_text_chars = CHARS_AN_ANSWER_TOKEN * (self._max_answer_tokens or max(1, model.context // 2))

    @property
    def window(self) -> int:
        """The context window in tokens: that of the catalog, or the smaller window that the server named.

        If a server without a named window refuses requests, the window is the estimate of the smallest of them.
        """
        window = self._reported_window or self.model.context
        return min(window, self.estimator.request(self._refused_raw)) if self._accepted_requests else window

    @property
    def _known_window(self) -> int:
        assumed = self.model.context == UNKNOWN_CONTEXT and not self.model.context_reported
        return self._reported_window or (0 if assumed else self.model.context)

    @property
    def _max_answer_tokens(self) -> int:
        return min(self.model.output, MAX_OUTPUT, max(1, self.window // 2))

    def _learn_limit(self, failure: RequestFailure, limit: ReportedLimit) -> None:
        """Remember the context window that the server named.

        If only the answer was too long, and the limit of answers is lower now, the request is worth a retry.
        """
        answer_tokens = self._max_answer_tokens
        if limit.window:
            self._reported_window = limit.window if limit.window < self.model.context else 0
        self._refused_limit = limit
        if limit.answer:
            failure.transient = self._max_answer_tokens < answer_tokens
            failure.attempts, failure.wait = LIMIT_ATTEMPTS, 0.0

    def _learn_refused_size(self, raw: float) -> None:
        """Correct the estimates, because a request with the uncorrected estimate `raw` was refused as too long.

        If the server named no numbers and the estimate is far below the window, the window may be wrong instead.
        """
        limit = self._refused_limit
        tokens = max(limit.request, limit.window)
        self._refused_raw, self._accepted_requests = 0.0 if limit.window else raw, 0
        if not tokens and max(raw, self.estimator.request(raw)) >= NEAR * self.window:
            tokens = self.window
        self.estimator.refused(raw, tokens)

    def _learn_usage(self, raw: float, reported: int) -> None:
        """Correct the estimates with the size that the server reported, unless this size is far below the estimate.

        Forget the window that the server named if a request succeeded that is surely larger, for example at a restarted
        server.
        """
        if min(reported, self.estimator.min_request_tokens(raw)) > self.window:
            self._reported_window = 0
        if raw >= self._refused_raw or self._accepted_requests == REFUSAL_LIFETIME:
            self._refused_raw, self._accepted_requests = 0.0, 0
        else:
            self._accepted_requests += 1
        believed = self.estimator.observe(raw, reported) or raw < MIN_WARNED_TOKENS
        if not believed and not self._warned_of_size:
            self._warned_of_size = True
            print(
                f"{self._full_name}{self._server_address} reported {reported:,} input tokens for a request of about "
                f"{self.estimator.request(raw):,}: sizes are estimated from the text instead (shown once)",
                flush=True,
            )

    @abstractmethod
    async def _attempt(self, on_text: OnText | None) -> CompleteResponse:
        """Send one request and return its response. Raise RequestFailure if the request fails."""

    def estimate_cost(self, *, priced: bool) -> CostEstimate:
        """Return an estimate for the next response. Raise ConfigError if `priced` is True and the price is unknown."""
        return self._request_cost(priced=priced).estimate(amounts_of(self._uncounted_usage))

    def info(self) -> BackendInfo:
        """Return the provider and the model."""
        return BackendInfo(self._provider, self._spec_name, self.window, self.model.flags.images)

    def check_prompt(self, prompts: Sequence[Message]) -> None:
        """Raise ContextOverflowError if a request with `prompts` alone surely does not fit in the context window."""
        raw, window = self.estimator.raw, self._known_window
        fixed = self._raw_system + sum(raw(message) for message in takewhile(is_project, self.messages))
        added = self.estimator.min_request_tokens(sum(map(raw, prompts)))
        tokens = added + self.estimator.min_request_tokens(fixed * MIN_FIXED)
        if 0 < window < tokens:
            remedy = (
                "Shorten the prompt, or put the text into a file that the agent can read in parts"
                if tokens - added < window
                else "Give the agent fewer tools, such as --tools read_file"
            )
            larger = (
                "start the server with a larger context (llama.cpp: --ctx-size, Ollama: OLLAMA_CONTEXT_LENGTH, vLLM: "
                "--max-model-len)"
                if self.model.context_reported
                else "if the window is larger, set `context` of this model in $ORCH_HOME/models.json"
            )
            raise ContextOverflowError(
                f"the prompt does not fit: {self._full_name} has a context window of {window:,} tokens, and "
                f"the request needs at least {tokens:,}: {added:,} for the prompt, the rest for the system text, the "
                f"tools and the project. Nothing was sent. {remedy}, or {larger}"
            )

    def step_chars(self) -> int:
        """Return how many characters of results a step may add, so that the next request fits.

        Older messages can be archived or summarized.
        """
        fixed = self._raw_system * self.estimator.factor
        return self.estimator.chars(max(0.0, self.window * (1 - KEPT_FREE) - fixed) * STEP_SHARE)

    def shorten_results(self) -> bool:
        """Halve the longest results of the conversation until it is loaded again. Return False if that is impossible.

        This is the last resort after a refusal. The recorded results are unchanged.
        """
        blocks = [
            block
            for message in self.messages
            for result in message.content
            if isinstance(result, ToolResult)
            for block in result.content
        ]
        limit = max(map(_chars_of, blocks), default=0) // 2
        if limit < MIN_RESULT_CHARS:
            return False
        self._set_messages([_with_short_results(message, limit) for message in self.messages])
        return True

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:
        """Return the next response. The usage of the response includes failed attempts since the last response."""
        raw, self._refused_limit = self._raw_request(), ReportedLimit()
        try:
            response = await send_with_retries(
                partial(self._attempt_through_gate, on_text), self.policy, self.on_retry, self.sleep
            )
        except ContextOverflowError:
            self._learn_refused_size(raw)
            raise
        self._learn_usage(raw, 0 if response.usage.problem else input_tokens(response.usage.usage))
        message = Message("assistant", with_model(response.content, self._name))
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


def _chars_of(block: Text | Image) -> int:
    """Return the size of a part of a result. An image counts as the text with the same number of tokens."""
    return len(block.text) if isinstance(block, Text) else int(image_tokens(*block.size) * CHARS_PER_TOKEN)


def _with_short_results(message: Message, limit: int) -> Message:
    """Return `message` with at most `limit` characters in each part of a result."""

    def shortened(block: Text | Image) -> Text | Image:
        return block if _chars_of(block) <= limit else Text(clip(block.text, limit, CLIP_HINT))

    blocks = (
        msgspec.structs.replace(block, content=tuple(map(shortened, block.content)))
        if isinstance(block, ToolResult)
        else block
        for block in message.content
    )
    return Message(message.role, tuple(blocks))
