"""Calls the hooks of one agent: which there are just now, where each one runs, how long it may take, what it did."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from orch_protocol.errors import ConfigError, OrchError, QueryTimeoutError
from orch_protocol.hook_events import Event, ToolCall, ToolReturn
from orch_protocol.hooks import STAGES, HookRow, HookSaid, HooksRan, HookTally, RunHook
from orch_protocol.messages import Message
from orch_protocol.spec import AgentSpec

from .chain import Done, Followed, Late, run_chain
from .declared import read_switches
from .hooks import Hook, Registry
from .threads import Overdue, Threads
from .tools.base import CallRoot

__all__ = ["HookCalls", "HookContext", "Tell", "awaited", "in_thread"]

ROOT_SECONDS: Final = 2.0
"""What a call to the root may take beyond the time that the hook has there."""
REPORT_SECONDS: Final = 2.0
MOST_SHOWN: Final = 400

Tell = Callable[[str, str, str, bool], None]
"""Told of what a hook did: `hook`, what, which, whether that was an error."""


class HookContext:
    """What a hook knows of the agent, and may do besides what it returns.

    `state` is the hook's own while the process lives, `turn_state` until the turn ends. `cwd` is the agent's folder.
    """

    def __init__(
        self,
        hook: str,
        *,
        agent_id: str,
        depth: int,
        cwd: Path,
        say: Callable[[str, bool], None],
        messages: Callable[[], Sequence[Message]] = tuple,
    ) -> None:
        self.hook = hook
        self.agent_id = agent_id
        self.depth = depth
        self.cwd = cwd
        self.state: dict[str, Any] = {}
        self.turn_state: dict[str, Any] = {}
        self._say = say
        self._messages = messages

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


class AtRoot:
    """Stands for the function of a hook that runs in the root."""

    def __init__(self, call_root: CallRoot) -> None:
        self._call_root = call_root

    def __call__(self, *_: object) -> None:
        raise TypeError("this hook runs in the root")

    async def ask(self, hook: Hook, event: Event) -> Any:
        """Let the root call the hook with `event`, and return what it says."""
        seconds = hook.row.seconds
        asked = RunHook(hook.row.name, event.stage, msgspec.Raw(msgspec.msgpack.encode(event)))
        try:
            said: HookSaid = await self._call_root("run_hook", asked, seconds + ROOT_SECONDS)
        except QueryTimeoutError:
            raise Late(f"was not heard of from the root within {seconds + ROOT_SECONDS:g} s") from None
        if said.error:
            raise Late(said.error) if said.late else RuntimeError(said.error)
        if said.decision is not None:
            return said.decision
        return msgspec.msgpack.decode(said.patch)


class HookCalls:
    """The hooks of the agent `spec`: `own` ones run here, those of the root's program are told with each query.

    `on` names the stages for which there are any. `say(text, follow_up)` says something to the agent; `messages` is its
    conversation.
    """

    def __init__(
        self,
        own: Registry,
        spec: AgentSpec,
        call_root: CallRoot,
        *,
        say: Callable[[str, bool], None],
        messages: Callable[[], Sequence[Message]],
    ) -> None:
        self.on: frozenset[str] = frozenset()
        self.step = 0
        self._own = own
        self._spec = spec
        self._call_root = call_root
        self._loop = asyncio.get_running_loop()
        self._say = say
        self._messages = messages
        self._registry = Registry()
        self._arranged: tuple[Sequence[HookRow], frozenset[str]] | None = None
        """The hooks of the root, and the names of those switched off, that the registry was made for."""
        self._switched: tuple[tuple[int, ...], frozenset[str]] = ((), frozenset())
        self._contexts: dict[str, HookContext] = {}
        self._threads = Threads()
        self._aside: set[asyncio.Task[None]] = set()
        self._tallies: dict[str, HookTally] = {}
        self._events = 0
        self._turn = ""
        self._tell: Tell | None = None

    @property
    def stuck(self) -> tuple[str, ...]:
        """Names of the hooks that were given up and still hold a thread."""
        return tuple(self._threads.overdue)

    def turn_began(self, turn: str, rows: Sequence[HookRow], tell: Tell | None) -> None:
        """Arrange the hooks for a turn: those of this process and those of the root, without what is switched off.

        Raises ConfigError when it cannot be told what is switched off, or two hooks have one name.
        """
        self._turn, self.step, self._tell = turn, 0, tell
        for context in self._contexts.values():
            context.turn_state = {}
        arranged = (rows, self._switches())
        if arranged == self._arranged:
            return
        at_root = AtRoot(self._call_root)
        registry = Registry((*self._own, *(Hook(row, at_root) for row in rows)))
        self._registry = registry.without(arranged[1])
        self.on = frozenset(stage for stage in STAGES if self._registry.chain(stage))
        self._arranged = arranged

    async def run(self, event: Event) -> Followed:
        """Call the hooks of the event's stage and return what comes of them. Raises nothing but CancelledError."""
        self._events += 1
        event = replace(
            event,
            n=self._events,
            at=time.time(),
            agent_id=self._spec.id,
            depth=self._spec.depth,
            turn=self._turn,
            step=self.step,
        )
        followed = await run_chain(self._registry.chain(event.stage), event, self._call)
        for done in followed.done:
            self._note(done)
        return followed

    async def turn_ended(self) -> None:
        """Tell the root what the hooks of the turn did, for it keeps count. One that does not take it is left alone."""
        ran, self._tallies = tuple(self._tallies.values()), {}
        if ran:
            try:
                await self._call_root("hooks_ran", HooksRan(ran), REPORT_SECONDS)
            except OrchError as error:
                print(f"hooks: what they did could not be told: {error}", flush=True)

    async def close(self) -> None:
        """The process ends: say so to those who asked for it, and give up what still runs aside."""
        if "session_end" in self.on:
            await self.run(STAGES["session_end"].event())
        for task in self._aside:
            task.cancel()
        self._threads.close()

    # One call.

    async def _call(self, hook: Hook, event: Event) -> Any:
        if isinstance(hook.handler, AtRoot):
            return await hook.handler.ask(hook, event)
        if isinstance(event, (ToolCall, ToolReturn)):
            event = replace(event, input=deepcopy(event.input))  # its own: who observes cannot change it in place
        context = self._context(hook.row.name)
        if not hook.row.aside:
            return await in_thread(self._threads, hook, event, context)
        if hook.row.kind == "observe":
            task = asyncio.create_task(self._watch(hook, event, context))
            self._aside.add(task)
            task.add_done_callback(self._aside.discard)
            return None
        return await awaited(hook, event, context)

    async def _watch(self, hook: Hook, event: Event, context: HookContext) -> None:
        """Let a hook that only observes run beside the agent, which does not wait for it."""
        why, late, began = "", False, time.perf_counter()
        try:
            if await awaited(hook, event, context) is not None:
                why = "returned something, but it is there to observe"
        except Late as error:
            why, late = str(error), True
        except Exception as error:
            why = f"failed: {type(error).__name__}: {error}"
        done = Done(hook.row.name, event.stage, seconds=time.perf_counter() - began, error=why, late=late)
        self._note(done, counted=False)

    def _context(self, name: str) -> HookContext:
        if name not in self._contexts:
            self._contexts[name] = HookContext(
                name,
                agent_id=self._spec.id,
                depth=self._spec.depth,
                cwd=Path(self._spec.cwd),
                say=self._say_from_anywhere,
                messages=self._messages,
            )
        return self._contexts[name]

    def _say_from_anywhere(self, text: str, follow_up: bool) -> None:
        self._loop.call_soon_threadsafe(self._say, text, follow_up)

    # What they did.

    def failed(self, hook: str, stage: str, why: str) -> None:
        """Take down that nothing can come of what `hook` said at `stage`."""
        self._note(Done(hook, stage, error=why), counted=False)

    def _note(self, done: Done, *, counted: bool = True) -> None:
        """Count what a hook did, and tell whoever watches of what had an effect. One that ran aside counts once."""
        hook = self._registry.find(done.hook)
        if done.skipped or hook is None:
            return
        tally = self._tallies.get(done.hook) or HookTally(hook.row)
        self._tallies[done.hook] = replace(
            tally,
            calls=tally.calls + counted,
            seconds=tally.seconds + done.seconds,
            errors=tally.errors + bool(done.error),
            late=tally.late + done.late,
            last_error=done.error or tally.last_error,
        )
        if done.error:
            print(f"hook {done.hook} at {done.stage}: {done.error}", flush=True)
        if self._tell is not None and (done.error or done.actions):
            self._tell("hook", told(done), done.hook, bool(done.error))

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


