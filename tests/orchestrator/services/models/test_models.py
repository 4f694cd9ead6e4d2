"""Which models agents may ask: by keys, by local servers, by configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from orch import Config, SubagentsConfig
from orch.config import models
from orch.config.models import Catalog, matches_any
from orch.policy.caller import AgentCaller
from orch.services import call
from orch_protocol.agent.models import FindModel, ListModels, Price
from orch_protocol.core.errors import ConfigError
from orch_protocol.services.models import FIND_MODEL, LIST_MODELS
from orch_worker.backends.models import ModelCatalog, ModelEntry, ProviderConfig
from orchestrator.root_double import World

KNOWN = ModelCatalog(
    providers={
        "acme": ProviderConfig("chat", "http://acme", keys=("ACME_KEY", "ACME_TOKEN"), default="a-1"),
        "dear": ProviderConfig("chat", "http://dear", keys=("DEAR_KEY",)),
        "here": ProviderConfig("chat", "http://here", listing="/tags", candidates=("q",), free=True),
    },
    models={
        "acme": {"a-": ModelEntry(context=2000), "a-1": ModelEntry(prices=(Price(2.0, 10.0),))},
        "dear": {"d": ModelEntry(prices=(Price(9.0, 9.0),))},
    },
)


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the local server lists; nothing means that nobody answers."""
    names: list[str] = []

    async def installed(about: ProviderConfig, _: object) -> list[str]:
        assert about is KNOWN.providers["here"]
        if not names:
            raise ConnectionRefusedError
        return names

    monkeypatch.setattr(models, "installed", installed)
    return names


async def reachable(patterns: Sequence[str] | None, named: Sequence[str] = (), keys: Sequence[str] = ()) -> list[str]:
    return [row.model for row in await Catalog(KNOWN, {}, keys).reachable(patterns, named)]


async def test_models_with_a_key_can_be_reached() -> None:
    """Those of a provider whose key is there, and of no other."""
    assert await reachable(None, keys=["ACME_TOKEN"]) == ["acme:a-*", "acme:a-1"]
    assert await reachable(None) == []


async def test_a_local_server_says_what_it_has(local: list[str]) -> None:
    """Its models are those it lists; when nobody answers there are none."""
    local += ["q:8b", "r:3b"]
    assert await reachable(None) == ["here:q:8b", "here:r:3b"]


async def test_models_that_are_named_are_there_too() -> None:
    """The agent's own model, and one that the configuration names, need no entry; but a key."""
    assert await reachable(None, ["acme:b-7", "extractive:"], ["ACME_KEY"]) == ["acme:a-*", "acme:a-1", "acme:b-7"]
    assert await reachable(["acme:c", "dear:d"], keys=["ACME_KEY"]) == ["acme:c"]


@pytest.mark.parametrize(
    ("patterns", "model", "may"),
    [
        (None, "acme:a-1", True),
        (None, "scripted:", False),
        (None, "extractive:", False),
        ((), "acme:a-1", False),
        (("acme:*",), "acme:a-1", True),
        (("acme:*",), "dear:d", False),
        (("dear:d", "acme:a-1"), "acme:a-1", True),
        (("acme:a-1",), "acme:a-11", False),
        (("acme:A-1",), "acme:a-1", False),
    ],
)
def test_patterns(patterns: Sequence[str] | None, model: str, may: bool) -> None:
    """A pattern is a whole name, with `*` for anything; what is no model is never one to ask."""
    assert matches_any(patterns, model) is may


def world(tmp_path: Path, patterns: tuple[str, ...] | None = None, model: str | None = None) -> World:
    """Return a root that knows those models and has one key."""
    made = World(
        tmp_path, config=Config(model=model, subagents=SubagentsConfig(chat_models=patterns)), keys={"ACME_KEY": "k"}
    )
    made._known = KNOWN
    return made


async def test_a_worker_gets_all_it_needs_to_ask(tmp_path: Path) -> None:
    """Address, limits and prices; the model is the agent's own, or what is configured where a script speaks for it."""
    async with world(tmp_path, model="acme:a-1") as root:
        agent = await root.scripted(tools=["chat"])
        other = await root.spawn("x", model="acme:a-2", tools=["chat"])
        for caller, asked, name in ((agent, None, "a-1"), (other, None, "a-2"), (agent, "acme:b", "b")):
            found = await call(root.supervisor, AgentCaller(caller.id), FIND_MODEL, FindModel(asked))
            assert (found.provider, found.model, found.options["base_url"]) == ("acme", name, "http://acme")
            assert "k" not in found.options.values()


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("dear:d", "dear:d needs a key"),
        ("nobody:x", "unknown provider 'nobody'"),
        ("scripted:", "'scripted:' is no model that agents may ask"),
        ("acme:a-2", "'acme:a-2' is no model that agents may ask"),
        (None, "'extractive:' is no model"),
    ],
)
async def test_a_model_that_is_not_allowed_is_refused_with_the_list(
    tmp_path: Path, asked: str | None, why: str
) -> None:
    """Whatever the reason, the error says which models there are."""
    async with world(tmp_path, ("acme:a-1",), model="extractive:") as root:
        agent = await root.scripted(tools=["chat"])
        with pytest.raises(ConfigError, match=rf"{why}.*Models that can be asked: acme:a-1$"):
            await call(root.supervisor, AgentCaller(agent.id), FIND_MODEL, FindModel(asked))


async def test_a_long_list_is_cut(tmp_path: Path) -> None:
    """An error names some models and how many more there are."""
    async with world(tmp_path, tuple(f"acme:m{number}" for number in range(25))) as root:
        agent = await root.scripted(tools=["chat"])
        with pytest.raises(ConfigError, match=r"acme:m19 and 5 more$"):
            await call(root.supervisor, AgentCaller(agent.id), FIND_MODEL, FindModel("dear:d"))
        assert len(await call(root.supervisor, AgentCaller(agent.id), LIST_MODELS, ListModels())) == 25
