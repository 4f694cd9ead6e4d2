"""Configuration in layers.

The layers are the user's file, the project's file, ORCH_* variables, and explicit overrides. Each layer is read into
`{dotted key: Setting}`. Each value is checked against `orch_protocol.agent.config.Config`. Each layer overrides the
previous layers. An untrusted project file may only make settings stricter. All other settings in this file are ignored
and reported.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.agent.config import Config, parse_model
from orch_protocol.agent.project import ProjectCode
from orch_protocol.core.errors import ConfigError, OrchError
from orch_protocol.core.text import TextEncodingError, decode_text
from orch_protocol.policy.budget import Budget
from orch_worker.system.files import bytes_of

from . import paths
from .archival_profiles import archival_rules
from .trust import project_file, trusted_code
from .untrusted_config import USER_ONLY_SETTINGS, fields_of, is_restriction

if TYPE_CHECKING:
    from orch_worker.backends.models import ModelCatalog

__all__ = [
    "DEFAULT",
    "OFFLINE",
    "ROOT_WIDE",
    "DefaultModel",
    "LoadedConfig",
    "check",
    "default_model",
    "flatten",
    "leaves",
    "load",
    "unflatten",
    "unknown_tool_notes",
]

DEFAULT: Final = "default"
OFFLINE: Final = "extractive:"
"""The model that is used without a configured model and without a key."""
NO_MODEL: Final = (
    "orch: no model configured: using offline search (quotes from files). Run `orch init`, or set a provider's API key "
    "(see `orch models`) and ORCH_MODEL=provider:model, or `model` in config.toml"
)
KEY_FOUND: Final = (
    "orch: no model configured: using {model}, because its key is set. To use another one, set "
    "ORCH_MODEL=provider:model or `model` in config.toml; `extractive:` is the offline one"
)


ROOT_WIDE: Final = (
    *(
        "durability",
        "session_dir",
        "daemon.idle_minutes",
        "environment.pass",
        "subagents.enabled",
        "subagents.max_concurrent",
        "subagents.depth_cap",
    ),
    *(f"budget.{limit}" for limit in Budget.__struct_fields__),
    "budget.unknown_price",
    *("subagents.allow_nested", "subagents.timeout_minutes", "subagents.restarts", "subagents.chat_models"),
    "subagents.models",
    *USER_ONLY_SETTINGS,
)
"""Settings that apply to all agents of a root from its start.

A single caller of the daemon cannot change these settings.
"""
MAX_VALUE_CHARS: Final = 80
NOT_SETTINGS: Final = ("ORCH_APPROVE", "ORCH_CALL", "ORCH_DEBUG_DUMPABLE", "ORCH_HOME", "ORCH_RUN", "ORCH_WITHHELD")
"""Variables that have the prefix of settings but are not settings.

