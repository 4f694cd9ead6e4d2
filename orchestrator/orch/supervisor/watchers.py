"""Who watches what agents do: one turn as it happens, or what becomes of every call of a tool."""

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
"""Called with each TurnEvent, Question or CallEvent; by `accompany` with a turn's begin and end too. Must not raise."""
Observer = Callable[[CallEvent], Awaitable[None] | None]

MOST_PROMPT: Final = 20_000
"""Characters of a prompt that are told."""
MOST_WAITING: Final = 10_000
DRAIN_SECONDS: Final = 2.0


def watching(on_event: Callable[[TurnEvent], None]) -> Watcher:
    """Return `on_event`, a program's own, as a watcher: what it raises is told by the event loop, and stops nothing.

    Raises ConfigError for what cannot be called, or would have to be awaited.
    """
    if not callable(on_event) or inspect.iscoroutinefunction(on_event):
        raise ConfigError(f"on_event is a plain function that takes a TurnEvent, not {on_event!r}")
    loop = asyncio.get_running_loop()

    def watcher(event: TurnEvent) -> None:
        try:
            on_event(event)
        except (Exception, SystemExit) as error:  # it is not this thread's to leave
            loop.call_exception_handler({"message": f"orch: {on_event!r} failed", "exception": error})

    return watcher


class Watchers:
    """Tells whoever watches; nobody who watches holds a run up, or breaks it."""

    def __init__(self) -> None:
        self._turns: dict[str, Watcher] = {}
        self._branches: dict[str, tuple[str, Watcher]] = {}
        self._agents: dict[str, tuple[str, Watcher]] = {}
        self._under_way: dict[str, _WatchedTurn] = {}
        """The turns that are told of, by query id."""
        self._observers: list[_ObserverTask] = []

    def attend(self, query_id: str, watcher: Watcher | None) -> None:
        """Tell `watcher`, if there is one, of each TurnEvent of that query."""
        if watcher is not None:
            self._turns[query_id] = watcher

    def accompany(self, key: str, id: str, watcher: Watcher) -> None:
        """Tell `watcher` of all turns of the agent `id` until `depart`."""
        self._agents[key] = id, watcher

    def stop_accompanying(self, key: str) -> None:
        """Tell it no more."""
        self._agents.pop(key, None)

    def begins(self, node: AgentRecord, query_id: str, prompt: str) -> bool:
        """The turn begins; say whether anybody is to be told of its TurnEvents."""
        told = query_id in self._turns or any(id == node.spec.id for id, _ in self._agents.values())
        turn = self._under_way.get(query_id)
        if told and turn is None:
            turn = self._under_way[query_id] = _WatchedTurn(node.spec.id, _began(node, query_id, prompt))
            self._tell(turn, turn.began)
        if turn is not None:
            turn.told, turn.tale = told, TurnEventBuffer()  # another process begins it anew
        return told

    def meet(self, node: AgentRecord, watcher: Watcher) -> str | None:
        """Tell `watcher` of the turn that the agent is in, if it is in one: that it began, and what happened so far.

        Return its query id if its process is to say that, since it was told that nobody watches.
        """
        if (pending := node.pending) is None:
            return None
        if (turn := self._under_way.get(pending.query_id)) is None:
            turn = _WatchedTurn(node.spec.id, _began(node, pending.query_id, pending.head))
            self._under_way[pending.query_id] = turn
        watcher(msgspec.structs.replace(turn.began, met=True))
        if not turn.told:
            return pending.query_id
        watcher(turn.tale.so_far(pending.query_id))
        return None

    @property
    def observing(self) -> bool:
        """Whether anybody is to be told of calls."""
        return bool(self._observers or self._branches)

    def leave(self, query_id: str) -> None:
        """The query was not accepted."""
        self._turns.pop(query_id, None)

    def ended(self, query_id: str, reply: Reply | None, error: ErrorInfo | None) -> None:
        """The query is over."""
        self.leave(query_id)
        if (turn := self._under_way.pop(query_id, None)) is not None:
            self._tell(turn, TurnEnded(query_id, reply, error))

    def follow(self, key: str, id: str, watcher: Watcher) -> None:
        """Tell `watcher` of the calls of the agent `id`, and of all agents below it, until `unfollow`."""
        self._branches[key] = id, watcher

    def unfollow(self, key: str) -> None:
        """Tell it no more."""
        self._branches.pop(key, None)

    def add(self, observer: Observer) -> None:
        """Tell `observer` of all calls of turns that begin from now on. Raises ConfigError."""
        if not callable(observer):
            raise ConfigError(f"an observer is a function that takes a CallEvent, not {observer!r}")
        self._observers.append(_ObserverTask(observer))

    def remove(self, observer: Observer) -> None:
        """Tell it no more, not even of what it has not heard of yet."""
        for each in [each for each in self._observers if each.observer == observer]:
            self._observers.remove(each)
            each.stop()

    def happened(self, query_id: str, event: TurnEvent | TurnSoFar) -> None:
        """Tell who watches that query."""
        if (watcher := self._turns.get(query_id)) is not None:
            watcher(event)
        if (turn := self._under_way.get(query_id)) is not None:
            if isinstance(event, TurnEvent):
                turn.tale.add(event)
            else:
                turn.told = True
                turn.tale.follow(event)
            self._tell(turn, event)

    def _tell(self, turn: _WatchedTurn, event: Any) -> None:
        for id, watcher in list(self._agents.values()):
            if id == turn.id:
                watcher(event)

    def called(self, nodes: TreeState, id: str, query_id: str, called: CallReport) -> None:
        """Tell all observers what became of a call of the agent `id`."""
        node: AgentRecord = nodes[id]
        told = msgspec.structs.asdict(called)
        event = CallEvent(**told, agent_id=id, agent=node.spec.name, depth=node.spec.depth, query_id=query_id)
        for each in self._observers:
            each.tell(event)
        for top, watcher in list(self._branches.values()):
            if _is_below(nodes, node, top):
                watcher(event)

    async def close(self) -> None:
        """Let observers hear what they have not heard yet, for some seconds; then stop telling them."""
        working = [each.working for each in self._observers if each.working is not None]
        if working:
            await asyncio.wait(working, timeout=DRAIN_SECONDS)
        for each in self._observers:
            each.stop()


