"""What is known of models: looking up, laying over, completing a spec, and what it all costs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import cast

import msgspec
import pytest

from orch_protocol.agent.models import Price
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Usage
from orch_worker.backends import models
from orch_worker.backends.http.remote import ProviderApi, RemoteBackend
from orch_worker.backends.models import Model, ModelCatalog, ModelEntry, ProviderConfig
from orch_worker.backends.registry import APIS, PROVIDERS, complete, template_for
from source_tree import ROOT

KNOWN = ModelCatalog(
    providers={
        "acme": ProviderConfig("chat", "http://acme", keys=("ACME_API_KEY",), default="a-1", context=1000, output=100),
        "home": ProviderConfig("chat", "http://localhost/v1", "HOME_HOST", "/v1", free=True),
    },
    models={
        "acme": {
            "a-": ModelEntry(context=2000),
            "a-1": ModelEntry(context=3000, prices=(Price(2.0, 10.0, 0.2), Price(4.0, 20.0, 0.4, above=1000))),
            "a-1-mini": ModelEntry(output=50, prices=(Price(1.0, 5.0, 0.1),)),
        }
    },
)
KEYS = {"ACME_API_KEY"}


class TestLookUp:
    """Finding what is known of a name."""

    def test_the_longest_beginning_counts(self) -> None:
        """Of all listed names that a name begins with, the longest one tells about it."""
        assert KNOWN.look_up("acme", "a-1-mini").output == 50
        assert KNOWN.look_up("acme", "a-1").context == 3000
        assert KNOWN.look_up("acme", "a-2").context == 2000
        assert KNOWN.look_up("acme", "b").context == 1000

    @pytest.mark.parametrize("suffix", ["", "-2026-11-20", "-20261120", "@20261120", "-latest", "-v2:0"])
    def test_dated_versions_cost_the_same(self, suffix: str) -> None:
        """A date or version behind a listed name does not make it another model."""
        assert KNOWN.look_up("acme", f"a-1{suffix}").price_known

    @pytest.mark.parametrize("name", ["a-1-pro", "a-15", "a-2", "b", "a-1x"])
    def test_other_models_have_no_price(self, name: str) -> None:
        """Another model of a family shares its limits, not its price: the lowest known price is a floor."""
        found = KNOWN.look_up("acme", name)
        assert not found.price_known
        assert found.prices == (Price(1.0, 5.0, 0.1),)

    def test_unknown_provider(self) -> None:
        """An unknown provider is named, with those that are known."""
        with pytest.raises(ConfigError, match=r"unknown provider 'oracle'.*acme, home"):
            KNOWN.look_up("oracle", "x")


class TestCost:
    """Tokens into dollars."""

    def test_by_kind(self) -> None:
        """Each kind of token has its price, per million."""
        used = models.cost(KNOWN.look_up("acme", "a-1"), Usage(100, 10, 200))
        assert used.cost_usd == pytest.approx((100 * 2 + 10 * 10 + 200 * 0.2) / 1e6)
        assert used.cost_known

    def test_long_prompts_have_a_price_of_their_own(self) -> None:
        """Past a size, counting what is cached, all of a request costs more."""
        model = KNOWN.look_up("acme", "a-1")
        assert models.cost(model, Usage(1000, 0)).cost_usd == pytest.approx(1000 * 2 / 1e6)
        assert models.cost(model, Usage(1, 0, 1000)).cost_usd == pytest.approx((4 + 1000 * 0.4) / 1e6)

    def test_a_missing_price_is_a_floor(self) -> None:
        """Tokens written to a cache cost no less than others, which makes the sum a floor."""
        model = KNOWN.look_up("acme", "a-1")
        used = models.cost(model, Usage(100, 0, 0, 50))
        assert used.cost_usd == pytest.approx(150 * 2 / 1e6)
        assert not used.cost_known

    def test_without_a_price_for_cached_tokens_they_cost_what_others_do(self) -> None:
        """A price list without such a price knows of no discount."""
        model = models.Model("chat", "http://acme", 1000, prices=(Price(2.0, 10.0),))
        used = models.cost(model, Usage(100, 10, 200))
        assert used.cost_usd == pytest.approx((300 * 2 + 10 * 10) / 1e6)
        assert used.cost_known

    def test_an_unknown_model_costs_something(self) -> None:
        """What a model costs that is not listed is a floor, and not nothing."""
        used = models.cost(KNOWN.look_up("acme", "a-9"), Usage(100, 10))
        assert used.cost_usd > 0
        assert not used.cost_known

    def test_what_has_no_price_is_charged_the_ceiling(self) -> None:
        """Where a ceiling is set every token costs so much, cached or not, and it is said that this is an estimate."""
        spec = models.equip(BackendSpec("acme", "a-9"), KNOWN, {}, KEYS, 50.0)
        used = models.cost(msgspec.convert(spec.options, Model), Usage(100, 10, 30, 20))
        assert used.cost_usd == used.ceiling_usd == pytest.approx(160 * 50 / 1e6)
        assert not used.cost_known

    def test_a_ceiling_is_for_what_has_no_price_alone(self) -> None:
        """Prices that are known stay, and what is free is free."""
        known, free = BackendSpec("acme", "a-1-mini"), BackendSpec("home", "any")
        for spec in (known, free):
            assert models.equip(spec, KNOWN, {}, KEYS, 50.0) == models.equip(spec, KNOWN, {}, KEYS)
        half = models.Model("messages", "http://acme", 1000, prices=(Price(2.0, 10.0),), ceiling=50.0)
        assert models.cost(half, Usage(100, 10, 0, 20)).cost_usd == pytest.approx((100 * 2 + 10 * 10 + 20 * 50) / 1e6)

    def test_free_is_free(self) -> None:
        """A provider that takes no money costs nothing, and that is known."""
        used = models.cost(KNOWN.look_up("home", "any"), Usage(100, 10))
        assert (used.cost_usd, used.cost_known) == (0.0, True)


class TestEquip:
    """From a model's name to all that its worker needs."""

    def test_everything_is_there(self) -> None:
        """The options are a Model; no secret is among them."""
        spec = models.equip(BackendSpec("acme", "a-1"), KNOWN, {}, KEYS)
        assert msgspec.convert(spec.options, Model) == KNOWN.look_up("acme", "a-1")
        assert template_for(spec) == "sdk"

    def test_twice_is_once(self) -> None:
        """A complete spec stays as it is."""
        spec = models.equip(BackendSpec("acme", "a-1"), KNOWN, {}, KEYS)
        assert models.equip(spec, KNOWN, {}, KEYS) == spec

    def test_no_key(self) -> None:
        """A key that is not there is an error that names the variable."""
        with pytest.raises(ConfigError, match="acme:a-1 needs a key: set ACME_API_KEY"):
            models.equip(BackendSpec("acme", "a-1"), KNOWN, {}, ())

    def test_the_default_model(self) -> None:
        """A provider without a model is its default one, if it has one."""
        assert models.equip(BackendSpec("acme"), KNOWN, {}, KEYS).model == "a-1"
        with pytest.raises(ConfigError, match="which model of home"):
            models.equip(BackendSpec("home"), KNOWN, {}, ())

    @pytest.mark.parametrize(
        ("said", "meant"),
        [
            ("http://gpu:1/v1", "http://gpu:1/v1"),
            ("http://gpu:1/", "http://gpu:1/v1"),
            ("gpu:1", "http://gpu:1/v1"),
            ("https://gpu", "https://gpu/v1"),
            ("", "http://localhost/v1"),
        ],
    )
    def test_the_callers_address(self, said: str, meant: str) -> None:
        """An address in the caller's environment beats the listed one, with or without scheme and path."""
        spec = models.equip(BackendSpec("home", "m"), KNOWN, {"HOME_HOST": said}, ())
        assert spec.options["base_url"] == meant

    def test_default_needs_a_key(self) -> None:
        """The default of all is that of the first provider whose key is there."""
        assert KNOWN.default(KEYS) == "acme:a-1"
        assert KNOWN.default(()) is None

    def test_offline_backends_need_nothing(self) -> None:
        """A backend that is no provider of models is complete, and an unknown one is told with all there are."""
        assert complete(BackendSpec("extractive"), KNOWN, {}, ()) == BackendSpec("extractive")
        with pytest.raises(ConfigError, match=r"'oracle'.*extractive, scripted, acme, home"):
            complete(BackendSpec("oracle"), KNOWN, {}, ())


