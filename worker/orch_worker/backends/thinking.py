"""Converts orch's thinking levels to the parameters of a provider's API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from orch_protocol.agent.models import THINKING
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError

from .base import DEFAULT_ANSWER_TOKENS
from .models import Model, merge_tables

__all__ = ["check_level", "fitting", "level_of", "thinking"]

OFF: Final = "off"
NONE: Final = "none"
"""The name that OpenAI's APIs give to the level "off"."""
TOKENS: Final = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 32_768, "max": 49_152}
"""Maximum number of thinking tokens for each level, for models that limit thinking by tokens."""


def check_level(level: str) -> None:
    """Raise ConfigError for an unknown level."""
    if level not in THINKING:
        raise ConfigError(f"unknown thinking level {level!r}: use one of {', '.join(THINKING)}")


def fitting(level: str, levels: Sequence[str]) -> str:
    """Return the item of `levels` that is closest to `level`.

    The closest level is the same level, or the next higher level. If there is no higher level, it is the next lower
    level. Return "" if `levels` is empty or `level` is unknown.
    """
    if level not in THINKING:
        return ""
    index = THINKING.index(level)
    return next((each for each in (*THINKING[index:], *reversed(THINKING[:index])) if each in levels), "")


def level_of(spec: BackendSpec) -> str:
    """Return the level that is sent to the model of a complete `spec`, or "" if no level is sent.

    Raise ConfigError if a level is set for a model whose levels are unknown.
    """
    if not spec.thinking:
        return ""
    levels = (spec.options.get("flags") or {}).get("thinks", ()) if "api" in spec.options else ()
    found = fitting(spec.thinking, levels)
    if not found and "api" not in spec.options:
        raise ConfigError(f"{spec.provider} does not support a thinking level: it is not a model")
    if not found:
        name = f"{spec.provider}:{spec.model}" if spec.model else spec.provider
        raise ConfigError(
            f"{name} has no known thinking levels. If it supports them, add them to $ORCH_HOME/models.json and restart "
            f'the daemon: {{"models": {{"{spec.provider}": {{"{spec.model}": {{"flags": {{"thinks": '
            '["low", "medium", "high"]}}}}}'
        )
    return found


def thinking(model: Model, level: str) -> Model:
    """Return `model` with the closest supported level in its request body."""
    found = fitting(level, model.flags.thinks)
    return (
        msgspec.structs.replace(model, body=merge_tables(model.body, _request_fields(model, found))) if found else model
    )


def _request_fields(model: Model, level: str) -> Mapping[str, Any]:
    if model.api == "responses":
        return {"reasoning": {"effort": NONE if level == OFF else level}}
    if model.api in ("chat", "azure"):
        return {"reasoning_effort": NONE if level == OFF else level}
    if level == OFF:
        return {"thinking": {"type": "disabled"}}
    if not model.flags.thinking_in_tokens:
        return {"thinking": {"type": "adaptive"}, "output_config": {"effort": level}}
    # Thinking tokens count toward the answer limit, so leave at least half of this limit for the answer.
    limit = max(TOKENS["minimal"], min(TOKENS[level], _max_answer_tokens(model) // 2))
    return {"thinking": {"type": "enabled", "budget_tokens": limit}}


def _max_answer_tokens(model: Model) -> int:
    """Return the answer limit that requests contain."""
    limit = model.body.get("max_tokens")
    return limit if isinstance(limit, int) else min(model.output, max(1, model.context // 2)) or DEFAULT_ANSWER_TOKENS