Commands that agents run inherit the environment variables of orch's processes, so these names must not be reported as
unknown settings.
"""
MAX_LISTED_SETTINGS: Final = 30


class DefaultModel(Struct, frozen=True):
    """The model that is used when none is configured, and the message about this model.

    None selects the offline backend.
    """

    model: str | None
    notice: str

    @classmethod
    def for_keys(cls, known: ModelCatalog, keys: Container[str]) -> DefaultModel:
        """Return the default for a user with the variables `keys`."""
        model = known.default(keys)
        return cls(model, NO_MODEL if model is None else KEY_FOUND.format(model=model))


def default_model(home: Path, env: Mapping[str, str]) -> DefaultModel:
    """Return the default model of commands with the variables `env`. It depends on the keys among the variables."""
    from orch_worker.backends import models

    return DefaultModel.for_keys(models.load(home), {name for name, value in env.items() if value})


class LoadedConfig(Struct, frozen=True):
    """A configuration, the source of each dotted key, and notes about ignored settings.

    `code` is the code that the trusted file of the project names, if it names any.
    """

    config: Config
    sources: dict[str, str]
    notes: tuple[str, ...] = ()
    code: ProjectCode | None = None


class Setting(Struct, frozen=True):
    """A value of one layer. `source` names the file and line, the variable, or the flag."""

    value: Any
    source: str


Layer = dict[str, Setting]


def load(
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    home: Path | None = None,
) -> LoadedConfig:
    """Return the configuration for a caller in `cwd`. With None, no project file is read.

    `overrides` maps dotted keys to values and has the highest priority. A ConfigError names the source, the field, and
    the expected value.
    """
    env = os.environ if env is None else env
    home = paths.home(env) if home is None else home
    user = home / "config.toml"
    layers = [_defaults(), _file_layer(user)]
    notes: list[str] = []
    code: ProjectCode | None = None
    if cwd is not None and (project := project_file(cwd)).exists() and not _is_same_file(project, user):
        content = _bytes_of(project)
        layer = _parse(project, content)
        code, problem = trusted_code(cwd, content, _values(layer), home)
        if problem:
            layer, ignored = restrict_untrusted(layer, _merged(layers))
            if ignored:
                notes.append(
                    f"{problem}, so its configuration may only make settings stricter; ignored {', '.join(ignored)}. "
                    f"Read it, then: orch config trust {cwd}"
                )
        if skills := layer.get("skills.folders"):
            layer["skills.folders"] = replace(skills, value=tuple(_own_path(path, cwd) for path in skills.value))
        layers.append(layer)
    layers.append(_env_layer(env))
    layers.append({key: _setting(key, value, f"override {key}") for key, value in (overrides or {}).items()})
    merged = _merged(layers)
    _check_names(merged, home)
    notes += unknown_tool_notes({key: setting.value for key, setting in merged.items()}, merged)
    config = msgspec.convert(unflatten({key: setting.value for key, setting in merged.items()}), Config)
    check_combination(config, {key: setting.source for key, setting in merged.items()})
    return LoadedConfig(config, {key: setting.source for key, setting in merged.items()}, tuple(notes), code)


def _own_path(path: str, folder: Path) -> str:
    """Return a `path` in a project's file relative to its `folder`, if it is inside: each skill there needs trust."""
    real, top = os.path.realpath(os.path.expanduser(path)), os.path.realpath(folder)
    return (
        os.path.relpath(real, top) if os.path.isabs(os.path.expanduser(path)) and real.startswith(f"{top}/") else path
    )


def check(path: Path, content: bytes, home: Path) -> dict[str, Any]:
    """Return the settings in `content` by dotted key. Raise ConfigError if it is no valid configuration for `path`."""
    layer = _parse(path, content)
    _check_names(layer, home)
    return _values(layer)


def check_config(config: Config) -> Config:
    """Check all values of a `config` that a program created, and return `config`. Raises ConfigError."""
    try:
        found = msgspec.convert(msgspec.to_builtins(config, enc_hook=os.fspath), Config)
    except (msgspec.ValidationError, TypeError) as error:
        raise ConfigError(f"invalid config: {_lowercase_first(str(error).replace('`$.', '`'))}") from error
    check_combination(found)
    return found


def check_combination(config: Config, sources: Mapping[str, str] | None = None) -> None:
    """Raise ConfigError if settings of `config` contradict each other.

    `sources` contains the sources of the settings.
    """
    from orch_worker.policy.rules import check_path_rules
    from orch_worker.tools.dispatch.presets import PRESETS

    check_path_rules(config.policy, sources)
    if config.archival.enabled and not config.subagents.enabled:
        where = f"{sources['archival.enabled']}: " if sources else ""
        raise ConfigError(
            f"{where}archival.enabled = true requires subagents.enabled = true, because archives are subagents"
        )
    named = [("sandbox.presets", preset) for preset in config.sandbox.presets]
    named += [("skills.presets", preset) for preset in config.skills.presets]
    for table, preset in named:
        if preset not in PRESETS:
            where = f"{sources[f'{table}.{preset}']}: " if sources else ""
            raise ConfigError(f"{where}unknown preset {preset!r} in {table}: use {', '.join(PRESETS)}")
    rules = config.hooks.assess.rules
    if config.hooks.assess.kind == "rule" and not rules:
        raise ConfigError('hooks.assess.kind = "rule" requires hooks.assess.rules: add at least one preset')
    if unknown := next((rule.preset for rule in rules if rule.preset and rule.preset not in PRESETS), None):
        raise ConfigError(f"unknown preset {unknown!r} in hooks.assess.rules: use {', '.join(PRESETS)}")
    try:
        paths.sessions_of(Path("/"), config.session_dir)
    except ConfigError as error:
        where = f"{sources['session_dir']}: " if sources else ""
        raise ConfigError(f"{where}{error}") from error
    try:
        archival_rules(config.archival)
    except ConfigError as error:
        causes = ("archival.low_tokens", "archival.turns", "archival.trigger.depth_cap")
        where = next((f"{sources[key]}: " for key in causes if key in str(error)), "") if sources else ""
        raise ConfigError(f"{where}{error}") from error


