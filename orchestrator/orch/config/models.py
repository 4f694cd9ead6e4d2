"""The model catalog of a root. It contains known models, and models that the keys and servers make available."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec.structs import replace

from orch_protocol.agent.config import Config, parse_model
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.services.models.models import ModelRow
from orch_worker.backends.local_servers import installed, locate
from orch_worker.backends.models import ModelCatalog
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
    "matches_any",
    "model_entry",
]

ANY = "*"
MODEL_KEYS = frozenset({"model", "models", "chat_models"})


class Catalog:
    """The models of one root.

    The catalog contains the `known` models, the addresses in `env`, and the names of the available `keys`. `ceiling` is
    the price in USD per million tokens for models with unknown prices. If `ceiling` is None, these models cannot be
    used with a budget.
    """

    def __init__(
        self, known: ModelCatalog, env: Mapping[str, str], keys: Container[str], ceiling: float | None = None
    ) -> None:
        self._known = known
        self._ceiling = ceiling
        self._env = env
        self._keys = keys

    def with_variables(self, values: Mapping[str, str]) -> Catalog:
        """Return a copy of this catalog with the addresses and keys in `values`."""
        keys = {name for name, value in values.items() if value}
        return Catalog(self._known, values, keys, self._ceiling)

    async def complete(self, spec: BackendSpec) -> BackendSpec:
        """Return `spec` with all data that a worker needs to create the backend. Raises ConfigError."""
        found = await locate(spec, self._known, self._env)
        return complete(found, self._known, self._env, self._keys, self._ceiling)

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
        rows = {row.model: row for row in list_entries(self._known, self._keys)}
        if patterns is None:
            own = {parse_model(model).provider for model in named}
            usable = {name for name in self._known.providers if name in own or not self.is_restricted(name)}
            rows = {model: row for model, row in rows.items() if parse_model(model).provider in usable}
        for provider, server in self._known.providers.items():
            if server.listing:
                rows = {model: row for model, row in rows.items() if not model.startswith(f"{provider}:")}
                for name in await self._installed(provider):
                    rows[f"{provider}:{name}"] = model_entry(self._known, provider, name, self._keys)
        for model in (*named, *(pattern for pattern in patterns or () if ANY not in pattern)):
            spec = parse_model(model)
            if spec.model and spec.provider in self._known.providers and model not in rows:
                rows[model] = model_entry(self._known, spec.provider, spec.model, self._keys)
        return [row for row in rows.values() if (row.key or not row.keys) and matches_any(patterns, row.model)]

    async def _installed(self, provider: str) -> list[str]:
        try:
            return await installed(self._known.provider(provider), self._env)
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
    model = known.look_up(provider, name)
    return ModelRow(
        model=f"{provider}:{name}",
        listed_as=known.listed_as(provider, name),
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
