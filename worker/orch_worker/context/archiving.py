"""Lets what an agent has finished leave its conversation for holders. The root decides what; this one does it.

Everything happens between requests, and nobody waits for it: an agent that is asked meanwhile answers meanwhile. Only
a request that is larger than it may be waits until it is smaller.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from orch_protocol.agent.spec import ArchivalSpec, BackendSpec, ToolSpec
from orch_protocol.core.archives import Collapse, RecordUpgrade
from orch_protocol.core.errors import OrchError, StoreError
from orch_protocol.core.messages import Message, StopReason
from orch_protocol.services.archiving import (
    COMMIT_ARCHIVES,
    PLAN_ARCHIVING,
    ArchivePlan,
    CommitArchives,
    PlanArchiving,
    SummaryOrder,
)
from orch_protocol.services.requests import LIST_LIVE_SUBAGENTS, LiveAgent
from orch_protocol.services.service import Empty

from ..backends.base import Backend, PromptPrefix
from ..conversation.live_subagents import LiveSubagent, live_block
from ..session.transcript import Transcript
from ..tools.api.root_client import CallRoot
from .summarizer import Summarizer

if TYPE_CHECKING:
    from ..hooks.session_events import ArchivalHooks

__all__ = ["TurnArchiver"]

PLAN_SECONDS: Final = 60.0
LIVE_SECONDS: Final = 10.0
RELIEF_SECONDS: Final = 2.0
CACHE_SECONDS: Final = 300.0
"""How long a provider keeps what it has cached of a conversation: after that, changing it costs nothing more."""


class TurnArchiver:
    """What one agent does about its past.

    `call` asks the root; with `tools` that start subagents it tells of these too. `on_fault` is told when something
    could not be put on record; `hooks` returns those there are.
    """

    def __init__(
        self,
        spec: ArchivalSpec,
        transcript: Transcript,
        backend: Backend,
        call: CallRoot,
        *,
        summariser: Summarizer,
        tools: Sequence[ToolSpec],
        on_fault: Callable[[], None] = lambda: None,
        hooks: Callable[[], ArchivalHooks | None] = lambda: None,
    ) -> None:
        self._spec = spec
        self._transcript = transcript
        self._backend = backend
        self._call = call
        self._summariser = summariser
        self._may_spawn = any(tool.name == "spawn_subagent" for tool in tools)
        self._on_fault = on_fault
        self._hooks = hooks
        self._work: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._hurried = asyncio.Event()
        self._summaries: set[asyncio.Task[None]] = set()
        self._due: tuple[Collapse, ...] = ()
        self._done: asyncio.Future[int] | None = None
        self._turns = 0
        self._paused = False
        self._requests = 0
        self._asked_at = 0.0
        self._told = 0

    # What the agent's runtime says.

    def turn_began(self) -> None:
        """From now on the conversation changes between requests alone, until as many turns have ended."""
        self._turns += 1
        self._hurried.clear()

    async def turn_ended(self, stop_reason: StopReason | None) -> None:
        """A turn is over, None: with an error. Its archiving begins; with `wait` this returns when it is done.

        Nobody waits for that after a turn that was cancelled, nor when it takes too long, or `hurry` is called.
        """
        self._turns -= 1
        self._settle()
        if stop_reason is None:
            return
        self._work = self._begin(stop_reason)
        if self._spec.wait and stop_reason != "cancelled":
            await self._until_done([self._work], PLAN_SECONDS)
            if self._summaries:
                await self._until_done(self._summaries, self._spec.summary_seconds)

    async def turn_paused(self) -> None:
        """A turn has reached its limit of steps and is to go on: what it did so far is archived as if it had ended.

        Returns when that is done, with the summary, from which it goes on; or when it takes too long, or at `hurry`.
        """
        self._paused = True
        try:
            self._settle()
            self._work = self._begin("max_turns")
            await self._until_done([self._work], PLAN_SECONDS)
            if self._summaries:
                await self._until_done(self._summaries, self._spec.summary_seconds)
        finally:
            self._paused = False

    def hurry(self) -> None:
        """Let nobody wait any longer; what is under way goes on."""
        self._hurried.set()

    async def _until_done(self, tasks: Iterable[asyncio.Task[None]], seconds: float) -> None:
        done, hurried = asyncio.create_task(asyncio.wait(tasks)), asyncio.create_task(self._hurried.wait())
        try:
            await asyncio.wait([done, hurried], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            done.cancel()
            hurried.cancel()

    async def before_request(self) -> str:
        """The next request is to be made: what is due leaves the conversation. Return what it says of who is live."""
        now = asyncio.get_running_loop().time()
        if self._late_is_free(now):
            try:
                self._use_late()
            except StoreError as error:
                print(f"archiving: {error}", flush=True)  # the receipts read well enough
        self._settle()
        if self._spec.high_tokens and self._backend.context_tokens() > self._spec.high_tokens:
            await self._relieve()
        self._requests, self._asked_at = self._requests + 1, now
        return await self.block()

    @property
    def in_tail(self) -> bool:
        """Whether requests say in their end who is live, rather than in their system text."""
        return self._spec.in_tail

    def told(self, system: str, prefix: PromptPrefix) -> None:
        """The next request begins with `system`: so do those beside it, which ask for summaries."""
        self._summariser.system, self._summariser.prefix = system, prefix

    def answered_by(self, backend: BackendSpec) -> None:
        """The model behind `backend` is the agent's own from now on."""
        self._summariser.answered_by(backend)

    def stay(self, backend: BackendSpec) -> None:
        """Let nobody but models of this machine read what was archived: the one behind `backend`, as a rule."""
        self._summariser.stay(backend)

    def moved(self) -> None:
        """The conversation goes on elsewhere: what was to leave it is another branch's by now, and stays."""
        self._due, self._done = (), None
        for task in self._under_way:
            task.cancel()
        self._told = 0

    def stop(self) -> None:
        """Give up what is under way: what is not on record yet is as if it had not been begun."""
        self._due, self._done = (), None
        for task in (*self._under_way, *self._summaries):
            task.cancel()

    # The work.

    async def shorten(self) -> None:
        """Let what is finished leave the conversation now, whether it is due or not; see `_relieve`."""
        await self._relieve(now=True)

    async def _relieve(self, *, now: bool = False) -> None:
        """Let what can go leave a conversation that has outgrown its bounds, before it is sent once more.

        That takes some milliseconds, and is given up after RELIEF_SECONDS: it will be done behind the request then.
        """
        self._paused = True
        try:
            async with asyncio.timeout(RELIEF_SECONDS):
                await self._worked()
                tokens = self._backend.context_tokens()
                if now or tokens > max(self._spec.high_tokens, self._told):
                    # Not asked again before there is more to go: what cannot leave now cannot a moment later.
                    self._told = tokens + self._spec.high_tokens // 8
                    self._work = self._begin(None, now=now)
                    await self._worked()
        except TimeoutError:
            pass
        finally:
            self._paused = False

    async def _worked(self) -> None:
        if self._work is not None:
            await asyncio.wait([self._work])

    def _begin(self, stop_reason: StopReason | None, *, now: bool = False) -> asyncio.Task[None]:
        # As it is now, which is whole: a moment later a request may be under way.
        conversation, items = tuple(self._backend.transcript()), self._transcript.session.view.items
        last = items[-1].last if items else ""
        work = asyncio.create_task(self._consider(stop_reason, last, conversation, self._work, now=now))
        self._under_way.add(work)
        work.add_done_callback(self._under_way.discard)
        return work

    async def _consider(
        self,
        stop_reason: StopReason | None,
        last: str,
        conversation: Sequence[Message],
        before: asyncio.Task[None] | None,
        *,
        now: bool,
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            estimator = getattr(self._backend, "estimator", None)
            factor = estimator.factor if estimator is not None else 1.0
            summariser = self._summariser
            tokens = self._backend.context_tokens()
            ask = PlanArchiving(stop_reason, last, tokens, factor, summariser.there, summariser.beside, now)
            plan = await self._call(PLAN_ARCHIVING, ask, PLAN_SECONDS)
            if not plan.collapses:
                return
            collapses, orders = await self._looked_at(plan)
            if not collapses:
                return
            requests = await self._carry_out(collapses)
            done = tuple(collapse.holder for collapse in collapses)
            archived = CommitArchives(done, self._backend.context_tokens(), turns=self._turns_of(done))
            await self._call(COMMIT_ARCHIVES, archived, PLAN_SECONDS)
            if (hooks := self._hooks()) is not None:
                for collapse in collapses:
                    hooks.archived(collapse)
            if orders:
                # What is to be archived next does not wait for a model.
                asking = asyncio.create_task(self._summarise(orders, conversation, requests))
                self._summaries.add(asking)
                asking.add_done_callback(self._summaries.discard)
        except OrchError as error:
            # The conversation is what it was, and the next turn's end is the next occasion.
            print(f"archiving: {error}", flush=True)
            if isinstance(error, StoreError):
                await self._tell(str(error))
                self._on_fault()
        except Exception:
            traceback.print_exc()

    def _turns_of(self, holders: Sequence[str]) -> dict[str, str]:
        """Return the query ids of the turns that went to `holders`, by holder."""
        replies = self._transcript.session.replies
        archived = {reply.archived_to: id for id, reply in replies.items() if reply.archived_to}
        return {holder: archived[holder] for holder in holders if holder in archived}

    async def _looked_at(self, plan: ArchivePlan) -> tuple[tuple[Collapse, ...], tuple[SummaryOrder, ...]]:
        """Return what hooks let go on record of `plan`, and what a model is still to write."""
        hooks = self._hooks()
        if hooks is None:
            return plan.collapses, plan.summarise
        session = self._transcript.session
        view, blocked = session.view.copy(), list[range]()
        kept: list[Collapse] = []
        written: set[str] = set()
        for collapse in plan.collapses:
            entries = range(session.places[collapse.first], session.places[collapse.last] + 1)
            if any(entries.start < other.stop and other.start < entries.stop for other in blocked):
                continue  # it would take along what is to stay
            start, stop = view.part(collapse.first, collapse.last)
            said = await hooks.before_archive(collapse, [item.message for item in view.items[start:stop]])
            if said is None:
                blocked.append(entries)
                continue
            view.collapse(said.collapse, 0)
            kept.append(said.collapse)
            if said.supplied:
                written.add(collapse.holder)
        holders = {collapse.holder for collapse in kept} - written
        return tuple(kept), tuple(order for order in plan.summarise if order.holder in holders)

    async def _tell(self, problem: str) -> None:
        try:
            await self._call(COMMIT_ARCHIVES, CommitArchives(problem=problem), PLAN_SECONDS)
        except OrchError as error:
            print(f"archiving: {error}", flush=True)

    async def _carry_out(self, collapses: tuple[Collapse, ...]) -> int:
        """Return when `collapses` are on record: once no request is under way. Returns how many there were by then."""
        self._due, self._done = collapses, asyncio.get_running_loop().create_future()
        done = self._done
        if not self._turns or self._paused:
            self._settle()
        return await done

    def _settle(self) -> None:
        """Carry out what is due: on record first, then the conversation is what the record says."""
        due, done = self._due, self._done
        if not due or done is None:
            return
        self._due, self._done = (), None
        try:
            self._transcript.archive(due)
        except Exception as error:
            if not done.done():
                done.set_exception(error if isinstance(error, OrchError) else StoreError(f"cannot archive: {error}"))
            return
        self._reload()
        self._told = 0
        if not done.done():
            done.set_result(self._requests)

    def _reload(self) -> None:
        session = self._transcript.session
        self._backend.load(session.messages, session.responses)

    # Summaries.

    async def _summarise(self, orders: Sequence[SummaryOrder], conversation: Sequence[Message], requests: int) -> None:
        """Put what a model says of each archive where its stub is; one that fails leaves the receipt.

        `requests` is how many there were when the archives left the conversation.
        """
        for order in orders:
            try:
                stub = await self._summariser.stub(order, conversation)
                if stub is not None:
                    self._upgrade(order.holder, stub, at_once=requests == self._requests)
            except OrchError as error:
                print(f"archiving: no summary of {order.holder}: {error}", flush=True)
                self._on_fault()
            except Exception:
                traceback.print_exc()

    def _upgrade(self, holder: str, stub: str, *, at_once: bool) -> None:
        self._transcript.upgrade(RecordUpgrade(holder, stub, at_once))
        if at_once:
            # No request was made since the collapse, so nothing is cached behind it yet.
            self._reload()

    def _late_is_free(self, now: float) -> bool:
        return bool(self._transcript.session.view.late) and now - self._asked_at > CACHE_SECONDS

    def _use_late(self) -> None:
        for holder, stub in list(self._transcript.session.view.late.items()):
            self._upgrade(holder, stub, at_once=True)

    # The block of live subagents.

    async def block(self) -> str:
        """Return what there is to be said of who is live now, "" for nothing."""
        children: list[LiveAgent] = []
        if self._may_spawn:
            try:
                children = await self._call(LIST_LIVE_SUBAGENTS, Empty(), LIVE_SECONDS)
            except OrchError as error:
                print(f"archiving: who is live is not known: {error}", flush=True)
        holders = [LiveSubagent(id, f"Archive: {task}") for id, task in self._transcript.session.view.holders()]
        return live_block(holders, self._spec.block_entries, [LiveSubagent(child.id, child.task) for child in children])
