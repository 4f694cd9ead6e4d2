"""Finding custom backends: by import path, by entry point, and among the objects of the program."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from custom_backends import Echo
from orch import BackendInfo
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_worker.backends import custom_classes, custom_providers, make_backend, models
from orch_worker.backends.models import ModelCatalog, ProviderConfig
from orch_worker.backends.prices import check_priced
from orch_worker.backends.registry import complete
from orch_worker.backends.thinking import level_of

NONE = ModelCatalog(providers={}, models={})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of an installed package with the entry points `acme` and `wrong`."""
    about = tmp_path / "acme-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[orch.backends]\nacme = custom_backends:Echo\nwrong = custom_backends\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    custom_classes.installed.cache_clear()
    yield "acme"
    custom_classes.installed.cache_clear()


class TestClasses:
    """Backends by import path."""

    def test_complete(self) -> None:
        """The API is the import path and the provider is the module, which is not imported."""
        spec = complete(BackendSpec("orch_worker.missing", "Class:large"), NONE, {}, ())
        assert spec.options["api"] == "orch_worker.missing:Class"
        assert (spec.provider, spec.model) == ("orch_worker.missing", "Class:large")
        assert "orch_worker.missing" not in sys.modules

    @pytest.mark.parametrize(
        "model", ["oracle:large", "antropic:claude", "gpt:5", "custom_backends", "custom_backends:a-b", "a b:C", "..:C"]
    )
    def test_other_names(self, model: str) -> None:
        """A module without a class, or a class with an invalid name, is an unknown provider."""
        provider, _, name = model.partition(":")
        with pytest.raises(ConfigError, match=r"unknown provider .*package\.module:Class"):
            complete(BackendSpec(provider, name), NONE, {}, ())

    @pytest.mark.parametrize("model", ["no_such_house:Echo", "no_such_house:Echo:large", "no_such_house.models:echo"])
    def test_class_of_a_missing_package_is_an_import_error(self, model: str) -> None:
        """The error is that of other classes, with the provider, PYTHONPATH and the daemon."""
        provider, _, name = model.partition(":")
        with pytest.raises(ConfigError) as raised:
            complete(BackendSpec(provider, name), NONE, {}, ())
        assert str(raised.value) == (
            f"cannot import the backend {model.removesuffix(':large')} ({provider!r} is not a provider): "
            "ModuleNotFoundError: No module named 'no_such_house'. Install its package beside orch, or put its folder "
            "on PYTHONPATH; the daemon has the PYTHONPATH of its start (`orch daemon stop` ends it)"
        )

    def test_providers_of_models_json_come_first(self) -> None:
        """A provider in models.json can name a class, and has priority over a module with the same name."""
        mine = ProviderConfig(api="custom_backends:Words", keys=("ACME_KEY",), context=9000)
        known = ModelCatalog(providers={"custom_backends": mine}, models={})
        spec = complete(BackendSpec("custom_backends", "Echo"), known, {}, ("ACME_KEY",))
        assert (spec.options["api"], spec.options["context"]) == ("custom_backends:Words", 9000)
        with pytest.raises(ConfigError, match="needs a key: set ACME_KEY"):
            complete(BackendSpec("custom_backends", "Echo"), known, {}, ())

    def test_entry_of_a_missing_package_is_valid(self, tmp_path: Path) -> None:
        """The other models of models.json stay available. The error appears when the entry is used."""
        (tmp_path / "models.json").write_text('{"models": {"no_such_house": {"Echo": {"context": 9000}}}}')
        known = models.load(tmp_path)
        assert known.models["no_such_house"]["Echo"].context == 9000
        with pytest.raises(ConfigError, match="cannot import the backend no_such_house:Echo"):
            complete(BackendSpec("no_such_house", "Echo"), known, {}, ())

    @pytest.mark.parametrize("api", ["nothing", "a:b:c", "a-b:C", ":C", "@"])
    def test_invalid_api_in_models_json(self, tmp_path: Path, api: str) -> None:
        """A provider whose API is neither known nor an import path is refused."""
        (tmp_path / "models.json").write_text(f'{{"providers": {{"acme": {{"api": "{api}"}}}}, "models": {{}}}}')
        with pytest.raises(ConfigError, match=rf"models\.json.*'{api}' is not a valid api"):
            models.load(tmp_path)

    def test_a_server_needs_an_address(self, tmp_path: Path) -> None:
        """A provider with a built-in API must have a base_url."""
        (tmp_path / "models.json").write_text('{"providers": {"acme": {"api": "chat"}}, "models": {}}')
        with pytest.raises(ConfigError, match="'chat' needs a base_url"):
            models.load(tmp_path)


