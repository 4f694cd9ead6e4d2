"""A tool: a function with a name, a description and a schema; and what it knows of the agent that calls it."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import re
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, overload

import msgspec
from msgspec import Struct, field

from orch_protocol.agent.spec import ToolSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Usage
from orch_protocol.core.taint import BITS, Bit, TaintLabel
from orch_protocol.core.workspace import Artifact
from orch_protocol.policy.policy import PolicyConfig
from orch_protocol.policy.sandbox import SandboxSpec
from orch_protocol.resources.memory import Note, NoteSource
from orch_protocol.services.requests import RUN_TOOL, RunTool
from orch_protocol.services.service import Service

from ...policy.taint import TaintLabels
from ...session.plan import TaskList
from ...system.threads import ASIDE
from .root_client import CallRoot
from .tool_state import ToolState

if TYPE_CHECKING:
    from ...policy.file_filter import FileFilter

__all__ = [
    "ApiKeys",
    "MemoryNotes",
    "PinnableArtifacts",
    "SkillsInUse",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolOutput",
    "root_tool",
    "tool",
]

T = TypeVar("T")

P = TypeVar("P", bound=Struct)
R = TypeVar("R")

NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}")
FIELD: Final = re.compile(r"`\$\.(\w+)")
ARGUMENT_LINE: Final = re.compile(r"(\w+)(?: \(.*?\))?: +(.+)")


class ToolError(Exception):
    """Raised by a tool to say what went wrong; the message is what the model reads."""


class MemoryNotes(Protocol):
    """The notes that an agent keeps between conversations; see `orch_worker.memory`."""

    async def remember(self, text: str, source: NoteSource = "agent") -> Note: ...

    async def recall(self, query: str, tokens: int) -> list[Note]: ...


class SkillsInUse(Protocol):
    """The skills of an agent, and those that this turn has read; see `orch_worker.skills.catalog`."""

    def turn_began(self) -> None: ...

    def outside(self, tool: str) -> str: ...

    async def changed(self) -> tuple[str, ...]: ...


class PinnableArtifacts(Protocol):
    """The artifacts of an agent's workspace, as far as tools change them; see `orch_worker.workspace`."""

    def pin(self, name: str, *, pinned: bool = True) -> Artifact: ...


async def _no_root(service: Service[P, R], params: P, seconds: float | None = None) -> R:  # noqa: ARG001
    raise ToolError(f"cannot call {service.name!r}: this tool runs without a root")


class ApiKeys(dict[str, str]):
    """Secrets by the names of their variables. Shows how many, never which."""

    def __repr__(self) -> str:
        return f"<{len(self)} keys>"

    __str__ = __repr__