class TestShipped:
    """The data that comes along."""

    def test_everything_listed_can_be_used(self) -> None:
        """Each listed model can be looked up, has limits, and an API that a backend speaks."""
        known = models.load()
        assert {"anthropic", "openai", "moonshot", "ollama"} <= set(known.providers)
        assert not set(known.providers) & set(PROVIDERS)
        for provider, listed in known.models.items():
            for name in listed:
                model = known.look_up(provider, name)
                assert model.api in APIS
                assert model.context >= 8_000
        assert "MIT" in known.source

    def test_defaults_are_listed_with_prices(self) -> None:
        """What is used when nobody chose has known limits and prices."""
        known = models.load()
        for name, provider in known.providers.items():
            assert not provider.default or known.look_up(name, provider.default).price_known
        assert str(known.default({"OPENAI_API_KEY", "ANTHROPIC_API_KEY"})).startswith("anthropic:")

    def test_the_file_is_what_the_script_makes(self) -> None:
        """What providers.toml says of a model is in models.json."""
        import tomllib

        own = tomllib.loads((ROOT / "scripts" / "providers.toml").read_text())
        made = json.loads((ROOT / "worker" / "orch_worker" / "backends" / "models.json").read_text())
        assert made["providers"] == own["providers"]
        for provider, listed in own["models"].items():
            assert {name: made["models"][provider][name] for name in listed} == listed

    def test_the_script(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The script takes models that can call tools, with their prices a million, and drops idle dates."""
        monkeypatch.syspath_prepend(str(ROOT / "scripts"))
        import make_models

        sys.modules.pop("make_models")
        record = {
            "litellm_provider": "openai",
            "mode": "chat",
            "max_input_tokens": 1000,
            "max_output_tokens": 10,
            "input_cost_per_token": 1e-6,
            "output_cost_per_token": 5e-6,
            "supports_function_calling": True,
            "supports_reasoning": True,
            "supports_vision": True,
            "input_cost_per_token_above_200k_tokens": 2e-6,
        }
        listed = {
            "gpt-x": record | {"supported_endpoints": ["/v1/responses"]},
            "gpt-x-2026-11-20": record | {"supported_endpoints": ["/v1/responses"]},
            "gpt-x-2025-01-01": record,
            "gpt-x-audio": record,
            "deaf": record | {"supports_function_calling": False},
            "other": record | {"litellm_provider": "elsewhere"},
        }
        found = make_models.models(listed, "openai")
        assert set(found) == {"gpt-x", "gpt-x-2025-01-01"}
        assert msgspec.convert(found["gpt-x"], ModelEntry) == ModelEntry(
            context=1000,
            output=10,
            api="responses",
            first_content_seconds=1800.0,
            prices=(Price(1.0, 5.0), Price(2.0, above=200_000)),
            flags={"reasoning": True, "thinks": ["low", "medium", "high"]},
        )
        assert "api" not in found["gpt-x-2025-01-01"]


class TestOverrides:
    """A file of one's own in $ORCH_HOME."""

    def test_values_are_laid_over(self, tmp_path: Path) -> None:
        """A price, a flag, a whole provider: what is there counts, the rest stays."""
        own = {
            "providers": {
                "acme": {"api": "chat", "base_url": "http://acme", "keys": ["ACME_API_KEY"]},
                "ollama": {"context": 9000},
            },
            "models": {"anthropic": {"claude-tomorrow": {"context": 5, "prices": [{"input": 1, "output": 2}]}}},
        }
        (tmp_path / "models.json").write_text(json.dumps(own))
        known = models.load(tmp_path)
        assert known.look_up("acme", "x").base_url == "http://acme"
        assert known.look_up("ollama", "x").context == 9000
        assert known.look_up("ollama", "x").api == "chat"
        assert known.look_up("anthropic", "claude-tomorrow").price_known
        assert known.look_up("anthropic", "claude-sonnet-5-5") == models.load().look_up(
            "anthropic", "claude-sonnet-5-5"
        )

    @pytest.mark.parametrize(
        ("content", "what"),
        [
            ("{", "malformed|truncated"),
            ('{"providers": {"acme": {"api": "chat"}}}', r"base_url.*\$\.providers"),
            ('{"providers": {"acme": {"api": "smoke", "base_url": "x"}}}', r"smoke.*api"),
            ('{"models": {"anthropic": {"claude-": {"flags": {"wings": true}}}}}', "wings"),
            ('{"models": {"acme": {"x": {}}}}', "acme"),
            ('{"models": {"openai": {"x": {"prices": [{"input": -1}]}}}}', ">= 0"),
            ('{"models": {"openai": {"x": {"context": 0}}}}', ">= 1"),
            ("[]", "object"),
        ],
    )
    def test_a_file_that_does_not_fit(self, tmp_path: Path, content: str, what: str) -> None:
        """A file that does not fit is an error that names it, and what is wrong with it."""
        (tmp_path / "models.json").write_text(content)
        with pytest.raises(ConfigError, match=what) as caught:
            models.load(tmp_path)
        assert str(tmp_path / "models.json") in str(caught.value)

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        """Nobody may ever write to it."""
        os.mkfifo(tmp_path / "models.json")
        with pytest.raises(ConfigError, match=r"models\.json does not fit.*not a regular file"):
            models.load(tmp_path)


def test_a_key_may_be_any_word() -> None:
    """One that reads `none` is a key like another; only one that is not there is missing."""
    spec = models.equip(BackendSpec("acme", "a-1"), KNOWN, {}, KEYS)
    dialect = cast(ProviderApi, None)  # which nothing is said in
    assert RemoteBackend(spec, {"ACME_API_KEY": "none"}, dialect)._key == "none"
    with pytest.raises(ConfigError, match="acme:a-1 needs a key: set ACME_API_KEY"):
        RemoteBackend(spec, {}, dialect)
