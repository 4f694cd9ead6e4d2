"""Validation of the arguments of the Python API, and their conversion to the data of requests."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import Any, Final, Literal, NamedTuple, Protocol, TypedDict, TypeVar, cast, get_args

import msgspec

from orch_protocol.agent.config import Config
from orch_protocol.agent.project import ProjectContext
from orch_protocol.agent.spec import BackendSpec, ExecutorSpec, Limits, QueueMode, Template
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.text import scrub
from orch_protocol.core.worktrees import Isolation
from orch_protocol.policy.budget import Budget
from orch_protocol.services.agents.spawn import Spawn
from orch_protocol.services.sessions.import_session import ImportSession
from orch_protocol.wire.frames import DECODE_ERRORS
from orch_worker.backends import custom_providers
from orch_worker.backends.custom.contract import CustomBackend, info_of
from orch_worker.backends.custom.stream import check_respond
from orch_worker.system.threads import DAEMON_THREADS
from orch_worker.tools.api.base import Tool, tool
from orch_worker.tools.api.executor import Executor
from orch_worker.tools.dispatch.custom_executor import CheckedExecutor, list_tools

from ..config import paths
from ..policy.approvals import Approver
from ..policy.budget_rules import check_budget
from ..resources.prompt_templates import PromptTemplate
from .fan_out import OnProgress

__all__ = [
    "AgentHandle",
    "AgentOptions",
    "AgentRefs",
    "BackendLike",
    "LentBackends",
    "MapArguments",
    "MapOptions",
    "ScriptedBackendLike",
    "ToolLike",
    "as_list",
    "as_names",
    "check_arguments",
    "executor_spec",
    "named_arguments",
    "split_tools",
    "validate_request",
]

IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
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
"""The arguments of AsyncOrchestrator in order. Each item has the required type and its description."""

CHOICES: Final[dict[str, Any]] = {
    "context": ProjectContext,
    "queue_mode": QueueMode,
    "follow_up_mode": QueueMode,
    "isolation": Isolation,
    "depth": Literal[0, 1],
}
"""The options of an agent that accept only certain values."""

ToolLike = str | Tool | Callable[..., Any]
"""The name of a built-in tool, or a function that runs in this program."""


Method = TypeVar("Method", bound=Callable[..., Coroutine[Any, Any, Any]])
Request = TypeVar("Request", Spawn, ImportSession)


class AgentHandle(Protocol):
    """An object with the id of an agent. Examples are Subagent, AsyncSubagent and AgentRow."""

    @property
    def id(self) -> str:
        """The agent's id."""


AgentRefs = Iterable[AgentHandle | str | int]
"""Agents, or their numbers, ids, id prefixes or names."""


class ScriptedBackendLike(Protocol):
    """A backend that can be sent to a worker as data, such as ScriptedBackend."""

    def spec(self) -> BackendSpec:
        """Return the backend as data."""


BackendLike = ScriptedBackendLike | CustomBackend
"""A scripted backend, or a backend object for agents in this process."""


class BackendArguments(NamedTuple):
    """The fields of a request that select the backend."""

    model: str | None
    script: tuple[Any, ...] | None = None
    summaries: tuple[Any, ...] = ()


class LentBackends:
    """The backend objects of an orchestrator.

    If `separate` is True, agents are separate processes and cannot use these objects.
    """

    def __init__(self, *, separate: bool) -> None:
        self._separate = separate
        self._lent: dict[int, str] = {}

    def arguments(self, model: str | None, backend: BackendLike | None) -> BackendArguments:
        """Return the request fields for the arguments `model` and `backend`. Raises ConfigError."""
        if backend is None:
            return BackendArguments(model)
        if model is not None:
            raise ConfigError(f"pass model={model!r} or backend=, not both")
        if isinstance(backend, CustomBackend):
            return BackendArguments(self._lend(backend))
        if not callable(getattr(backend, "spec", None)):
            raise ConfigError(
                "backend must be an object such as ScriptedBackend([...]) or of an orch.CustomBackend subclass; got "
                f"{backend!r}. Pass a model as model="
            )
        spec = backend.spec()
        if spec.provider != "scripted":
            raise ConfigError(
                f"pass model={spec.provider}:...; only scripted and custom backends are passed as objects"
            )
        return BackendArguments(None, tuple(spec.options["items"]), tuple(spec.options.get("summaries", ())))

    def _lend(self, backend: CustomBackend) -> str:
        class_ = type(backend)
        if self._separate:
            raise ConfigError(
                f"backend={class_.__qualname__}(...) belongs to this program, but its agents run in other processes: "
                f"pass model='{class_.__module__}:{class_.__qualname__}', or run agents in this process with "
                "Orchestrator(launcher=orch.processes.in_process.InProcessLauncher)"
            )
        if problem := check_respond(class_):
            raise ConfigError(f"the backend {class_.__qualname__} {problem}")
        if id(backend) not in self._lent:
            self._lent[id(backend)] = custom_providers.register_object(backend, info_of(backend))
        return self._lent[id(backend)]

    def close(self) -> None:
        """Make the backend objects unavailable to agents."""
        while self._lent:
            custom_providers.unregister_object(self._lent.popitem()[1])