class TestEntryPoints:
    """Backends of installed packages."""

    def test_complete(self, package: str) -> None:
        """The entry point names the class, and the model is optional."""
        spec = complete(BackendSpec(package), NONE, {}, ())
        assert (spec.provider, spec.model, spec.options["api"]) == ("acme", "", "custom_backends:Echo")
        assert make_backend(complete(BackendSpec(package, "large"), NONE, {}, ()), {}).info() == BackendInfo(
            "acme", "large", 32_768
        )

    def test_invalid_entry_point(self, package: str) -> None:
        """An entry point that does not name a class is refused."""
        assert package
        with pytest.raises(ConfigError, match=r"'wrong' of orch.backends is 'custom_backends': it must be"):
            complete(BackendSpec("wrong"), NONE, {}, ())

    def test_entry_point_does_not_replace_a_listed_provider(self, package: str) -> None:
        """A provider in models.json has priority over an entry point of the same name."""
        mine = ProviderConfig(api="chat", base_url="http://localhost:1/v1")
        spec = complete(BackendSpec(package, "m"), ModelCatalog(providers={package: mine}, models={}), {}, ())
        assert spec.options["api"] == "chat"

    def test_entry_points_are_listed_with_the_known_providers(self, package: str) -> None:
        """The error for an unknown provider also names the entry points."""
        with pytest.raises(ConfigError, match=f"with one of extractive, scripted, {package}, or"):
            complete(BackendSpec("oracle"), NONE, {}, ())


@pytest.mark.parametrize(
    "spec", [BackendSpec("custom_backends", "Echo"), BackendSpec("acme", "large"), BackendSpec("acme")]
)
def test_model_entries_describe_models_of_classes_and_entry_points(
    package: str, tmp_path: Path, spec: BackendSpec
) -> None:
    """The entries that the errors about prices and thinking levels print work, also for a backend without a model."""
    assert package
    unknown = complete(replace(spec, thinking="high"), models.load(), {}, ())
    name = f"{spec.provider}:{spec.model}" if spec.model else spec.provider
    with pytest.raises(ConfigError, match=f"budget for {name}: its price is unknown") as no_price:
        check_priced(unknown)
    with pytest.raises(ConfigError, match=f"{name} has no known thinking levels") as no_levels:
        level_of(unknown)
    prices, levels = (str(error.value)[str(error.value).index("{") :] for error in (no_price, no_levels))
    entries = models.merge_tables(msgspec.json.decode(prices.replace("USD", "1.5")), msgspec.json.decode(levels))
    (tmp_path / "models.json").write_bytes(msgspec.json.encode(entries))
    known = complete(replace(spec, thinking="high"), models.load(tmp_path), {}, ())
    check_priced(known)
    assert level_of(known) == "high"


class TestObjects:
    """Backend objects of the program."""

    def test_object_can_be_used_until_it_is_taken_back(self) -> None:
        """The object serves each spec with its name, and has the provider, model and limit from `info`."""
        backend = Echo()
        name = custom_providers.register_object(backend, BackendInfo("mine", "m", 500))
        spec = complete(BackendSpec(name), NONE, {}, ())
        assert complete(spec, NONE, {}, ()) == spec
        made = make_backend(spec, {})
        assert made._backend is backend  # type: ignore[attr-defined]
        assert (spec.provider, spec.model, spec.options["context"]) == ("mine", "m", 500)
        custom_providers.unregister_object(name)
        with pytest.raises(ConfigError, match=r"not in this process.*model='package.module:Class'"):
            make_backend(spec, {})
        with pytest.raises(ConfigError, match="not in this process"):
            complete(BackendSpec(name), NONE, {}, ())

    def test_object_with_a_listed_provider_is_refused(self) -> None:
        """An object is refused if its provider is in models.json."""
        known = ModelCatalog(providers={"mine": ProviderConfig(api="chat", base_url="http://a")}, models={})
        name = custom_providers.register_object(Echo(), BackendInfo("mine", "m"))
        try:
            with pytest.raises(ConfigError, match="provider 'mine', which is in models"):
                complete(BackendSpec(name), known, {}, ())
        finally:
            custom_providers.unregister_object(name)
