"""Providers of custom backends: classes (see `custom_classes`) and objects of this program."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.ids import new_id

from .base import BackendInfo
from .custom_classes import GROUP, find_class, installed, names_class
from .models import UNKNOWN_CONTEXT, Model, ModelCatalog, ProviderConfig

__all__ = [
    "complete_object",
    "custom_provider",
    "is_custom",
    "is_gone",
    "is_object",
    "register_object",
    "registered_object",
    "unregister_object",
    "with_installed",
]

OBJECT: Final = "@"
"""Prefix of the API name of an object."""

_registered_objects: dict[str, tuple[Any, BackendInfo]] = {}
"""Objects of the program that agents in this process use, with their descriptions. Keys are API names."""


# --- Classes ---


def custom_provider(spec: BackendSpec) -> ProviderConfig | None:
    """Return the provider of a custom backend that models.json does not list. Return None for any other model.

    Raise ConfigError if `spec` looks like the import path of a class, but its package does not exist.
    """
    found = find_class(spec)
    if found is None:
        if names_class(spec):
            from ..system.importing import import_error  # Only this error needs the module.

            missing = ModuleNotFoundError(f"No module named {spec.provider.partition('.')[0]!r}")
            path = f"{spec.provider}:{spec.model.partition(':')[0]}"
            raise import_error(f"the backend {path} ({spec.provider!r} is not a provider)", missing)
        return None
    try:
        return msgspec.convert({"api": found}, ProviderConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"the entry point {spec.provider!r} of {GROUP} is {found!r}: it must be package.module:Class"
        ) from error


def with_installed(known: ModelCatalog) -> ModelCatalog:
    """Return `known` and all other installed backends. Invalid entry points are skipped."""
    found = {}
    for name in installed().keys() - known.providers.keys():
        try:
            found[name] = custom_provider(BackendSpec(name))
        except ConfigError:
            continue  # The error is reported when the backend is used.
    return replace(known, providers=known.providers | {name: each for name, each in found.items() if each is not None})


def is_custom(spec: BackendSpec) -> bool:
    """Return whether a complete `spec` describes a custom backend."""
    return ":" in (api := spec.options.get("api", "")) or api.startswith(OBJECT)


# --- Objects of the program ---


def is_object(spec: BackendSpec) -> bool:
    """Return whether `spec` describes an object of a program."""
    return bool(spec.provider.startswith(OBJECT) or spec.options.get("api", "").startswith(OBJECT))


def register_object(backend: Any, about: BackendInfo) -> str:
    """Make `backend`, described by `about`, available to agents in this process until `unregister_object` is called.

    Return the name of the object. Agents that use the object have this name as their model.
    """
    name = OBJECT + new_id()
    _registered_objects[name] = backend, about
    return name


def unregister_object(name: str) -> None:
    """Make the object called `name` unavailable."""
    _registered_objects.pop(name, None)


def registered_object(name: str) -> Any:
    """Return the object called `name`. Raise ConfigError if the object is not in this process."""
    if name not in _registered_objects:
        raise ConfigError(
            "the backend object of this agent is not in this process. Objects are for agents inside the program, "
            "Orchestrator(launcher=orch.processes.in_process.InProcessLauncher), while it runs; "
            "elsewhere name its class: model='package.module:Class'"
        )
    return _registered_objects[name][0]


def is_gone(spec: BackendSpec) -> bool:
    """Return whether a complete `spec` describes an object that does not exist in this process."""
    return is_object(spec) and spec.options.get("api") not in _registered_objects


def complete_object(spec: BackendSpec, taken: ModelCatalog) -> BackendSpec:
    """Complete `spec`, which names an object: set the object's provider, model and context limit.

    Raise ConfigError if the object does not exist, or if `taken` already contains its provider.
    """
    if not spec.provider.startswith(OBJECT):
        return spec  # The spec is already complete.
    registered_object(spec.provider)
    about = _registered_objects[spec.provider][1]
    if about.provider in taken.providers:
        raise ConfigError(f"info() names the provider {about.provider!r}, which is in models.json: use another name")
    model = Model(api=spec.provider, base_url="", context=about.context_limit or UNKNOWN_CONTEXT)
    return BackendSpec(about.provider, about.model, msgspec.to_builtins(model) | spec.options, spec.thinking)