class MapOptions(TypedDict, total=False):
    """The options of the agents of a map; `AsyncOrchestrator.spawn` describes each option."""

    agent: str | None
    preset: str | None
    tools: Iterable[ToolLike] | None
    model: str | None
    thinking: str | None
    backend: BackendLike | None
    cwd: str | os.PathLike[str] | None
    env: Mapping[str, str] | None
    history: Sequence[Any]
    limits: Limits | None
    template: Template | None
    queue_mode: QueueMode
    follow_up_mode: QueueMode | None
    plan: bool
    context: ProjectContext | None
    persist: bool
    prompt_template: str | PromptTemplate | None
    vars: Mapping[str, object] | None
    skills: Iterable[str] | None
    namespace: dict[str, Any] | None
    usable_credentials: Iterable[str]
    peers: Iterable[AgentHandle | str | int]
    archives: Iterable[str]
    approve: Approver | None
    isolation: Isolation | None
    tool_executor: Executor | str | None


class MapArguments(MapOptions, total=False):
    """The arguments of `AsyncOrchestrator.map` after the prompt, except `returns`."""

    workers: int
    key: Callable[[Any], str] | None
    name: str | None
    max_cost: float | None
    budget: Budget | None
    stop_on_error: bool
    on_progress: OnProgress | None


class AgentOptions(MapOptions, total=False):
    """The options of a new agent, for `spawn(task, **options)` and `session(**options)`.

    `AsyncOrchestrator.spawn` describes each option.
    """

    name: str | None
    max_cost: float | None
    budget: Budget | None


async def executor_spec(
    executor: Executor | str | None, tool_names: tuple[str, ...] | None
) -> tuple[ExecutorSpec | None, CheckedExecutor | None]:
    """Return the request data for `executor`. `tool_names` contains names of tools.

    If `executor` is an object, also return a wrapper that the root calls. In this case, waits at most 30 s for the list
    of the object's tools. Raises ConfigError.
    """
    if executor is None:
        return None, None
    if isinstance(executor, str):
        if not IMPORT_PATH.fullmatch(executor):
            raise ConfigError(
                f"invalid tool_executor {executor!r}: use the import path of a class, package.module:Class"
            )
        return ExecutorSpec(executor, wanted=tool_names), None
    if not isinstance(executor, Executor):
        raise ConfigError(
            "tool_executor must be an object of an orch.Executor subclass, or the import path of a subclass, "
            f"package.module:Class; got {executor!r:.80}"
        )
    name = f"{type(executor).__module__}:{type(executor).__qualname__}"
    loop = asyncio.get_running_loop()
    _, tools = await loop.run_in_executor(DAEMON_THREADS, list_tools, name, lambda: executor)
    return ExecutorSpec(name, in_program=True, wanted=tool_names, tools=tools), CheckedExecutor(executor, name, tools)


