"""Runs the hooks of one agent in the right process and thread, with timeouts, and counts their calls and effects."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import ConfigError, OrchError, QueryTimeoutError
from orch_protocol.core.messages import Message
from orch_protocol.core.text import scrub
from orch_protocol.hooks.events import Event
from orch_protocol.hooks.stages import STAGES, HookAction, HookActions, HookRow, HookTally
from orch_protocol.services.resources.hooks import (
    RECORD_HOOK_RUNS,
    RUN_HOOKS,
    HookReply,
    ReportHooks,
    RunHook,
    RunHooks,
)

from ..system.threads import DeadlineExceeded
from ..tools.api.root_client import CallRoot
from .dispatch import HookCallResult, HookEffects, HookMisuseError, StageResult, observer_effects, run_chain
from .hook import Hook, HookContext, HookRegistry, end_turn, take_metrics
from .invoke import HookInvoker, task_of
from .loader import read_disabled_hooks
from .observers import NotificationQueue, ObserverGroup, ObserverReport, ObserverThreads

__all__ = ["EmitEvent", "HookCalls", "HookCounter"]

ROOT_SECONDS: Final = 2.0
"""Additional seconds for a call to the root, beyond the timeouts of the hooks in the root."""
REPORT_SECONDS: Final = 2.0
REPORT_EVERY: Final = 1.0
"""Minimum number of seconds between two reports to the root.

With hundreds of hooks, a report takes longer than a short turn.
"""
MAX_SHOWN: Final = 400
MAX_ACTS: Final = 200
"""Maximum number of hook actions of one turn that are recorded individually."""

EmitEvent = Callable[[str, str, str, bool], None]
"""A function that reports an action of a hook, or the result of a phase.

