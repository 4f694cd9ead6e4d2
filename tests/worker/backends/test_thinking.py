"""Thinking levels, and the request fields that set them in each API."""

from __future__ import annotations

from typing import Any

import pytest

from orch_protocol.agent.models import THINKING
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_worker.backends.models import Model, ModelFlags, load
from orch_worker.backends.thinking import check_level, fitting, level_of, thinking

EFFORTS = ("low", "high", "max")


def model(
    api: Any, *thinks: str, in_tokens: bool = False, output: int = 64_000, context: int = 200_000, **body: Any
) -> Model:
    """Return a model with the thinking levels `thinks`."""
    flags = ModelFlags(thinks=thinks, thinking_in_tokens=in_tokens)
    return Model(api=api, base_url="", context=context, output=output, flags=flags, body=body)


@pytest.mark.parametrize(
    ("level", "found"),
    [("off", "low"), ("low", "low"), ("medium", "high"), ("xhigh", "max"), ("max", "max"), ("", ""), ("much", "")],
)
def test_unsupported_thinking_level_rounds_up(level: str, found: str) -> None:
    """A level that the model does not have becomes the next higher level of the model."""
    assert fitting(level, EFFORTS) == found


def test_thinking_level_above_the_highest_rounds_down() -> None:
    """A model without levels gets no level."""
    assert [fitting("max", levels) for levels in (("off", "low", "high"), ("low",), ())] == ["high", "low", ""]


@pytest.mark.parametrize(
    ("made", "level", "body"),
    [
        (model("responses", "off", "low"), "low", {"reasoning": {"effort": "low"}}),
        (model("responses", "off", "low"), "off", {"reasoning": {"effort": "none"}}),
        (model("chat", *EFFORTS), "medium", {"reasoning_effort": "high"}),
        (model("messages", "off", *EFFORTS), "off", {"thinking": {"type": "disabled"}}),
        (
            model("messages", *EFFORTS, output_config={"effort": "low", "format": 1}),
            "max",
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max", "format": 1}},
        ),
        (
            model("messages", "low", "high", in_tokens=True),
            "high",
            {"thinking": {"type": "enabled", "budget_tokens": 16_384}},
        ),
        (
            model("messages", "low", "high", in_tokens=True, output=4096),
            "high",
            {"thinking": {"type": "enabled", "budget_tokens": 2048}},  # the other half of the output is for the answer
        ),
        (
            model("messages", "low", "high", in_tokens=True, output=0),
            "high",
            {"thinking": {"type": "enabled", "budget_tokens": 4096}},  # the maximum output is unknown
        ),
        (
            model("messages", "low", "high", in_tokens=True, context=20_000),
            "high",
            {"thinking": {"type": "enabled", "budget_tokens": 5000}},  # the budget is limited by the context window
        ),
        (
            model("messages", "low", "high", in_tokens=True, max_tokens=4096),
            "high",
            {"max_tokens": 4096, "thinking": {"type": "enabled", "budget_tokens": 2048}},
        ),
        (model("messages", x=1), "high", {"x": 1}),
        (model("messages", *EFFORTS, x=1), "", {"x": 1}),
    ],
)
def test_thinking_level_maps_to_each_apis_request_fields(made: Model, level: str, body: dict[str, Any]) -> None:
    """Other fields of the body stay, and a model without levels gets no field."""
    assert thinking(made, level).body == body


def test_invalid_thinking_level_is_refused() -> None:
    """A level for a model without levels is refused with an error that shows how to declare levels."""
    with pytest.raises(ConfigError, match="unknown thinking level 'much': use one of off, minimal, low"):
        check_level("much")
    with pytest.raises(ConfigError, match=r"acme:x has no known thinking levels.*\"acme\": {\"x\": {\"flags\""):
        level_of(BackendSpec("acme", "x", {"api": "chat"}, "low"))
    assert level_of(BackendSpec("acme", "x", {"api": "chat"})) == ""


def test_cli_has_the_thinking_levels_of_the_protocol() -> None:
    """The CLI has a copy of the list, because importing the module of the protocol is slow."""
    from orch.cli.agents.spawn import THINKING as LISTED

    assert LISTED == THINKING


def test_shipped_models_declare_valid_thinking_levels() -> None:
    """All declared levels are valid, and each of the three APIs has a model with levels."""
    known = load()
    found = {
        (made.api, made.flags.thinks)
        for provider, listed in known.models.items()
        for made in (known.look_up(provider, name) for name in listed)
    }
    assert {api for api, thinks in found if thinks} == {"messages", "chat", "responses"}
    assert all(level in THINKING for _, thinks in found for level in thinks)
