"""Data about models: prices, levels of reasoning effort, and the model that a session records."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias, get_args

from msgspec import Meta, Struct

from .spec import BackendSpec

__all__ = ["THINKING", "Price", "RecordModel", "Thinking"]

Thinking: TypeAlias = Literal["off", "minimal", "low", "medium", "high", "xhigh", "max"]
"""Levels of reasoning effort."""
THINKING: Final[tuple[str, ...]] = get_args(Thinking)
"""All levels of reasoning effort, lowest first."""


Dollars = Annotated[float, Meta(ge=0)]


class Price(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Prices in USD per million tokens, for requests of more than `above` tokens. None means that the price is unknown.

    If `cache_read` is None, a token read from the cache costs as much as an input token. A token written to the cache
    costs at least as much as an input token.
    """

    input: Dollars | None = None
    output: Dollars | None = None
    cache_read: Dollars | None = None
    cache_write: Dollars | None = None
    above: Annotated[int, Meta(ge=0)] = 0


class RecordModel(Struct, frozen=True):
    """The model that the calling agent uses, as `backend`. `chosen` is the same as in AgentSpec."""

    backend: BackendSpec
    chosen: str = ""
