"""The available backends, and their creation from a spec."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from importlib import import_module
from typing import Final
from urllib.parse import urlsplit

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
    "ProviderModule",
    "complete",
    "is_loopback",
    "is_remote",
    "make_backend",
    "template_for",
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
    "messages": ProviderModule("orch_worker.backends.providers.anthropic", "sdk"),
    "chat": ProviderModule("orch_worker.backends.providers.openai_chat", "sdk"),
    "responses": ProviderModule("orch_worker.backends.providers.openai_responses", "sdk"),
    "bedrock": ProviderModule("orch_worker.backends.providers.bedrock", "sdk"),
    "vertex": ProviderModule("orch_worker.backends.providers.vertex", "sdk"),
    "azure": ProviderModule("orch_worker.backends.providers.azure", "sdk"),
}
"""The modules for providers that are defined by data. Keys are APIs."""

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
        if (custom := custom_provider(spec)) is None:
            raise _unknown(spec, known)
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


def is_remote(spec: BackendSpec) -> bool:
    """Return whether requests to the model of a complete `spec` leave this machine.

    A custom backend counts as remote unless its provider has the flag `local`.
    """
    if spec.provider in PROVIDERS:
        return False
    if is_custom(spec):
        return not (spec.options.get("flags") or {}).get("local", False)
    return not is_loopback(spec.options.get("base_url", ""))


def is_loopback(url: str) -> bool:
    """Return whether requests to `url` stay on this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # A host name may resolve to any address.


def _provider(spec: BackendSpec) -> ProviderModule:
    found = PROVIDERS.get(spec.provider) or APIS.get(spec.options.get("api", ""))
    if found is None and is_custom(spec):
        return CUSTOM
    if found is None:
        raise _unknown(spec, models.load())
    return found


def _unknown(spec: BackendSpec, known: models.ModelCatalog) -> ConfigError:
    names = ", ".join([*PROVIDERS, *with_installed(known).providers])
    return ConfigError(
        f"unknown provider {spec.provider!r}: a model is `local` or `provider:model`, with one of {names}, or the "
        "`package.module:Class` of an installed custom backend"
    )