class ToolContext(Struct, frozen=True):
    """What a tool knows of its agent.

    Paths are relative to `cwd`; `seconds` is a call's deadline; `folder` is the agent's session folder, None where
    there is none to write to. `archives` says whether its conversation is archived. `agenda` and `marks` are None
    for a tool that the root runs, `memory` also where the agent remembers nothing, `skills` where it has none,
    `workbench` where it does not keep track of what it has at hand. `sandbox` says what the processes of its tools are
    kept from, `policy` which paths they cannot read; a call that somebody `approved` can read credentials.
    `orch_folders` are the absolute paths of the folders of orch itself: homes, run, sessions, sockets. They are empty
    for a tool that the root runs. `in_process` says that the agent lives in the root's process, where its commands
    have no shim above them.
    """

    cwd: Path
    env: Mapping[str, str] = {}
    agent_id: str = ""
    depth: int = 0
    seconds: float = 120.0
    call_root: CallRoot = _no_root
    folder: Path | None = None
    keys: ApiKeys = field(default_factory=ApiKeys)
    archives: bool = False
    agenda: TaskList | None = None
    marks: TaintLabels | None = None
    sandbox: SandboxSpec = SandboxSpec()
    policy: PolicyConfig = PolicyConfig()
    approved: bool = False
    memory: MemoryNotes | None = None
    skills: SkillsInUse | None = None
    workbench: PinnableArtifacts | None = None
    orch_folders: tuple[str, ...] = ()
    in_process: bool = False
    belongings: ToolState = field(default_factory=ToolState)

    @property
    def granted(self) -> frozenset[str]:
        """The names of the agent's tools; none where it is not at work."""
        found: frozenset[str] = self.belongings.get("granted", frozenset)
        return found

    def sieve(self, tool: str, start: Path) -> FileFilter | None:
        """Return what says of each file that `tool` comes upon on its way down from `start` whether to pass it over;
        None where no rule is about any. Looks at the disk."""
        found: FileFilter | None = self.belongings.get("sieve", lambda: lambda *_: None)(tool, str(start))
        return found

    @property
    def told(self) -> tuple[TaintLabel, ...]:
        """What the agent's conversation holds, which whoever it tells something of it holds then, too."""
        return self.marks.content if self.marks is not None else ()

    def own(self, kind: Callable[[ToolContext], T]) -> T:
        """Return the agent's one `kind`, made with this context when it is first asked for. Any thread may ask."""
        return self.belongings.get(kind, lambda: kind(self))


class ToolOutput(Struct, frozen=True):
    """What a tool returns. `files_changed` are paths relative to the context's cwd, `usage` what models used for it.

    A `local` one is for models of this machine alone. `origin` is the web address that the text is from, if it is
    from one; `marks` came with it from elsewhere.
    """

    text: str
    is_error: bool = False
    files_changed: tuple[str, ...] = ()
    usage: Usage = Usage()
    local: bool = False
    origin: str | None = None
    marks: tuple[TaintLabel, ...] = ()


Available = Callable[[ToolContext], bool]


