"""Hooks: functions that are called at stages of an agent's work.

The creation of a hook determines what the hook may do.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import re
import threading
import types
import typing
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from copy import copy
from itertools import groupby
from pathlib import Path
from typing import Any, Final, overload

from msgspec import Struct

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message
from orch_protocol.hooks.patches import Abort, Approve, Block, Decision, Patch, name_of
from orch_protocol.hooks.stages import ALIASES, EVERYTHING, STAGES, HookRow, Kind, OnError
from orch_protocol.services.agents.query import SUBMIT, QueryAgent
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orch_protocol.services.archives.recall import SEARCH_ARCHIVE, SearchArchive, SearchHit

from ..system.threads import DAEMON_THREADS
from ..tools.api.root_client import CallRoot

__all__ = [
    "FILE_MODULE_PREFIX",
    "Handler",
    "Hook",
    "HookContext",
    "HookRegistry",
    "call_async",
    "end_turn",
    "enter_turn",
    "hook",
    "is_redefinition",
    "make_hook",
    "stage_of",
    "take_metrics",
]


Handler = Callable[..., Any]
"""The function of a hook, which takes the event and a context. The function may be async."""

NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9_.:/@<>-]{0,127}")
FILE_MODULE_PREFIX: Final = "orch_hooks_"
"""Prefix of the module names of hooks that were loaded from a file. The path of the file follows the prefix."""
SYNC_SECONDS: Final = 5.0
ASYNC_SECONDS: Final = 15.0
MAX_SECONDS: Final = 600.0
PRIORITY: Final = 50
DECISIONS: Final[tuple[type[Decision], ...]] = (Abort, Block, Approve)
DECISION_NAMES: Final = tuple(name_of(each) for each in DECISIONS)
RANK: Final[dict[Kind, int]] = {"observe": 0, "transform": 1, "control": 2}
ACTION_HINTS: Final[dict[str, str]] = {
    "prompt": (
        "the prompt is already recorded at this stage; use before_turn to change the prompt, or context to change the "
        "messages of one request"
    ),
    "input": "only the arguments of a call that is about to run can be changed: at tool_call",
    "messages": "only the messages of the request that is about to be made can be changed: at context",
    "approve": "only a call that is about to run can be approved: at tool_call",
    "block": "there is no single action to block: use abort to end the turn",
}


class Hook(Struct, frozen=True):
    """A function, and the stages at which this function is called. Calling the hook calls the function."""

    row: HookRow
    handler: Handler

    @property
    def is_awaited(self) -> bool:
        """Whether the agent waits for the hook. The agent does not wait for async observing hooks."""
        return not self.row.aside or self.row.kind != "observe"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.handler(*args, **kwargs)


def make_hook(
    handler: Handler,
    *stages: str,
    name: str | None = None,
    kind: Kind | None = None,
    priority: int = PRIORITY,
    timeout: float | None = None,
    on_error: OnError | None = None,
    does: Iterable[str] | None = None,
    source: str = "",
) -> Hook:
    """Return a hook for `handler` at `stages`. See `hook` for the options. Raise ConfigError for invalid options."""
    hook_name = name or _name_of(handler)
    if not isinstance(hook_name, str) or not NAME_PATTERN.fullmatch(hook_name):
        raise ConfigError(f"hook {hook_name!r} needs a name of letters, digits and any of _.:/@-; pass name=")
    try:
        return Hook(_make_row(handler, hook_name, stages, kind, priority, timeout, on_error, does, source), handler)
    except ConfigError as error:
        raise ConfigError(f"hook {hook_name!r}: {error}") from error


@overload
def hook(*stages: str) -> Callable[[Handler], Hook]: ...
@overload
def hook(
    *stages: str,
    name: str | None = None,
    kind: Kind | None = None,
    priority: int = PRIORITY,
    timeout: float | None = None,
    on_error: OnError | None = None,
    does: Iterable[str] | None = None,
) -> Callable[[Handler], Hook]: ...
def hook(*stages: str, **options: Any) -> Callable[[Handler], Hook]:
    """Return a decorator that turns a function `(event, ctx)` into a hook.

    `stages` are names of stages, of pipelines, or `*` for all stages. `kind` is "observe", "transform" (the hook may
    return a patch) or "control" (the hook may also return a decision). The default is the strongest kind that all
    stages support. `does` lists the fields and decisions that the hook may use. Hooks with a lower `priority` are
    called first. `timeout` is in seconds; the default is 5, or 15 for an async function. `on_error` defines what
    happens if the hook fails or times out: the action proceeds ("open") or is blocked ("closed", the default for
    "control").

    Raise ConfigError for an option that a stage does not support.
    """

    def make(function: Handler) -> Hook:
        return make_hook(function, *stages, **options)

    return make


def stage_of(name: str) -> str:
    """Return the stage called `name`, which may be an alias. Raise ConfigError for an unknown name."""
    found = ALIASES.get(name, name)
    if found in STAGES:
        return found
    import difflib

    known_names = (*STAGES, *ALIASES, EVERYTHING)
    close_matches = difflib.get_close_matches(str(name), known_names, n=1)
    hint = f"did you mean {close_matches[0]!r}?" if close_matches else f"there are {', '.join(known_names)}"
    raise ConfigError(f"unknown stage {name!r}; {hint}")


class HookRegistry:
    """The hooks of one process, in calling order."""

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self._hooks: dict[str, Hook] = {}
        self._chains: dict[str, tuple[Hook, ...]] = {}
        self._step_groups: dict[str, tuple[tuple[Hook, ...], ...]] = {}
        for each in hooks:
            self._add(each)
        self._build_chains()

    def __iter__(self) -> typing.Iterator[Hook]:
        """Iterate in the order of registration."""
        return iter(self._hooks.values())

    def register(self, hook: Hook) -> None:
        """Add `hook` to the registry.

        A function that was defined again replaces its old hook. Raise ConfigError for any other duplicate name.
        """
        existing = self._hooks.get(hook.row.name)
        if (
            existing is not None
            and existing.row.source == hook.row.source
            and is_redefinition(hook.handler, existing.handler)
        ):
            self._hooks[hook.row.name] = hook
        else:
            self._add(hook)
        self._build_chains()

    def _add(self, hook: Hook) -> None:
        existing = self._hooks.get(hook.row.name)
        if existing is not None and (existing.row.source, existing.handler) != (hook.row.source, hook.handler):
            sources = " and ".join(dict.fromkeys(each.row.source or "this program" for each in (existing, hook)))
            raise ConfigError(f"there are two hooks {hook.row.name!r}, of {sources}: rename one of them (name=)")
        self._hooks[hook.row.name] = hook

    def remove(self, name: str) -> None:
        """Remove the hook called `name`. Raise ConfigError for an unknown name."""
        if not isinstance(name, str) or name not in self._hooks:
            raise ConfigError(f"unknown hook {name!r}; available: {', '.join(self._hooks) or 'none'}")
        del self._hooks[name]
        self._build_chains()

    def find(self, name: str) -> Hook | None:
        """Return the hook called `name`, or None."""
        return self._hooks.get(name)

    def chain(self, stage: str) -> tuple[Hook, ...]:
        """Return the hooks of `stage`, lowest priority number first.

        Hooks of equal priority keep the order of registration.
        """
        return self._chains.get(stage, ())

    def steps(self, stage: str) -> tuple[tuple[Hook, ...], ...]:
        """Return the hooks of `stage` in groups. Adjacent observing hooks form one group.

        Each other hook is its own group.
        """
        return self._step_groups.get(stage, ())

    def without(self, names: Iterable[str]) -> HookRegistry:
        """Return a registry without the hooks called `names`."""
        excluded = frozenset(names)
        return HookRegistry(each for each in self if each.row.name not in excluded)

    def _build_chains(self) -> None:
        ordered = sorted(self._hooks.values(), key=lambda each: each.row.priority)
        chains: dict[str, list[Hook]] = {}
        for each in ordered:
            for stage in each.row.stages:
                chains.setdefault(stage, []).append(each)
        self._chains = {stage: tuple(found) for stage, found in chains.items()}
        self._step_groups = {stage: tuple(_step_groups(found)) for stage, found in chains.items()}


def is_redefinition(function: Handler, other: Handler) -> bool:
    """Return whether the two functions come from two definitions with the same module and qualified name.

    An example is a notebook cell that ran twice. Two closures of the same definition are different hooks, so the result
    is False for two closures. It is also False for lambdas, because all lambdas have the same name.
    """
    one, two = (inspect.unwrap(each) for each in (function, other))
    name = _definition_name(one)
    same_code = getattr(one, "__code__", type(one)) is getattr(two, "__code__", type(two))
    return not same_code and name == _definition_name(two) and not name[1].endswith("<lambda>")


def _definition_name(handler: Handler) -> tuple[str, str]:
    """Return the module and the qualified name of the function, or of the class of a callable object."""
    named = handler if hasattr(handler, "__qualname__") else type(handler)
    return str(getattr(named, "__module__", "")), str(named.__qualname__)


def _step_groups(chain: Iterable[Hook]) -> typing.Iterator[tuple[Hook, ...]]:
    for observe, members in groupby(chain, key=lambda each: each.row.kind == "observe"):
        hooks = tuple(members)
        yield from (hooks,) if observe else zip(hooks, strict=True)


def _make_row(
    handler: Handler,
    name: str,
    stages: tuple[str, ...],
    kind: Kind | None,
    priority: int,
    timeout: float | None,
    on_error: OnError | None,
    does: Iterable[str] | None,
    source: str,
) -> HookRow:
    if not callable(handler):
        raise ConfigError(f"a hook must be a function; got {handler!r}. Pass the function first, then the stages")
    if isinstance(does, str):
        raise ConfigError(f"`does` must be a list of actions, not the string {does!r}: write [{does!r}]")
    if not stages:
        raise ConfigError(f"stages is empty: pass one or more of {', '.join((*STAGES, EVERYTHING))}")
    everything = EVERYTHING in stages
    names = tuple(STAGES) if everything else tuple(dict.fromkeys(map(stage_of, stages)))
    actions = _annotated_actions(handler) if does is None else tuple(dict.fromkeys(does))
    kind = _resolve_kind(names, kind, actions, everything=everything)
    runs_async = is_async(handler)
    _check_actions(names, kind, actions)
    _check_numbers(priority, timeout)
    _check_fail_mode(names, kind, on_error)
    supported = tuple(dict.fromkeys(action for stage in names for action in STAGES[stage].actions(kind)))
    return HookRow(
        name=name,
        stages=names,
        kind=kind,
        priority=priority,
        seconds=timeout if timeout is not None else ASYNC_SECONDS if runs_async else SYNC_SECONDS,
        on_error=on_error or ("closed" if kind == "control" else "open"),
        does=actions or supported,
        source=source,
        aside=runs_async,
    )


def _resolve_kind(names: tuple[str, ...], kind: Kind | None, actions: tuple[str, ...], *, everything: bool) -> Kind:
    """Return the kind of a hook at the stages `names`. Raise ConfigError if a stage does not support `kind`."""
    if kind is None:
        strongest = min((STAGES[name].kinds[-1] for name in names), key=RANK.__getitem__)
        decides = any(action in DECISION_NAMES for action in actions)
        return "observe" if everything else "transform" if actions and not decides else strongest
    if kind not in RANK:
        raise ConfigError(f"unknown kind {kind!r}; available: {', '.join(RANK)}")
    if everything and kind != "observe":
        raise ConfigError(f"'*' is for hooks that observe, not for kind={kind!r}: name the stages")
    for name in names:
        if kind not in STAGES[name].kinds:
            allowed = ", ".join(map(repr, STAGES[name].kinds))
            raise ConfigError(f"{name} does not support kind={kind!r}: use {allowed}")
    return kind


def _check_actions(names: tuple[str, ...], kind: Kind, actions: tuple[str, ...]) -> None:
    """Raise ConfigError for an action that a stage does not support or that `kind` does not allow."""
    for action in actions:
        for name in names:
            stage = STAGES[name]
            if action in stage.actions(kind):
                continue
            if action in stage.actions("control"):
                needed = "control" if action in DECISION_NAMES else "transform"
                raise ConfigError(f"kind={kind!r} does not allow {action!r} at {name}: use kind={needed!r}")
            reason = ACTION_HINTS.get(action, "it has no effect there")
            supported = ", ".join(stage.actions("control")) or "none, as all hooks there only observe"
            raise ConfigError(f"hooks at {name} cannot use {action!r} ({reason}); allowed: {supported}")


def _check_numbers(priority: int, timeout: float | None) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise ConfigError(f"priority must be an integer; got {priority!r}")
    numeric = isinstance(timeout, (int, float)) and math.isfinite(timeout)
    if timeout is not None and not (numeric and 0 < timeout <= MAX_SECONDS):
        raise ConfigError(f"timeout must be a number of seconds, at most {MAX_SECONDS:g}; got {timeout!r}")


def _check_fail_mode(names: tuple[str, ...], kind: Kind, on_error: OnError | None) -> None:
    if on_error not in (None, "open", "closed"):
        raise ConfigError(f"on_error must be 'open' or 'closed'; got {on_error!r}")
    if on_error != "closed":
        return
    if kind == "observe":
        raise ConfigError(
            "on_error='closed' is not allowed for a hook that only observes, because such a hook cannot stop anything"
        )
    for name in names:
        if STAGES[name].closed is None:
            raise ConfigError(f"on_error='closed' is not allowed at {name}, because hooks cannot stop anything there")


def is_async(handler: Handler) -> bool:
    """Return whether the result of `handler` must be awaited."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def _annotated_actions(handler: Handler) -> tuple[str, ...]:
    """Return the actions that the return annotation of `handler` names. Return () if there is no usable annotation."""
    function = handler if inspect.isroutine(handler) else getattr(handler, "__call__", handler)  # noqa: B004
    try:
        hint = typing.get_type_hints(function).get("return")
    except Exception:
        return ()  # The annotation uses names that exist only for the type checker.
    found: list[str] = []
    for each in typing.get_args(hint) or (hint,):
        if each in DECISIONS:
            found.append(name_of(each))
        elif isinstance(each, type) and issubclass(each, Patch) and each is not Patch:
            found += each.__struct_fields__
    return tuple(dict.fromkeys(found))


