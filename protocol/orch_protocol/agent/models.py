"""What is known of a model, as data that the root tells and others show; and how it is asked for that."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias, get_args

from msgspec import Meta, Struct

from .spec import BackendSpec

__all__ = ["THINKING", "FindModel", "ListModels", "ModelRow", "Price", "RecordModel", "RestrictToLocal", "Thinking"]

Thinking: TypeAlias = Literal["off", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model can be told to think."""
THINKING: Final[tuple[str, ...]] = get_args(Thinking)
"""The same, the least first."""


Dollars = Annotated[float, Meta(ge=0)]


class Price(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """USD per million tokens, for requests of more than `above` tokens; None where it is not known.

    Without a price of their own, tokens read from a cache cost what input does, and those written there no less.
    """

    input: Dollars | None = None
    output: Dollars | None = None
    cache_read: Dollars | None = None
    cache_write: Dollars | None = None
    above: Annotated[int, Meta(ge=0)] = 0


class ModelRow(Struct, frozen=True):
    """One model, `provider:name`; a `*` at its end stands for any name that begins like that.

    `context` and `output` are the most tokens of a conversation and of a response; None is not known. `prices` are a
    floor while `price_known` is false, and none at all mean that it is free when it is true. `keys` are the variables
    that can hold its provider's key, `key` the one that does. It can be told to think as much as one of `thinks`.
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


class RestrictToLocal(Struct, frozen=True, forbid_unknown_fields=True):
    """From now on the calling agent's conversation is for models of this machine alone. With `look` only say which."""

    look: bool = False


class ListModels(Struct, frozen=True, forbid_unknown_fields=True):
    """The models that the calling agent may ask."""


class FindModel(Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker needs to ask `model`, `provider:name` or `local`; None is the calling agent's own."""

    model: str | None = None


class RecordModel(Struct, frozen=True):
    """The model behind `backend` answers for an agent; `chosen` as in AgentSpec."""

    backend: BackendSpec
    chosen: str = ""
