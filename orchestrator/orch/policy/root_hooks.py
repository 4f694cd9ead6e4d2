"""Hooks whose functions are in the root's program.

Workers call these hooks through the root. Functions that are not async run in threads.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec import Struct

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import ConfigError, StoreError
from orch_protocol.core.messages import Message
from orch_protocol.hooks.events import Event
from orch_protocol.hooks.patches import Abort, Approve, Block, Patch, with_valid_text
from orch_protocol.hooks.stages import STAGES, HookRow, HookTally, Kind, OnError
from orch_protocol.services.resources.hooks import HookReplies, HookReply, RunHook, RunHooks
from orch_protocol.services.service import Service
from orch_protocol.wire.frames import DECODE_ERRORS
from orch_worker.conversation.history import without_lost
from orch_worker.hooks.dispatch import HookCallResult, HookMisuseError, error_text_of, observer_effects, run_chain
from orch_worker.hooks.hook import Hook, HookContext, HookRegistry, enter_turn, make_hook, take_metrics
from orch_worker.hooks.invoke import HookInvoker, PreparedCall
from orch_worker.hooks.loader import read_disabled_hooks
from orch_worker.hooks.observers import NotificationQueue
from orch_worker.hooks.runner import HookCounter
from orch_worker.session.session_reader import read_session
from orch_worker.system.threads import DeadlineExceeded
from orch_worker.tools.api.root_client import CallRoot

from ..config.notices import notice
from .hook_records import add_hook_totals, disabled_hooks_file, sum_tallies

__all__ = ["HookRegistrar", "RootHooks", "RunInThread", "SendMessage"]

RunInThread = Callable[[Callable[..., None], Path, str, tuple[HookTally, ...]], Any]
"""A function that calls its first argument with the other arguments in a thread. The caller does not wait."""
SendMessage = Callable[[str, str, bool], Any]
"""A function that sends a text to an agent. Thread-safe.

