"""Calls the hooks of one agent: which there are just now, where each one runs, how long it may take, what it did."""

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
from orch_protocol.hooks.stages import (
    STAGES,
    HookAction,
    HookActions,
    HookReply,
    HookRow,
    HookTally,
    ReportHooks,
    RunHook,
    RunHooks,
)
from orch_protocol.services.hooks import RECORD_HOOK_RUNS, RUN_HOOKS

from ..system.threads import DeadlineExceeded, ThreadPool
from ..tools.api.root_client import CallRoot
from .dispatch import HookCallResult, HookEffects, HookMisuseError, StageResult, run_chain, watched
from .hook import Hook, HookContext, HookRegistry
from .invoke import await_hook, in_thread, task_of
from .loader import read_switches
from .observers import NotificationQueue, ObserverGroup, ObserverReport, ObserverThreads

__all__ = ["HookCalls", "HookCounter", "Tell"]

ROOT_SECONDS: Final = 2.0
"""What a call to the root may take beyond the time that the hook has there."""
REPORT_SECONDS: Final = 2.0
REPORT_EVERY: Final = 1.0
"""Seconds between two reports of what hooks did: with hundreds of them they cost more than short turns."""
MOST_SHOWN: Final = 400
MOST_ACTS: Final = 200
"""Things that hooks did in one turn, of those that are on record one by one."""

Tell = Callable[[str, str, str, bool], None]
"""Told of what a hook did: `hook`, what, which, whether that was an error."""


class RootHookCall:
    """Stands for the functions of hooks that run in the root."""

    def __init__(self, call_root: CallRoot) -> None:
        self._call_root = call_root

    def __call__(self, *_: object) -> None:
        raise TypeError("this hook runs in the root")

    async def ask(self, callings: Sequence[tuple[Hook, Event]]) -> list[HookCallResult]:
        """Let the root call each of these hooks with its event, and return what they say."""
        asked: list[RunHook] = []
        for event, part in groupby(callings, key=lambda calling: calling[1]):
            names = tuple(hook.row.name for hook, _ in part)
            asked.append(RunHook(names, event.stage, msgspec.Raw(msgspec.msgpack.encode(event))))
        # Plain ones are called one after the other; for those that are async and observe nobody waits there either.
        seconds = ROOT_SECONDS + sum(hook.row.seconds for hook, _ in callings if hook.waited)
        try:
            said = await self._call_root(RUN_HOOKS, RunHooks(tuple(asked)), seconds)
        except QueryTimeoutError:
            late = DeadlineExceeded(f"was not heard of from the root within {seconds:g} s")
            return [HookCallResult(None, late, seconds)] * len(callings)
        except OrchError as error:
            return [HookCallResult(error=error)] * len(callings)
        return [_came(row) for row in said.rows]


class HookCounter:
    """Counts what one hook does. `calls` and `seconds` may be added to."""

    def __init__(self, row: HookRow, context: HookContext | None = None) -> None:
        self._context = context
        self.calls = 0
        self.seconds = 0.0
        self._row = row
        self._errors = self._late = 0
        self._last_error = ""

    def add(self, done: HookEffects, *, counted: bool = True) -> None:
        """Count `done`, its call and time too if that is not `counted` yet."""
        if counted:
            self.calls += 1
            self.seconds += done.seconds
        if done.error:
            self._errors += 1
            self._late += done.late
            self._last_error = done.error

    @property
    def ran(self) -> bool:
        """Whether it did anything since `take` was asked last."""
        return bool(self.calls or self._errors)

    def take(self) -> HookTally:
        """Return what it did since this was asked last."""
        metrics = self._context.measured() if self._context is not None else {}
        taken = HookTally(self._row, self.calls, self.seconds, self._errors, self._late, self._last_error, metrics)
        self.calls = self._errors = self._late = 0
        self.seconds, self._last_error = 0.0, ""
        return taken


class HookGroup(NamedTuple):
    """Hooks that are told of an event together, by where they run: in a thread here, in the root, aside."""

    here: ObserverGroup
    there: Sequence[Hook]
    aside: Sequence[Hook]


