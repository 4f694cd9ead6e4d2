"""Looking at models from the command line: the list, one of them, none of them."""

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
    """A home with providers of one's own, and no key but one."""
    (tmp_path / "models.json").write_text(json.dumps(OWN))
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    monkeypatch.setenv("ACME_AUTH_TOKEN", "canary")


def data(capsys: Captured, *argv: str) -> Any:
    assert run(["models", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_known_model_is_a_line(capsys: Captured) -> None:
    """Context, prices, and whose key is here; what has no price of its own says so."""
    assert run(["models"]) == 0
    out, err = capsys.readouterr()
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines()}
    assert lines["MODEL"].split() == ["CONTEXT", "INPUT", "OUTPUT", "CACHED", "KEY"]
    assert lines["acme:a-1"].split() == ["3.0k", "$2", "$10.5", "$0.25", "ACME_AUTH_TOKEN"]
    assert lines["acme:a-*"].split() == ["2.0k", "?", "?", "?", "ACME_AUTH_TOKEN"]
    assert lines["home:*"].split() == ["9.0k", "free", "free", "free", "none", "needed"]
    assert lines["anthropic:claude-sonnet-5-5"].endswith("no ANTHROPIC_API_KEY")
    assert "canary" not in out + err


def test_the_list_as_json(capsys: Captured) -> None:
    """One object a model; the key is the name of a variable, never what it holds."""
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


def test_one_model_is_a_page(capsys: Captured) -> None:
    """Everything that is known of it, by the longest name that it begins with."""
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


def test_an_unknown_model_says_what_it_would_mean(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the limits of its family, and a floor for a price."""
    monkeypatch.delenv("ACME_AUTH_TOKEN")
    assert run(["models", "acme:a-2"]) == 0
    out = capsys.readouterr().out
    assert "known as: a-*\n" in out
    assert "not known; costs are a floor" in out
    assert "$2 in, $10.5 out" in out
    assert "key:      no ACME_API_KEY or ACME_AUTH_TOKEN\n" in out
    run(["models", "acme:other"])
    assert "known as: any model of that provider" in capsys.readouterr().out
    run(["models", "home:other"])
    assert "price:    free" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "found"), [("a-1", "acme:a-1"), ("acme", "acme:a-1"), ("claude-sonnet-5-5", "anthropic:claude-sonnet-5-5")]
)
def test_a_name_alone_is_enough(capsys: Captured, name: str, found: str) -> None:
    """A model's name finds its provider, a provider's its default."""
    assert data(capsys, name)["model"] == found


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("nope", r"no listed model begins 'nope'"), ("home", "which model of home"), ("local:x", "begins 'local:x'")],
)
def test_a_name_that_means_nothing(capsys: Captured, name: str, complaint: str) -> None:
    """The error says what to write instead."""
    assert run(["models", name]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert complaint in err


def test_local_is_looked_for(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the model that would answer now; when there is none, that is the error."""

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


def test_the_shell_knows_every_level_of_thinking() -> None:
    """It has words of its own for them, since it imports nothing that takes time."""
    assert spawn.THINKING == THINKING
