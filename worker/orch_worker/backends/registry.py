"""Which backends there are, and making one from its spec."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from importlib import import_module
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from orch_protocol.agent.spec import BackendSpec, Template
from orch_protocol.core.errors import ConfigError

from . import models
from .base import Backend, RequestGate, check_backend

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
    """The module with the provider's `from_spec(spec, keys)`, and the zygote its workers are forked from."""

    module: str
    template: Template


PROVIDERS: Final[dict[str, ProviderModule]] = {
    "extractive": ProviderModule("orch_worker.backends.offline.extractive", "lean"),
    "scripted": ProviderModule("orch_worker.backends.offline.scripted", "lean"),
}
"""Those that need nobody else. All others are data, see `models`."""

APIS: Final[dict[models.Api, ProviderModule]] = {
    "messages": ProviderModule("orch_worker.backends.providers.anthropic", "sdk"),
    "chat": ProviderModule("orch_worker.backends.providers.openai_chat", "sdk"),
    "responses": ProviderModule("orch_worker.backends.providers.openai_responses", "sdk"),
}
"""What speaks for a provider that is data, by the API that its model is reached by."""


def complete(
    spec: BackendSpec,
    known: models.ModelCatalog,
    env: Mapping[str, str],
    keys: Container[str],
    ceiling: float | None = None,
) -> BackendSpec:
    """Return `spec` with all that a worker needs to make the backend, as far as it is no secret.

    `env` may name addresses, `keys` are the names of the secrets at hand, `ceiling` is what a million tokens are
    charged whose price is not known. Raises ConfigError when there is no such provider, no model is named or no key is
    there.
    """
    if spec.provider in PROVIDERS:
        return spec
    if spec.provider not in known.providers:
        raise _unknown(spec, known)
    return models.equip(spec, known, env, keys, ceiling)


def make_backend(spec: BackendSpec, keys: Mapping[str, str], gate: RequestGate | None = None) -> Backend:
    """Return the backend of a complete `spec`, whose requests pass `gate`; `keys` are the secrets by name.

    Raises ConfigError if there is none.
    """
    from_spec: Callable[[BackendSpec, Mapping[str, str]], object] = import_module(_provider(spec).module).from_spec
    backend = check_backend(from_spec(spec, keys))
    backend.gate = gate
    return backend


def template_for(spec: BackendSpec) -> Template:
    """Return the zygote template whose imports the backend needs. Raises ConfigError for an unknown provider."""
    return _provider(spec).template


def is_remote(spec: BackendSpec) -> bool:
    """Return whether what is said to the model of a complete `spec` leaves this machine."""
    if spec.provider in PROVIDERS:
        return False
    return not is_loopback(spec.options.get("base_url", ""))


def is_loopback(url: str) -> bool:
    """Return whether what is sent to `url` stays on this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # a name, which may lead anywhere


def _provider(spec: BackendSpec) -> ProviderModule:
    found = PROVIDERS.get(spec.provider) or APIS.get(spec.options.get("api", ""))
    if found is None:
        raise _unknown(spec, models.load())
    return found


def _unknown(spec: BackendSpec, known: models.ModelCatalog) -> ConfigError:
    names = ", ".join([*PROVIDERS, *known.providers])
    return ConfigError(
        f"unknown provider {spec.provider!r}: a model is `local` or `provider:model`, with one of {names}"
    )
