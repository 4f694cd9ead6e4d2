"""Hooks that a configuration names: found by import string or file, and which of them are switched off."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.core.errors import ConfigError
from orch_protocol.hooks.options import HookOptions

from ..system.importing import module_at
from ..system.threads import describe_exception
from .hook import OF_A_FILE, Hook

__all__ = ["BUILTIN", "DisabledHooks", "configured_hooks", "read_switches"]

CONFIGURED: Final = "config"
ALWAYS: Final = "audit_log"
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
"""The hooks that come with orch, and the module of each."""


class DisabledHooks(Struct, frozen=True):
    """Names of the hooks that are switched off."""

    disabled: tuple[str, ...] = ()


def read_switches(path: str) -> frozenset[str]:
    """Return the names of the hooks that the file at `path` switches off; none when there is no file.

    Raises ConfigError when it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return frozenset(msgspec.json.decode(file.read(), type=DisabledHooks).disabled)
    except FileNotFoundError:
        return frozenset()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path} ({error}): remove the file and disable the hooks again") from error


def configured_hooks(names: Iterable[str], options: HookOptions) -> list[Hook]:
    """Return the hooks that `names` name, in order. Raises ConfigError for one that cannot be had.

    A name is that of a built-in hook, made with `options`; `package.module:hook`; `package.module` for all hooks of a
    module; or the same with the path of a file, `~/hooks.py`, in place of the module.
    """
    found: list[Hook] = []
    for name in dict.fromkeys(names):
        if name == ALWAYS:
            raise ConfigError(f"hooks.load: {name!r} is always on: take it out, and read it with orch session audit")
        if name in BUILTIN:
            made = importlib.import_module(BUILTIN[name]).make(options)
            found += (replace(each, row=replace(each.row, source="built-in")) for each in made)
            continue
        place, attribute = _split(name)
        module = _module(name, place)
        hooks = _all(module) if not attribute else [_one(name, module, attribute)]
        if not hooks:
            raise ConfigError(f"hooks.load: {name!r} holds no hook: make one with @hook(...)")
        found += (replace(each, row=replace(each.row, source=f"{CONFIGURED}: {name}")) for each in hooks)
    return found


def _split(name: str) -> tuple[str, str]:
    place, colon, attribute = name.rpartition(":")
    return (place, attribute) if colon else (name, "")


def _module(name: str, place: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        path = Path(place).expanduser()
        if not path.is_absolute():
            raise ConfigError(f"hooks.load: {name!r} must be an absolute path or start with ~")
        return _file(path)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        hint = "is the file there?" if place.endswith(".py") else "it is to be installed beside orch, or on PYTHONPATH"
        raise ConfigError(f"hooks.load: {name!r} cannot be imported: {describe_exception(error)} ({hint})") from error


def _file(path: Path) -> ModuleType:
    # The same file is the same module, however it is named, so that several names share what it holds.
    called = f"{OF_A_FILE}{os.path.realpath(path)}"
    if called in sys.modules:
        return sys.modules[called]
    return module_at(path, called)


def _all(module: ModuleType) -> list[Hook]:
    return [value for value in vars(module).values() if isinstance(value, Hook)]


def _one(name: str, module: ModuleType, attribute: str) -> Hook:
    found = getattr(module, attribute, None)
    if not isinstance(found, Hook):
        what = (
            "is not there" if found is None else f"is no hook but a {type(found).__name__}: make it one with @hook(...)"
        )
        raise ConfigError(f"hooks.load: {name!r} {what}")
    return found
