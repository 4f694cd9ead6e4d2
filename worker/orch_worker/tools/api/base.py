"""Tools, which are functions with a name, a description and a schema, and the context in which tools run."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import re
import threading
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, overload

import msgspec
from msgspec import Struct, field

from orch_protocol.agent.spec import ToolSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Image, Usage, prompt_of
from orch_protocol.core.taint import BITS, Bit, TaintLabel
from orch_protocol.core.workspace import Artifact
from orch_protocol.policy.builtin_tools import HOSTED
from orch_protocol.policy.policy import FilterRules, PolicyConfig
from orch_protocol.policy.sandbox import SandboxSpec
from orch_protocol.resources.memory import Note, NoteSource
from orch_protocol.services.resources.tools import RUN_TOOL, RunTool
from orch_protocol.services.service import Service

from ...policy.taint import TaintLabels
from ...session.plan import TaskList
from ...system.secrets import ApiKeys
from ...system.threads import DAEMON_THREADS
from .root_client import CallRoot
from .shared_names import SHARED_TOOLS, shared_names

if TYPE_CHECKING:
    from ...policy.file_filter import FileFilter
    from .tool_host import ToolHost

__all__ = [
    "NAME",
    "MemoryNotes",
    "PinnableArtifacts",
    "SkillsInUse",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolOutput",
    "ToolState",
    "output_of",
    "root_tool",
    "tool",
]

T = TypeVar("T")

P = TypeVar("P", bound=Struct)
R = TypeVar("R")

NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}")
"""Valid names of tools."""
FIELD: Final = re.compile(r"`\$\.(\w+)")
INDENT: Final = "    "


class ToolError(Exception):
    """Raised by a tool to report an error. The model reads the message."""


class ToolState:
    """The state of tools between calls, such as running jobs and stored results: one object of each kind.

    An object is created when it is first used. Objects with a method `close` are closed with the agent.
    """

    def __init__(self) -> None:
        self._objects: dict[object, Any] = {}
        self._lock = threading.RLock()

    def get(self, kind: object, create: Callable[[], T]) -> T:
        """Return the object of `kind`. If the object does not exist yet, create it with `create`. Thread-safe."""
        with self._lock:
            if kind not in self._objects:
                self._objects[kind] = create()
            found: T = self._objects[kind]
            return found

    def close(self) -> None:
        """Close all objects, newest first, and forget them."""
        with self._lock:
            objects, self._objects = list(self._objects.values()), {}
        for each in reversed(objects):
            if hasattr(each, "close"):
                each.close()


class MemoryNotes(Protocol):
    """The notes that an agent keeps between conversations. See `orch_worker.memory`."""

    async def remember(self, text: str, source: NoteSource = "agent") -> Note: ...

    async def recall(self, query: str, tokens: int) -> list[Note]: ...


class SkillsInUse(Protocol):
    """The skills of an agent, and the skills that were read in this turn. See `orch_worker.skills.catalog`."""

    def turn_began(self) -> None: ...

    def disallowed_reason(self, tool: str) -> str: ...


class PinnableArtifacts(Protocol):
    """The part of an agent's workspace that tools change. See `orch_worker.workspace`."""

    def pin(self, name: str, *, pinned: bool = True) -> Artifact: ...


async def _no_root(service: Service[P, R], params: P, seconds: float | None = None) -> R:  # noqa: ARG001
    raise ToolError(f"cannot call {service.name!r}: this tool runs without a root")