def validate_request(request: Request) -> Request:
    """Encode `request` as JSON, decode it again, and return the decoded request. Raises ConfigError.

    Other processes and files receive the decoded form. The check finds values that JSON cannot represent.
    """
    fields = request.agent if isinstance(request, ImportSession) else msgspec.structs.asdict(request)
    for name, type_ in CHOICES.items():
        value, choices = fields.get(name), get_args(type_)
        if value is not None and value not in choices:
            raise ConfigError(f"{name} must be {' or '.join(map(repr, choices))}; got {value!r}")
    for name in ("budget", "limits"):
        check_budget(fields.get(name) or Budget(), name)  # JSON would change a NaN to null, which means "no limit"
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
    arguments = dict(zip(ARGUMENTS, values, strict=True))
    for (name, value), (required_type, description) in zip(arguments.items(), ARGUMENTS.values(), strict=True):
        if name == "model" and isinstance(value, Config):
            raise ConfigError("model must be a string, `provider:model`; got a Config. Pass a configuration as config=")
        if value is not None and not isinstance(value, required_type):
            value_text = (
                repr(value) if required_type is not Mapping else f"a {type(value).__name__}"
            )  # never show an API key
            raise ConfigError(f"{name} must be {description}; got {value_text}")
    for name in ("env", "keys"):
        for pair in (arguments[name] or {}).items():
            if not all(isinstance(each, str) for each in pair):
                raise ConfigError(f"{name} must map strings to strings; got {pair[0]!r}: {type(pair[1]).__name__}")
    run, home = arguments["run"], arguments["home"]
    if paths.checked_path("home", home) == "":
        raise ConfigError("home must not be empty: leave it out to use ORCH_HOME")
    if run is not None and (not RUN_NAME.fullmatch(run) or run.startswith(paths.UNNAMED_RUN_PREFIX)):
        raise ConfigError(
            f"invalid run name {run!r}: use up to 64 letters, digits, '.', '_' and '-', beginning with a letter or "
            f"digit and not with {paths.UNNAMED_RUN_PREFIX!r}; leave it out for a run that ends with this program"
        )


def named_arguments(options: type | None = None) -> Callable[[Method], Method]:
    """Return a decorator of coroutine functions. The function raises TypeError for a misspelt keyword argument.

    The error has the name of the function, which is that of the blocking function too, and the nearest argument.
    `options` is the TypedDict of the `**options` of the function.
    """

    def decorate(method: Method) -> Method:
        declared = inspect.signature(method).parameters.values()
        names = [each.name for each in declared if each.kind is not each.VAR_KEYWORD]
        known = frozenset((*names, *(options.__annotations__ if options is not None else ())))

        @wraps(method)
        async def call(*args: Any, **kwargs: Any) -> Any:
            if unknown := kwargs.keys() - known:
                wrong = min(unknown)
                similar = get_close_matches(wrong, sorted(each for each in known if each[0] != "_"), n=1)
                hint = f"; did you mean {similar[0]!r}?" if similar else ""
                raise TypeError(f"{method.__name__}() got an unexpected keyword argument {wrong!r}{hint}")
            return await method(*args, **kwargs)

        return cast("Method", call)

    return decorate


def as_list(name: str, values: Iterable[Any]) -> list[Any]:
    """Return `values` as a list. Raises ConfigError for a string and for values that are not iterable."""
    try:
        iterator = None if isinstance(values, str | bytes) else iter(values)
    except TypeError:
        iterator = None
    if iterator is None:
        raise ConfigError(f"{name} must be a list; got {values!r}")
    return list(iterator)


def as_names(name: str, names: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return `names` as a tuple, or None if `names` is None. Raises ConfigError if `names` is not a list of strings."""
    if names is None:
        return None
    items = [names] if isinstance(names, str) else as_list(name, names)
    if isinstance(names, str) or not all(isinstance(each, str) for each in items):
        raise ConfigError(f"{name} must be a list of names; got {names!r}. Write {items!r}")
    return tuple(items)


def split_tools(tools: Iterable[ToolLike] | None) -> tuple[tuple[str, ...] | None, tuple[Tool, ...]]:
    """Split `tools` into the names of built-in tools and the tools made from functions.

    The names are None if `tools` is None.
    """
    if tools is None:
        return None, ()
    if isinstance(tools, str):
        raise ConfigError(f"tools must be a list of names and functions; got {tools!r}. Write [{tools!r}]")
    items = as_list("tools", tools)
    for each in items:
        if not isinstance(each, str) and not callable(each):
            raise ConfigError(f"a tool must be a name or a function; got {each!r}")
    functions = tuple(tool(each) for each in items if not isinstance(each, str))
    names = tuple(each for each in items if isinstance(each, str))
    used_names = [*names, *(function.name for function in functions)]
    if len(set(used_names)) < len(used_names):
        raise ConfigError(f"two tools have the same name: {', '.join(sorted(used_names))}")
    return names, functions
