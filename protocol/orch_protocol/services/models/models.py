"""Services that list models, and return the complete spec of a model."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ...agent.models import Price
from ...agent.spec import BackendSpec
from ..service import EVERY_AGENT, AgentFields, Service, agents_with

__all__ = ["FIND_MODEL", "LIST_MODELS", "FindModel", "ListModels", "ModelRow"]


class ListModels(Struct, frozen=True, forbid_unknown_fields=True):
    """List the models that the calling agent may use."""


class ModelRow(Struct, frozen=True):
    """One model. `model` is `provider:name`; a `*` at its end matches all names with that prefix.

    - `context`, `output`: maximum tokens of a conversation and of a response; 0 or None: unknown.
    - `prices`: a lower bound if `price_known` is False. If `price_known` is True, an empty tuple means a free model.
    - `keys`: names of environment variables that can contain the provider's API key. `key`: the variable among them
      that is set.
    - `thinks`: the supported levels of reasoning effort.
    """

    model: str
    listed_as: str | None
    api: str
    context: int
    output: int | None
    price_known: bool
    prices: tuple[Price, ...]
    keys: tuple[str, ...]
    key: str | None
    thinks: tuple[str, ...] = ()


class FindModel(Struct, frozen=True, forbid_unknown_fields=True):
    """Get the complete spec of a model.

    `model` is "provider:name", "local", or None for the calling agent's own model.
    """

    model: str | None = None


LIST_MODELS: Final = Service(
    "models", ListModels, list[ModelRow], agents_with("list_models"), "List the models that the caller may ask."
)
FIND_MODEL: Final = Service(
    "find_model",
    FindModel,
    BackendSpec,
    EVERY_AGENT,
    "Return the complete spec of a model.",
    AgentFields(free=("model",)),
)
