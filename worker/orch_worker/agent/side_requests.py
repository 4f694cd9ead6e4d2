"""Single requests to a model outside the conversation, with limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import OrchError
from orch_protocol.core.messages import INCOMPLETE_STOPS, Text, Usage, text_of
from orch_protocol.policy.budget import BudgetAmounts
from orch_protocol.services.models.models import FIND_MODEL, FindModel

from ..backends.base import ONE_REQUEST, Backend
from ..backends.registry import is_remote
from ..context.summarizer import writer_of
from ..tools.api.base import ToolError
from ..tools.api.root_client import CallRoot
from ..tools.dispatch.budget_client import FREE, BudgetClient, BudgetReservation
from ..tools.dispatch.local_only import LocalOnlyGuard
from .model_selection import ModelSelection, model_of

__all__ = ["RequestLimits", "SideReply", "SideRequests", "parse_answer"]

T = TypeVar("T")

FIND_SECONDS: Final = 30.0


class RequestLimits(Struct, frozen=True):
    """Limits of one request. The limits include the answer."""

    tokens: int
    usd: float | None
    seconds: float


class SideReply(Struct, frozen=True):
    """The answer of `model`. After a failure, `text` is "" and `error` contains the reason.

    Settle `reservation` after the usage is recorded.
    """

    model: str = ""
    text: str = ""
    error: str = ""
    usage: Usage = Usage()
    reservation: BudgetReservation = FREE


class SideRequests:
    """Sends requests of one agent to its current model or to another model.

    If the conversation is restricted to local models, requests to remote models fail.
    """

    def __init__(
        self,
        make_backend: Callable[[BackendSpec], Backend],
        budget: BudgetClient,
        call_root: CallRoot,
        model_selection: ModelSelection,
        local_only_guard: LocalOnlyGuard,
    ) -> None:
        self._make_backend = make_backend
        self._budget = budget
        self._call_root = call_root
        self.model_selection = model_selection
        self._local_only_guard = local_only_guard
        self._request_count = 0

    async def ask(self, model: str | None, system: str, prompt: str, limits: RequestLimits) -> SideReply | None:
        """Return the answer of `model` to `prompt`. None means the agent's own model.

        Return None if the model cannot generate text. Raise only CancelledError. In this case, the caller has no
        reservation to settle.
        """
        reply, backend = SideReply(model or ""), None
        try:
            async with asyncio.timeout(limits.seconds):
                spec = writer_of(await self._spec(model))
                if spec is None:
                    return None
                reply = SideReply(model_of(spec))
                if self._local_only_guard.is_restricted and is_remote(spec):
                    return replace(reply, error="only a local model may read this conversation")
                backend = self._make_backend(spec)
                backend.load((), self._request_count)
                backend.append_system(system, ())
                backend.prefix = ONE_REQUEST
                backend.append_user((Text(prompt),))
                if error := _excess(backend, limits):
                    return replace(reply, error=error)
                reservation = await self._budget.reserve(backend)
                backend.reserved = _answer_limit(backend.reserved, limits)
                turn = await self._budget.response(backend, reservation)
                self._request_count += 1
                reply = replace(reply, usage=turn.usage.with_one_model_call(), reservation=reservation)
                if turn.stop_reason in INCOMPLETE_STOPS:
                    return replace(reply, error=f"the answer ended with {turn.stop_reason!r}")
                return replace(reply, text=text_of(turn.message))
        except TimeoutError:
            return replace(reply, error=f"no answer within {limits.seconds:g} s")
        except (OrchError, ToolError) as error:
            return replace(reply, error=str(error))
        except Exception as error:
            return replace(reply, error=f"{type(error).__name__}: {error}")
        finally:
            if backend is not None:
                await backend.close()

    async def _spec(self, model: str | None) -> BackendSpec:
        if model is None:
            return self.model_selection.current
        return await self._call_root(FIND_MODEL, FindModel(model), FIND_SECONDS)


def _excess(backend: Backend, limits: RequestLimits) -> str:
    """Return why the request exceeds its limits, or "". Raise ConfigError if the model's price is unknown."""
    minimum = backend.estimate_cost(priced=limits.usd is not None).minimum
    if minimum.tokens > limits.tokens:
        return f"the request needs at least {minimum.tokens:,.0f} tokens, but max_tokens is {limits.tokens:,}"
    if limits.usd is not None and minimum.usd > limits.usd:
        return f"the request needs at least ${minimum.usd:.4f}, but max_cost_usd is {limits.usd:g}"
    return ""


def _answer_limit(limit: BudgetAmounts | None, limits: RequestLimits) -> BudgetAmounts:
    """Return the limit of the answer: the smaller of the reservation and the request's own limits."""
    limit = limit or BudgetAmounts()
    return replace(
        limit,
        tokens=min(amount for amount in (limit.tokens, limits.tokens) if amount),
        usd=min((amount for amount in (limit.usd, limits.usd) if amount), default=0.0),
    )


def parse_answer(text: str, kind: type[T]) -> T:
    """Return the JSON object in `text`. Ignore the text around the object.

    Raise ValueError with the reason if parsing fails.
    """
    begin, end = text.find("{"), text.rfind("}")
    if begin < 0 or end < begin:
        raise ValueError("the answer contains no JSON object")
    try:
        return msgspec.json.decode(text[begin : end + 1].encode("utf-8", "replace"), type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"the answer does not have the requested form: {error}") from error
