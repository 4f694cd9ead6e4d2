"""The available backends, and their creation from a spec."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from importlib import import_module
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.agent.spec import BackendSpec, Template
from orch_protocol.core.errors import ConfigError

from . import models
from .base import Backend, RequestGate, check_backend
from .custom_providers import complete_object, custom_provider, is_custom, is_object, with_installed

__all__ = [
    "APIS",
    "PROVIDERS",
    "TEMPLATES",
    "ProviderModule",
    "complete",
    "is_remote",
    "make_backend",
    "template_for",
    "templates_in",
    "unknown_provider",
]


class ProviderModule(Struct, frozen=True):
    """The module that contains the provider's `from_spec(spec, keys)`, and the zygote template for workers of this
    provider.
    """

    module: str
    template: Template


PROVIDERS: Final[dict[str, ProviderModule]] = {
    "extractive": ProviderModule("orch_worker.backends.offline.extractive", "lean"),
    "scripted": ProviderModule("orch_worker.backends.offline.scripted", "lean"),
}
"""Backends without a provider. Data defines all other backends (see `models`)."""

APIS: Final[dict[models.Api, ProviderModule]] = {
    "messages": ProviderModule("orch_worker.backends.clients.anthropic", "anthropic"),
    "chat": ProviderModule("orch_worker.backends.clients.openai", "openai"),
    "responses": ProviderModule("orch_worker.backends.clients.openai", "openai"),
    "bedrock": ProviderModule("orch_worker.backends.clients.bedrock", "bedrock"),
    "vertex": ProviderModule("orch_worker.backends.clients.vertex", "vertex"),
    "azure": ProviderModule("orch_worker.backends.clients.azure", "azure"),
}
"""The modules for providers that are defined by data. Keys are APIs."""

SDKS: Final[tuple[Template, ...]] = ("anthropic", "openai")
"""The templates that the template `sdk` combines."""
TEMPLATES: Final = frozenset({"lean", "sdk", *(backend.template for backend in APIS.values())})

ADDRESS: Final = re.compile(r"(localhost|\d+\.\d+\.\d+\.\d+|[\w-]+(\.[\w-]+)*(?=:\d{4}))(:\d+)?(/\S*)?")
"""An address of a server without its scheme."""
CUSTOM: Final = ProviderModule("orch_worker.backends.custom.conversation", "lean")
"""The module for custom backends."""


def complete(
    spec: BackendSpec,
    known: models.ModelCatalog,
    env: Mapping[str, str],
    keys: Container[str],
    ceiling: float | None = None,
) -> BackendSpec:
    """Return `spec` with all data, except secrets, that a worker needs to create the backend.

    `env` may override addresses. `keys` are the names of the available secrets. `ceiling` is the assumed price in USD
    per million tokens if the price is unknown. Raise ConfigError for an unknown provider, a missing model or a missing
    key.
    """
    if spec.provider in PROVIDERS:
        return spec
    if is_object(spec):
        return complete_object(spec, known)
    if spec.provider not in known.providers:
        if (custom := models.provider_at(spec) or custom_provider(spec)) is None:
            raise unknown_provider(spec, known)
        known = replace(known, providers=known.providers | {spec.provider: custom})
    return models.with_model_options(spec, known, env, keys, ceiling)


def make_backend(spec: BackendSpec, keys: Mapping[str, str], gate: RequestGate | None = None) -> Backend:
    """Return the backend of a complete `spec`. `keys` maps names to secrets. Requests pass through `gate`.

    Raise ConfigError for an unknown provider.
    """
    from_spec: Callable[[BackendSpec, Mapping[str, str]], object] = import_module(_provider(spec).module).from_spec
    backend = check_backend(from_spec(spec, keys))
    backend.gate = gate
    return backend


def template_for(spec: BackendSpec) -> Template:
    """Return the zygote template with the imports that the backend needs. Raise ConfigError for an unknown provider."""
    return _provider(spec).template


def templates_in(template: Template) -> tuple[Template, ...]:
    """Return the templates whose imports `template` has."""
    return SDKS if template == "sdk" else (template,)


def is_remote(spec: BackendSpec) -> bool:
    """Return whether requests to the model of a complete `spec` leave this machine.

    A custom backend counts as remote unless its provider has the flag `local`.
    """
    if spec.provider in PROVIDERS:
        return False
    if is_custom(spec):
        return not (spec.options.get("flags") or {}).get("local", False)
    return not models.is_loopback(spec.options.get("base_url", ""))


def _provider(spec: BackendSpec) -> ProviderModule:
    found = PROVIDERS.get(spec.provider) or APIS.get(spec.options.get("api", ""))
    if found is None and is_custom(spec):
        return CUSTOM
    if found is None:
        raise unknown_provider(spec, models.load())
    return found


def unknown_provider(spec: BackendSpec, known: models.ModelCatalog) -> ConfigError:
    """Return the error for a model whose provider does not exist, with a suggestion if the name itself is listed."""
    name = f"{spec.provider}:{spec.model}" if spec.model else spec.provider
    if suggested := _suggestions(name, known):
        return ConfigError(f"the model {name!r} names no provider: did you mean {' or '.join(suggested)}?")
    names = ", ".join([*PROVIDERS, *with_installed(known).providers])
    return ConfigError(
        f"unknown provider {spec.provider!r}: write the model as `local` or `provider:model`, with one of {names}, or "
        "the `package.module:Class` of an installed custom backend, or the address of a server such as "
        "http://localhost:8080/v1#NAME"
    )


def _suggestions(name: str, known: models.ModelCatalog) -> list[str]:
    """Return models for a `name` without its provider, or for an address without a scheme."""
    address, _, model = name.partition("#")
    if ADDRESS.fullmatch(address):
        path = address if "/" in address else f"{address}/v1"
        return [f"http://{path}{f'#{model}' if model else ''}"]
    lowered = name.lower()
    listed = {provider: known.listed_as(provider, lowered) or "" for provider in known.providers}
    longest = max(map(len, listed.values()), default=0)
    found = [f"{provider}:{lowered}" for provider, prefix in listed.items() if prefix and len(prefix) == longest]
    base = lowered.partition(":")[0]
    found += [
        f"{provider}:{lowered}"
        for provider, about in known.providers.items()
        if any(base == candidate.partition(":")[0] for candidate in about.candidates)
    ]
    return list(dict.fromkeys(found))
