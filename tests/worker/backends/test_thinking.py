"""How much a model is told to think, in the words of its API."""

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
    """Return a model that takes the levels `thinks`."""
    flags = ModelFlags(thinks=thinks, thinking_in_tokens=in_tokens)
    return Model(api=api, base_url="", context=context, output=output, flags=flags, body=body)


@pytest.mark.parametrize(
    ("level", "found"),
    [("off", "low"), ("low", "low"), ("medium", "high"), ("xhigh", "max"), ("max", "max"), ("", ""), ("much", "")],
)
def test_a_level_is_itself_or_the_next_higher_one(level: str, found: str) -> None:
    """What the model does not have stands for the next that it has."""
    assert fitting(level, EFFORTS) == found


def test_where_there_is_none_higher_it_is_the_next_lower_one() -> None:
    """And where there is none at all, none."""
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
            {"thinking": {"type": "enabled", "budget_tokens": 2048}},  # half of it is for the answer
        ),
        (
            model("messages", "low", "high", in_tokens=True, output=0),
            "high",
            {"thinking": {"type": "enabled", "budget_tokens": 4096}},  # nobody knows how long it may be
        ),
        (
            model("messages", "low", "high", in_tokens=True, context=20_000),
            "high",
            {"thinking": {"type": "enabled", "budget_tokens": 5000}},  # nor is it ever longer than half of all
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
def test_what_requests_say(made: Model, level: str, body: dict[str, Any]) -> None:
    """By the API; what the body says besides stays, and a model that takes no level is told none."""
    assert thinking(made, level).body == body


def test_levels_that_cannot_be() -> None:
    """A word that is none; a model that takes none, with what to write if it does."""
    with pytest.raises(ConfigError, match="'much' is none of off, minimal, low"):
        check_level("much")
    with pytest.raises(ConfigError, match=r"acme:x has no known thinking levels.*\"acme\": {\"x\": {\"flags\""):
        level_of(BackendSpec("acme", "x", {"api": "chat"}, "low"))
    assert level_of(BackendSpec("acme", "x", {"api": "chat"})) == ""


def test_the_command_line_knows_the_levels() -> None:
    """It says them without importing anything."""
    from orch.cli.agents.spawn import THINKING as SAID

    assert SAID == THINKING


def test_the_levels_of_what_comes_along_are_levels() -> None:
    """Each model's, and models of the three APIs have some."""
    known = load()
    found = {
        (made.api, made.flags.thinks)
        for provider, listed in known.models.items()
        for made in (known.look_up(provider, name) for name in listed)
    }
    assert {api for api, thinks in found if thinks} == {"messages", "chat", "responses"}
    assert all(level in THINKING for _, thinks in found for level in thinks)
