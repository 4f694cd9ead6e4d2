"""A hook: a function that is called when something happens in an agent; what it may do is settled when it is made."""

from __future__ import annotations

import asyncio
import inspect
import math
import re
import threading
import typing
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, overload

from msgspec import Struct

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message
from orch_protocol.hooks.patches import Abort, Approve, Block, Decision, Patch, name_of
from orch_protocol.hooks.stages import ALIASES, EVERYTHING, STAGES, HookRow, Kind, OnError
from orch_protocol.services.recall import SEARCH_ARCHIVE, SearchArchive, SearchHit
from orch_protocol.services.requests import SPAWN, SUBMIT, QueryAgent, Spawn

from ..tools.api.root_client import CallRoot

__all__ = ["OF_A_FILE", "Handler", "Hook", "HookContext", "HookRegistry", "hook", "make_hook", "stage_of"]


Handler = Callable[..., Any]
"""Called with the event and a context; may be async."""

NAME: Final = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9_.:/@<>-]{0,127}")
OF_A_FILE: Final = "orch_hooks_"
"""How the names of modules begin that are no package's but a file's; the path follows."""
SYNC_SECONDS: Final = 5.0
ASYNC_SECONDS: Final = 15.0
MOST_SECONDS: Final = 600.0
PRIORITY: Final = 50
DECISIONS: Final[tuple[type[Decision], ...]] = (Abort, Block, Approve)
DECISION_NAMES: Final = tuple(name_of(each) for each in DECISIONS)
RANK: Final[dict[Kind, int]] = {"observe": 0, "transform": 1, "control": 2}
TOO_LATE: Final[dict[str, str]] = {
    "prompt": "the prompt is on record by then; before_turn changes it, and context the messages of one request",
    "input": "only the arguments of a call that is about to run can be changed: at tool_call",
    "messages": "only the messages of the request that is about to be made can be changed: at context",
    "approve": "only a call that is about to run can be approved: at tool_call",
    "block": "there is no one thing that could not happen: abort ends the turn",
}


class Hook(Struct, frozen=True):
    """A function and when it is called. Called like a function, it is that function."""

    row: HookRow
    handler: Handler

    @property
    def waited(self) -> bool:
        """Whether anybody waits for it: an async one that only observes runs aside."""
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
    """Make a hook of `handler`, to be called at `stages`. See `hook`. Raises ConfigError, saying why it cannot be."""
    called = name or _name_of(handler)
    if not isinstance(called, str) or not NAME.fullmatch(called):
        raise ConfigError(f"hook {called!r} needs a name of letters, digits and any of _.:/@-; pass name=")
    try:
        return Hook(_row(handler, called, stages, kind, priority, timeout, on_error, does, source), handler)
    except ConfigError as error:
        raise ConfigError(f"hook {called!r}: {error}") from error


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
    """Make a hook of a function `(event, ctx)`, to be called at `stages`: names, those of a pipeline, or `*` for all.

    `kind` is what it may do: `observe`, `transform` (return a patch) or `control` (decide as well); the most that all
    its stages honour unless said. `does` narrows that to some actions. A lower `priority` is called first. It has
    `timeout` seconds, 5, or 15 when it is async; when it fails or is late, what happens goes on as if it were not there
    (`on_error="open"`), or does not happen (`closed`, which is what control means unless said).
    Raises ConfigError for what a stage does not honour.
    """

    def make(function: Handler) -> Hook:
        return make_hook(function, *stages, **options)

    return make


def stage_of(name: str) -> str:
    """Return the stage that `name` stands for. Raises ConfigError."""
    found = ALIASES.get(name, name)
    if found in STAGES:
        return found
    import difflib

    known = (*STAGES, *ALIASES, EVERYTHING)
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
    raise ConfigError(f"unknown stage {name!r}; {hint}")