def restrict_untrusted(layer: Layer, base: Layer) -> tuple[Layer, list[str]]:
    """Split `layer` into settings that make `base` stricter, and the keys of all other settings in order."""
    kept = {key: setting for key, setting in layer.items() if is_restriction(key, setting.value, _value(base, key))}
    return kept, [key for key in layer if key not in kept]


def _values(layer: Layer) -> dict[str, Any]:
    return {key: setting.value for key, setting in layer.items()}


def _value(layer: Layer, key: str) -> Any:
    return layer[key].value if key in layer else None


def flatten(config: Config) -> dict[str, Any]:
    """Return the values of `config` by dotted key."""
    return dict(leaves(msgspec.to_builtins(config)))


def leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of nested tables with its dotted key."""
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            yield from leaves(item, f"{prefix}{name}.")
        else:
            yield prefix + name, item


TYPES: Final[dict[str, Any]] = dict(fields_of(Config))
LISTS: Final = (
    *("subagents.default_tools", "subagents.chat_models", "subagents.models"),
    *("policy.dangerous_tools", "policy.denied_paths"),
    *(
        "policy.allowed_paths",
        "policy.personal_paths",
        "policy.code_paths",
        "subagents.context.files",
        "subagents.context.packages",
        "hooks.load",
    ),
    *("prompt.templates", "extensions.load", "hooks.model_router.models"),
    *("hooks.content_safety.kinds", "policy.taint.trusted_hosts", "policy.taint.untrusted_paths"),
    *("policy.taint.sensitive_paths", "sandbox.read", "sandbox.write", "hooks.injection_guard.tools"),
    *("hooks.output_sandbox.tools", "skills.folders", "skills.load", "environment.pass"),
)
TABLES: Final = frozenset(key for key, type in TYPES.items() if get_origin(type) is dict)
"""Tables with keys that the user chooses. Each of these keys is also a setting."""
BY_TOOL: Final = ("policy.permissions.", "sandbox.tools.")
SECTIONS: Final = frozenset(key[:place] for key in TYPES for place, mark in enumerate(key) if mark == ".")


def _check_names(layer: Layer, home: Path) -> None:
    """Raise ConfigError if `layer` names a preset, tool or provider that does not exist."""
    from orch_worker.tools.dispatch.presets import granted_tools

    checks: dict[str, Callable[[Any], object]] = {
        "model": lambda model: check_model(model, home),
        "subagents.default_preset": granted_tools,
        "subagents.default_tools": lambda tools: granted_tools(None, tools),
        "subagents.chat_models": lambda patterns: _check_patterns(patterns, home),
        "subagents.models": lambda patterns: _check_patterns(patterns, home),
        "policy.function": _check_function,
    }
    for key, check_value in checks.items():
        found = layer.get(key)
        if found is None or found.source == DEFAULT or found.value is None:
            continue
        try:
            check_value(found.value)
        except OrchError as error:
            raise ConfigError(f"{found.source}: {key}: {_lowercase_first(str(error))}") from error


def unknown_tool_notes(values: Mapping[str, Any], sources: Mapping[str, Setting] | None = None) -> list[str]:
    """Return warnings about unknown tool names in policy and sandbox settings that are similar to a built-in tool.

    An unknown name may belong to a tool of a program. If the name is a typing error, the intended tool would stay
    unrestricted. `values` and `sources` contain the values and their sources by dotted key.
    """
    from orch_protocol.policy.builtin_tools import BUILTIN_TOOLS

    named = [(key, key.rpartition(".")[2]) for key in values if key.startswith(BY_TOOL)]
    named += [(key, tool) for key in ("policy.dangerous_tools",) for tool in values.get(key, ())]
    notes = []
    for key, tool in named:
        close = difflib.get_close_matches(tool, BUILTIN_TOOLS, n=1) if tool not in BUILTIN_TOOLS else []
        if close:
            where = f"{sources[key].source}: " if sources is not None else ""
            notes.append(
                f"{where}{key.removesuffix(f'.{tool}')} names {tool!r}, which is not a built-in tool: did you mean "
                f"{close[0]!r}? This setting has no effect on the built-in tool"
            )
    return notes


def check_model(model: str, home: Path) -> None:
    """Raise ConfigError if the provider of `model` is unknown, or if it has no default and no model is given."""
    from orch_worker.backends import models
    from orch_worker.backends.custom_providers import custom_provider
    from orch_worker.backends.local_servers import LOCAL
    from orch_worker.backends.registry import PROVIDERS, unknown_provider

    spec, known = parse_model(model), models.load(home)
    names = (*PROVIDERS, *known.providers)
    if spec.provider in names or (spec.provider == LOCAL and not spec.model):
        provider_info = known.providers.get(spec.provider)
        if provider_info is not None and not (spec.model or provider_info.default or provider_info.is_custom):
            raise ConfigError(f"no model given for provider {spec.provider}: write {spec.provider}:MODEL")
    elif models.provider_at(spec) is None and custom_provider(spec) is None:
        raise unknown_provider(spec, known)


def _check_function(name: str) -> None:
    if not _FUNCTION.fullmatch(name):
        raise ConfigError(f"{name!r} is not the name of a function: write package.module:name")


def _check_patterns(patterns: Sequence[str], home: Path) -> None:
    for pattern in patterns:
        spec = parse_model(pattern)
        if not spec.model:
            raise ConfigError(
                f"invalid model pattern {pattern!r}: write PROVIDER:MODEL, or PROVIDER:* for all models of a provider"
            )
        check_model(pattern, home)


def _defaults() -> Layer:
    return {key: Setting(value, DEFAULT) for key, value in flatten(Config()).items()}


def _merged(layers: list[Layer]) -> Layer:
    merged: Layer = {}
    for layer in layers:
        merged |= layer
    return merged


def unflatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` (by dotted key) as nested tables, with the field names of `Config`."""
    tables: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        table = tables
        for section in sections:
            table = table.setdefault(section, {})
        table[name] = dict(value) if isinstance(value, dict) else value
    return tables


