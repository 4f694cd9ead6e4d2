"""Hooks whose functions are in the root's program: called for agents that ask, never on the event loop's thread."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec import Struct

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import ConfigError, StoreError
from orch_protocol.hooks.events import Event
from orch_protocol.hooks.patches import Abort, Approve, Block, Patch, sound
from orch_protocol.hooks.stages import (
    STAGES,
    HookReplies,
    HookReply,
    HookRow,
    HookTally,
    Kind,
    OnError,
    RunHook,
    RunHooks,
)
from orch_protocol.services.service import Service
from orch_protocol.wire.frames import DECODE_ERRORS
from orch_worker.hooks.dispatch import HookCallResult, said_of, watched
from orch_worker.hooks.hook import Hook, HookContext, HookRegistry, make_hook
from orch_worker.hooks.invoke import Calling, await_hook, in_thread
from orch_worker.hooks.observers import NotificationQueue
from orch_worker.hooks.runner import HookCounter
from orch_worker.system.threads import DeadlineExceeded, ThreadPool
from orch_worker.tools.api.root_client import CallRoot

from ..config.notices import notice
from .hook_records import add_hook_totals, sum_tallies

__all__ = ["HookRegistrar", "RecordHooks", "ReportHook", "RootHooks"]

RecordHooks = Callable[[Callable[..., None], Path, tuple[HookTally, ...]], Any]
ReportHook = Callable[[str, str, bool], Any]
"""Says a text to the agent with an id, as a follow-up or at once. May be called from any thread."""

P = TypeVar("P", bound=Struct)
R = TypeVar("R")
H = TypeVar("H", bound=Callable[..., Any])
RECORD_SECONDS: Final = 0.5
MOST_AGENTS: Final = 1024
"""Of so many agents the state of a hook is kept: of those it was called for last."""


class CallForAgent(Protocol):
    """Calls a service for the agent `id`."""

    def __call__(self, id: str, service: Service[P, R], params: P) -> Awaitable[R]: ...


class RootHooks:
    """The hooks of one root. `rows` is what agents are told of them; it may be read from any thread.

    What the hooks of its agents did is kept in `home`.
    """

    def __init__(self, home: Path) -> None:
        self.rows: tuple[HookRow, ...] = ()
        self.say: ReportHook = _nobody
        """Lets an agent hear what a hook says to it."""
        self.call: CallForAgent = _no_root
        """Serves the agent with an id."""
        self.home = home
        self._due: dict[str, HookTally] = {}
        self._recording: asyncio.TimerHandle | None = None
        self._registry = HookRegistry()
        self._threads = ThreadPool()
        self._contexts: dict[tuple[str, str], HookContext] = {}
        self._watching: set[asyncio.Task[None]] = set()
        self._told = NotificationQueue(self._tell_of)
        self._events = 0
        self._do: RecordHooks = _at_once

    def register(self, hook: Hook) -> None:
        """Let agents call `hook` from their next turn on. Raises ConfigError."""
        for stage in hook.row.stages:
            if not STAGES[stage].in_root and len(hook.row.stages) < len(STAGES):
                raise ConfigError(
                    f"hook {hook.row.name!r}: {stage} is not for functions of the program, which may be gone by then: "
                    "name it under hooks.load"
                )
        self._registry.register(hook)
        self._tell()

    def remove(self, name: str) -> None:
        """Call the hook no more. Raises ConfigError when there is none of that name."""
        self._registry.remove(name)
        self._tell()

    def close(self) -> None:
        """End the threads that do nothing, and take down what is not on record yet."""
        self._told.stop()
        self._threads.close()
        for task in self._watching:
            task.cancel()
        if self._recording is not None:
            self._recording.cancel()
        self._record(lambda _record, home, due: _recorded(home, due))

    def ran(self, rows: Iterable[HookTally], do: RecordHooks) -> None:
        """Count what hooks did; `do` takes it down a moment later, in a thread: no turn waits for that."""
        for row in rows:
            self._due[row.row.name] = sum_tallies(self._due.get(row.row.name), row)
        if self._recording is None:
            self._recording = asyncio.get_running_loop().call_later(RECORD_SECONDS, self._record, do)

    def _record(self, do: RecordHooks) -> None:
        self._measure()
        due, self._due, self._recording = tuple(self._due.values()), {}, None
        if due:
            do(_recorded, self.home, due)

    async def run(self, asked: RunHooks, spec: AgentSpec, say: ReportHook, do: RecordHooks) -> HookReplies:
        """Call the hooks that the agent `spec` asks for, and return what they say. Raises nothing but CancelledError.

        For those that are async and only observe nobody waits: what they did is counted here, as in `ran`.
        """
        found = [each for asked_for in asked.asked for each in self._found(asked_for, spec, say)]
        plain = [each for each in found if not isinstance(each, str) and not each[0].row.aside]
        came = iter(await in_thread(self._threads, plain))
        rows = []
        for each in found:
            if isinstance(each, str):
                rows.append(HookReply(error=each))
            elif not each[0].row.aside:
                rows.append(_said(next(came)))
            elif each[0].waited:
                rows.append(_said(await await_hook(*each)))
            else:
                self._begin(self._watch(*each, do))
                rows.append(HookReply())
        return HookReplies(tuple(rows))

    def ended(self, id: str) -> None:
        """The process of the agent `id` is gone: what hooks kept for it while it lived is forgotten."""
        self._measure()
        for key in [key for key in self._contexts if key[1] == id]:
            del self._contexts[key]

    def _measure(self) -> None:
        for (name, _), context in self._contexts.items():
            hook = self._registry.find(name)
            if hook is not None and (metrics := context.measured()):
                self._due[name] = sum_tallies(self._due.get(name), HookTally(hook.row, metrics=metrics))

    def listens(self, *stages: str) -> bool:
        """Whether there is any hook at one of `stages`."""
        return any(self._registry.chain(stage) for stage in stages)

    def happened(self, event: Event, spec: AgentSpec, say: ReportHook, do: RecordHooks) -> None:
        """Let hooks be told of `event` about the agent `spec`, which the root knows first. Nobody waits for them."""
        hooks = self._registry.chain(event.stage)
        if hooks:
            self._events += 1
            event = msgspec.structs.replace(event, n=self._events)
            self._told.add([(hook, event, self._context(hook, spec, say, event.turn)) for hook in hooks])
            self._do = do

    async def _tell_of(self, told: Sequence[Sequence[Calling]]) -> None:
        callings = [calling for each in told for calling in each]
        plain = [calling for calling in callings if not calling[0].row.aside]
        came = zip(plain, await in_thread(self._threads, plain), strict=True)
        for hook, event, context in (calling for calling in callings if calling[0].row.aside):
            self._begin(self._watch(hook, event, context, self._do))
        for (hook, event, _), each in came:
            tally = HookCounter(hook.row)
            tally.add(watched(hook.row.name, event.stage, each))
            self.ran((tally.take(),), self._do)

    def _begin(self, watching: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(watching)
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    def _found(self, asked: RunHook, spec: AgentSpec, say: ReportHook) -> Iterator[Calling | str]:
        """Yield what is asked for, or why it is not to be had."""
        try:
            event = msgspec.msgpack.decode(asked.event, type=STAGES[asked.stage].event)
        except (*DECODE_ERRORS, KeyError) as error:
            yield from [f"was given no event: {error}"] * len(asked.names)
            return
        for name in asked.names:
            hook = self._registry.find(name)
            if hook is None or asked.stage not in hook.row.stages:
                yield f"there is no hook {name!r} at {asked.stage!r} in this program"
            else:
                yield hook, event, self._context(hook, spec, say, event.turn)

    async def _watch(self, hook: Hook, event: Event, context: HookContext, do: RecordHooks) -> None:
        tally = HookCounter(hook.row)
        tally.add(watched(hook.row.name, event.stage, await await_hook(hook, event, context)))
        self.ran((tally.take(),), do)

    def _context(self, hook: Hook, spec: AgentSpec, say: ReportHook, turn: str) -> HookContext:
        key = (hook.row.name, spec.id)
        context = self._contexts.pop(key, None) or HookContext(
            hook.row.name, spec, say=partial(say, spec.id), call=self._call_root(spec.id), tell=_unwatched
        )
        self._contexts[key] = context
        context.enter(turn)
        while len(self._contexts) > MOST_AGENTS:
            del self._contexts[next(iter(self._contexts))]
        return context

    def _call_root(self, id: str) -> CallRoot:
        async def call_root(service: Service[P, R], params: P, seconds: float | None = None) -> R:  # noqa: ARG001
            return await self.call(id, service, params)

        return call_root

    def _tell(self) -> None:
        told = {name for name, stage in STAGES.items() if stage.in_root and not stage.by_root}
        rows = (
            msgspec.structs.replace(hook.row, stages=tuple(name for name in hook.row.stages if name in told))
            for hook in self._registry
        )
        self.rows = tuple(row for row in rows if row.stages)


class HookRegistrar:
    """Something that hooks can be registered with. `_hooks` holds them."""

    _hooks: RootHooks

    def on(
        self,
        *events: str,
        name: str | None = None,
        kind: Kind | None = None,
        priority: int = 50,
        timeout: float | None = None,
        on_error: OnError | None = None,
        does: Iterable[str] | None = None,
    ) -> Callable[[H], H]:
        """Let the decorated function be called, in this program, at `events` of all agents of this run.

        It is called with the event and a context, from the next turn of each agent on; see `orch.hook` for the
        parameters. One that is not async runs in a thread. Raises ConfigError for what a stage does not honour.
        """

        def register(function: H) -> H:
            options: dict[str, Any] = {"kind": kind, "priority": priority, "timeout": timeout, "on_error": on_error}
            self.register_hook(function, *events, name=name, does=does, **options)
            return function

        return register

    def register_hook(
        self,
        hook: Callable[..., Any],
        *events: str,
        name: str | None = None,
        kind: Kind | None = None,
        priority: int = 50,
        timeout: float | None = None,
        on_error: OnError | None = None,
        does: Iterable[str] | None = None,
    ) -> str:
        """Let `hook`, a function or what `orch.hook` made, be called in this program, as with `on`; return its name.

        One that `orch.hook` made knows its events, and takes no other argument. Raises ConfigError.
        """
        options: dict[str, Any] = {"kind": kind, "priority": priority, "timeout": timeout, "on_error": on_error}
        made = program_hook(hook, events, {"name": name, "does": does, **options})
        self._hooks.register(made)
        return made.row.name

    def unregister_hook(self, name: str) -> None:
        """Call the hook no more, from the next turn of each agent on. Raises ConfigError when there is none."""
        self._hooks.remove(name)


def program_hook(hook: Callable[..., Any], events: Sequence[str], options: Mapping[str, Any]) -> Hook:
    """Return `hook`, a function or what `orch.hook` made, as one of this program. Raises ConfigError."""
    if not isinstance(hook, Hook):
        return make_hook(hook, *events, **options, source=source_of(hook))
    if events:
        raise ConfigError(f"hook {hook.row.name!r} knows its events: register it without {', '.join(events)}")
    return msgspec.structs.replace(hook, row=msgspec.structs.replace(hook.row, source=source_of(hook.handler)))


def source_of(function: Callable[..., Any]) -> str:
    """Return where a function of the program is from, for people."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"program: {code.co_filename}" if code is not None else "program"