def told(done: Done) -> str:
    """Return in a line what a hook did."""
    what = ", ".join(done.actions) or "nothing"
    over = "".join(f"; {field} over that of {other}" for field, other in done.overrode)
    why = f"; {done.error}" if done.error else ""
    return f"{done.stage}: {what}{over}{why}"[:MOST_SHOWN]


async def in_thread(threads: Threads, hook: Hook, event: Event, context: HookContext) -> Any:
    """Return what a plain hook says. Raises Late at its deadline, and at once while an earlier call hangs."""
    if hook.row.name in threads.overdue:
        raise Late("is still at work on an earlier event")
    try:
        return await threads.run(hook.row.name, lambda: hook.handler(event, context), hook.row.seconds)
    except Overdue:
        raise Late(f"did not answer within {hook.row.seconds:g} s") from None


async def awaited(hook: Hook, event: Event, context: HookContext) -> Any:
    """Return what an async hook says. Raises Late at its deadline; one that ignores that is left behind."""
    task: asyncio.Task[Any] = asyncio.create_task(_leaving(hook.handler, event, context))
    try:
        done, _ = await asyncio.wait({task}, timeout=hook.row.seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        task.add_done_callback(_retrieve)
        raise Late(f"did not answer within {hook.row.seconds:g} s")
    if task.cancelled():
        raise RuntimeError("cancelled itself")
    return task.result()


async def _leaving(handler: Callable[..., Any], event: Event, context: HookContext) -> Any:
    try:
        return await handler(event, context)
    except (SystemExit, KeyboardInterrupt, StopIteration) as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
