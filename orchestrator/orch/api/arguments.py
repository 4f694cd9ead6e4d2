"""Arguments of the Python API: validation, and conversion to request data."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar

import msgspec

from orch_protocol.agent.config import Config
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.text import scrub
from orch_protocol.policy.budget import Budget
from orch_protocol.services.import_export import ImportSession
from orch_protocol.services.requests import Spawn
from orch_protocol.wire.frames import DECODE_ERRORS
from orch_worker.tools.api.base import Tool, tool

from ..config import paths
from ..policy.budget_rules import check_budget

__all__ = [
    "AgentHandle",
    "ScriptedBackendLike",
    "ToolLike",
    "as_list",
    "as_names",
    "check_arguments",
    "script_responses",
    "split_tools",
    "validate_request",
]

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

ARGUMENTS: Final[dict[str, tuple[Any, str]]] = {
    "model": (str, "a string, `provider:model`"),
    "config": (Config, "an orch.Config"),
    "run": (str, "a string"),
    "home": ((str, os.PathLike), "a string or a Path"),
    "env": (Mapping, "a mapping of variable names to values"),
    "keys": (Mapping, "a mapping of variable names to API keys"),
    "environment": (Iterable, "a list of variable names"),
    "approve": (Callable, "a function"),
    "policy": (Callable, "a function"),
    "launcher": (Callable, "a launcher class or a function that returns a launcher"),
    "connect": (Callable, "a function"),
}
"""The arguments of AsyncOrchestrator in order: the required type, and its description."""

ToolLike = str | Tool | Callable[..., Any]
"""The name of a built-in tool, or a function that runs in this program."""


Request = TypeVar("Request", Spawn, ImportSession)


class AgentHandle(Protocol):
    """Anything with the id of an agent: a Subagent, an AsyncSubagent or an AgentRow."""

    @property
    def id(self) -> str:
        """The agent's id."""


class ScriptedBackendLike(Protocol):
    """A backend that can be sent to a worker as data, such as ScriptedBackend."""

    def spec(self) -> BackendSpec:
        """Return the backend as data."""


def script_responses(backend: ScriptedBackendLike | None) -> tuple[tuple[Any, ...] | None, tuple[Any, ...]]:
    """Return the responses and summaries of a scripted backend; (None, ()) without one. Raises ConfigError."""
    if backend is None:
        return None, ()
    if not callable(getattr(backend, "spec", None)):
        raise ConfigError(
            f"backend must be an object such as ScriptedBackend([...]); got {backend!r}. Pass a model as model="
        )
    spec = backend.spec()
    if spec.provider != "scripted":
        raise ConfigError(f"pass model={spec.provider}:...; only a scripted backend is passed as an object")
    return tuple(spec.options["items"]), tuple(spec.options.get("summaries", ()))


def validate_request(request: Request) -> Request:
    """Return `request` as decoded from JSON, as other processes and files have it. Raises ConfigError."""
    said = request.agent if isinstance(request, ImportSession) else msgspec.structs.asdict(request)
    for budget in (said.get("budget"), said.get("limits")):
        check_budget(budget or Budget())  # in JSON a NaN would become null: no limit
    try:
        try:
            data = msgspec.json.encode(request)
        except UnicodeEncodeError:
            data = msgspec.json.encode(scrub(msgspec.to_builtins(request)))
        return msgspec.json.decode(data, type=type(request))
    except (*DECODE_ERRORS, TypeError, ValueError) as error:
        raise ConfigError(
            f"invalid argument for an agent: {error}. Arguments must be JSON data with finite numbers"
        ) from error


def check_arguments(*values: Any) -> None:
    """Raise ConfigError for an argument of AsyncOrchestrator that has the wrong type."""
    given = dict(zip(ARGUMENTS, values, strict=True))
    for (name, value), (kind, what) in zip(given.items(), ARGUMENTS.values(), strict=True):
        if name == "model" and isinstance(value, Config):
            raise ConfigError("model must be a string, `provider:model`; got a Config. Pass a configuration as config=")
        if value is not None and not isinstance(value, kind):
            shown = repr(value) if kind is not Mapping else f"a {type(value).__name__}"  # never show an API key
            raise ConfigError(f"{name} must be {what}; got {shown}")
    for name in ("env", "keys"):
        for pair in (given[name] or {}).items():
            if not all(isinstance(each, str) for each in pair):
                raise ConfigError(f"{name} must map strings to strings; got {pair[0]!r}: {type(pair[1]).__name__}")
    run, home = given["run"], given["home"]
    if paths.path_of("home", home) == "":
        raise ConfigError("home must not be empty: leave it out to use ORCH_HOME")
    if run is not None and (not RUN_NAME.fullmatch(run) or run.startswith(paths.UNNAMED_RUN_PREFIX)):
        raise ConfigError(
            f"invalid run name {run!r}: use up to 64 letters, digits, '.', '_' and '-', beginning with a letter or "
            f"digit and not with {paths.UNNAMED_RUN_PREFIX!r}; leave it out for a run that ends with this program"
        )


def as_list(what: str, values: Iterable[Any]) -> list[Any]:
    """Return `values` as a list. Raises ConfigError unless it is iterable; a string does not count."""
    try:
        each = None if isinstance(values, str | bytes) else iter(values)
    except TypeError:
        each = None
    if each is None:
        raise ConfigError(f"{what} must be a list; got {values!r}")
    return list(each)


def as_names(what: str, names: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return `names` as a tuple, None for None. Raises ConfigError unless it is a list of strings."""
    if names is None:
        return None
    given = [names] if isinstance(names, str) else as_list(what, names)
    if isinstance(names, str) or not all(isinstance(each, str) for each in given):
        raise ConfigError(f"{what} must be a list of names; got {names!r}. Write {given!r}")
    return tuple(given)


def split_tools(tools: Iterable[ToolLike] | None) -> tuple[tuple[str, ...] | None, tuple[Tool, ...]]:
    """Return the names of built-in tools (None: none were given) and the functions, as tools."""
    if tools is None:
        return None, ()
    if isinstance(tools, str):
        raise ConfigError(f"tools must be a list of names and functions; got {tools!r}. Write [{tools!r}]")
    given = as_list("tools", tools)
    for each in given:
        if not isinstance(each, str) and not callable(each):
            raise ConfigError(f"a tool must be a name or a function; got {each!r}")
    functions = tuple(tool(each) for each in given if not isinstance(each, str))
    names = tuple(each for each in given if isinstance(each, str))
    taken = [*names, *(function.name for function in functions)]
    if len(set(taken)) < len(taken):
        raise ConfigError(f"two tools have the same name: {', '.join(sorted(taken))}")
    return names, functions