class ToolContext(Struct, frozen=True):
    """The agent of a tool, and the environment of the tool's calls.

    - `cwd`: the folder to which paths are relative. `folder`: the agent's session folder, or None.
    - `seconds`: the timeout of a call.
    - `archives`: whether the conversation is archived.
    - `task_list`, `conversation_labels`: None if the tool runs in the root. `memory`, `skills`, `workspace`: None if
      the tool runs in the root or the agent does not have the feature.
    - `sandbox`: the sandbox of commands. `policy`: the rules, including the paths that commands cannot read.
    - `credentials`: the credential paths (resolved) that the command of this call can read, because an approval of
      this individual call named them.
    - `judged_path`: the real path of the file or folder that the policy judged for this call of a built-in tool. The
      tool opens no other path. None if the policy judged none.
    - `orch_folders`: the absolute paths of orch's own folders (homes, run, sessions, sockets); empty for a tool that
      runs in the root.
    - `in_process`: the agent runs in the root's process, where no shim adopts the processes of commands.
    - `tool_host`: the process that runs the tools in `HOSTED`. None if they run in this process.
    - `filter_rules`: in a tool host, the rules for the files that this call finds.
    - `agent_types`: the agent types that the agent may spawn, with their descriptions. `subagent_models`: patterns of
      the models that it may choose for subagents.
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
    task_list: TaskList | None = None
    conversation_labels: TaintLabels | None = None
    sandbox: SandboxSpec = SandboxSpec()
    policy: PolicyConfig = PolicyConfig()
    credentials: tuple[str, ...] = ()
    judged_path: str | None = None
    call_id: str = ""
    memory: MemoryNotes | None = None
    skills: SkillsInUse | None = None
    workspace: PinnableArtifacts | None = None
    orch_folders: tuple[str, ...] = ()
    in_process: bool = False
    agent_types: Mapping[str, str] = {}
    subagent_models: tuple[str, ...] = ()
    tool_host: ToolHost | None = None
    filter_rules: FilterRules | None = None
    tool_state: ToolState = field(default_factory=ToolState)

    @property
    def granted(self) -> frozenset[str]:
        """The names of the agent's tools. Empty if the agent is not running."""
        found: frozenset[str] = self.tool_state.get("granted", frozenset)
        return found

    def file_filter(self, tool: str, start: Path) -> FileFilter | None:
        """Return the filter for files found by `tool` below `start`. Return None if no rule applies.

        This method reads the disk.
        """
        rules = self.filter_rules or self.rules_for_files(tool, str(start))
        if rules is None:
            return None
        from ...policy.file_filter import FileFilter

        return FileFilter(rules)

    def rules_for_files(self, tool: str, start: str) -> FilterRules | None:
        """Return the rules of the agent's guard for files found by `tool` below `start`. This method reads the disk."""
        found: FilterRules | None = self.tool_state.get("filter_rules", lambda: lambda *_: None)(tool, start)
        return found

    def host_of(self, tool: str) -> ToolHost | None:
        """Return the tool host that runs the built-in tool `tool`. Return None if the tool runs in this process."""
        if self.tool_host is None or tool not in HOSTED:
            return None
        is_shared = self.in_process and tool in SHARED_TOOLS and shared_names(self.agent_id) is not None
        return None if is_shared else self.tool_host

    @property
    def taint_labels(self) -> tuple[TaintLabel, ...]:
        """The taint labels of the conversation.

        Agents that receive information from the conversation inherit these labels.
        """
        return self.conversation_labels.content if self.conversation_labels is not None else ()

    def agent_object(self, kind: Callable[[ToolContext], T]) -> T:
        """Return the agent's single object of type `kind`. The first call creates the object with this context.

        Thread-safe.
        """
        return self.tool_state.get(kind, lambda: kind(self))


class ToolOutput(Struct, frozen=True):
    """The result of a tool.

    `files_changed` are paths relative to the context's `cwd`. `usage` is the usage of models called by the tool. If
    `local` is True, only models on this machine may receive the result. `origin` is the web address of the text, if
    any. `marks` are inherited taint labels. Each of `images` replaces its `Image.text` in `text`. Images not mentioned
    in `text` stand after the text.
    """

    text: str
    is_error: bool = False
    files_changed: tuple[str, ...] = ()
    usage: Usage = Usage()
    local: bool = False
    origin: str | None = None
    marks: tuple[TaintLabel, ...] = ()
    images: tuple[Image, ...] = ()


Available = Callable[[ToolContext], bool]