class HookRegistry:
    """The hooks of one process, in the order in which they are called."""

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self._hooks: dict[str, Hook] = {}
        self._chains: dict[str, tuple[Hook, ...]] = {}
        self._steps: dict[str, tuple[tuple[Hook, ...], ...]] = {}
        for each in hooks:
            self._add(each)
        self._arrange()

    def __iter__(self) -> typing.Iterator[Hook]:
        """Iterate in the order of registration."""
        return iter(self._hooks.values())

    def register(self, hook: Hook) -> None:
        """Take `hook` in. A function that was defined anew takes its own place; another one of that name is refused."""
        there = self._hooks.get(hook.row.name)
        if there is not None and there.row.source == hook.row.source and _is_anew(hook.handler, there.handler):
            self._hooks[hook.row.name] = hook
        else:
            self._add(hook)
        self._arrange()

    def _add(self, hook: Hook) -> None:
        there = self._hooks.get(hook.row.name)
        if there is not None and (there.row.source, there.handler) != (hook.row.source, hook.handler):
            of = " and ".join(dict.fromkeys(each.row.source or "this program" for each in (there, hook)))
            raise ConfigError(f"there are two hooks {hook.row.name!r}, of {of}: give one another name (name=)")
        self._hooks[hook.row.name] = hook

    def remove(self, name: str) -> None:
        """Forget the hook called `name`. Raises ConfigError when there is none."""
        if not isinstance(name, str) or name not in self._hooks:
            raise ConfigError(f"unknown hook {name!r}; available: {', '.join(self._hooks) or 'none'}")
        del self._hooks[name]
        self._arrange()

    def find(self, name: str) -> Hook | None:
        """Return the hook called `name`, None when there is none."""
        return self._hooks.get(name)

    def chain(self, stage: str) -> tuple[Hook, ...]:
        """Return the hooks of `stage`, the lowest priority first, and as they were registered where that is equal."""
        return self._chains.get(stage, ())

    def steps(self, stage: str) -> tuple[tuple[Hook, ...], ...]:
        """Return the same hooks as they are called: one alone, or together those that only observe, between others."""
        return self._steps.get(stage, ())

    def without(self, names: Iterable[str]) -> HookRegistry:
        """Return the registry without the hooks called `names`."""
        left_out = frozenset(names)
        return HookRegistry(each for each in self if each.row.name not in left_out)

    def _arrange(self) -> None:
        ordered = sorted(self._hooks.values(), key=lambda each: each.row.priority)
        chains: dict[str, list[Hook]] = {}
        for each in ordered:
            for stage in each.row.stages:
                chains.setdefault(stage, []).append(each)
        self._chains = {stage: tuple(found) for stage, found in chains.items()}
        self._steps = {stage: tuple(_steps(found)) for stage, found in chains.items()}


def _is_anew(function: Handler, other: Handler) -> bool:
    """Say whether one was written where the other is from, as when a cell is run again: not so, and both are to be
    called, if both were made by the same lines."""
    one, two = (getattr(inspect.unwrap(each), "__code__", type(each)) for each in (function, other))
    return one is not two


def _steps(chain: Iterable[Hook]) -> typing.Iterator[tuple[Hook, ...]]:
    for observe, part in groupby(chain, key=lambda each: each.row.kind == "observe"):
        together = tuple(part)
        yield from (together,) if observe else zip(together, strict=True)


