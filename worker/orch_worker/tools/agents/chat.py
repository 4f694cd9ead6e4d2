"""Other models: chat asks one, list_models says which there are."""

from __future__ import annotations

from typing import Final

from orch_protocol.agent.models import FindModel, ListModels, ModelRow, Price
from orch_protocol.core.messages import text_of, user
from orch_protocol.services.models import FIND_MODEL, LIST_MODELS

from ...backends.registry import make_backend
from ..api.base import ToolContext, ToolError, ToolOutput, tool
from ..dispatch.budget_client import BudgetClient
from ..dispatch.rate_limit_client import RateLimitClient

__all__ = ["chat", "list_models"]

HEAD: Final = "MODEL | TOKENS OF A CONVERSATION | OF A RESPONSE | USD PER MILLION TOKENS: IN, OUT, CACHED"
WHOLE: Final = frozenset({"end_turn", "stop_sequence"})


@tool(category="chat")
async def chat(context: ToolContext, prompt: str, model: str | None = None, system: str | None = None) -> ToolOutput:
    """Ask a model one question; answers with what it says. It sees the prompt alone, and has neither tools nor memory.

    Args:
        prompt: The question, with everything that is needed to answer it.
        model: One that list_models shows, as provider:name. Left out, it is the one that you are yourself.
        system: What the model is told before the prompt.
    """
    if not prompt.strip():
        raise ToolError("The prompt is empty: write a question or task for the model.")
    spec = await context.call_root(FIND_MODEL, FindModel(model), context.seconds)
    backend = make_backend(spec, context.keys, context.own(RateLimitClient))
    backend.append_system(system or "", ())
    backend.append_user(user(prompt).content)
    purse = context.own(BudgetClient)
    try:
        hold = await purse.reserve(backend)
        turn = await purse.response(backend, hold)
    finally:
        await backend.close()
    used = turn.usage.of_a_response()
    hold.settle(used)
    note = "" if turn.stop_reason in WHOLE else f"[The response ended early: {turn.stop_reason}.]"
    said = text_of(turn.message) or "(an empty response)"
    return ToolOutput(f"{said}\n\n{note}".rstrip(), usage=used)


@tool(category="chat")
async def list_models(context: ToolContext) -> str:
    """List the models that chat can ask, with their limits and prices."""
    rows = await context.call_root(LIST_MODELS, ListModels(), context.seconds)
    if not rows:
        return "There is no model to ask: no provider's key is set, and no local server lists any."
    return "\n".join([HEAD, *map(_line, rows)])


def _line(row: ModelRow) -> str:
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