def _nobody(_id: str, _text: str, _follow_up: bool) -> None:
    """Stands for the agents until there is a root."""


async def _no_root(id: str, service: Service[P, R], params: P) -> R:  # noqa: ARG001
    raise ConfigError(f"cannot call {service.name!r}: the orchestrator is not started")


def _unwatched(text: str) -> None:
    """Nobody watches a program's own functions but the program."""
    del text


def _at_once(act: Callable[..., None], home: Path, due: tuple[HookTally, ...]) -> None:
    act(home, due)


def _recorded(home: Path, ran: Iterable[HookTally]) -> None:
    try:
        add_hook_totals(home, ran)
    except StoreError as error:
        notice(f"orch: what hooks did is not on record: {error}")


def _said(came: HookCallResult) -> HookReply:
    """Return what came of a function, as data; whether its stage honours that is the agent's to say."""
    said, error, seconds = came
    if error is not None:
        return HookReply(error=said_of(error), late=isinstance(error, DeadlineExceeded), seconds=seconds)
    if said is None:
        return HookReply(seconds=seconds)
    if isinstance(said, (Abort, Block, Approve)):
        return HookReply(decision=sound(said), seconds=seconds)
    if isinstance(said, (Patch, dict)):
        try:
            return HookReply(msgspec.Raw(msgspec.msgpack.encode(said)), seconds=seconds)
        except (TypeError, ValueError, OverflowError, RecursionError) as why:
            return HookReply(error=f"returned what cannot be sent: {why}", seconds=seconds)
    return HookReply(error=f"returned a {type(said).__name__}, which is no patch and no decision", seconds=seconds)
