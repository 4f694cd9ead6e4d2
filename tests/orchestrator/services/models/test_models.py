"""Models that agents may query: by keys, local servers and configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from orch import Config, SubagentsConfig
from orch.config import models
from orch.config.models import Catalog, matches_any
from orch.policy.caller import AgentCaller
from orch.services import call
from orch_protocol.agent.models import Price
from orch_protocol.core.errors import ConfigError, OrchError
from orch_protocol.services.models.models import FIND_MODEL, LIST_MODELS, FindModel, ListModels
from orch_worker.backends import local_servers
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
    """The models that the local server lists. An empty list means that the server is unreachable."""
    names: list[str] = []

    async def installed(about: ProviderConfig, _: object) -> list[str]:
        assert about is KNOWN.providers["here"]
        if not names:
            raise ConnectionRefusedError
        return names

    monkeypatch.setattr(models, "installed", installed)
    return names


async def reachable(patterns: Sequence[str] | None, named: Sequence[str] = (), keys: Sequence[str] = ()) -> list[str]:
    return [row.model for row in await Catalog(KNOWN, {}, keys).usable_models(patterns, named)]


async def test_models_with_a_key_are_available() -> None:
    """The available models are those of providers for which there is a key."""
    assert await reachable(None, keys=["ACME_TOKEN"]) == ["acme:a-*", "acme:a-1"]
    assert await reachable(None) == []


def test_a_name_means_a_model_with_a_key() -> None:
    """A name is a model's name, or else its family (a part of the name between dashes), of which the newest is used."""
    names = ("a-big-4-5", "a-big-5", "a-big-10", "a-small-7", "big")
    listed = ModelCatalog(KNOWN.providers, {"acme": {name: ModelEntry(prices=(Price(1.0),)) for name in names}})
    catalog = Catalog(listed, {}, ["ACME_KEY"])
    assert catalog.find_name("a-big-5") == "acme:a-big-5"
    assert catalog.find_name("small") == "acme:a-small-7"
    assert catalog.find_name("big") == "acme:big"
    assert catalog.find_name("a") == "acme:a-big-10"
    assert catalog.find_name("bi") is None
    assert Catalog(listed, {}, []).find_name("small") is None


async def test_local_server_lists_its_models(local: list[str]) -> None:
    """The models that a local server lists are available, with the server's provider as prefix."""
    local += ["q:8b", "r:3b"]
    assert await reachable(None) == ["here:q:8b", "here:r:3b"]


async def test_named_models_are_available_with_a_key() -> None:
    """The agent's own model and configured names need a key, but no entry in the catalog."""
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
def test_model_patterns_match_whole_names(patterns: Sequence[str] | None, model: str, may: bool) -> None:
    """`*` is a wildcard; without patterns, every model except the offline ones matches."""
    assert matches_any(patterns, model) is may


def world(tmp_path: Path, patterns: tuple[str, ...] | None = None, model: str | None = None) -> World:
    """Return a root with the models of KNOWN and one key."""
    made = World(
        tmp_path, config=Config(model=model, subagents=SubagentsConfig(chat_models=patterns)), keys={"ACME_KEY": "k"}
    )
    made._known = KNOWN
    return made


async def test_worker_receives_address_limits_and_prices(tmp_path: Path) -> None:
    """Without a name, the model is the agent's own, or the configured one for a scripted agent; no key is sent."""
    async with world(tmp_path, model="acme:a-1") as root:
        agent = await root.scripted(tools=["chat"])
        other = await root.spawn("x", model="acme:a-2", tools=["chat"])
        for caller, asked, name, context, priced in (
            (agent, None, "a-1", 32_768, True),
            (other, None, "a-2", 2000, False),
            (agent, "acme:b", "b", 32_768, False),
        ):
            found = await call(root.supervisor, AgentCaller(caller.id), FIND_MODEL, FindModel(asked))
            assert (found.provider, found.model, found.options["base_url"]) == ("acme", name, "http://acme")
            assert (found.options["context"], found.options.get("price_known", True)) == (context, priced)
            assert found.options["prices"] == [{"input": 2.0, "output": 10.0}]
            assert "k" not in found.options.values()


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("dear:d", "dear:d needs a key"),
        ("nobody:x", "unknown provider 'nobody'"),
        ("scripted:", "'scripted:' is not a model that agents may query"),
        ("acme:a-2", "'acme:a-2' is not a model that agents may query"),
        (None, "'extractive:' is not a model"),
    ],
)
async def test_disallowed_model_error_lists_the_models(tmp_path: Path, asked: str | None, why: str) -> None:
    """Each kind of invalid choice gives the list of models that the agent may query."""
    async with world(tmp_path, ("acme:a-1",), model="extractive:") as root:
        agent = await root.scripted(tools=["chat"])
        with pytest.raises(ConfigError, match=rf"{why}.*Models that can be asked: acme:a-1$"):
            await call(root.supervisor, AgentCaller(agent.id), FIND_MODEL, FindModel(asked))


async def test_long_model_list_is_truncated(tmp_path: Path) -> None:
    """The error names 20 models and the number of the others; `LIST_MODELS` returns all of them."""
    async with world(tmp_path, tuple(f"acme:m{number}" for number in range(25))) as root:
        agent = await root.scripted(tools=["chat"])
        with pytest.raises(ConfigError, match=r"acme:m19 and 5 more$"):
            await call(root.supervisor, AgentCaller(agent.id), FIND_MODEL, FindModel("dear:d"))
        assert len(await call(root.supervisor, AgentCaller(agent.id), LIST_MODELS, ListModels())) == 25


@pytest.mark.parametrize("patterns", [None, ("acme:*",)])
async def test_agent_cannot_make_the_root_contact_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patterns: tuple[str, ...] | None
) -> None:
    """An agent may use a model that is named by an address only if it is its own or configured."""
    monkeypatch.setattr(local_servers, "ask_server", lambda *_, **__: pytest.fail("a request was sent"))
    async with world(tmp_path, patterns, model="acme:a-1") as root:
        agent = await root.scripted(tools=["chat"])
        with pytest.raises(OrchError, match=r"http://inner\.example/v1"):
            await call(root.supervisor, AgentCaller(agent.id), FIND_MODEL, FindModel("http://inner.example/v1"))
