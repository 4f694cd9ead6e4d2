"""`orch models`: the list of models, and the page of one model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orch.cli import run
from orch.cli.agents import spawn
from orch.cli.resources import models as verb
from orch_protocol.agent.models import THINKING
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError

Captured = pytest.CaptureFixture[str]

OWN = {
    "providers": {
        "acme": {
            "api": "chat",
            "base_url": "http://acme",
            "keys": ["ACME_API_KEY", "ACME_AUTH_TOKEN"],
            "default": "a-1",
        },
        "home": {"api": "chat", "base_url": "http://home", "free": True, "context": 9000},
    },
    "models": {
        "acme": {
            "a-": {"context": 2000},
            "a-1": {
                "context": 3000,
                "output": 1000,
                "prices": [{"input": 2, "output": 10.5, "cache_read": 0.25}, {"input": 4, "output": 21, "above": 1000}],
            },
        }
    },
}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home with providers of the user. Only ACME_AUTH_TOKEN is set."""
    (tmp_path / "models.json").write_text(json.dumps(OWN))
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    monkeypatch.setenv("ACME_AUTH_TOKEN", "canary")


def data(capsys: Captured, *argv: str) -> Any:
    assert run(["models", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_models_are_listed_with_context_prices_and_key(capsys: Captured) -> None:
    """Unknown prices are `?`. The column KEY has the name of the variable, never its value."""
    assert run(["models"]) == 0
    out, err = capsys.readouterr()
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines()}
    assert lines["MODEL"].split() == ["CONTEXT", "INPUT", "OUTPUT", "CACHED", "KEY"]
    assert lines["acme:a-1"].split() == ["3.0k", "$2", "$10.5", "$0.25", "ACME_AUTH_TOKEN"]
    assert lines["acme:a-*"].split() == ["2.0k", "?", "?", "?", "ACME_AUTH_TOKEN"]
    assert lines["home:*"].split() == ["9.0k", "free", "free", "free", "none", "needed"]
    assert lines["anthropic:claude-sonnet-5-5"].endswith("no ANTHROPIC_API_KEY")
    assert "canary" not in out + err


def test_model_list_json_names_the_key_variable(capsys: Captured) -> None:
    """Each model is an object, in which `key` is the name of the variable."""
    [about] = [each for each in data(capsys) if each["model"] == "acme:a-1"]
    assert about == {
        "model": "acme:a-1",
        "listed_as": "a-1",
        "api": "chat",
        "context": 3000,
        "output": 1000,
        "price_known": True,
        "prices": [
            {"input": 2.0, "output": 10.5, "cache_read": 0.25, "cache_write": None, "above": 0},
            {"input": 4.0, "output": 21.0, "cache_read": None, "cache_write": None, "above": 1000},
        ],
        "keys": ["ACME_API_KEY", "ACME_AUTH_TOKEN"],
        "key": "ACME_AUTH_TOKEN",
        "thinks": [],
    }


def test_model_page_shows_everything_known(capsys: Captured) -> None:
    """The data are those of the longest listed name with which the model's name begins."""
    assert run(["models", "acme:a-1-2026-11-20"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "acme:a-1-2026-11-20",
        "  known as: a-1",
        "  API:      chat",
        "  context:  3,000 tokens",
        "  reply:    at most 1,000 tokens",
        "  key:      ACME_AUTH_TOKEN, which is set",
        "  price:    $2 in, $10.5 out, $0.25 cached per million tokens",
        "            $4 in, $21 out per million tokens, for more than 1,000 tokens",
    ]


def test_unknown_model_has_family_limits_and_a_price_floor(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is not listed has the limits of its family, and its costs are a lower bound."""
    monkeypatch.delenv("ACME_AUTH_TOKEN")
    assert run(["models", "acme:a-2"]) == 0
    out = capsys.readouterr().out
    assert "known as: a-*\n" in out
    assert "unknown; costs are lower bounds" in out
    assert "$2 in, $10.5 out" in out
    assert "key:      no ACME_API_KEY or ACME_AUTH_TOKEN\n" in out
    run(["models", "acme:other"])
    assert "known as: any model of that provider" in capsys.readouterr().out
    run(["models", "home:other"])
    assert "price:    free" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "found"), [("a-1", "acme:a-1"), ("acme", "acme:a-1"), ("claude-sonnet-5-5", "anthropic:claude-sonnet-5-5")]
)
def test_provider_is_found_by_model_name(capsys: Captured, name: str, found: str) -> None:
    """The name of a model selects its provider, and the name of a provider selects its default model."""
    assert data(capsys, name)["model"] == found


@pytest.mark.parametrize("part", ["sonnet", "Claude-S"])
def test_a_part_of_a_name_lists_the_models_that_contain_it(capsys: Captured, part: str) -> None:
    """Upper and lower case are equal. With --json, the result is a list."""
    listed = [each["model"] for each in data(capsys)]
    found = [each["model"] for each in data(capsys, part)]
    assert found == [each for each in listed if part.lower() in each]
    assert "anthropic:claude-sonnet-5-5" in found
    assert run(["models", part]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["MODEL", *found]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nope", "no listed model contains 'nope'"),
        ("home", "no model given for provider home"),
        ("local:x", "contains 'local:x'"),
    ],
)
def test_unknown_name_says_what_to_write(capsys: Captured, name: str, complaint: str) -> None:
    assert run(["models", name]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert complaint in err


def test_local_resolves_to_the_model_that_would_answer(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no local server answers, the command exits with 2."""

    async def here(spec: BackendSpec, *_: Any) -> BackendSpec:
        assert spec == BackendSpec("local")
        return BackendSpec("home", "found:3b")

    monkeypatch.setattr(verb, "locate", here)
    assert data(capsys, "local")["model"] == "home:found:3b"

    async def nowhere(*_: Any) -> BackendSpec:
        raise ConfigError("`local`: nobody answers")

    monkeypatch.setattr(verb, "locate", nowhere)
    assert run(["models", "local"]) == 2
    assert "nobody answers" in capsys.readouterr().err


def test_shell_completion_lists_every_thinking_level() -> None:
    """The module repeats the levels, because it does not import slow modules; both lists are equal."""
    assert spawn.THINKING == THINKING
