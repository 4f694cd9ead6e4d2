"""How much a model is told to think: a level of ours, in the words of its API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from orch_protocol.agent.models import THINKING
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError

from .base import UNKNOWN_ANSWER
from .models import Model, over

__all__ = ["check_level", "fitting", "level_of", "thinking"]

OFF: Final = "off"
NONE: Final = "none"
"""What the APIs of OpenAI call that."""
TOKENS: Final = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 32_768, "max": 49_152}
"""What a model may think whose thinking is bounded in tokens."""


def check_level(level: str) -> None:
    """Raise ConfigError unless `level` is one."""
    if level not in THINKING:
        raise ConfigError(f"how much is a model to think? {level!r} is none of {', '.join(THINKING)}")


def fitting(level: str, levels: Sequence[str]) -> str:
    """Return the one of `levels` that stands for `level`: itself, else the next higher, else the next lower one.

    "" when there are none, or `level` is no level.
    """
    if level not in THINKING:
        return ""
    at = THINKING.index(level)
    return next((each for each in (*THINKING[at:], *reversed(THINKING[:at])) if each in levels), "")


def level_of(spec: BackendSpec) -> str:
    """Return the level that the model of a complete `spec` is really told, "" when it is told none.

    Raises ConfigError when a level is wanted of a model that is not known to take any.
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
    """Return `model` with the level of its own that stands for `level` in the body of each request."""
    found = fitting(level, model.flags.thinks)
    return msgspec.structs.replace(model, body=over(model.body, _said(model, found))) if found else model


def _said(model: Model, level: str) -> Mapping[str, Any]:
    if model.api == "responses":
        return {"reasoning": {"effort": NONE if level == OFF else level}}
    if model.api == "chat":
        return {"reasoning_effort": NONE if level == OFF else level}
    if level == OFF:
        return {"thinking": {"type": "disabled"}}
    if not model.flags.thinking_in_tokens:
        return {"thinking": {"type": "adaptive"}, "output_config": {"effort": level}}
    # What is thought counts as said: what is left of the longest answer is for the answer.
    most = max(TOKENS["minimal"], min(TOKENS[level], _longest(model) // 2))
    return {"thinking": {"type": "enabled", "budget_tokens": most}}


def _longest(model: Model) -> int:
    """Return for how many tokens the model is asked at most, as the requests say it."""
    said = model.body.get("max_tokens")
    return said if isinstance(said, int) else min(model.output, max(1, model.context // 2)) or UNKNOWN_ANSWER