def _setting(key: str, value: Any, source: str, *, strict: bool = True) -> Setting:
    """Return the setting `key` with a checked value. Without `strict`, the value is parsed from text."""
    if key in SECTIONS:
        raise ConfigError(f"{source}: {key} is a section, not a value: write [{key}] and its settings below")
    expected = _type(key)
    if expected is None:
        raise ConfigError(f"{source}: {_unknown_setting_message(key)}")
    try:
        return Setting(msgspec.convert(value, expected, strict=strict), source)
    except msgspec.ValidationError as error:
        kinds = (expected, *(get_args(expected) if get_origin(expected) is not dict else ()))
        choices = [each for kind in kinds if get_origin(kind) is Literal for each in get_args(kind)]
        hint = f"; it is one of {', '.join(map(repr, choices))}" if choices else ""
        raise ConfigError(
            f"{source}: {key} = {_format_value(value)} does not fit: {_lowercase_first(str(error))}{hint}"
        ) from error


def _type(key: str) -> Any:
    """Return the type of the setting `key`. Return None for an unknown setting."""
    table, _, name = key.rpartition(".")
    return get_args(TYPES[table])[1] if table in TABLES and name else TYPES.get(key)


def _format_value(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # a number with thousands of digits
        return "a number with thousands of digits"
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."


def _lowercase_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _unknown_setting_message(key: str) -> str:
    section, _, name = key.rpartition(".")
    prefix = f"{section}." if section in SECTIONS else ""
    section_settings = [known for known in TYPES if known.startswith(prefix)]
    suggestions = [known for known in TYPES if known.rpartition(".")[2] == name]
    suggestions = suggestions or [
        prefix + near
        for near in difflib.get_close_matches(key[len(prefix) :], [each[len(prefix) :] for each in section_settings], 1)
    ]
    listing = (
        "there are " + ", ".join(section_settings)
        if len(section_settings) <= MAX_LISTED_SETTINGS
        else "`orch config show` lists all settings"
    )
    hint = f"did you mean {suggestions[0]!r}?" if suggestions else listing
    return f"unknown setting {key!r}; {hint}"


def _unknown_section_message(name: str) -> str:
    suggestions = difflib.get_close_matches(name, SECTIONS, n=1)
    hint = (
        f"did you mean [{suggestions[0]}]?"
        if suggestions
        else f"there are {', '.join(f'[{each}]' for each in sorted(SECTIONS))}"
    )
    return f"unknown section [{name}]; {hint}"


def _unknown_sections(data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of each table that is not a section."""
    for name, item in data.items():
        if isinstance(item, Mapping):
            key = prefix + name
            yield from () if key in TABLES else _unknown_sections(item, f"{key}.") if key in SECTIONS else [key]


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _bytes_of(path: Path) -> bytes:
    try:
        return bytes_of(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _file_layer(path: Path) -> Layer:
    return _parse(path, _bytes_of(path)) if path.exists() else {}


def _parse(path: Path, content: bytes) -> Layer:
    try:
        text = decode_text(content)
        data = tomllib.loads(text)
    except TextEncodingError as error:
        raise ConfigError(f"{path}, line {error.line}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        found = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", str(error), re.DOTALL)
        where, what = (f", line {found[2]}, column {found[3]}", found[1]) if found else ("", str(error))
        raise ConfigError(f"{path}{where}: not TOML: {_lowercase_first(what)}") from error
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, or deep nesting
        raise ConfigError(f"{path}: not TOML that can be read: {_lowercase_first(str(error))}") from error
    for table in _unknown_sections(data):
        raise ConfigError(f"{path}, line {line_of(text, table)}: {_unknown_section_message(table)}")
    return {
        key: _setting(key, value, f"{path}, line {line_of(text, key)}")
        for key, value in leaves(data)
        if not (key in SECTIONS | TABLES and value == {})
    }


_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_TABLE = re.compile(r"\s*\[+([^\]]+)\]+\s*(?:#.*)?$")
_KEY = re.compile(r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*=")


def line_of(text: str, key: str) -> int:
    """Return the number of the line in the TOML `text` that sets the dotted `key`.

    If no line sets it, return the number of the line with the nearest table.
    """
    table, nearest_line = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        if found := _TABLE.match(line):
            table = at = _unquoted(found[1])
        elif found := _KEY.match(line):
            at = f"{table}.{_unquoted(found[1])}" if table else _unquoted(found[1])
        else:
            continue
        if at == key or at.startswith(f"{key}."):
            return number
        if key.startswith(at + "."):
            nearest_line = number
    return nearest_line


def _unquoted(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _env_layer(env: Mapping[str, str]) -> Layer:
    layer = {}
    for name in sorted(env):
        if not name.startswith("ORCH_") or name in NOT_SETTINGS or not env[name]:
            continue
        key = name.removeprefix("ORCH_").lower().replace("__", ".")
        text = env[name]
        value = text.replace(",", " ").split() if key in LISTS else text
        layer[key] = _setting(key, value, f"variable {name}", strict=False)
    return layer