The arguments are the id of the agent, the text, and whether to send a follow-up instead of a steering message.
"""

P = TypeVar("P", bound=Struct)
R = TypeVar("R")
H = TypeVar("H", bound=Callable[..., Any])
WRITE_DELAY_SECONDS: Final = 0.5
MAX_AGENTS: Final = 1024
"""Maximum number of hook contexts. The contexts that were used least recently are removed."""


class CallForAgent(Protocol):
    """A function that calls a service on behalf of the agent `id`."""

    def __call__(self, id: str, service: Service[P, R], params: P) -> Awaitable[R]: ...


class RootHooks:
    """The hooks of the root of `run`.

    `rows` contains the descriptions of the hooks for agents. Any thread may read `rows`. The totals of all hooks are
    stored in `home`.
    """

    def __init__(self, home: Path, run: str) -> None:
        self.rows: tuple[HookRow, ...] = ()
        self.stages: frozenset[str] = frozenset()
        """The stages that have a registered hook."""
        self.send_message: SendMessage = _discard_message
        """A function that sends a hook's message to an agent."""
        self.call: CallForAgent = _no_root
        """A function that calls a service on behalf of an agent."""
        self.home = home
        self._run = run
        self._unwritten_tallies: dict[str, HookTally] = {}
        self._write_timer: asyncio.TimerHandle | None = None
        self._registry = HookRegistry()
        self._invoker = HookInvoker()
        self._contexts: dict[tuple[str, str], HookContext] = {}
        self._notifications = NotificationQueue(self._call_observers)
        self._events = 0
        self._run_in_thread: RunInThread = _run_now

    @property
    def registered(self) -> tuple[HookRow, ...]:
        """The descriptions of all hooks, including the stages that only the root calls."""
        return tuple(hook.row for hook in self._registry)

    def register(self, hook: Hook) -> None:
        """Register `hook`. Agents call the hook from their next turn on. Raises ConfigError."""
        for stage in hook.row.stages:
            if not STAGES[stage].in_root and len(hook.row.stages) < len(STAGES):
                raise ConfigError(
                    f"hook {hook.row.name!r}: {stage} cannot call functions of the program, because the program may "
                    "have ended by then; list the hook under hooks.load"
                )
        self._registry.register(hook)
        self._update_rows()

    def remove(self, name: str) -> None:
        """Remove the hook `name`. Raises ConfigError if there is no such hook."""
        self._registry.remove(name)
        self._update_rows()

    def close(self) -> None:
        """Stop idle threads, and write totals that are not written yet."""
        self._notifications.stop()
        self._invoker.close()
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._write_tallies(_run_now)

    def add_tallies(self, tallies: Iterable[HookTally], run_in_thread: RunInThread) -> None:
        """Add tallies of hooks.

        A thread writes the tallies to disk shortly afterwards, so that no turn waits for the disk. `run_in_thread`
        starts the thread.
        """
        for tally in tallies:
            self._unwritten_tallies[tally.row.name] = sum_tallies(self._unwritten_tallies.get(tally.row.name), tally)
        if self._write_timer is None:
            self._write_timer = asyncio.get_running_loop().call_later(
                WRITE_DELAY_SECONDS, self._write_tallies, run_in_thread
            )

    def _write_tallies(self, run_in_thread: RunInThread) -> None:
        self._take_metrics()
        tallies, self._unwritten_tallies, self._write_timer = tuple(self._unwritten_tallies.values()), {}, None
        if tallies:
            run_in_thread(_store_totals, self.home, self._run, tallies)

    async def call_hooks(self, request: RunHooks, spec: AgentSpec, run_in_thread: RunInThread) -> HookReplies:
        """Call the hooks that the agent `spec` requests, and return their replies. Raises only CancelledError.

        Async hooks that only observe run in the background. Their tallies are added later with `add_tallies`.
        """
        prepared = [each for hook_request in request.asked for each in self._prepare_calls(hook_request, spec)]
        results = iter(
            await self._invoker.call([each for each in prepared if not isinstance(each, str) and each[0].is_awaited])
        )
        replies = []
        for each in prepared:
            if isinstance(each, str):
                replies.append(HookReply(error=each))
            elif each[0].is_awaited:
                replies.append(_reply_of(next(results)))
            else:
                self._invoker.watch(each, partial(self._count_effects, run_in_thread))
                replies.append(HookReply())
        return HookReplies(tuple(replies))

    def remove_contexts(self, id: str) -> None:
        """Remove the hook contexts of the agent `id`, whose process has ended."""
        self._take_metrics()
        for key in [key for key in self._contexts if key[1] == id]:
            del self._contexts[key]

    def _take_metrics(self) -> None:
        for (name, _), context in self._contexts.items():
            hook = self._registry.find(name)
            if hook is not None and (metrics := take_metrics(context)):
                self._unwritten_tallies[name] = sum_tallies(
                    self._unwritten_tallies.get(name), HookTally(hook.row, metrics=metrics)
                )

    def notify_hooks(self, event: Event, spec: AgentSpec, run_in_thread: RunInThread) -> None:
        """Call hooks in the background for `event`, an event of the agent `spec` that the root itself observed."""
        if hooks := self._registry.chain(event.stage):
            try:
                disabled = self._disabled_hooks()
            except ConfigError as error:
                notice(f"orch: {error}")
                disabled = frozenset()
            hooks = tuple(hook for hook in hooks if hook.row.name not in disabled)
            self._queue_notifications(spec, run_in_thread, hooks, self._stamp_event(event))

    async def emit(self, event: Event, spec: AgentSpec, run_in_thread: RunInThread) -> Event:
        """Call hooks for an `event` of the program about the agent `spec`. Return the event as the hooks changed it.

        Raises only CancelledError, and ConfigError if the file of disabled hooks cannot be read.
        """
        registry = self._registry.without(self._disabled_hooks())

        async def call(hook: Hook, event: Event) -> HookCallResult:
            [result] = await self._invoker.call([(hook, event, self.context(hook.row.name, spec, event.turn))])
            return _as_json(result)

        stage_result = await run_chain(
            registry.steps(event.stage),
            self._stamp_event(event),
            call,
            partial(self._queue_notifications, spec, run_in_thread),
        )
        for effects in stage_result.effects:
            if (hook := registry.find(effects.hook)) is not None:
                tally = HookCounter(hook.row)
                tally.add(effects)
                self.add_tallies((tally.take(),), run_in_thread)
        return stage_result.event

    def _disabled_hooks(self) -> frozenset[str]:
        return read_disabled_hooks(str(disabled_hooks_file(self.home)))

    def _stamp_event(self, event: Event) -> Event:
        self._events += 1
        return msgspec.structs.replace(event, n=self._events, at=event.at or time.time())

    def _queue_notifications(
        self, spec: AgentSpec, run_in_thread: RunInThread, hooks: Sequence[Hook], event: Event
    ) -> None:
        if hooks:
            self._notifications.add([(hook, event, self.context(hook.row.name, spec, event.turn)) for hook in hooks])
            self._run_in_thread = run_in_thread

    async def _call_observers(self, calls: Sequence[Sequence[PreparedCall]]) -> None:
        prepared_calls = [call for each in calls for call in each]
        awaited_calls = [call for call in prepared_calls if not call[0].row.aside]
        results = zip(awaited_calls, await self._invoker.call(awaited_calls), strict=True)
        for call in (call for call in prepared_calls if call[0].row.aside):
            self._invoker.watch(call, partial(self._count_effects, self._run_in_thread))
        for (hook, event, _), each in results:
            self._count_effects(self._run_in_thread, hook, event, each)

    def _prepare_calls(self, hook_request: RunHook, spec: AgentSpec) -> Iterator[PreparedCall | str]:
        """Yield the requested hooks. For a hook that cannot be called, yield the error instead."""
        try:
            event = msgspec.msgpack.decode(hook_request.event, type=STAGES[hook_request.stage].event)
        except (*DECODE_ERRORS, KeyError) as error:
            yield from [f"did not get a valid event: {error}"] * len(hook_request.names)
            return
        for name in hook_request.names:
            hook = self._registry.find(name)
            if hook is None or hook_request.stage not in hook.row.stages:
                yield f"there is no hook {name!r} at {hook_request.stage!r} in this program"
            else:
                yield hook, event, self.context(hook.row.name, spec, event.turn)

    def _count_effects(self, run_in_thread: RunInThread, hook: Hook, event: Event, result: HookCallResult) -> None:
        tally = HookCounter(hook.row)
        tally.add(observer_effects(hook.row.name, event.stage, result))
        self.add_tallies((tally.take(),), run_in_thread)

    def context(self, name: str, spec: AgentSpec, turn: str) -> HookContext:
        """Return the context of the hook or slash command `name` for the agent `spec`, in the turn `turn`."""
        key = (name, spec.id)
        context = self._contexts.pop(key, None) or HookContext(
            name,
            spec,
            send_message=partial(self.send_message, spec.id),
            call_root=self._call_root(spec.id),
            emit=_discard_text,
            messages=partial(_read_messages, Path(spec.folder)),
            in_file=True,
        )
        self._contexts[key] = context
        enter_turn(context, turn)
        while len(self._contexts) > MAX_AGENTS:
            del self._contexts[next(iter(self._contexts))]
        return context

    def _call_root(self, id: str) -> CallRoot:
        async def call_root(service: Service[P, R], params: P, seconds: float | None = None) -> R:  # noqa: ARG001
            return await self.call(id, service, params)

        return call_root

    def _update_rows(self) -> None:
        observed = {name for name, stage in STAGES.items() if stage.in_root and not stage.by_root}
        rows = (
            msgspec.structs.replace(hook.row, stages=tuple(name for name in hook.row.stages if name in observed))
            for hook in self._registry
        )
        self.rows = tuple(row for row in rows if row.stages)
        self.stages = frozenset(stage for hook in self._registry for stage in hook.row.stages)