Arguments: kind ("hook", or the name of the phase), text, name of the hook or source, whether it is an error.
"""


class RootHookCall:
    """The handler of hooks that run in the root."""

    def __init__(self, call_root: CallRoot) -> None:
        self._call_root = call_root

    def __call__(self, *_: object) -> None:
        raise TypeError("this hook runs in the root")

    async def call_hooks(self, calls: Sequence[tuple[Hook, Event]]) -> list[HookCallResult]:
        """Call these hooks in the root with their events, and return the results."""
        runs: list[RunHook] = []
        for event, same_event in groupby(calls, key=lambda call: call[1]):
            names = tuple(hook.row.name for hook, _ in same_event)
            runs.append(RunHook(names, event.stage, msgspec.Raw(msgspec.msgpack.encode(event))))
        # The root calls sync hooks one after the other. The root does not wait for async observing hooks.
        seconds = ROOT_SECONDS + sum(hook.row.seconds for hook, _ in calls if hook.is_awaited)
        try:
            answers = await self._call_root(RUN_HOOKS, RunHooks(tuple(runs)), seconds)
        except QueryTimeoutError:
            timeout = DeadlineExceeded(f"got no answer from the root within {seconds:g} s")
            return [HookCallResult(None, timeout, seconds)] * len(calls)
        except OrchError as error:
            return [HookCallResult(error=error)] * len(calls)
        return [_result_of(row) for row in answers.rows]


class HookCounter:
    """Counts the calls, errors and seconds of one hook. Callers may add to `calls` and `seconds`."""

    def __init__(self, row: HookRow, context: HookContext | None = None) -> None:
        self._context = context
        self.calls = 0
        self.seconds = 0.0
        self._row = row
        self._errors = self._timeouts = 0
        self._last_error = ""

    def add(self, effects: HookEffects, *, counted: bool = True) -> None:
        """Count the errors in `effects`. If `counted` is True, also count the call and its duration."""
        if counted:
            self.calls += 1
            self.seconds += effects.seconds
        if effects.error:
            self._errors += 1
            self._timeouts += effects.timed_out
            self._last_error = effects.error

    @property
    def was_called(self) -> bool:
        """Whether the hook was called since the last `take`."""
        return bool(self.calls or self._errors)

    def take(self) -> HookTally:
        """Return the counts since the previous call of `take`."""
        metrics = take_metrics(self._context) if self._context is not None else {}
        tally = HookTally(self._row, self.calls, self.seconds, self._errors, self._timeouts, self._last_error, metrics)
        self.calls = self._errors = self._timeouts = 0
        self.seconds, self._last_error = 0.0, ""
        return tally


class HookGroup(NamedTuple):
    """The observing hooks of one step, grouped by where they run: in the observer thread, in the root, or as a task."""

    local: ObserverGroup
    in_root: Sequence[Hook]
    in_background: Sequence[Hook]


class HookCalls:
    """The hooks of the agent `spec`. The hooks in `own` run in this process.

    Each query lists the hooks that run in the root.

    `active_stages` contains the stages that have hooks. `send_message(text, follow_up)` sends a message to the agent.
    `messages` returns the conversation of the agent.
    """

    def __init__(
        self,
        own: HookRegistry,
        spec: AgentSpec,
        call_root: CallRoot,
        *,
        send_message: Callable[[str, bool], None],
        messages: Callable[[], Sequence[Message]],
    ) -> None:
        self.active_stages: frozenset[str] = frozenset()
        self.deciding_stages: frozenset[str] = frozenset()
        """Stages with at least one hook that does more than observe."""
        self.step = 0
        self._own_hooks = own
        self._spec = spec
        self._call_root = call_root
        self._root = RootHookCall(call_root)
        self._loop = asyncio.get_running_loop()
        self._send_message = send_message
        self._messages = messages
        self._registry = HookRegistry()
        self._registry_inputs: tuple[Sequence[HookRow], frozenset[str]] | None = None
        """The registry was built with these hooks of the root and these names of disabled hooks."""
        self._disabled_cache: tuple[tuple[int, ...], frozenset[str]] = ((), frozenset())
        self._contexts: dict[str, HookContext] = {}
        self._open_contexts: list[HookContext] = []
        """Contexts whose `turn_state` must be cleared at the end of the turn."""
        self._invoker = HookInvoker()
        self._local_observers = ObserverThreads(self._on_report)
        self._root_observers = NotificationQueue(self._notify_root_hooks)
        self._counters: dict[str, HookCounter] = {}
        self._groups: dict[int, HookGroup] = {}
        """Groups of observing hooks. The key is the id of the registry step that contains the hooks."""
        self._local_groups: list[ObserverGroup] = []
        """Groups of the observer thread, including groups of earlier registries that may still run."""
        self._loop_calls: deque[Callable[[], object]] = deque()
        """Functions that hooks in threads schedule to run on the event loop."""
        self._report_timer: asyncio.TimerHandle | None = None
        self._reported_at = -REPORT_EVERY
        self._events = 0
        self._actions: dict[str, list[HookAction]] = {}
        self._omitted_actions: Counter[str] = Counter()
        """The number of actions of each turn that were not recorded individually.

        An action can arrive after its turn has ended.
        """
        self._turn = ""
        self._emit: EmitEvent | None = None

    @property
    def archival_enabled(self) -> bool:
        """Whether archival is enabled for the agent."""
        return self._spec.archival is not None

    def has_hook(self, stage: str, rows: Sequence[HookRow]) -> bool:
        """Return whether this process or the root (`rows`) has a hook for `stage`, including disabled hooks."""
        return bool(self._own_hooks.chain(stage)) or any(stage in row.stages for row in rows)

    @property
    def stuck_hooks(self) -> tuple[str, ...]:
        """Names of the hooks that exceeded their timeout and still occupy a thread."""
        return (*self._invoker.overdue, *self._local_observers.overdue)

    def turn_began(self, turn: str, rows: Sequence[HookRow], emit: EmitEvent | None) -> None:
        """Build the registry for a turn from the hooks of this process and of the root, without disabled hooks.

        Raise ConfigError if the file of disabled hooks cannot be read, or if two hooks have the same name.
        """
        self._turn, self.step, self._emit = turn, 0, emit
        self._clear_turn_states()
        inputs = (rows, self._disabled_hooks())
        if inputs == self._registry_inputs:
            return
        registry = HookRegistry((*self._own_hooks, *(Hook(row, self._root) for row in rows)))
        self._registry = registry.without(inputs[1])
        self._groups.clear()
        self.active_stages = frozenset(stage for stage in STAGES if self._registry.chain(stage))
        self.deciding_stages = frozenset(
            stage
            for stage in self.active_stages
            if any(each.row.kind != "observe" for each in self._registry.chain(stage))
        )
        self._registry_inputs = inputs

    async def run(self, event: Event) -> StageResult:
        """Call the hooks of the event's stage, and return the result. Raise only CancelledError."""
        event = self._stamp_event(event)
        stage_result = await run_chain(self._registry.steps(event.stage), event, self._call, self._notify_observers)
        for effects in stage_result.effects:
            if not effects.skipped and (hook := self._registry.find(effects.hook)) is not None:
                self._record_effects(self._counter(hook), effects, event.turn)
        return stage_result

    async def run_filters(self, event: Event) -> StageResult:
        """Call the hooks that may change `event`, an event outside turns.

        Observers are not called, and only errors are counted.
        """
        event = self._stamp_event(event)
        stage_result = await run_chain(self._registry.steps(event.stage), event, self._call, lambda *_: None)
        for effects in stage_result.effects:
            if effects.error and (hook := self._registry.find(effects.hook)) is not None:
                self._counter(hook).add(effects, counted=False)
                print(f"hook {effects.hook} at {effects.stage}: {effects.error}", flush=True)
        return stage_result

    def notify_event(self, event: Event) -> None:
        """Notify the hooks of a stage at which hooks can only observe."""
        event = self._stamp_event(event)
        for step in self._registry.steps(event.stage):
            self._notify_observers(step, event)

    async def run_stage(self, stage: str, **fields: Any) -> StageResult | None:
        """Run the hooks of `stage` on an event with `fields`. Return None if the stage has no hooks."""
        return await self.run(STAGES[stage].event(**fields)) if stage in self.active_stages else None

    def notify(self, stage: str, **fields: Any) -> None:
        """If `stage` has hooks, notify them of an event with `fields`."""
        if stage in self.active_stages:
            self.notify_event(STAGES[stage].event(**fields))

    def _stamp_event(self, event: Event) -> Event:
        self._events += 1
        return replace(
            event,
            n=self._events,
            at=time.time(),
            agent_id=self._spec.id,
            depth=self._spec.depth,
            turn=self._turn,
            step=self.step,
        )

    def turn_ended(self) -> None:
        """Clear the state of the turn, and schedule a report to the root. The turn does not wait for the report."""
        self._clear_turn_states()
        if self._report_timer is None:
            seconds = max(0.0, self._reported_at + REPORT_EVERY - self._loop.time())
            self._report_timer = self._loop.call_later(seconds, self._start_report)

    def _start_report(self) -> None:
        self._report_timer, self._reported_at = None, self._loop.time()
        self._invoker.start(self.report())

    async def report(self) -> None:
        """Send the counts since the last report to the root. An error of the root is logged."""
        self._count_observers()
        tallies = tuple(counter.take() for counter in self._counters.values() if counter.was_called)
        if tallies:
            try:
                await self._call_root(RECORD_HOOK_RUNS, ReportHooks(tallies), REPORT_SECONDS)
            except OrchError as error:
                print(f"hooks: their last actions could not be reported: {error}", flush=True)

    async def close(self) -> None:
        """Run the hooks of the stage "session_end", send the last report, and cancel background tasks."""
        try:
            if "session_end" in self.active_stages:
                await self.run(STAGES["session_end"].event())
            await self.wait_until_delivered()
            if self._report_timer is not None:
                self._report_timer.cancel()
                await self.report()
        finally:  # The cleanup also runs if the caller is canceled while a hook hangs.
            self._invoker.close()
            self._local_observers.close()

    # A single call.

    async def _call(self, hook: Hook, event: Event) -> HookCallResult:
        if hook.handler is self._root:
            [result] = await self._root.call_hooks([(hook, event)])
        else:
            [result] = await self._invoker.call([(hook, event, self._context(hook))])
        return result

    def _notify_observers(self, hooks: Sequence[Hook], event: Event) -> None:
        """Notify the observing hooks in `hooks` of `event`. `hooks` is one step of the registry."""
        group = self._groups.get(id(hooks)) or self._make_group(hooks)
        if group.local.tasks:
            self._local_observers.add(group.local, event)
        if group.in_root:
            self._root_observers.add((group.in_root, event))
        for hook in group.in_background:
            self._invoker.watch((hook, event, self._context(hook)), self._on_result)

    def _make_group(self, hooks: Sequence[Hook]) -> HookGroup:
        """Group `hooks` by where they run. The group is cached until the registry changes."""
        root_hooks = [hook for hook in hooks if hook.handler is self._root]
        background_hooks = [hook for hook in hooks if hook.handler is not self._root and hook.row.aside]
        local_hooks = [hook for hook in hooks if hook.handler is not self._root and not hook.row.aside]
        for each in local_hooks:
            self._counter(each)
        local_group = ObserverGroup([task_of(each, self._context(each)) for each in local_hooks])
        self._local_groups.append(local_group)
        group = self._groups[id(hooks)] = HookGroup(local_group, root_hooks, background_hooks)
        return group

    def _count_observers(self) -> None:
        """Count the calls of hooks in the observer thread."""
        for group in self._local_groups:
            for name, calls, seconds in group.take():
                counter = self._counters[name]
                counter.calls += calls
                counter.seconds += seconds
        if self._local_observers.idle:
            self._local_groups = [each.local for each in self._groups.values()]

    def _on_report(self, report: ObserverReport) -> None:
        effects = observer_effects(
            report.name, report.event.stage, HookCallResult(report.value, report.error, report.seconds or 0.0)
        )
        self._record_effects(
            self._counters[report.name], effects, report.event.turn, counted=report.seconds is not None
        )

    async def _notify_root_hooks(self, calls: Sequence[tuple[Sequence[Hook], Event]]) -> None:
        hook_calls = [(hook, event) for hooks, event in calls for hook in hooks]
        for (hook, event), result in zip(hook_calls, await self._root.call_hooks(hook_calls), strict=True):
            effects = observer_effects(hook.row.name, event.stage, result)
            self._record_effects(
                self._counter(hook), effects, event.turn, counted=hook.is_awaited or result.error is not None
            )

    def _on_result(self, hook: Hook, event: Event, result: HookCallResult) -> None:
        self._record_effects(self._counter(hook), observer_effects(hook.row.name, event.stage, result), event.turn)

    async def wait_until_delivered(self) -> None:
        """Wait until sync observing hooks have received all events so far."""
        if not self._local_observers.idle:
            await self._local_observers.wait_until_delivered()
        self._local_observers.collect()
        self._run_loop_calls()
        if not self._root_observers.idle:
            await self._root_observers.wait_until_delivered()

    def _context(self, hook: Hook) -> HookContext:
        name = hook.row.name
        if name not in self._contexts:
            self._contexts[name] = HookContext(
                name,
                self._spec,
                send_message=self._send_threadsafe,
                call_root=self._call_root,
                emit=partial(self._emit_threadsafe, name),
                messages=self._messages,
                on_turn_state=self._open_contexts.append,
            )
        return self._contexts[name]

    def _clear_turn_states(self) -> None:
        while self._open_contexts:
            end_turn(self._open_contexts.pop())

    def _emit_threadsafe(self, hook: str, text: str) -> None:
        if self._emit is not None:
            self._call_on_loop(partial(self._emit, "hook", text[:MAX_SHOWN], hook, False))

    def _send_threadsafe(self, text: str, follow_up: bool) -> None:
        self._call_on_loop(partial(self._send_message, text, follow_up))

    def _call_on_loop(self, function: Callable[[], object]) -> None:
        self._loop_calls.append(function)
        self._loop.call_soon_threadsafe(self._run_loop_calls)

    def _run_loop_calls(self) -> None:
        while self._loop_calls:
            self._loop_calls.popleft()()

    # Counts and records.

    def record_failure(self, hook: str, stage: str, error_text: str) -> None:
        """Record that the result of `hook` at `stage` could not be used."""
        if (found := self._registry.find(hook)) is not None:
            self._record_effects(
                self._counter(found), HookEffects(hook, stage, error=error_text), self._turn, counted=False
            )

    def _counter(self, hook: Hook) -> HookCounter:
        if (counter := self._counters.get(hook.row.name)) is None:
            counter = self._counters[hook.row.name] = HookCounter(hook.row, self._context(hook))
        return counter

    def _record_effects(self, counter: HookCounter, effects: HookEffects, turn: str, *, counted: bool = True) -> None:
        """Count the effects of a hook. Report actions and errors to the clients that watch the turn."""
        counter.add(effects, counted=counted)
        if effects.error or effects.actions:
            self._record_action(effects, turn)
        if effects.error:
            print(f"hook {effects.hook} at {effects.stage}: {effects.error}", flush=True)
        if self._emit is not None and (effects.error or effects.actions):
            self._emit("hook", effect_line(effects), effects.hook, bool(effects.error))

    def _record_action(self, effects: HookEffects, turn: str) -> None:
        actions = self._actions.setdefault(turn, [])
        if len(actions) < MAX_ACTS:
            error = scrub(effects.error)[:MAX_SHOWN]
            actions.append(HookAction(effects.hook, effects.stage, effects.actions, round(effects.seconds, 6), error))
        else:
            self._omitted_actions[turn] += 1

    def take_actions(self) -> list[HookActions]:
        """Return the actions of hooks since the last call, grouped by turn.

        Calls without an effect are not included.
        """
        actions_by_turn, self._actions, omitted, self._omitted_actions = (
            self._actions,
            {},
            self._omitted_actions,
            Counter(),
        )
        return [HookActions(turn, tuple(actions), omitted[turn]) for turn, actions in actions_by_turn.items()]

    def _disabled_hooks(self) -> frozenset[str]:
        """Return the names of disabled hooks. The file is read only if it has changed."""
        path = self._spec.hooks.switches
        if not path:
            return frozenset()
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        file_state = (status.st_ino, status.st_size, status.st_mtime_ns)
        if file_state != self._disabled_cache[0]:
            self._disabled_cache = (file_state, read_disabled_hooks(path))
        return self._disabled_cache[1]


def _result_of(reply: HookReply) -> HookCallResult:
    """Return `reply`, a reply of the root, in the form of a local call's result."""
    if reply.error:
        return HookCallResult(
            None, DeadlineExceeded(reply.error) if reply.late else HookMisuseError(reply.error), reply.seconds
        )
    patch = reply.decision if reply.decision is not None else msgspec.msgpack.decode(reply.patch)
    return HookCallResult(patch, None, reply.seconds)


def effect_line(effects: HookEffects) -> str:
    """Return a one-line description of the effects of a hook."""
    actions = ", ".join(effects.actions) or "nothing"
    overridden = "".join(f"; {field} over that of {other}" for field, other in effects.overrode)
    error = f"; {effects.error}" if effects.error else ""
    return f"{effects.stage}: {actions}{overridden}{error}"[:MAX_SHOWN]
