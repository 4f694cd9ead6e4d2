"""The models there are: what is known of each, and which can be reached with the keys and servers at hand."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec.structs import replace

from orch_protocol.agent.config import parse_model
from orch_protocol.agent.models import ModelRow
from orch_protocol.agent.spec import BackendSpec
from orch_worker.backends.local_servers import installed, locate
from orch_worker.backends.models import ModelCatalog
from orch_worker.backends.registry import PROVIDERS, complete
from orch_worker.system.secrets import SEARCH_KEY, holds_secret, is_plain_value

__all__ = ["ANY", "Catalog", "keys_in", "list_entries", "matches_any", "model_entry"]

ANY = "*"


class Catalog:
    """The models of one root: what is `known`, the addresses in `env`, and the names of the `keys` at hand.

    `ceiling` is what a million tokens are charged whose price is not known, in USD; None: such models have no budget.
    """

    def __init__(
        self, known: ModelCatalog, env: Mapping[str, str], keys: Container[str], ceiling: float | None = None
    ) -> None:
        self._known = known
        self._ceiling = ceiling
        self._env = env
        self._keys = keys

    def reached_with(self, values: Mapping[str, str]) -> Catalog:
        """Return this catalog with the addresses and keys in `values`."""
        keys = {name for name, value in values.items() if value}
        return Catalog(self._known, values, keys, self._ceiling)

    async def complete(self, spec: BackendSpec) -> BackendSpec:
        """Return `spec` with all that a worker needs to make the backend. Raises ConfigError."""
        found = await locate(spec, self._known, self._env)
        return complete(found, self._known, self._env, self._keys, self._ceiling)

    async def reachable(self, patterns: Sequence[str] | None, named: Sequence[str] = ()) -> list[ModelRow]:
        """Return the models that can be asked: the listed ones, those of local servers, and the `named` ones.

        Only those whose provider needs no key or has one here, and that `patterns` permit.
        """
        rows = {row.model: row for row in list_entries(self._known, self._keys)}
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
        except (OSError, ValueError):  # nobody answers, or something else does
            return []


def matches_any(patterns: Sequence[str] | None, model: str) -> bool:
    """Return whether one of `patterns` fits `model`, `provider:name`; None permits every model, of a real provider."""
    if parse_model(model).provider in PROVIDERS:
        return False
    return patterns is None or any(fnmatchcase(model, pattern) for pattern in patterns)


def list_entries(known: ModelCatalog, keys: Container[str]) -> Iterator[ModelRow]:
    """Yield every entry of `known`; a `*` behind a name stands for whatever else begins like that."""
    for provider in known.providers:
        for name in known.models.get(provider, {"": None}):
            row = model_entry(known, provider, name, keys)
            yield row if name and row.price_known else replace(row, model=row.model + ANY)


def model_entry(known: ModelCatalog, provider: str, name: str, keys: Container[str]) -> ModelRow:
    """Return what is known of one model. Raises ConfigError for an unknown provider."""
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


def keys_in(env: Mapping[str, str], known: ModelCatalog) -> dict[str, str]:
    """Return the secrets in `env` that the models `known` and web search use, for the birth pipes of workers.

    A header's variable that is no secret goes by the name that `is_plain_value` returns.
    """
    found = {name: env[name] for name in (*known.secrets, SEARCH_KEY) if env.get(name)}
    wanted = {name: env[name] for name in known.variables if env.get(name) and name not in found}
    return found | {
        name if holds_secret(name, value) else is_plain_value(name): value for name, value in wanted.items()
    }
