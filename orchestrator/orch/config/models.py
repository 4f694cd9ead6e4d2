"""The model catalog of a root. It contains known models, and models that the keys and servers make available."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec
from msgspec.structs import replace

from orch_protocol.agent.config import Config, parse_model
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.services.models.models import ModelRow
from orch_worker.backends.http.proxies import ignored_entries
from orch_worker.backends.local_servers import LocalServers, installed, locate
from orch_worker.backends.models import (
    CatalogFile,
    Model,
    ModelCatalog,
    ProviderConfig,
    is_loopback,
    names_address,
    provider_at,
)
from orch_worker.backends.registry import PROVIDERS, complete
from orch_worker.system.secrets import SEARCH_KEY, holds_secret, plain_key

from .config import flatten

__all__ = [
    "ANY",
    "Catalog",
    "check_keys",
    "configured_providers",
    "keys_in",
    "list_entries",
    "local_entry",
    "matches_any",
    "model_entry",
]

ANY = "*"
MODEL_KEYS = frozenset({"model", "models", "chat_models"})


class Catalog:
    """The models of one root.

    The catalog contains the `known` models, or those in the file `known`, the addresses in `env`, and the names of the
    available `keys`; None means all variables in `env`. `ceiling` is the price in USD per million tokens for models
    with unknown prices. If `ceiling` is None, these models cannot be used with a budget. `process_env` is the
    environment of the root, which sets the proxies; None means `env`.
    """

    def __init__(
        self,
        known: ModelCatalog | CatalogFile,
        env: Mapping[str, str],
        keys: Container[str] | None = None,
        ceiling: float | None = None,
        process_env: Mapping[str, str] | None = None,
        servers: LocalServers | None = None,
    ) -> None:
        self._source = known
        self._ceiling = ceiling
        self._env = env
        self._process_env = env if process_env is None else process_env
        self._own_keys = keys
        self._keys = {name for name, value in env.items() if value} if keys is None else keys
        self._servers = LocalServers() if servers is None else servers

    @property
    def _known(self) -> ModelCatalog:
        return self._source.read() if isinstance(self._source, CatalogFile) else self._source

    def with_variables(self, values: Mapping[str, str]) -> Catalog:
        """Return a copy of this catalog with the addresses and keys in `values`."""
        return Catalog(self._source, values, None, self._ceiling, self._process_env, self._servers)

    async def complete(self, spec: BackendSpec) -> BackendSpec:
        """Return `spec` with all data that a worker needs to create the backend. Raises ConfigError.

        A server on this machine is asked for the context window of its model.
        """
        known = self._known
        found = await locate(spec, known, self._env)
        found = complete(found, known, self._env, self._keys, self._ceiling)
        key = next((name for name in found.options.get("keys", ()) if name in self._keys), "")
        given = self._own_keys if isinstance(self._own_keys, Mapping) else {}
        return await self._servers.complete(found, given.get(key) or self._env.get(key, ""))

    def ignored_proxy_settings(self, spec: BackendSpec) -> str:
        """Return a note about entries of NO_PROXY that cannot be read. `spec` is complete.

        Return "" if there are none, or if the model is not reached over HTTP.
        """
        return "\n".join(ignored_entries(self._process_env)) if spec.options.get("base_url") else ""

    def find_name(self, name: str) -> str | None:
        """Return a listed model that has a key, as `provider:name`. Return None if there is no such model.

        `name` is the name of a model or of a model family. The name of a family selects the family's newest model.
        """
        rows = (row.model for row in list_entries(self._known, self._keys) if row.key or not row.keys)
        models = [model for model in rows if not model.endswith(ANY)]
        exact = [model for model in models if model.partition(":")[2] == name]
        family = [model for model in models if name in model.partition(":")[2].split("-")]
        return max(
            exact or family, key=lambda model: [int(number) for number in re.findall(r"\d+", model)], default=None
        )

    def is_restricted(self, provider: str) -> bool:
        """Return whether only agents that use a model of the provider get the provider's credentials."""
        provider_info = self._known.providers.get(provider)
        return provider_info is not None and provider_info.restricted

    def has_provider(self, provider: str) -> bool:
        """Return whether the provider is in models.json or built in."""
        return provider in self._known.providers or provider in PROVIDERS

    async def usable_models(self, patterns: Sequence[str] | None, named: Sequence[str] = ()) -> list[ModelRow]:
        """Return the usable models among listed models, models of local servers, and the `named` models.

        A model is usable if `patterns` permit it, and if its provider has a key or needs no key.
        """
        known = self._known
        rows = {row.model: row for row in list_entries(known, self._keys)}
        if patterns is None:
            own = {parse_model(model).provider for model in named}
            usable = {name for name in known.providers if name in own or not self.is_restricted(name)}
            rows = {model: row for model, row in rows.items() if parse_model(model).provider in usable}
        for provider, server in known.providers.items():
            if server.listing:
                rows = {model: row for model, row in rows.items() if not model.startswith(f"{provider}:")}
                for name in await self._installed(server):
                    rows[f"{provider}:{name}"] = model_entry(known, provider, name, self._keys)
        for model in (*named, *(pattern for pattern in patterns or () if ANY not in pattern)):
            spec = parse_model(model)
            if spec.model and spec.provider in known.providers and model not in rows:
                rows[model] = model_entry(known, spec.provider, spec.model, self._keys)
        return [row for row in rows.values() if (row.key or not row.keys) and matches_any(patterns, row.model)]

    async def _installed(self, provider: ProviderConfig) -> list[str]:
        try:
            return await installed(provider, self._env)
        except (OSError, ValueError):  # there is no server, or a server of another kind
            return []