class Tool(Struct, frozen=True):
    """A tool. `parse` turns the model's arguments into what `call` takes, or raises ToolError naming the field.

    Where `available` says no, the model does not see it. An `exclusive` one runs alone; calls whose argument `locks`
    names the same file run one after the other. `bits` is what its maker says that a call brings, None when nothing.
    Called like a function, it is the function it was made of.
    """

    name: str
    description: str
    category: str
    input_schema: dict[str, Any]
    parse: Callable[[dict[str, Any]], Any]
    call: Callable[[ToolContext, Any], Awaitable[ToolOutput]]
    function: Callable[..., Any]
    available: Available | None = None
    exclusive: bool = False
    locks: str = ""
    bits: tuple[Bit, ...] | None = None

    def spec(self) -> ToolSpec:
        """Return the tool as the model sees it."""
        return ToolSpec(self.name, self.description, self.input_schema, self.exclusive, self.locks, self.bits)

    def without(self, parameter: str) -> Tool:
        """Return the tool as it is offered without `parameter`, which has a default."""
        there = self.input_schema.get("properties", {})
        properties = {name: said for name, said in there.items() if name != parameter}
        return msgspec.structs.replace(self, input_schema={**self.input_schema, "properties": properties})

    def missing(self, context: ToolContext) -> str:
        """Return why the tool cannot be used by the agent of `context`, "" when it can."""
        try:
            if self.available is None or self.available(context):
                return ""
        except Exception as error:
            return f"Tool {self.name!r} is not available here: {type(error).__name__}: {error}."
        return f"Tool {self.name!r} is not available here."

    async def run(self, context: ToolContext, input: dict[str, Any]) -> ToolOutput:
        """Check `input` and run the tool with it. Raises ToolError, and whatever the function raises."""
        return await self.call(context, self.parse(input))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    category: str = "user",
    available: Available | None = None,
    exclusive: bool = False,
    locks: str = "",
    bits: Iterable[Bit] | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    category: str = "user",
    available: Available | None = None,
    exclusive: bool = False,
    locks: str = "",
    bits: Iterable[Bit] | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function: its annotations are the schema, its docstring tells the model what it does.

    A parameter annotated `ToolContext` receives the context and is not part of the schema. Lines `name: text` under
    `Args:` in the docstring describe the arguments. A sync function runs in a thread. The result may be text, a
    ToolOutput, or anything that is JSON.

    `available` is asked with the context: where it says no, the model does not see the tool and a call is refused. An
    `exclusive` tool runs alone among the calls of a step. `locks` names a parameter that is a path: calls for the same
    file run one after the other. `bits` say which of `untrusted` content, `sensitive` data and deeds (`acts`) a call
    brings; unless said, it counts as one that runs code. Raises ConfigError for a function that cannot be a tool.
    """

    def make(function: Callable[..., Any]) -> Tool:
        made = _make(function, name, description, category)
        if locks and locks not in made.input_schema.get("properties", {}):
            raise ConfigError(f"tool {made.name!r}: it has no parameter {locks!r} to lock")
        said = _bits(made.name, bits)
        return msgspec.structs.replace(made, available=available, exclusive=exclusive, locks=locks, bits=said)

    if function is None:
        return make
    return function if isinstance(function, Tool) else make(function)


def root_tool(spec: ToolSpec) -> Tool:
    """Return the tool that `spec` describes and the root runs: its arguments are checked there."""

    async def call(context: ToolContext, input: dict[str, Any]) -> ToolOutput:
        ran = await context.call_root(RUN_TOOL, RunTool(spec.name, input), context.seconds)
        return ToolOutput(ran.text, ran.is_error)

    return Tool(
        spec.name,
        spec.description,
        "user",
        spec.input_schema,
        parse=lambda input: input,
        call=call,
        function=call,
        exclusive=spec.exclusive,
        locks=spec.locks,
        bits=spec.bits,
    )


def _make(function: Callable[..., Any], given: str | None, description: str | None, category: str) -> Tool:
    name = given or str(getattr(function, "__name__", ""))
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name or function!r} cannot name a tool: give one, as in @tool(name='count_words')")
    written = _written(function)
    if inspect.isgeneratorfunction(written) or inspect.isasyncgenfunction(written):
        raise ConfigError(f"tool {name!r}: it yields; let it return a value, such as a list")
    summary, notes = _docstring(inspect.getdoc(written) or "")
    context_name, params = _params(function, name, notes)
    schema = _schema(params, name)

    def parse(input: dict[str, Any]) -> Any:
        try:
            return msgspec.convert(input, params, strict=False)
        except msgspec.ValidationError as error:
            raise ToolError(f"Invalid arguments for {name}: {error}{_takes(str(error), schema)}") from error

    async def call(context: ToolContext, arguments: Any) -> ToolOutput:
        passed = {field: getattr(arguments, field) for field in params.__struct_fields__}
        if context_name:
            passed[context_name] = context
        if inspect.iscoroutinefunction(function):
            return _output(await function(**passed))
        held = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        value = await loop.run_in_executor(ASIDE, held.run, _in_thread, function, passed)
        return _output(await value if inspect.isawaitable(value) else value)  # a plain wrapper of an async function

    return Tool(name, description or summary, category, schema, parse, call, function)


def _written(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what somebody wrote with annotations and a docstring, behind partials, or in an object's class.

    An object that a decorator made of a function has both itself, as `functools.update_wrapper` gave it them.
    """
    while isinstance(function, functools.partial):
        function = function.func
    own = "__annotations__" in getattr(function, "__dict__", ())
    if own or inspect.isroutine(function) or inspect.isclass(function):
        return function
    return getattr(type(function), "__call__", function)  # noqa: B004