class Tool(Struct, frozen=True):
    """A tool. `parse` converts the model's arguments for `call`, or raises ToolError with the field name.

    If `available` returns False, the tool is hidden from the model. A call of an `exclusive` tool never runs at the
    same time as other calls. Calls with the same file in the argument `locks` run one after the other. `bits` are the
    taint bits declared for a call, or None. `is_builtin` is True for a tool of orch. Calling the tool calls its
    function.
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
    is_builtin: bool = False

    def spec(self) -> ToolSpec:
        """Return the specification of the tool that the model receives."""
        return ToolSpec(self.name, self.description, self.input_schema, self.exclusive, self.locks, self.bits)

    def spec_in(self, context: ToolContext) -> ToolSpec:
        """Return the specification for the agent of `context`: hidden if the agent cannot use the tool."""
        return msgspec.structs.replace(self.spec(), hidden=bool(self.missing(context)))

    def without(self, parameter: str) -> Tool:
        """Return the tool with `parameter` hidden from the model. The parameter must have a default."""
        all_properties = self.input_schema.get("properties", {})
        properties = {name: property for name, property in all_properties.items() if name != parameter}
        return msgspec.structs.replace(self, input_schema={**self.input_schema, "properties": properties})

    def choosing(self, parameter: str, choices: Mapping[str, str]) -> Tool:
        """Return the tool with the optional parameter `parameter` limited to `choices`.

        The model receives the description of each choice.
        """
        lines = "".join(f"\n- {name}: {text}" for name, text in choices.items())
        description = self.input_schema["properties"][parameter]["description"] + lines
        return self._with_property(parameter, {"enum": [*choices, None], "default": None, "description": description})

    def with_note(self, parameter: str, note: str) -> Tool:
        """Return the tool with `note` at the end of the description of `parameter`."""
        property = self.input_schema["properties"][parameter]
        return self._with_property(parameter, {**property, "description": f"{property['description']} {note}"})

    def _with_property(self, parameter: str, property: dict[str, Any]) -> Tool:
        properties = {**self.input_schema["properties"], parameter: property}
        return msgspec.structs.replace(self, input_schema={**self.input_schema, "properties": properties})

    def missing(self, context: ToolContext) -> str:
        """Return why the agent of `context` cannot use the tool. Return "" if the agent can use the tool."""
        try:
            if self.available is None or self.available(context):
                return ""
        except Exception as error:
            return f"Tool {self.name!r} is not available here: {type(error).__name__}: {error}."
        return f"Tool {self.name!r} is not available here."

    async def run(self, context: ToolContext, input: dict[str, Any]) -> ToolOutput:
        """Validate `input` and run the tool. Raise ToolError, or any exception that the function raises."""
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
    """Turn a function into a tool. The annotations define the schema, and the docstring is the description.

    A parameter annotated with `ToolContext` receives the context and is not part of the schema. The docstring describes
    the arguments in Google, NumPy or Sphinx style. A sync function runs in a thread. The result may be text, an
    Image, a list of texts and images, a ToolOutput, or any JSON data.

    If `available` returns False for a context, the tool is hidden from the model, and calls are refused. A call of an
    `exclusive` tool never runs at the same time as other calls of the step. `locks` names a path parameter: calls for
    the same file run one after the other. `bits` declare what a call adds to the conversation: `untrusted` content,
    `sensitive` data or actions (`acts`). By default, the tool is treated like a tool that runs code. Raise ConfigError
    for a function that cannot be a tool.
    """

    def make(function: Callable[..., Any]) -> Tool:
        new_tool = _make(function, name, description, category)
        if locks and locks not in new_tool.input_schema.get("properties", {}):
            raise ConfigError(f"tool {new_tool.name!r}: it has no parameter {locks!r} to lock")
        checked_bits = _check_bits(new_tool.name, bits)
        return msgspec.structs.replace(
            new_tool, available=available, exclusive=exclusive, locks=locks, bits=checked_bits
        )

    if function is None:
        return make
    return function if isinstance(function, Tool) else make(function)


def root_tool(spec: ToolSpec) -> Tool:
    """Return a tool that runs in the root. The root also validates the arguments of the tool."""

    async def call(context: ToolContext, input: dict[str, Any]) -> ToolOutput:
        output = await context.call_root(RUN_TOOL, RunTool(spec.name, input), context.seconds)
        return msgspec.convert(output, ToolOutput, from_attributes=True)

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
        available=_never if spec.hidden else None,
    )


def _never(_: ToolContext) -> bool:
    return False


def _make(function: Callable[..., Any], explicit_name: str | None, description: str | None, category: str) -> Tool:
    name = explicit_name or str(getattr(function, "__name__", ""))
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name or function!r} is not a valid tool name: pass a name, as in @tool(name='count_words')"
        )
    source = _unwrap(function)
    if inspect.isgeneratorfunction(source) or inspect.isasyncgenfunction(source):
        raise ConfigError(f"tool {name!r}: a generator is not allowed: return a value, such as a list")
    summary, notes = _parse_docstring(inspect.getdoc(source) or "")
    context_name, params = _parameters_of(function, name, notes)
    schema = _json_schema(params, name)

    def parse(input: dict[str, Any]) -> Any:
        try:
            return msgspec.convert(input, params, strict=False)
        except msgspec.ValidationError as error:
            raise ToolError(f"Invalid arguments for {name}: {error}{_choices_hint(str(error), schema)}") from error

    async def call(context: ToolContext, arguments: Any) -> ToolOutput:
        keyword_arguments = {field: getattr(arguments, field) for field in params.__struct_fields__}
        if context_name:
            keyword_arguments[context_name] = context
        if inspect.iscoroutinefunction(function):
            return output_of(await function(**keyword_arguments))
        call_context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        value = await loop.run_in_executor(
            DAEMON_THREADS, call_context.run, _call_in_thread, function, keyword_arguments
        )
        # The function may be a sync wrapper of an async function.
        return output_of(await value if inspect.isawaitable(value) else value)

    return Tool(name, description or summary, category, schema, parse, call, function)


def _unwrap(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that has the annotations and the docstring. Partials and `__call__` methods are unwrapped.

    An object that has copied annotations and docstring with `functools.update_wrapper` is returned unchanged.
    """
    while isinstance(function, functools.partial):
        function = function.func
    has_annotations = "__annotations__" in getattr(function, "__dict__", ())
    if has_annotations or inspect.isroutine(function) or inspect.isclass(function):
        return function
    return getattr(type(function), "__call__", function)  # noqa: B004


