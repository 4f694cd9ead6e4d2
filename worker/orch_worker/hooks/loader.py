"""Loads the configured hooks by import path or file, and reads the list of disabled hooks."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.core.errors import ConfigError
from orch_protocol.hooks.options import HookOptions, ModelRouter
from orch_protocol.hooks.stages import HookRow

from ..system import atomic_json
from ..system.importing import module_at
from ..system.threads import describe_exception
from .hook import FILE_MODULE_PREFIX, Hook

__all__ = [
    "BUILTIN",
    "BUILT_IN_SOURCE",
    "REPAIR_HINT",
    "DisabledHooks",
    "builtin_rows",
    "configured_hooks",
    "read_disabled_hooks",
]

REPAIR_HINT: Final = "disable the hooks again"
CONFIG_SOURCE: Final = "config"
BUILT_IN_SOURCE: Final = "built-in"
"""The source of built-in hooks."""
AUDIT_HOOK: Final = "audit_log"
BUILTIN: Final[dict[str, str]] = {
    "completion_checklist": "orch_worker.hooks.builtin.completion_checklist",
    "content_safety": "orch_worker.hooks.builtin.content_safety",
    "cost_tracker": "orch_worker.hooks.builtin.cost_tracker",
    "injection_guard": "orch_worker.hooks.builtin.injection_guard",
    "loop_detection": "orch_worker.hooks.builtin.loop_detection",
    "model_router": "orch_worker.hooks.builtin.model_router",
    "narration_guard": "orch_worker.hooks.builtin.narration_guard",
    "output_sandbox": "orch_worker.hooks.builtin.output_sandbox",
    "summarization": "orch_worker.hooks.builtin.summarization",
    "tool_router": "orch_worker.hooks.builtin.tool_router",
}
"""The built-in hooks. Keys are names of hooks, and values are names of modules."""


class DisabledHooks(Struct, frozen=True):
    """The names of disabled hooks."""

    disabled: tuple[str, ...] = ()


def read_disabled_hooks(path: str) -> frozenset[str]:
    """Return the names of the hooks that the file at `path` disables. If the file does not exist, no hook is disabled.

    Raise ConfigError if the file cannot be read.
    """
    return frozenset(atomic_json.read(Path(path), DisabledHooks, DisabledHooks(), REPAIR_HINT).disabled)


def configured_hooks(names: Iterable[str], options: HookOptions) -> list[Hook]:
    """Return the hooks with these `names`, in order. Raise ConfigError for a hook that cannot be loaded.

    A name is an import path, or the name of a built-in hook, which is created with `options`. `package.module:hook` is
    one hook, and `package.module` means all hooks of the module. The path of a file, such as `~/hooks.py`, can replace
    the module.
    """
    found: list[Hook] = []
    for name in dict.fromkeys(names):
        if name == AUDIT_HOOK:
            raise ConfigError(
                f"hooks.load: {name!r} is always on: remove the name, and read its records with orch session audit"
            )
        if name in BUILTIN:
            found += _make_builtin(name, options)
            continue
        module_name, attribute = _split_name(name)
        module = _import_module(name, module_name)
        hooks = _hooks_in(module) if not attribute else [_hook_at(name, module, attribute)]
        if not hooks:
            raise ConfigError(f"hooks.load: {name!r} contains no hook: create one with @hook(...)")
        found += (replace(each, row=replace(each.row, source=f"{CONFIG_SOURCE}: {name}")) for each in hooks)
    return found


def builtin_rows() -> list[HookRow]:
    """Return the descriptions of all built-in hooks, including hooks that are not loaded."""
    # The hooks of model_router do not exist without models.
    options = HookOptions(model_router=ModelRouter(models=("a:a", "b:b")))
    return [hook.row for name in BUILTIN for hook in _make_builtin(name, options)]


def _make_builtin(name: str, options: HookOptions) -> list[Hook]:
    hooks = importlib.import_module(BUILTIN[name]).make(options)
    return [replace(each, row=replace(each.row, source=BUILT_IN_SOURCE)) for each in hooks]


def _split_name(name: str) -> tuple[str, str]:
    module_name, colon, attribute = name.rpartition(":")
    return (module_name, attribute) if colon else (name, "")


def _import_module(name: str, module_name: str) -> ModuleType:
    try:
        if not module_name.endswith(".py"):
            return importlib.import_module(module_name)
        path = Path(module_name).expanduser()
        if not path.is_absolute():
            raise ConfigError(f"hooks.load: {name!r} must be an absolute path or start with ~")
        return _load_file(path)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        hint = (
            "is the file there?"
            if module_name.endswith(".py")
            else "install it in the environment of orch, or put its folder on PYTHONPATH"
        )
        raise ConfigError(f"hooks.load: {name!r} cannot be imported: {describe_exception(error)} ({hint})") from error


def _load_file(path: Path) -> ModuleType:
    # The module's key is its real path, so that hooks loaded under different names share its globals.
    key = f"{FILE_MODULE_PREFIX}{os.path.realpath(path)}"
    if key in sys.modules:
        return sys.modules[key]
    return module_at(path, key)


def _hooks_in(module: ModuleType) -> list[Hook]:
    return [value for value in vars(module).values() if isinstance(value, Hook)]


def _hook_at(name: str, module: ModuleType, attribute: str) -> Hook:
    found = getattr(module, attribute, None)
    if not isinstance(found, Hook):
        problem = (
            "does not exist"
            if found is None
            else f"is not a hook but a {type(found).__name__}: make it one with @hook(...)"
        )
        raise ConfigError(f"hooks.load: {name!r} {problem}")
    return found
