"""One question to a model beside the conversation, within bounds: what it said and took, or why it said nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.agent.models import FindModel
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import OrchError
from orch_protocol.core.messages import Text, Usage, text_of
from orch_protocol.policy.budget import BudgetAmounts
from orch_protocol.services.models import FIND_MODEL

from ..backends.base import Backend
from ..backends.registry import is_remote
from ..context.summarizer import writer_of
from ..tools.api.base import ToolError
from ..tools.api.root_client import CallRoot
from ..tools.dispatch.budget_client import FREE, BudgetClient, BudgetReservation
from ..tools.dispatch.local_only import LocalOnlyGuard
from .model_selection import ModelSelection, model_of

__all__ = ["RequestLimits", "SideReply", "SideRequests"]

FIND_SECONDS: Final = 30.0
UNFINISHED: Final = frozenset({"max_tokens", "budget", "refusal", "error"})


class RequestLimits(Struct, frozen=True):
    """What one question may take, answer included."""

    tokens: int
    usd: float | None
    seconds: float


class SideReply(Struct, frozen=True):
    """What `model` said, "" with the reason in `error` when nothing; `hold` is to be settled when that is on record."""

    model: str = ""
    text: str = ""
    error: str = ""
    usage: Usage = Usage()
    hold: BudgetReservation = FREE


class SideRequests:
    """Asks models for one agent: the one that is `answering` it or another, as the `locality` of its words allows."""

    def __init__(
        self,
        make: Callable[[BackendSpec], Backend],
        purse: BudgetClient,
        call_root: CallRoot,
        answering: ModelSelection,
        locality: LocalOnlyGuard,
    ) -> None:
        self._make = make
        self._purse = purse
        self._call_root = call_root
        self.answering = answering
        self._locality = locality
        self._asked = 0

    async def ask(self, model: str | None, system: str, prompt: str, bounds: RequestLimits) -> SideReply | None:
        """Return what `model` says to `prompt`, the agent's own without one; None when that has no words of its own.

        Raises nothing but CancelledError: then nothing is left to be settled.
        """
        said, asking = SideReply(model or ""), None
        try:
            async with asyncio.timeout(bounds.seconds):
                spec = writer_of(await self._spec(model))
                if spec is None:
                    return None
                said = SideReply(model_of(spec))
                if self._locality.bound and is_remote(spec):
                    return replace(said, error="this conversation is for a model on this machine")
                asking = self._make(spec)
                asking.load((), self._asked)
                asking.append_system(system, ())
                asking.append_user((Text(prompt),))
                if error := _too_much(asking, bounds):
                    return replace(said, error=error)
                hold = await self._purse.reserve(asking)
                asking.most = _least(asking.most, bounds)
                turn = await self._purse.response(asking, hold)
                self._asked += 1
                said = replace(said, usage=turn.usage.of_a_response(), hold=hold)
                if turn.stop_reason in UNFINISHED:
                    return replace(said, error=f"the answer ended with {turn.stop_reason!r}")
                return replace(said, text=text_of(turn.message))
        except TimeoutError:
            return replace(said, error=f"no answer within {bounds.seconds:g} s")
        except (OrchError, ToolError) as error:
            return replace(said, error=str(error))
        except Exception as error:
            return replace(said, error=f"{type(error).__name__}: {error}")
        finally:
            if asking is not None:
                await asking.close()

    async def _spec(self, model: str | None) -> BackendSpec:
        if model is None:
            return self.answering.now
        return await self._call_root(FIND_MODEL, FindModel(model), FIND_SECONDS)


def _too_much(asking: Backend, bounds: RequestLimits) -> str:
    """Return why the question is not asked, "" when it is. Raises ConfigError when nobody knows what it would cost."""
    least = asking.quote(priced=bounds.usd is not None).least
    if least.tokens > bounds.tokens:
        return f"it would take {least.tokens:,.0f} tokens at least, and max_tokens is {bounds.tokens:,}"
    if bounds.usd is not None and least.usd > bounds.usd:
        return f"it would take ${least.usd:.4f} at least, and max_cost_usd is {bounds.usd:g}"
    return ""


def _least(most: BudgetAmounts | None, bounds: RequestLimits) -> BudgetAmounts:
    """Return what the answer may take: what was put aside for it, and no more than its own bounds."""
    most = most or BudgetAmounts()
    return replace(
        most,
        tokens=min(amount for amount in (most.tokens, bounds.tokens) if amount),
        usd=min((amount for amount in (most.usd, bounds.usd) if amount), default=0.0),
    )