class HookRegistrar:
    """Base class of objects that register hooks. The attribute `_hooks` contains the hooks."""

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
        """Register the decorated function as a hook at `events` of all agents of this run.

        The hook runs in this program. Each agent calls the hook from the agent's next turn on. The hook receives the
        event and a context; see `orch.hook` for the parameters. A function that is not async runs in a thread. Raises
        ConfigError for options that a stage does not support.
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
        """Register a hook, like the decorator `on`. Return the name of the hook. Raises ConfigError.

        `hook` is a function or a result of `orch.hook`. A result of `orch.hook` already has events and options, so no
        other argument is allowed.
        """
        options: dict[str, Any] = {"kind": kind, "priority": priority, "timeout": timeout, "on_error": on_error}
        registered = program_hook(hook, events, {"name": name, "does": does, **options})
        self._hooks.register(registered)
        return registered.row.name

    def unregister_hook(self, name: str) -> None:
        """Remove the hook `name`. Raises ConfigError if there is no such hook.

        Turns that are in progress still call the hook.
        """
        self._hooks.remove(name)


def program_hook(hook: Callable[..., Any], events: Sequence[str], options: Mapping[str, Any]) -> Hook:
    """Return `hook` as a hook of this program. Raises ConfigError.

    `hook` is a function or a result of `orch.hook`.
    """
    if not isinstance(hook, Hook):
        return make_hook(hook, *events, **options, source=source_of(hook))
    if events:
        raise ConfigError(f"hook {hook.row.name!r} already has events; register it without {', '.join(events)}")
    return msgspec.structs.replace(hook, row=msgspec.structs.replace(hook.row, source=source_of(hook.handler)))


def source_of(function: Callable[..., Any]) -> str:
    """Return the source file of a function of the program as text."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"program: {code.co_filename}" if code is not None else "program"


