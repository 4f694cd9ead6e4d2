"""Which backends there are, and making one from its spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final

from msgspec import Struct

from orch_protocol.errors import ConfigError
from orch_protocol.spec import BackendSpec, Template

from .base import Backend, check_backend

__all__ = ["PROVIDERS", "Provider", "make_backend", "template_for"]


class Provider(Struct, frozen=True):
    """The module with the provider's `from_spec(spec, keys)`, and the zygote its workers are forked from."""

    module: str
    template: Template


PROVIDERS: Final[dict[str, Provider]] = {
    "extractive": Provider("orch_worker.backends.extractive", "lean"),
    "scripted": Provider("orch_worker.backends.scripted", "lean"),
}


def make_backend(spec: BackendSpec, keys: Mapping[str, str]) -> Backend:
    """Return the backend that `spec` describes; `keys` are the secrets by name. Raises ConfigError if there is none."""
    from_spec: Callable[[BackendSpec, Mapping[str, str]], object] = import_module(_provider(spec).module).from_spec
    return check_backend(from_spec(spec, keys))


def template_for(spec: BackendSpec) -> Template:
    """Return the zygote template whose imports the backend needs. Raises ConfigError for an unknown provider."""
    return _provider(spec).template


def _provider(spec: BackendSpec) -> Provider:
    try:
        return PROVIDERS[spec.provider]
    except KeyError:
        known = ", ".join(PROVIDERS)
        raise ConfigError(
            f"unknown provider {spec.provider!r}: a model is `provider:model` with one of {known}"
        ) from None