def _bits(name: str, bits: Iterable[Bit] | None) -> tuple[Bit, ...] | None:
    if bits is None:
        return None
    said = (bits,) if isinstance(bits, str) else tuple(bits)
    if unknown := [each for each in said if each not in BITS]:
        raise ConfigError(f"tool {name!r}: unknown bit {unknown[0]!r}; available: {', '.join(BITS)}")
    return tuple(bit for bit in BITS if bit in said)


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into what it says and its notes on the arguments."""
    summary, _, rest = text.partition("\nArgs:\n")
    section, *after = re.split(r"\n(?=\S)", rest, maxsplit=1)
    notes: dict[str, str] = {}
    last = ""
    for line in map(str.strip, section.splitlines()):
        if match := ARGUMENT_LINE.fullmatch(line):
            last = match[1]
            notes[last] = match[2]
        elif last and line:
            notes[last] += f" {line}"
    return "\n\n".join([summary.strip(), *after]), notes


def _params(function: Callable[..., Any], name: str, notes: dict[str, str]) -> tuple[str, type[Struct]]:
    """Return the name of the parameter that takes the context, if any, and the others as a struct."""
    try:
        hints = typing.get_type_hints(_written(function), include_extras=True)
        parameters = inspect.signature(function).parameters.values()
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"tool {name!r}: its signature cannot be read: {error}") from error
    context_name, fields = "", []
    given = function.keywords if isinstance(function, functools.partial) else {}
    for parameter in parameters:
        if parameter.name in given:
            continue  # it is said already, and not the model's to say
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool {name!r}: parameter {parameter} must be one that can be passed by name")
        hint = hints.get(parameter.name)
        if hint is None:
            raise ConfigError(f"tool {name!r}: parameter {parameter.name!r} needs a type, as in {parameter.name}: str")
        if hint is ToolContext:
            context_name = parameter.name
            continue
        if parameter.name in notes:
            hint = typing.Annotated[hint, msgspec.Meta(description=notes[parameter.name])]
        required = parameter.default is parameter.empty
        fields.append((parameter.name, hint) if required else (parameter.name, hint, _default(parameter.default)))
    try:
        params = msgspec.defstruct(name, fields, frozen=True, kw_only=True, forbid_unknown_fields=True)
        msgspec.json.schema(params)
    except (TypeError, RuntimeError) as error:
        why = str(error).rpartition("\n")[2]  # before that is told what only msgspec can be
        raise ConfigError(f"tool {name!r}: its parameters cannot come from JSON: {why}") from error
    return context_name, params


def _default(value: Any) -> Any:
    return msgspec.field(default_factory=value.copy) if isinstance(value, (list, dict, set)) else value


def _schema(params: type[Struct], name: str) -> dict[str, Any]:
    """Return the JSON Schema of `params` with the arguments at the top, where models expect them."""
    schema = msgspec.json.schema(params)
    definitions = schema["$defs"]
    top: dict[str, Any] = definitions.pop(name)
    del top["title"]
    return {**top, "$defs": definitions} if definitions else top


def _takes(error: str, schema: dict[str, Any]) -> str:
    """Return what a tool of that schema takes in place of what `error` is about, as far as that is a choice."""
    fields = schema.get("properties", {})
    if "unknown field" in error:
        return f"; it takes {', '.join(fields)}"
    found = FIELD.search(error) if "enum value" in error else None
    part = fields.get(found[1], {}) if found else {}
    choices = [each for one in (part, part.get("items", {}), *part.get("anyOf", ())) for each in one.get("enum", ())]
    return f"; it is one of {', '.join(map(str, choices))}" if choices else ""


def _in_thread(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return function(**arguments)
    except (StopIteration, SystemExit, KeyboardInterrupt) as error:
        # None of these passes from a thread through a future and an event loop unharmed.
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _output(value: Any) -> ToolOutput:
    if isinstance(value, ToolOutput):
        return value
    if value is None or isinstance(value, str):
        return ToolOutput(value or "")
    try:
        return ToolOutput(msgspec.json.encode(value).decode())
    except (TypeError, UnicodeEncodeError, OverflowError):
        return ToolOutput(str(value))