def _name_of(handler: Handler) -> str:
    module, name = getattr(handler, "__module__", None), getattr(handler, "__qualname__", None)
    name = name or type(handler).__qualname__
    if module is None or module == "__main__":
        return str(name)
    if module.startswith(FILE_MODULE_PREFIX):
        module = module.rpartition("/")[2].removesuffix(".py")
    return f"{module}.{name}"


# --- The context: the data that a hook can read, and its actions besides the return value ---


class HookContext:
    """The second argument of a hook: data about the agent, and actions besides the return value.

    The page docs/guides/hooks.md documents the public attributes. `config` is the specification of the agent, and `cwd`
    its folder. `state` is a dict that the hook keeps as long as the process runs. `turn_state` is a dict that lasts
    until the end of the turn. `spawn` and `search_archive` use the rights of the agent. A sync hook gets their result
    directly, and an async hook must await their result. Create the context on the thread of the event loop.
    """

    def __init__(
        self,
        hook: str,
        spec: AgentSpec,
        *,
        send_message: Callable[[str, bool], None],
        call_root: CallRoot,
        emit: Callable[[str], None],
        messages: Callable[[], Sequence[Message]] = tuple,
        in_file: bool = False,
        on_turn_state: Callable[[HookContext], None] = lambda _: None,
    ) -> None:
        self._hook = hook
        self.config = spec
        self.agent_id = spec.id
        self.depth = spec.depth
        self.cwd = Path(spec.cwd)
        self.state: dict[str, Any] = {}
        self._turn_state: dict[str, Any] | None = None
        self._on_turn_state = on_turn_state
        self._send_message = send_message
        self._call_root = call_root
        self._emit = emit
        self._messages = messages
        self._in_file = in_file
        self._turn = ""
        self._metrics: deque[tuple[str, float]] = deque()
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    @property
    def turn_state(self) -> dict[str, Any]:
        """Return the dict that the hook keeps until the end of the turn."""
        if self._turn_state is None:  # The dict is created on first use, because few hooks need it.
            self._turn_state = {}
            self._on_turn_state(self)
        return self._turn_state

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return the current conversation. Do not modify the messages.

        A hook in the root reads the conversation from the session file. An async hook in the root gets the conversation
        of the moment when the hook was called.
        """
        return tuple(self._messages())

    def log(self, text: str) -> None:
        """Write a line to the log of the process in which the hook runs."""
        print(f"hook {self._hook}: {text}", flush=True)

    def steer(self, text: str) -> None:
        """Send `text` to the agent as a steering message. The model reads the message before its next request."""
        self._send_message(text, False)

    def follow_up(self, text: str) -> None:
        """Send `text` to the agent as a follow-up. The model reads the follow-up when it would otherwise stop."""
        self._send_message(text, True)

    def notify(self, text: str) -> None:
        """Write `text` to the log, and send `text` to clients that watch the turn."""
        self.log(text)
        self._emit(text)

    def metric(self, name: str, value: float = 1.0) -> None:
        """Add `value` to the metric `name` of this hook. `orch hooks list --json` shows the sums."""
        self._metrics.append((str(name), float(value)))

    def spawn(self, task: str, prompt: str | None = None, *, preset: str | None = None) -> Any:
        """Start a subagent, send `prompt` to the subagent without waiting for the reply, and return the subagent's id.

        Raise ToolNotGrantedError if the agent may not spawn subagents, or if `prompt` is given and the agent may not
        query subagents.
        """
        return self._run_or_await(self._spawn(task, prompt, preset))

    async def _spawn(self, task: str, prompt: str | None, preset: str | None) -> str:
        id = (await self._call_root(SPAWN, Spawn(task, preset=preset))).id
        if prompt is not None:
            await self._call_root(SUBMIT, QueryAgent(id, prompt))
        return id

    def search_archive(self, query: str, limit: int = 10) -> Any:
        """Return the best matches for `query` in the archives of the agent, like `o.search_archive`.

        Raise ToolNotGrantedError if the agent may not search its archives.
        """
        return self._run_or_await(self._search(SearchArchive(query, limit)))

    async def _search(self, request: SearchArchive) -> list[SearchHit]:
        return await self._call_root(SEARCH_ARCHIVE, request)

    def _run_or_await(self, request: Coroutine[Any, Any, Any]) -> Any:
        if threading.get_ident() == self._thread:
            return request
        return asyncio.run_coroutine_threadsafe(request, self._loop).result()


async def call_async(function: Handler, argument: Any, context: HookContext) -> Any:
    """Return the result of the async `function`.

    If the conversation is in a file and the function uses `ctx.messages`, a thread reads the file first. Reading a long
    file in the function would block the event loop.
    """
    if context._in_file and _uses_messages(function):
        messages = await asyncio.get_running_loop().run_in_executor(DAEMON_THREADS, context._messages)
        _ = context.turn_state  # The dict is created now, because the copy shares it.
        context = copy(context)
        context._messages = lambda: messages
    return await function(argument, context)


def _uses_messages(function: Handler) -> bool:
    """Return whether the code of `function` contains the name `messages`. Functions that it calls are not examined."""
    function = inspect.unwrap(function)
    codes = [getattr(each, "__code__", None) for each in (function, getattr(function, "__call__", None))]  # noqa: B004
    pending = [code for code in codes if code is not None]
    while pending:
        code = pending.pop()
        if "messages" in code.co_names:
            return True
        pending += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return False


def enter_turn(context: HookContext, turn: str) -> None:
    """Start the turn with the id `turn`. If the id differs from the last id, clear the `turn_state` of `context`."""
    if turn != context._turn:
        context._turn = turn
        end_turn(context)


def end_turn(context: HookContext) -> None:
    """Clear the `turn_state` of `context`."""
    context._turn_state = None


def take_metrics(context: HookContext) -> dict[str, float]:
    """Return the metrics that the hook of `context` added since the last call."""
    sums: dict[str, float] = {}
    while context._metrics:  # A hook may add to the queue from another thread.
        name, value = context._metrics.popleft()
        sums[name] = sums.get(name, 0.0) + value
    return sums
