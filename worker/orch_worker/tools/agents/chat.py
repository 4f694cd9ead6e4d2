"""The tools chat and list_models. chat asks another model a question, and list_models lists the models that chat can
ask.
"""

from __future__ import annotations

from typing import Final

from orch_protocol.agent.models import Price
from orch_protocol.core.messages import COMPLETE_STOPS, text_of, user
from orch_protocol.services.models.models import FIND_MODEL, LIST_MODELS, FindModel, ListModels, ModelRow

from ...backends.base import ONE_REQUEST
from ...backends.registry import make_backend
from ..api.base import ToolContext, ToolError, ToolOutput, tool
from ..dispatch.budget_client import BudgetClient
from ..dispatch.rate_limit_client import RateLimitClient

__all__ = ["chat", "list_models"]

HEADER: Final = "MODEL | TOKENS OF A CONVERSATION | OF A RESPONSE | USD PER MILLION TOKENS: IN, OUT, CACHED"


@tool
async def chat(context: ToolContext, prompt: str, model: str | None = None, system: str | None = None) -> ToolOutput:
    """Ask a model one question and return its answer. The model sees only the prompt, and has no tools and no memory.

    Args:
        prompt: The question, with everything needed to answer it.
        model: A model from list_models, as provider:name. Default: the model that you are.
        system: The system text for the model.
    """
    if not prompt.strip():
        raise ToolError("The prompt is empty: write a question or task for the model.")
    spec = await context.call_root(FIND_MODEL, FindModel(model), context.seconds)
    backend = make_backend(spec, context.keys, context.agent_object(RateLimitClient))
    backend.append_system(system or "", ())
    backend.prefix = ONE_REQUEST
    backend.append_user(user(prompt).content)
    budget = context.agent_object(BudgetClient)
    try:
        reservation = await budget.reserve(backend)
        turn = await budget.response(backend, reservation)
    finally:
        await backend.close()
    used = turn.usage.with_one_model_call()
    reservation.settle(used)
    note = "" if turn.stop_reason in COMPLETE_STOPS else f"[The response ended early: {turn.stop_reason}.]"
    text = text_of(turn.message) or "(an empty response)"
    return ToolOutput(f"{text}\n\n{note}".rstrip(), usage=used)


@tool
async def list_models(context: ToolContext) -> str:
    """List the models that chat can ask, with their limits and prices."""
    rows = await context.call_root(LIST_MODELS, ListModels(), context.seconds)
    if not rows:
        return "There is no model to ask: no provider's key is set, and no local server lists any."
    return "\n".join([HEADER, *map(_model_line, rows)])


def _model_line(row: ModelRow) -> str:
    output = "unknown" if row.output is None else f"{row.output}"
    return f"{row.model} | {row.context} | {output} | {_price(row)}"


def _price(row: ModelRow) -> str:
    if not row.price_known:
        return "unknown"
    if not row.prices:
        return "free"
    return "; ".join(map(_dollars, row.prices))


def _dollars(price: Price) -> str:
    kinds = (price.input, price.output, price.cache_read)
    above = f" above {price.above} tokens" if price.above else ""
    return ", ".join("?" if each is None else f"{each:g}" for each in kinds) + above