class HookCalls:
    """The hooks of the agent `spec`: `own` ones run here, those of the root's program are told with each query.

    `on` names the stages for which there are any. `say(text, follow_up)` says something to the agent; `messages` is its
    conversation.
    """

    def __init__(
        self,
        own: HookRegistry,
        spec: AgentSpec,
        call_root: CallRoot,
        *,
        say: Callable[[str, bool], None],
        messages: Callable[[], Sequence[Message]],
    ) -> None:
        self.on: frozenset[str] = frozenset()
        self.deciding: frozenset[str] = frozenset()
        """Stages at which some hook does not only look on."""
        self.step = 0
        self._own = own
        self._spec = spec
        self._call_root = call_root
        self._root = RootHookCall(call_root)
        self._loop = asyncio.get_running_loop()
        self._say = say
        self._messages = messages
        self._registry = HookRegistry()
        self._arranged: tuple[Sequence[HookRow], frozenset[str]] | None = None
        """The hooks of the root, and the names of those switched off, that the registry was made for."""
        self._switched: tuple[tuple[int, ...], frozenset[str]] = ((), frozenset())
        self._contexts: dict[str, HookContext] = {}
        self._opened: list[HookContext] = []
        """Those that keep something for this turn."""
        self._threads = ThreadPool()
        self._here = ObserverThreads(self._heard_of)
        self._there = NotificationQueue(self._tell_there)
        self._aside: set[asyncio.Task[None]] = set()
        self._tallies: dict[str, HookCounter] = {}
        self._crews: dict[int, HookGroup] = {}
        """Those that are told together, by the identity of the step of the registry that they are."""
        self._crowds: list[ObserverGroup] = []
        """Those of them that are told here, and those of former registries that may still be."""
        self._errands: deque[Callable[[], object]] = deque()
        """What hooks in threads want to be done here."""
        self._report: asyncio.TimerHandle | None = None
        self._reported = -REPORT_EVERY
        self._events = 0
        self._acts: dict[str, list[HookAction]] = {}
        self._more: Counter[str] = Counter()
        """What hooks did by turn, and how often something that is not among that: some are done when theirs is over."""
        self._turn = ""
        self._tell: Tell | None = None

    @property
    def archives(self) -> bool:
        """Whether what the agent has finished can go to archives."""
        return self._spec.archival is not None

    @property
    def stuck(self) -> tuple[str, ...]:
        """Names of the hooks that were given up and still hold a thread."""
        return (*self._threads.overdue, *self._here.overdue)

    def turn_began(self, turn: str, rows: Sequence[HookRow], tell: Tell | None) -> None:
        """Arrange the hooks for a turn: those of this process and those of the root, without what is switched off.

        Raises ConfigError when it cannot be told what is switched off, or two hooks have one name.
        """
        self._turn, self.step, self._tell = turn, 0, tell
        self._forget()
        arranged = (rows, self._switches())
        if arranged == self._arranged:
            return
        registry = HookRegistry((*self._own, *(Hook(row, self._root) for row in rows)))
        self._registry = registry.without(arranged[1])
        self._crews.clear()
        self.on = frozenset(stage for stage in STAGES if self._registry.chain(stage))
        self.deciding = frozenset(
            stage for stage in self.on if any(each.row.kind != "observe" for each in self._registry.chain(stage))
        )
        self._arranged = arranged

    async def run(self, event: Event) -> StageResult:
        """Call the hooks of the event's stage and return what comes of them. Raises nothing but CancelledError."""
        event = self._stamped(event)
        followed = await run_chain(self._registry.steps(event.stage), event, self._call, self._let_know)
        for done in followed.done:
            if not done.skipped and (hook := self._registry.find(done.hook)) is not None:
                self._noted(self._tally(hook), done, event.turn)
        return followed

    async def sift(self, event: Event) -> StageResult:
        """Return what comes of an event that is none of a turn's: those that only look on are not told of it, and of
        others nothing counts but what went wrong."""
        event = self._stamped(event)
        followed = await run_chain(self._registry.steps(event.stage), event, self._call, lambda *_: None)
        for done in followed.done:
            if done.error and (hook := self._registry.find(done.hook)) is not None:
                self._tally(hook).add(done, counted=False)
                print(f"hook {done.hook} at {done.stage}: {done.error}", flush=True)
        return followed

    def note(self, event: Event) -> None:
        """Let the hooks of the event's stage be told, at which there is nothing to be done but to observe."""
        event = self._stamped(event)
        for step in self._registry.steps(event.stage):
            self._let_know(step, event)

    async def ask(self, stage: str, **fields: Any) -> StageResult | None:
        """Return what comes of the event of `stage` with `fields`, None when there is no hook for it."""
        return await self.run(STAGES[stage].event(**fields)) if stage in self.on else None

    def tell(self, stage: str, **fields: Any) -> None:
        """Let the hooks of `stage`, if there are any, be told of its event with `fields`."""
        if stage in self.on:
            self.note(STAGES[stage].event(**fields))

    def _stamped(self, event: Event) -> Event:
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
        """Let the root be told soon what the hooks of the turn did, for it keeps count. No turn waits for that."""
        self._forget()
        if self._report is None:
            seconds = max(0.0, self._reported + REPORT_EVERY - self._loop.time())
            self._report = self._loop.call_later(seconds, self._begin_report)

    def _begin_report(self) -> None:
        self._report, self._reported = None, self._loop.time()
        task = asyncio.create_task(self.report())
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    async def report(self) -> None:
        """Tell the root what hooks did since it was told last. One that does not take it is left alone."""
        self._count()
        ran = tuple(tally.take() for tally in self._tallies.values() if tally.ran)
        if ran:
            try:
                await self._call_root(RECORD_HOOK_RUNS, ReportHooks(ran), REPORT_SECONDS)
            except OrchError as error:
                print(f"hooks: what they did could not be told: {error}", flush=True)

    async def close(self) -> None:
        """The process ends: say so to those who asked for it, and give up what still runs aside."""
        try:
            if "session_end" in self.on:
                await self.run(STAGES["session_end"].event())
            await self.told()
            if self._report is not None:
                self._report.cancel()
                await self.report()
        finally:  # also when whoever leaves does not wait for one that hangs
            for task in self._aside:
                task.cancel()
            self._threads.close()
            self._here.close()

    # One call.

    async def _call(self, hook: Hook, event: Event) -> HookCallResult:
        if hook.handler is self._root:
            [came] = await self._root.ask([(hook, event)])
        elif hook.row.aside:
            came = await await_hook(hook, event, self._context(hook))
        else:
            [came] = await in_thread(self._threads, [(hook, event, self._context(hook))])
        return came

    def _let_know(self, hooks: Sequence[Hook], event: Event) -> None:
        """Let hooks that only observe be told of `event`, each where it runs. `hooks` are a step of the registry."""
        crew = self._crews.get(id(hooks)) or self._crew(hooks)
        if crew.here.tasks:
            self._here.add(crew.here, event)
        if crew.there:
            self._there.add((crew.there, event))
        for hook in crew.aside:
            task = asyncio.create_task(self._watch(hook, event))
            self._aside.add(task)
            task.add_done_callback(self._aside.discard)

    def _crew(self, hooks: Sequence[Hook]) -> HookGroup:
        """Sort `hooks` by where they run, once for as long as the registry stays."""
        there = [hook for hook in hooks if hook.handler is self._root]
        aside = [hook for hook in hooks if hook.handler is not self._root and hook.row.aside]
        here = [hook for hook in hooks if hook.handler is not self._root and not hook.row.aside]
        for each in here:
            self._tally(each)
        crowd = ObserverGroup([task_of(each, self._context(each)) for each in here])
        self._crowds.append(crowd)
        crew = self._crews[id(hooks)] = HookGroup(crowd, there, aside)
        return crew

    def _count(self) -> None:
        """Count what those did who are told here."""
        for crowd in self._crowds:
            for name, calls, seconds in crowd.take():
                tally = self._tallies[name]
                tally.calls += calls
                tally.seconds += seconds
        if self._here.idle:
            self._crowds = [crew.here for crew in self._crews.values()]

    def _heard_of(self, said: ObserverReport) -> None:
        done = watched(said.name, said.event.stage, HookCallResult(said.value, said.error, said.seconds or 0.0))
        self._noted(self._tallies[said.name], done, said.event.turn, counted=said.seconds is not None)

    async def _tell_there(self, told: Sequence[tuple[Sequence[Hook], Event]]) -> None:
        callings = [(hook, event) for hooks, event in told for hook in hooks]
        for (hook, event), came in zip(callings, await self._root.ask(callings), strict=True):
            done = watched(hook.row.name, event.stage, came)
            self._noted(self._tally(hook), done, event.turn, counted=hook.waited or came.error is not None)

    async def _watch(self, hook: Hook, event: Event) -> None:
        """Let an async hook that only observes run beside the agent, which does not wait for it at all."""
        came = await await_hook(hook, event, self._context(hook))
        self._noted(self._tally(hook), watched(hook.row.name, event.stage, came), event.turn)

    async def told(self) -> None:
        """Return when those who observe know of everything so far, but for async ones."""
        if not self._here.idle:
            await self._here.told()
        self._here.collect()
        self._run_errands()
        if not self._there.idle:
            await self._there.told()

    def _context(self, hook: Hook) -> HookContext:
        name = hook.row.name
        if name not in self._contexts:
            self._contexts[name] = HookContext(
                name,
                self._spec,
                say=self._say_from_anywhere,
                call=self._call_root,
                tell=partial(self._tell_from_anywhere, name),
                messages=self._messages,
                opened=self._opened.append,
            )
        return self._contexts[name]

    def _forget(self) -> None:
        while self._opened:
            self._opened.pop().forget()

    def _tell_from_anywhere(self, hook: str, text: str) -> None:
        if self._tell is not None:
            self._errand(partial(self._tell, "hook", text[:MOST_SHOWN], hook, False))

    def _say_from_anywhere(self, text: str, follow_up: bool) -> None:
        self._errand(partial(self._say, text, follow_up))

    def _errand(self, act: Callable[[], object]) -> None:
        self._errands.append(act)
        self._loop.call_soon_threadsafe(self._run_errands)

    def _run_errands(self) -> None:
        while self._errands:
            self._errands.popleft()()

    # What they did.

    def failed(self, hook: str, stage: str, why: str) -> None:
        """Take down that nothing can come of what `hook` said at `stage`."""
        if (found := self._registry.find(hook)) is not None:
            self._noted(self._tally(found), HookEffects(hook, stage, error=why), self._turn, counted=False)

    def _tally(self, hook: Hook) -> HookCounter:
        if (tally := self._tallies.get(hook.row.name)) is None:
            tally = self._tallies[hook.row.name] = HookCounter(hook.row, self._context(hook))
        return tally

    def _noted(self, tally: HookCounter, done: HookEffects, turn: str, *, counted: bool = True) -> None:
        """Count what a hook did, and tell whoever watches of what had an effect."""
        tally.add(done, counted=counted)
        if done.error or done.actions:
            self._act(done, turn)
        if done.error:
            print(f"hook {done.hook} at {done.stage}: {done.error}", flush=True)
        if self._tell is not None and (done.error or done.actions):
            self._tell("hook", effect_line(done), done.hook, bool(done.error))

    def _act(self, done: HookEffects, turn: str) -> None:
        acts = self._acts.setdefault(turn, [])
        if len(acts) < MOST_ACTS:
            why = scrub(done.error)[:MOST_SHOWN]
            acts.append(HookAction(done.hook, done.stage, done.actions, round(done.seconds, 6), why))
        else:
            self._more[turn] += 1

    def acted(self) -> list[HookActions]:
        """Return what hooks did since this was asked last, by turn; nothing of those that only looked on."""
        acted, self._acts, more, self._more = self._acts, {}, self._more, Counter()
        return [HookActions(turn, tuple(acts), more[turn]) for turn, acts in acted.items()]

    def _switches(self) -> frozenset[str]:
        """Return the names of the hooks that are switched off; the file is read when it has changed."""
        path = self._spec.hooks.switches
        if not path:
            return frozenset()
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        mark = (found.st_ino, found.st_size, found.st_mtime_ns)
        if mark != self._switched[0]:
            self._switched = (mark, read_switches(path))
        return self._switched[1]


def _came(said: HookReply) -> HookCallResult:
    """Return what a hook in the root said as if it had been said here."""
    if said.error:
        return HookCallResult(
            None, DeadlineExceeded(said.error) if said.late else HookMisuseError(said.error), said.seconds
        )
    patch = said.decision if said.decision is not None else msgspec.msgpack.decode(said.patch)
    return HookCallResult(patch, None, said.seconds)


def effect_line(done: HookEffects) -> str:
    """Return in a line what a hook did."""
    what = ", ".join(done.actions) or "nothing"
    over = "".join(f"; {field} over that of {other}" for field, other in done.overrode)
    why = f"; {done.error}" if done.error else ""
    return f"{done.stage}: {what}{over}{why}"[:MOST_SHOWN]
