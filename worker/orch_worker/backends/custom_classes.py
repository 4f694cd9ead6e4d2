"""Finds the class of a custom backend, by its import path or by an entry point of an installed package."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from orch_protocol.agent.spec import BackendSpec

__all__ = ["GROUP", "class_path", "find_class", "installed", "names_class"]

GROUP: Final = "orch.backends"
MODULE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
CLASS: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@cache
def installed() -> dict[str, str]:
    """Return the entry points `orch.backends` of installed packages.

    Keys are names, and values are import paths of classes.
    """
    import importlib.metadata  # This import takes milliseconds, and most users have no custom backend.

    return {each.name: each.value.replace(" ", "") for each in importlib.metadata.entry_points(group=GROUP)}


def names_class(spec: BackendSpec) -> bool:
    """Return whether `spec` looks like an import path: its module has a dot, or its class begins with a capital.

    A provider with a typing error, such as `antropic:claude`, does not look like an import path.
    """
    name = spec.model.partition(":")[0]
    return bool(MODULE.fullmatch(spec.provider) and CLASS.fullmatch(name)) and (
        "." in spec.provider or name[0].isupper()
    )


def class_path(spec: BackendSpec) -> tuple[str, str] | None:
    """Return the import path of a class and the name of the model, if `spec` names both.

    The format is `package.module:Class` or `package.module:Class:MODEL`. Return None for any other model. The package
    must be installed. This function does not import the package.
    """
    name, _, model = spec.model.partition(":")
    if not MODULE.fullmatch(spec.provider) or not CLASS.fullmatch(name):
        return None
    from importlib.util import find_spec

    # Check only the top-level package, because finding a submodule would import the package.
    if find_spec(spec.provider.partition(".")[0]) is None:
        return None
    return f"{spec.provider}:{name}", model


def find_class(spec: BackendSpec) -> str | None:
    """Return the import path of the class that the entry point or the name of the model means. Return None for any
    other model.
    """
    if (found := installed().get(spec.provider)) is not None:
        return found
    path = class_path(spec)
    return path[0] if path is not None else None