def _discard_message(_id: str, _text: str, _follow_up: bool) -> None:
    """Do nothing. `RootHooks.send_message` is this function until a root sets another function."""


async def _no_root(id: str, service: Service[P, R], params: P) -> R:  # noqa: ARG001
    raise ConfigError(f"cannot call {service.name!r}: the orchestrator is not started")


def _read_messages(folder: Path) -> tuple[Message, ...]:
    """Return the conversation in the session file of `folder`.

    The result of a call is missing while the call runs.
    """
    return without_lost(read_session(folder).messages)


def _discard_text(text: str) -> None:
    """Do nothing, because hooks of the program have no watchers."""
    del text


def _run_now(function: Callable[..., None], home: Path, run: str, tallies: tuple[HookTally, ...]) -> None:
    function(home, run, tallies)


def _store_totals(home: Path, run: str, tallies: Iterable[HookTally]) -> None:
    try:
        add_hook_totals(home, tallies, run)
    except StoreError as error:
        notice(f"orch: the totals of hooks could not be stored: {error}")


def _as_json(result: HookCallResult) -> HookCallResult:
    """Return the result of a hook function with its patch as JSON data, or with an error if that is not possible."""
    if not isinstance(result.value, (Patch, dict)):
        return result
    try:
        return result._replace(value=msgspec.json.decode(msgspec.json.encode(result.value)))
    except (TypeError, ValueError, RecursionError) as error:
        return HookCallResult(error=HookMisuseError(f"returned what is not JSON data: {error}"), seconds=result.seconds)


def _reply_of(result: HookCallResult) -> HookReply:
    """Return the result of a hook function as data. The agent checks whether the stage supports the result."""
    value, error, seconds = result
    if error is not None:
        return HookReply(error=error_text_of(error), late=isinstance(error, DeadlineExceeded), seconds=seconds)
    if value is None:
        return HookReply(seconds=seconds)
    if isinstance(value, (Abort, Block, Approve)):
        return HookReply(decision=with_valid_text(value), seconds=seconds)
    if isinstance(value, (Patch, dict)):
        try:
            return HookReply(msgspec.Raw(msgspec.msgpack.encode(value)), seconds=seconds)
        except (TypeError, ValueError, OverflowError, RecursionError) as why:
            return HookReply(error=f"returned a value that cannot be sent: {why}", seconds=seconds)
    return HookReply(
        error=f"returned a {type(value).__name__}, which is neither a patch nor a decision", seconds=seconds
    )
