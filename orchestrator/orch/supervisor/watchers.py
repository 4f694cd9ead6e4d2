"""Watchers of turns and observers of tool calls."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from orch_protocol.core.errors import ConfigError, ErrorInfo
from orch_protocol.core.messages import Reply
from orch_protocol.wire.tool_events import CallEvent, CallReport
from orch_protocol.wire.watch_events import TurnEnded, TurnStarted
from orch_protocol.wire.worker_messages import TurnEvent, TurnSoFar
from orch_worker.system.threads import await_result, describe_exception, in_thread
from orch_worker.transport.turn_event_buffer import TurnEventBuffer

from ..tree.agents.state import AgentRecord, TreeState

__all__ = ["Observer", "Watcher", "Watchers", "watching"]

Watcher = Callable[[Any], None]
"""A function that is called with each TurnEvent, Question or CallEvent.

A watcher that was added by `watch_agent` is also called at the start and the end of each turn. A watcher must not
raise.
"""
Observer = Callable[[CallEvent], Awaitable[None] | None]

MAX_PROMPT: Final = 20_000
"""Maximum number of characters of a prompt in an event."""
MAX_WAITING: Final = 10_000
DRAIN_SECONDS: Final = 2.0


def watching(on_event: Callable[[TurnEvent], None]) -> Watcher:
    """Return a watcher that calls `on_event`, a callback of a program.

    If `on_event` raises, the exception goes to the exception handler of the event loop. Raises ConfigError if
    `on_event` is not callable or is a coroutine function.
    """
    if not callable(on_event) or inspect.iscoroutinefunction(on_event):
        raise ConfigError(f"on_event must be a plain function that takes a TurnEvent; got {on_event!r}")
    loop = asyncio.get_running_loop()

    def watcher(event: TurnEvent) -> None:
        try:
            on_event(event)
        except (Exception, SystemExit) as error:  # a callback must not end the thread of the event loop
            loop.call_exception_handler({"message": f"orch: {on_event!r} failed", "exception": error})

    return watcher


class Watchers:
    """Passes events to watchers and observers. A slow or failing observer neither delays nor breaks the run.

    Without watchers and observers, `active` is False. Then the start of a turn need not be announced.
    """

    def __init__(self) -> None:
        self._turns: dict[str, Watcher] = {}
        self._branches: dict[str, tuple[str, Watcher]] = {}
        self._agents: dict[str, tuple[str, Watcher]] = {}
        self._watched_turns: dict[str, _WatchedTurn] = {}
        """The watched turns in progress, by query id."""
        self._observers: list[_ObserverTask] = []
        self.active = False
        """Whether there are watchers, observers or watched turns."""

    def _update(self) -> None:
        self.active = bool(self._turns or self._branches or self._agents or self._watched_turns or self._observers)

    def watch_query(self, query_id: str, watcher: Watcher) -> None:
        """Call `watcher` with each TurnEvent of the query `query_id`."""
        self._turns[query_id] = watcher
        self._update()

    def watch_agent(self, key: str, id: str, watcher: Watcher) -> None:
        """Call `watcher` with the events of all turns of the agent `id` until `stop_watching_agent(key)`."""
        self._agents[key] = id, watcher
        self._update()

    def stop_watching_agent(self, key: str) -> None:
        """Remove the watcher of `key`."""
        self._agents.pop(key, None)
        self._update()

    def turn_started(self, agent: AgentRecord, query_id: str, prompt: str) -> bool:
        """Announce the start of a turn. Return whether the turn has watchers."""
        watched = query_id in self._turns or any(id == agent.spec.id for id, _ in self._agents.values())
        turn = self._watched_turns.get(query_id)
        if watched and turn is None:
            turn = self._watched_turns[query_id] = _WatchedTurn(
                agent.spec.id, _turn_started_event(agent, query_id, prompt)
            )
            self._notify_watchers(turn, turn.began)
        if turn is not None:
            turn.watched, turn.events = watched, TurnEventBuffer()  # a new process repeats the turn from the beginning
        return watched

    def join_turn(self, agent: AgentRecord, watcher: Watcher) -> str | None:
        """If the agent is in a turn, send the start of the turn and the events so far to a new `watcher`.

        If the turn began without watchers, only the worker knows the events so far. In that case return the query id,
        so that the caller can request the events from the worker.
        """
        if (pending := agent.pending) is None:
            return None
        if (turn := self._watched_turns.get(pending.query_id)) is None:
            turn = _WatchedTurn(agent.spec.id, _turn_started_event(agent, pending.query_id, pending.head))
            self._watched_turns[pending.query_id] = turn
            self._update()
        watcher(msgspec.structs.replace(turn.began, met=True))
        if not turn.watched:
            return pending.query_id
        watcher(turn.events.so_far(pending.query_id))
        return None

    @property
    def observing(self) -> bool:
        """Whether there are observers of tool calls."""
        return bool(self._observers or self._branches)

    def unwatch_query(self, query_id: str) -> None:
        """Remove the watcher of a query that was rejected."""
        self._turns.pop(query_id, None)
        self._update()

    def turn_ended(self, query_id: str, reply: Reply | None, error: ErrorInfo | None) -> None:
        """Announce the end of the query."""
        turn = self._watched_turns.pop(query_id, None)
        self.unwatch_query(query_id)
        if turn is not None:
            self._notify_watchers(turn, TurnEnded(query_id, reply, error))

    def watch_branch(self, key: str, id: str, watcher: Watcher) -> None:
        """Call `watcher` with the tool calls of the agent `id` and all its descendants.

        `stop_watching_branch(key)` ends the calls.
        """
        self._branches[key] = id, watcher
        self._update()

    def stop_watching_branch(self, key: str) -> None:
        """Remove the watcher of `key`."""
        self._branches.pop(key, None)
        self._update()

    def add_observer(self, observer: Observer) -> None:
        """Call `observer` with all tool calls of turns that start later. Raises ConfigError."""
        if not callable(observer):
            raise ConfigError(f"an observer must be a function that takes a CallEvent; got {observer!r}")
        self._observers.append(_ObserverTask(observer))
        self._update()

    def remove_observer(self, observer: Observer) -> None:
        """Remove `observer` and discard the events that it has not received."""
        for each in [each for each in self._observers if each.observer == observer]:
            self._observers.remove(each)
            each.stop()
        self._update()

    def notify_turn_event(self, query_id: str, event: TurnEvent | TurnSoFar) -> None:
        """Pass `event` to the watchers of the query."""
        if (watcher := self._turns.get(query_id)) is not None:
            watcher(event)
        if (turn := self._watched_turns.get(query_id)) is not None:
            if isinstance(event, TurnEvent):
                turn.events.add(event)
            else:
                turn.watched = True
                turn.events.merge(event)
            self._notify_watchers(turn, event)

    def _notify_watchers(self, turn: _WatchedTurn, event: Any) -> None:
        for id, watcher in list(self._agents.values()):
            if id == turn.id:
                watcher(event)

    def notify_tool_call(self, agents: TreeState, id: str, query_id: str, report: CallReport) -> None:
        """Pass a tool call of the agent `id` to all observers, and to the watchers of the agent's branch."""
        agent: AgentRecord = agents[id]
        fields = msgspec.structs.asdict(report)
        event = CallEvent(**fields, agent_id=id, agent=agent.spec.name, depth=agent.spec.depth, query_id=query_id)
        for each in self._observers:
            each.add(event)
        for ancestor_id, watcher in list(self._branches.values()):
            if any(each.spec.id == ancestor_id for each in agents.chain(id)):
                watcher(event)

    async def close(self) -> None:
        """Give observers a few seconds to process queued events, then stop them."""
        working = [each.task for each in self._observers if each.task is not None]
        if working:
            await asyncio.wait(working, timeout=DRAIN_SECONDS)
        for each in self._observers:
            each.stop()