def _row(
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
        raise ConfigError(f"a hook must be a function; got {handler!r}")
    if isinstance(does, str):
        raise ConfigError(f"does is a list of actions, not the text {does!r}: write [{does!r}]")
    if not stages:
        raise ConfigError(f"stages is empty: pass one or more of {', '.join((*STAGES, EVERYTHING))}")
    everything = EVERYTHING in stages
    names = tuple(STAGES) if everything else tuple(dict.fromkeys(map(stage_of, stages)))
    said = _returned(handler) if does is None else tuple(dict.fromkeys(does))
    kind = _kind(names, kind, said, everything=everything)
    aside = is_async(handler)
    _check_actions(names, kind, said)
    _check_numbers(priority, timeout)
    _check_fail_mode(names, kind, on_error)
    honored = tuple(dict.fromkeys(action for stage in names for action in STAGES[stage].actions(kind)))
    return HookRow(
        name=name,
        stages=names,
        kind=kind,
        priority=priority,
        seconds=timeout if timeout is not None else ASYNC_SECONDS if aside else SYNC_SECONDS,
        on_error=on_error or ("closed" if kind == "control" else "open"),
        does=said or honored,
        source=source,
        aside=aside,
    )


def _kind(names: tuple[str, ...], kind: Kind | None, said: tuple[str, ...], *, everything: bool) -> Kind:
    """Return the kind of a hook at the stages `names`: what was asked for, when all of them honour it."""
    if kind is None:
        strongest = min((STAGES[name].kinds[-1] for name in names), key=RANK.__getitem__)
        decides = any(action in DECISION_NAMES for action in said)
        return "observe" if everything else "transform" if said and not decides else strongest
    if kind not in RANK:
        raise ConfigError(f"unknown kind {kind!r}; available: {', '.join(RANK)}")
    if everything and kind != "observe":
        raise ConfigError(f"'*' is for hooks that observe, not for kind={kind!r}: name the stages")
    for name in names:
        if kind not in STAGES[name].kinds:
            allowed = ", ".join(map(repr, STAGES[name].kinds))
            raise ConfigError(f"{name} does not support kind={kind!r}: use {allowed}")
    return kind


def _check_actions(names: tuple[str, ...], kind: Kind, said: tuple[str, ...]) -> None:
    """Raise ConfigError where a stage does not honour an action, or `kind` is not allowed it."""
    for action in said:
        for name in names:
            stage = STAGES[name]
            if action in stage.actions(kind):
                continue
            if action in stage.actions("control"):
                needed = "control" if action in DECISION_NAMES else "transform"
                raise ConfigError(f"kind={kind!r} cannot {action!r} at {name}: that takes kind={needed!r}")
            why = TOO_LATE.get(action, "nothing would come of it")
            honored = ", ".join(stage.actions("control")) or "nothing: it is there to be observed"
            raise ConfigError(f"{name} does not honour {action!r} ({why}); it honours {honored}")


def _check_numbers(priority: int, timeout: float | None) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise ConfigError(f"a priority is a whole number, lower ones first; not {priority!r}")
    numeric = isinstance(timeout, (int, float)) and math.isfinite(timeout)
    if timeout is not None and not (numeric and 0 < timeout <= MOST_SECONDS):
        raise ConfigError(f"a timeout is a number of seconds up to {MOST_SECONDS:g}, not {timeout!r}")


def _check_fail_mode(names: tuple[str, ...], kind: Kind, on_error: OnError | None) -> None:
    if on_error not in (None, "open", "closed"):
        raise ConfigError(f"on_error is 'open' or 'closed', not {on_error!r}")
    if on_error != "closed":
        return
    if kind == "observe":
        raise ConfigError("on_error='closed' is not for a hook that observes: it cannot stop anything")
    for name in names:
        if STAGES[name].closed is None:
            raise ConfigError(f"on_error='closed' is not for {name}: there is nothing that it could stop")


def is_async(handler: Handler) -> bool:
    """Say whether `handler` is to be awaited."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def _returned(handler: Handler) -> tuple[str, ...]:
    """Return the actions that the return annotation of `handler` names; none when it has none that tells."""
    function = handler if inspect.isroutine(handler) else getattr(handler, "__call__", handler)  # noqa: B004
    try:
        hint = typing.get_type_hints(function).get("return")
    except Exception:
        return ()  # names that only a type checker knows
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
    if module.startswith(OF_A_FILE):
        module = module.rpartition("/")[2].removesuffix(".py")
    return f"{module}.{name}"


# --- What a hook knows of the agent, and may do besides what it returns ---


class HookContext:
    """What a hook knows of the agent, and may do besides what it returns.

    `config` is how the agent was spawned, `cwd` its folder. `state` is the hook's own while the process lives,
    `turn_state` until the turn ends. `spawn` and `search_archive` ask the root, by the agent's own rights: a plain
    function waits for them, an async one awaits what they return. Made on the thread of the event loop.
    """

    def __init__(
        self,
        hook: str,
        spec: AgentSpec,
        *,
        say: Callable[[str, bool], None],
        call: CallRoot,
        tell: Callable[[str], None],
        messages: Callable[[], Sequence[Message]] = tuple,
        opened: Callable[[HookContext], None] = lambda _: None,
    ) -> None:
        self.hook = hook
        self.config = spec
        self.agent_id = spec.id
        self.depth = spec.depth
        self.cwd = Path(spec.cwd)
        self.state: dict[str, Any] = {}
        self._turn_state: dict[str, Any] | None = None
        self._opened = opened
        self._say = say
        self._call = call
        self._tell = tell
        self._messages = messages
        self._turn = ""
        self._measured: deque[tuple[str, float]] = deque()
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def enter(self, turn: str) -> None:
        """The turn with this id is under way: what was kept for another one is forgotten."""
        if turn != self._turn:
            self._turn = turn
            self.forget()

    @property
    def turn_state(self) -> dict[str, Any]:
        """Return what the hook keeps until the turn ends."""
        if self._turn_state is None:  # few hooks keep anything: no turn is to clear it for all of them
            self._turn_state = {}
            self._opened(self)
        return self._turn_state

    def forget(self) -> None:
        """The turn ends, or another one begins: what was kept for it is forgotten."""
        self._turn_state = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return the conversation as it is now. To be read only; empty for a hook that runs in the root."""
        return tuple(self._messages())

    def log(self, text: str) -> None:
        """Write a line to the log of the process that the hook runs in."""
        print(f"hook {self.hook}: {text}", flush=True)

    def steer(self, text: str) -> None:
        """Say `text` to the agent: it hears it before its next model request."""
        self._say(text, False)

    def follow_up(self, text: str) -> None:
        """Say `text` to the agent when it would stop."""
        self._say(text, True)

    def notify(self, text: str) -> None:
        """Tell whoever watches the turn `text`, and write it to the log."""
        self.log(text)
        self._tell(text)

    def metric(self, name: str, value: float = 1.0) -> None:
        """Add `value` to the figure `name` of this hook, which `orch hooks list --json` shows."""
        self._measured.append((str(name), float(value)))

    def measured(self) -> dict[str, float]:
        """Return what was added up since this was asked last."""
        sums: dict[str, float] = {}
        while self._measured:  # a hook in a thread may be adding to it
            name, value = self._measured.popleft()
            sums[name] = sums.get(name, 0.0) + value
        return sums

    def spawn(self, task: str, prompt: str | None = None, *, preset: str | None = None) -> Any:
        """Start a subagent of the agent, ask it `prompt` without waiting for the answer, and return its id.

        Raises ToolNotGrantedError unless the agent may spawn, and to ask it query, subagents itself.
        """
        return self._asked(self._spawned(task, prompt, preset))

    async def _spawned(self, task: str, prompt: str | None, preset: str | None) -> str:
        id = (await self._call(SPAWN, Spawn(task, preset=preset))).id
        if prompt is not None:
            await self._call(SUBMIT, QueryAgent(id, prompt))
        return id

    def search_archive(self, query: str, limit: int = 10) -> Any:
        """Return the places in the agent's archives that fit `query` best, as `o.search_archive` does.

        Raises ToolNotGrantedError unless the agent may search them itself.
        """
        return self._asked(self._found(SearchArchive(query, limit)))

    async def _found(self, asked: SearchArchive) -> list[SearchHit]:
        return await self._call(SEARCH_ARCHIVE, asked)

    def _asked(self, asking: Coroutine[Any, Any, Any]) -> Any:
        if threading.get_ident() == self._thread:
            return asking
        return asyncio.run_coroutine_threadsafe(asking, self._loop).result()