def matches_any(patterns: Sequence[str] | None, model: str) -> bool:
    """Return whether one of `patterns` matches `model` (`provider:name`).

    If `patterns` is None, all models of real providers are permitted.
    """
    if parse_model(model).provider in PROVIDERS:
        return False
    return patterns is None or any(fnmatchcase(model, pattern) for pattern in patterns)


def list_entries(known: ModelCatalog, keys: Container[str]) -> Iterator[ModelRow]:
    """Yield every entry of `known`. A name that ends with `*` stands for all names with this prefix."""
    for provider in known.providers:
        for name in known.models.get(provider, {"": None}):
            row = model_entry(known, provider, name, keys)
            yield row if name and row.price_known else replace(row, model=row.model + ANY)


def model_entry(known: ModelCatalog, provider: str, name: str, keys: Container[str]) -> ModelRow:
    """Return the catalog entry of one model. Raises ConfigError for an unknown provider."""
    return _row(f"{provider}:{name}", known.listed_as(provider, name), known.look_up(provider, name), keys)


async def local_entry(spec: BackendSpec, known: ModelCatalog, env: Mapping[str, str]) -> ModelRow | None:
    """Return the entry of a model on this machine, with what its server says. Return None for other models.

    Raises ConfigError if the server does not have the model.
    """
    provider = known.providers.get(spec.provider) or provider_at(spec)
    if provider is None or not (names_address(spec) or is_loopback(provider.address(env))):
        return None
    found = await Catalog(known, env, servers=LocalServers(load=False)).complete(spec)
    keys = {name for name, value in env.items() if value}
    return _row(f"{found.provider}:{found.model}", None, msgspec.convert(found.options, Model), keys)


def _row(name: str, listed_as: str | None, model: Model, keys: Container[str]) -> ModelRow:
    return ModelRow(
        model=name,
        listed_as=listed_as,
        api=model.api,
        context=model.context,
        output=model.output or None,
        price_known=model.price_known,
        prices=model.prices,
        keys=model.keys,
        key=next((key for key in model.keys if key in keys), None),
        thinks=model.flags.thinks,
    )


def configured_providers(config: Config) -> frozenset[str]:
    """Return the providers of the models that the configuration names. Every agent may use these providers."""
    values = (value for key, value in flatten(config).items() if key.rpartition(".")[2] in MODEL_KEYS)
    names = (name for value in values if value for name in ((value,) if isinstance(value, str) else value))
    return frozenset(parse_model(name).provider for name in names)


def check_keys(keys: Mapping[str, str], known: ModelCatalog) -> None:
    """Raise ConfigError if `keys` contains the address of a provider's server, which is read from the environment."""
    addresses = {provider_info.base_url_variable for provider_info in known.providers.values()}
    if found := next((name for name in keys if name in addresses), None):
        raise ConfigError(
            f"keys contains {found}, which is the address of a server and not a key; pass env={{**os.environ, "
            f"{found!r}: ...}} instead"
        )


def keys_in(env: Mapping[str, str], known: ModelCatalog) -> dict[str, str]:
    """Return the secrets in `env` that web search or the models `known` need.

    The birth pipes of workers carry these secrets. The result also contains other variables that the models use in
    headers. Variables that are not secret have the key `plain_key(name)`.
    """
    found = {name: env[name] for name in (*known.secrets, SEARCH_KEY) if env.get(name)}
    wanted = {name: env[name] for name in known.variables if env.get(name) and name not in found}
    return found | {name if holds_secret(name, value) else plain_key(name): value for name, value in wanted.items()}