class _WatchedTurn:
    """A turn in progress that has watchers."""

    def __init__(self, id: str, began: TurnStarted) -> None:
        self.id = id
        self.began = began
        self.watched = False
        """Whether the worker reports the events of this turn."""
        self.events = TurnEventBuffer()


def _turn_started_event(agent: AgentRecord, query_id: str, prompt: str) -> TurnStarted:
    pending = agent.pending
    if pending is None:
        return TurnStarted(query_id, prompt[:MAX_PROMPT])
    return TurnStarted(query_id, prompt[:MAX_PROMPT], pending.asker, pending.from_inbox, pending.request_id)


class _ObserverTask:
    """Calls one observer for each event, one event at a time."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.task: asyncio.Task[None] | None = None
        self._queue: deque[CallEvent] = deque()
        self._dropped = 0

    def add(self, event: CallEvent) -> None:
        """Queue `event` for the observer."""
        if len(self._queue) >= MAX_WAITING:
            self._dropped += 1
            return
        self._queue.append(event)
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._work())

    def stop(self) -> None:
        """Discard queued events and cancel the current call."""
        self._queue.clear()
        if self.task is not None:
            self.task.cancel()

    async def _work(self) -> None:
        while self._queue:
            if error := await self._notify(self._queue.popleft()):
                self._report_problem(f"observer {self.observer!r} failed, and the run continues: {error}")
            if self._dropped and not self._queue:
                self._report_problem(f"observer {self.observer!r} is too slow: it missed {self._dropped} events")
                self._dropped = 0

    async def _notify(self, event: CallEvent) -> str:
        """Call the observer with `event`. Return the error of the call, or "" if it succeeded."""
        if inspect.iscoroutinefunction(self.observer):
            try:
                outcome: Any = self.observer(event)
            except Exception as error:  # for example a TypeError of a function without parameters
                return describe_exception(error)
        else:
            outcome, failure = await in_thread(lambda: self.observer(event))
            if failure:
                return failure
        return (await await_result(outcome))[1]

    def _report_problem(self, message: str) -> None:
        asyncio.get_running_loop().call_exception_handler({"message": f"orch: {message}"})