class _WatchedTurn:
    """A turn under way of which somebody is told."""

    def __init__(self, id: str, began: TurnStarted) -> None:
        self.id = id
        self.began = began
        self.told = False
        """Whether its process tells what happens in it."""
        self.tale = TurnEventBuffer()


def _began(node: AgentRecord, query_id: str, prompt: str) -> TurnStarted:
    pending = node.pending
    if pending is None:
        return TurnStarted(query_id, prompt[:MOST_PROMPT])
    return TurnStarted(query_id, prompt[:MOST_PROMPT], pending.asker, pending.from_inbox, pending.request_id)


class _ObserverTask:
    """Tells one observer of one event after the other."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.working: asyncio.Task[None] | None = None
        self._waiting: deque[CallEvent] = deque()
        self._lost = 0

    def tell(self, event: CallEvent) -> None:
        """Let the observer hear of `event` as soon as it has heard of all before."""
        if len(self._waiting) >= MOST_WAITING:
            self._lost += 1
            return
        self._waiting.append(event)
        if self.working is None or self.working.done():
            self.working = asyncio.get_running_loop().create_task(self._work())

    def stop(self) -> None:
        """Tell it nothing more."""
        self._waiting.clear()
        if self.working is not None:
            self.working.cancel()

    async def _work(self) -> None:
        while self._waiting:
            if error := await self._told(self._waiting.popleft()):
                self._complain(f"observer {self.observer!r} failed, and the run goes on: {error}")
            if self._lost and not self._waiting:
                self._complain(f"observer {self.observer!r} is too slow: it was not told of {self._lost} events")
                self._lost = 0

    async def _told(self, event: CallEvent) -> str:
        """Return what went wrong, "" when nothing did."""
        if inspect.iscoroutinefunction(self.observer):
            try:
                said: Any = self.observer(event)
            except Exception as error:  # such as one that takes no event
                return describe_exception(error)
        else:
            said, failed = await in_thread(lambda: self.observer(event))
            if failed:
                return failed
        return (await await_result(said))[1]

    def _complain(self, message: str) -> None:
        asyncio.get_running_loop().call_exception_handler({"message": f"orch: {message}"})


def _is_below(nodes: TreeState, node: AgentRecord | None, top: str) -> bool:
    while node is not None:
        if node.spec.id == top:
            return True
        node = nodes.get(node.spec.parent_id)
    return False
