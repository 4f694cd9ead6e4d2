"""What programs may say of agents and orchestrators, checked, and as data."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar

import msgspec

from orch_protocol.agent.config import Config
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.budget import Budget
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.text import scrub
from orch_protocol.services.import_export import ImportSession
from orch_protocol.services.requests import Spawn
from orch_protocol.wire.frames import DECODE_ERRORS
from orch_worker.tools.api.base import Tool, tool

from ..config import paths
from ..policy.budget_rules import check_budget

__all__ = [
    "AgentHandle",
    "Scripted",
    "ToolLike",
    "as_data",
    "check_arguments",
    "listed",
    "names_of",
    "script_of",
    "split_tools",
]

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

ARGUMENTS: Final[dict[str, tuple[Any, str]]] = {
    "model": (str, "text, `provider:model`"),
    "config": (Config, "an orch.Config"),
    "run": (str, "a name, as text"),
    "home": ((str, os.PathLike), "a path, as text or a Path"),
    "env": (Mapping, "a mapping of variables"),
    "keys": (Mapping, "a mapping of keys by their variables"),
    "environment": (Iterable, "a list of names of variables"),
    "approve": (Callable, "a function"),
    "policy": (Callable, "a function"),
    "launcher": (Callable, "a class of launchers, or a function that makes one"),
    "connect": (Callable, "a function"),
}
"""What an orchestrator is made with, in order: of which kind, and what that is in words."""

ToolLike = str | Tool | Callable[..., Any]
"""A built-in tool's name, or a function of the user's program, which runs there."""


Request = TypeVar("Request", Spawn, ImportSession)


class AgentHandle(Protocol):
    """Anything with the id of an agent: a Subagent, an AsyncSubagent or an AgentRow."""

    @property
    def id(self) -> str:
        """The agent's id."""


class Scripted(Protocol):
    """A backend that can be told as data, such as ScriptedBackend."""

    def spec(self) -> BackendSpec:
        """Return it as data."""


def script_of(backend: Scripted | None) -> tuple[tuple[Any, ...] | None, tuple[Any, ...]]:
    """Return the responses and summaries of a scripted `backend`, None and none without one. Raises ConfigError."""
    if backend is None:
        return None, ()
    if not callable(getattr(backend, "spec", None)):
        raise ConfigError(f"backend is an object such as ScriptedBackend([...]), not {backend!r}; see model=")
    spec = backend.spec()
    if spec.provider != "scripted":
        raise ConfigError(f"pass model={spec.provider}:...; only a scripted backend is passed as an object")
    return tuple(spec.options["items"]), tuple(spec.options.get("summaries", ()))


def as_data(request: Request) -> Request:
    """Return `request` as it is when it comes from another process and as files hold it. Raises ConfigError."""
    said = request.agent if isinstance(request, ImportSession) else msgspec.structs.asdict(request)
    for budget in (said.get("budget"), said.get("limits")):
        check_budget(budget or Budget())  # as JSON, what is no number would be no limit
    try:
        try:
            data = msgspec.json.encode(request)
        except UnicodeEncodeError:
            data = msgspec.json.encode(scrub(msgspec.to_builtins(request)))
        return msgspec.json.decode(data, type=type(request))
    except (*DECODE_ERRORS, TypeError, ValueError) as error:
        raise ConfigError(f"no agent can be made of that: {error} (numbers are finite, everything is JSON)") from error


def check_arguments(*values: Any) -> None:
    """Raise ConfigError for one of all arguments of AsyncOrchestrator that is not what it is to be."""
    given = dict(zip(ARGUMENTS, values, strict=True))
    for (name, value), (kind, what) in zip(given.items(), ARGUMENTS.values(), strict=True):
        if name == "model" and isinstance(value, Config):
            raise ConfigError("model is text, `provider:model`, and comes first: pass an orch.Config as config=")
        if value is not None and not isinstance(value, kind):
            shown = repr(value) if kind is not Mapping else f"a {type(value).__name__}"  # a key is for no log
            raise ConfigError(f"{name} is {what}, not {shown}; see help(orch.AsyncOrchestrator)")
    for name in ("env", "keys"):
        for pair in (given[name] or {}).items():
            if not all(isinstance(each, str) for each in pair):
                raise ConfigError(f"{name} is of texts by their names, but has {pair[0]!r}: {type(pair[1]).__name__}")
    run, home = given["run"], given["home"]
    if paths.path_of("home", home) == "":
        raise ConfigError("home '' names no folder: leave it out for the usual one, or name one")
    if run is not None and (not RUN_NAME.fullmatch(run) or run.startswith(paths.OWN_RUN)):
        raise ConfigError(
            f"run {run!r} does not do for a name: up to 64 letters, digits, '.', '_' and '-', beginning with a letter "
            f"or digit, and not with {paths.OWN_RUN!r}; leave it out for a run of this program alone"
        )


def listed(what: str, values: Iterable[Any]) -> list[Any]:
    """Return `values` as a list. Raises ConfigError for what is none, as for a text, whose letters nobody means."""
    try:
        each = None if isinstance(values, str | bytes) else iter(values)
    except TypeError:
        each = None
    if each is None:
        raise ConfigError(f"{what} is a list, not {values!r}")
    return list(each)


def names_of(what: str, names: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return `names` as a tuple, None for None. Raises ConfigError for what is no list of names."""
    if names is None:
        return None
    given = [names] if isinstance(names, str) else listed(what, names)
    if isinstance(names, str) or not all(isinstance(each, str) for each in given):
        raise ConfigError(f"{what} is a list of names, not {names!r}: write {given!r}")
    return tuple(given)


def split_tools(tools: Iterable[ToolLike] | None) -> tuple[tuple[str, ...] | None, tuple[Tool, ...]]:
    """Return the built-in tools' names (None: none were given) and the functions, as tools."""
    if tools is None:
        return None, ()
    if isinstance(tools, str):
        raise ConfigError(f"tools is a list of names and functions, not the text {tools!r}: write [{tools!r}]")
    given = listed("tools", tools)
    for each in given:
        if not isinstance(each, str) and not callable(each):
            raise ConfigError(f"a tool is the name of one or a function, not {each!r}")
    functions = tuple(tool(each) for each in given if not isinstance(each, str))
    names = tuple(each for each in given if isinstance(each, str))
    taken = [*names, *(function.name for function in functions)]
    if len(set(taken)) < len(taken):
        raise ConfigError(f"two tools have the same name: {', '.join(sorted(taken))}")
    return names, functions
