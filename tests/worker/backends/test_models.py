"""The catalog of models: lookup, overrides, completing a spec, and prices."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
import pytest

from orch_protocol.agent.models import Price
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Usage
from orch_worker.backends import models
from orch_worker.backends.formats.format import ApiFormat
from orch_worker.backends.http.client import SdkClient, Server
from orch_worker.backends.http.remote import RemoteBackend
from orch_worker.backends.models import Model, ModelCatalog, ModelEntry, ProviderConfig
from orch_worker.backends.prices import cost
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
    """Lookup of a model by its name."""

    def test_longest_matching_name_prefix_wins(self) -> None:
        """The longest listed name that is a prefix of the model name applies."""
        assert KNOWN.look_up("acme", "a-1-mini").output == 50
        assert KNOWN.look_up("acme", "a-1").context == 3000
        assert KNOWN.look_up("acme", "a-2").context == 2000
        assert KNOWN.look_up("acme", "b").context == 1000

    @pytest.mark.parametrize("suffix", ["", "-2026-11-20", "-20261120", "@20261120", "-latest", "-v2:0"])
    def test_dated_model_versions_share_the_listed_price(self, suffix: str) -> None:
        """A name with a date or version after a listed name means the same model."""
        assert KNOWN.look_up("acme", f"a-1{suffix}").price_known

    @pytest.mark.parametrize("name", ["a-1-pro", "a-15", "a-2", "b", "a-1x"])
    def test_unlisted_model_of_a_family_has_a_price_floor(self, name: str) -> None:
        """The lowest known price of the family is a lower bound for an unlisted model."""
        found = KNOWN.look_up("acme", name)
        assert not found.price_known
        assert found.prices == (Price(1.0, 5.0, 0.1),)

    def test_unknown_provider(self) -> None:
        """The error for an unknown provider names it and the known providers."""
        with pytest.raises(ConfigError, match=r"unknown provider 'oracle'.*acme, home"):
            KNOWN.look_up("oracle", "x")


class TestCost:
    """The cost of tokens in dollars."""

    def test_by_kind(self) -> None:
        """Input, output and cached tokens each have a price per million tokens."""
        used = cost(KNOWN.look_up("acme", "a-1"), Usage(100, 10, 200))
        assert used.cost_usd == pytest.approx((100 * 2 + 10 * 10 + 200 * 0.2) / 1e6)
        assert used.cost_known

    def test_long_prompts_have_their_own_price(self) -> None:
        """If input and cached tokens exceed the threshold, the higher price applies to the whole request."""
        model = KNOWN.look_up("acme", "a-1")
        assert cost(model, Usage(1000, 0)).cost_usd == pytest.approx(1000 * 2 / 1e6)
        assert cost(model, Usage(1, 0, 1000)).cost_usd == pytest.approx((4 + 1000 * 0.4) / 1e6)

    def test_missing_cache_write_price_makes_the_cost_a_lower_bound(self) -> None:
        """Without a price, cache writes are charged at the input price, and the cost is not exact."""
        model = KNOWN.look_up("acme", "a-1")
        used = cost(model, Usage(100, 0, 0, 50))
        assert used.cost_usd == pytest.approx(150 * 2 / 1e6)
        assert not used.cost_known

    def test_cached_tokens_without_a_price_cost_the_full_price(self) -> None:
        model = models.Model("chat", "http://acme", 1000, prices=(Price(2.0, 10.0),))
        used = cost(model, Usage(100, 10, 200))
        assert used.cost_usd == pytest.approx((300 * 2 + 10 * 10) / 1e6)
        assert used.cost_known

    def test_unlisted_model_has_a_lower_bound_as_cost(self) -> None:
        """The cost of an unlisted model is above zero and not exact."""
        used = cost(KNOWN.look_up("acme", "a-9"), Usage(100, 10))
        assert used.cost_usd > 0
        assert not used.cost_known

    def test_unpriced_tokens_are_charged_at_the_ceiling(self) -> None:
        """The ceiling applies to all kinds of tokens, and the cost is marked as an estimate."""
        spec = models.with_model_options(BackendSpec("acme", "a-9"), KNOWN, {}, KEYS, 50.0)
        used = cost(msgspec.convert(spec.options, Model), Usage(100, 10, 30, 20))
        assert used.cost_usd == used.ceiling_usd == pytest.approx(160 * 50 / 1e6)
        assert not used.cost_known

    def test_ceiling_applies_to_unpriced_models_only(self) -> None:
        """A ceiling does not change a priced or a free model, except for kinds of tokens without a price."""
        known, free = BackendSpec("acme", "a-1-mini"), BackendSpec("home", "any")
        for spec in (known, free):
            assert models.with_model_options(spec, KNOWN, {}, KEYS, 50.0) == models.with_model_options(
                spec, KNOWN, {}, KEYS
            )
        half = models.Model("messages", "http://acme", 1000, prices=(Price(2.0, 10.0),), ceiling=50.0)
        assert cost(half, Usage(100, 10, 0, 20)).cost_usd == pytest.approx((100 * 2 + 10 * 10 + 20 * 50) / 1e6)

    def test_free_provider_costs_nothing(self) -> None:
        """A free provider costs nothing, and this cost is exact."""
        used = cost(KNOWN.look_up("home", "any"), Usage(100, 10))
        assert (used.cost_usd, used.cost_known) == (0.0, True)


class TestEquip:
    """Completing a spec with all data that a worker needs."""

    def test_equip_completes_the_model_options_without_secrets(self) -> None:
        """The options of the complete spec are exactly the listed data of the model."""
        spec = models.with_model_options(BackendSpec("acme", "a-1"), KNOWN, {}, KEYS)
        assert msgspec.convert(spec.options, Model) == KNOWN.look_up("acme", "a-1")
        assert template_for(spec) == "openai"

    def test_equip_is_idempotent(self) -> None:
        spec = models.with_model_options(BackendSpec("acme", "a-1"), KNOWN, {}, KEYS)
        assert models.with_model_options(spec, KNOWN, {}, KEYS) == spec

    def test_missing_api_key_names_the_variable(self) -> None:
        with pytest.raises(ConfigError, match="acme:a-1 needs a key: set ACME_API_KEY"):
            models.with_model_options(BackendSpec("acme", "a-1"), KNOWN, {}, ())

    def test_provider_without_a_model_gets_its_default(self) -> None:
        """A provider without a default model is an error if no model is given."""
        assert models.with_model_options(BackendSpec("acme"), KNOWN, {}, KEYS).model == "a-1"
        with pytest.raises(ConfigError, match="no model given for provider home"):
            models.with_model_options(BackendSpec("home"), KNOWN, {}, ())

    @pytest.mark.parametrize(
        ("expected", "meant"),
        [
            ("http://gpu:1/v1", "http://gpu:1/v1"),
            ("http://gpu:1/", "http://gpu:1/v1"),
            ("gpu:1", "http://gpu:1/v1"),
            ("https://gpu", "https://gpu/v1"),
            ("", "http://localhost/v1"),
        ],
    )
    def test_base_url_from_the_environment_overrides_the_listed_one(self, expected: str, meant: str) -> None:
        """The address may be given without a scheme or a path."""
        spec = models.with_model_options(BackendSpec("home", "m"), KNOWN, {"HOME_HOST": expected}, ())
        assert spec.options["base_url"] == meant

    def test_default_provider_is_the_first_with_a_key(self) -> None:
        assert KNOWN.default(KEYS) == "acme:a-1"
        assert KNOWN.default(()) is None

    def test_offline_backends_need_no_options(self) -> None:
        """An unknown backend name is refused with the list of all known names."""
        assert complete(BackendSpec("extractive"), KNOWN, {}, ()) == BackendSpec("extractive")
        with pytest.raises(ConfigError, match=r"'oracle'.*extractive, scripted, acme, home"):
            complete(BackendSpec("oracle"), KNOWN, {}, ())


class TestShipped:
    """The model data that is part of orch."""

    def test_every_shipped_model_is_usable(self) -> None:
        """Each listed model has limits and an API that a backend implements."""
        known = models.load()
        assert {"anthropic", "openai", "moonshot", "ollama"} <= set(known.providers)
        assert not set(known.providers) & set(PROVIDERS)
        for provider, listed in known.models.items():
            for name in listed:
                model = known.look_up(provider, name)
                assert model.api in APIS
                assert model.context >= 8_000
        assert "MIT" in known.source

    def test_shipped_defaults_have_limits_and_prices(self) -> None:
        """Each default model has known prices."""
        known = models.load()
        for name, provider in known.providers.items():
            assert not provider.default or known.look_up(name, provider.default).price_known
        assert str(known.default({"OPENAI_API_KEY", "ANTHROPIC_API_KEY"})).startswith("anthropic:")

    def test_shipped_models_file_matches_providers_toml(self) -> None:
        """models.json contains the providers and models of providers.toml unchanged."""
        import tomllib

        own = tomllib.loads((ROOT / "scripts" / "providers.toml").read_text())
        made = json.loads((ROOT / "worker" / "orch_worker" / "backends" / "models.json").read_text())
        assert made["providers"] == own["providers"]
        for provider, listed in own["models"].items():
            assert {name: made["models"][provider][name] for name in listed} == listed

    def test_update_script_keeps_models_with_tools_and_their_prices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Prices are per million tokens, and dated versions of the same model are dropped."""
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
    """The file models.json in $ORCH_HOME."""

    def test_overrides_merge_into_the_shipped_models(self, tmp_path: Path) -> None:
        """An override replaces the fields it contains, and the other data stays."""
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
            (
                '{"providers": {"acme": {"api": "bk:Hang", "flags": {"locl": true}}}}',
                r"providers\.acme\.flags: .*`locl` \(known flags: images,.* local,",
            ),
            ('{"providers": {"openai": {"flags": {"local": 1}}}}', r"providers\.openai\.flags: Expected `bool`"),
            ('{"models": {"acme": {"x": {}}}}', "acme"),
            ('{"models": {"openai": {"x": {"prices": [{"input": -1}]}}}}', ">= 0"),
            ('{"models": {"openai": {"x": {"context": 0}}}}', ">= 1"),
            ("[]", "object"),
        ],
    )
    def test_invalid_overrides_file_is_an_error(self, tmp_path: Path, content: str, what: str) -> None:
        """The error names the file and the problem."""
        (tmp_path / "models.json").write_text(content)
        with pytest.raises(ConfigError, match=what) as caught:
            models.load(tmp_path)
        assert str(tmp_path / "models.json") in str(caught.value)

    def test_fifo_as_overrides_file_does_not_block(self, tmp_path: Path) -> None:
        """A FIFO is refused at once."""
        os.mkfifo(tmp_path / "models.json")
        with pytest.raises(ConfigError, match=r"models\.json is invalid.*not a regular file"):
            models.load(tmp_path)


def test_api_key_may_be_any_word() -> None:
    """The key `none` is a key, and only an absent key is missing."""
    spec = models.with_model_options(BackendSpec("acme", "a-1"), KNOWN, {}, KEYS)
    format, new_client = cast(ApiFormat, None), cast(Callable[[Server], SdkClient], None)  # not used here
    assert RemoteBackend(spec, {"ACME_API_KEY": "none"}, format, new_client)._key == "none"
    with pytest.raises(ConfigError, match="acme:a-1 needs a key: set ACME_API_KEY"):
        RemoteBackend(spec, {}, format, new_client)