def _check_bits(name: str, bits: Iterable[Bit] | None) -> tuple[Bit, ...] | None:
    if bits is None:
        return None
    declared = (bits,) if isinstance(bits, str) else tuple(bits)
    if unknown := [each for each in declared if each not in BITS]:
        raise ConfigError(f"tool {name!r}: unknown bit {unknown[0]!r}; available: {', '.join(BITS)}")
    return tuple(bit for bit in BITS if bit in declared)


def _parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a docstring in Google, NumPy or Sphinx style into the description and the notes on the arguments.

    The description includes the sections about return values, exceptions and examples.
    """
    if not any(marker in text for marker in ("\n", ":param", "@param")):
        return text, {}
    import docstring_parser  # This import takes milliseconds, and most programs have no tools of their own.

    try:
        parsed = docstring_parser.parse(text)
    except (docstring_parser.ParseError, IndexError):  # IndexError is raised for an unfinished field.
        return text, {}
    notes = {each.arg_name: " ".join(each.description.split()) for each in parsed.params if each.description}
    parts = [(parsed.description or "").strip()]
    if parsed.returns is not None and (returned := parsed.returns.description or parsed.returns.type_name):
        parts.append(f"Returns:\n{indent(returned, INDENT)}")
    if parsed.raises:
        errors = (f"{each.type_name or 'Exception'}: {each.description or ''}".rstrip(": ") for each in parsed.raises)
        parts.append("Raises:\n" + indent("\n".join(errors), INDENT))
    examples = ("\n".join(filter(None, (each.snippet, each.description))) for each in parsed.examples)
    parts += [f"Example:\n{indent(each, INDENT)}" for each in examples if each]
    return "\n\n".join(filter(None, parts)), notes


def _parameters_of(function: Callable[..., Any], name: str, notes: dict[str, str]) -> tuple[str, type[Struct]]:
    """Return the name of the context parameter ("" if there is none), and the other parameters as a struct."""
    try:
        hints = typing.get_type_hints(_unwrap(function), include_extras=True)
        parameters = inspect.signature(function).parameters.values()
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"tool {name!r}: its signature cannot be read: {error}") from error
    context_name, fields = "", []
    bound_arguments = function.keywords if isinstance(function, functools.partial) else {}
    for parameter in parameters:
        if parameter.name in bound_arguments:
            continue  # The partial already binds this parameter.
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool {name!r}: it must be possible to pass parameter {parameter} by name")
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
        why = str(error).rpartition("\n")[2]  # The preceding lines contain internals of msgspec.
        raise ConfigError(f"tool {name!r}: its parameters cannot come from JSON: {why}") from error
    return context_name, params


def _default(value: Any) -> Any:
    return msgspec.field(default_factory=value.copy) if isinstance(value, (list, dict, set)) else value


def _json_schema(params: type[Struct], name: str) -> dict[str, Any]:
    """Return the JSON Schema of `params` with the arguments at the top level, as models expect."""
    schema = msgspec.json.schema(params)
    definitions = schema["$defs"]
    top: dict[str, Any] = definitions.pop(name)
    del top["title"]
    return {**top, "$defs": definitions} if definitions else top


def _choices_hint(error: str, schema: dict[str, Any]) -> str:
    """Return a hint with the valid choices for the argument in `error`, if there are any."""
    fields = schema.get("properties", {})
    if "unknown field" in error:
        return f"; it takes {', '.join(fields)}"
    found = FIELD.search(error) if "enum value" in error else None
    field_schema = fields.get(found[1], {}) if found else {}
    choices = [
        each
        for subschema in (field_schema, field_schema.get("items", {}), *field_schema.get("anyOf", ()))
        for each in subschema.get("enum", ())
    ]
    return f"; it is one of {', '.join(map(str, choices))}" if choices else ""


def _call_in_thread(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return function(**arguments)
    except (StopIteration, SystemExit, KeyboardInterrupt) as error:
        # Futures and event loops treat these exceptions specially.
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def output_of(value: Any) -> ToolOutput:
    """Return the result `value` of a tool as a ToolOutput: text as it is, and other data as JSON."""
    if isinstance(value, ToolOutput):
        return value
    if value is None or isinstance(value, str):
        return ToolOutput(value or "")
    if isinstance(value, Image):
        return ToolOutput(value.text, images=(value,))
    if isinstance(value, (list, tuple)) and any(isinstance(part, Image) for part in value):
        try:
            text, images = prompt_of(value)
        except ConfigError:
            raise ToolError("The tool returned images with values that are neither text nor images.") from None
        return ToolOutput(text, images=images)
    try:
        return ToolOutput(msgspec.json.encode(value).decode())
    except (TypeError, UnicodeEncodeError, OverflowError):
        return ToolOutput(str(value))
