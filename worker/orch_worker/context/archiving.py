"""Archives finished turns of an agent. The root decides what to archive, and this module does the archiving.

Archiving happens between requests and does not delay the agent. Only a request that exceeds the limit waits until the
conversation is shorter.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from orch_protocol.agent.spec import ArchivalSpec, BackendSpec, ToolSpec
from orch_protocol.core.archives import Collapse, RecordUpgrade
from orch_protocol.core.errors import OrchError, StoreError
from orch_protocol.core.messages import Message, StopReason, tool_uses
from orch_protocol.services.archives.archiving import (
    COMMIT_ARCHIVES,
    PLAN_ARCHIVING,
    ArchivePlan,
    CommitArchives,
    PlanArchiving,
    SummaryOrder,
)

from ..backends.base import Backend, PromptPrefix
from ..conversation.live_subagents import LiveSubagent, live_block
from ..session.transcript import Transcript
from ..tools.api.archive_texts import TEXT_FOLDER, TEXT_READERS
from ..tools.api.root_client import CallRoot
from .subagents_block import live_subagents
from .summarizer import ArchiveSummary, CachedRequest, Summarizer

if TYPE_CHECKING:
    from ..hooks.session_events import ArchivalHooks

__all__ = ["TurnArchiver"]

PLAN_SECONDS: Final = 60.0
RELIEF_SECONDS: Final = 2.0
WINDOW_SHARE: Final = 75
"""Percentage of the context window above which a request waits for archiving."""
CACHE_SECONDS: Final = 300.0
"""Seconds that a provider caches a conversation. After this time, a change of earlier messages costs nothing."""


class TurnArchiver:
    """Archives the turns of one agent.

    `call` calls services of the root. If `tools` can spawn subagents, the live-subagents block lists these subagents.
    `folder` is the session folder of the agent.
    `on_fault` is called when a change could not be recorded. `hooks` returns the archiving hooks or None.
    """

    def __init__(
        self,
        spec: ArchivalSpec,
        transcript: Transcript,
        backend: Backend,
        call: CallRoot,
        *,
        summarizer: Summarizer,
        tools: Sequence[ToolSpec],
        folder: Path,
        on_fault: Callable[[], None] = lambda: None,
        hooks: Callable[[], ArchivalHooks | None] = lambda: None,
    ) -> None:
        self._spec = spec
        self._transcript = transcript
        self._backend = backend
        self._call = call
        self._summarizer = summarizer
        self._may_spawn = any(tool.name == "spawn_subagent" for tool in tools)
        self._text_folder = str(folder / TEXT_FOLDER) if any(tool.name in TEXT_READERS for tool in tools) else ""
        self._on_fault = on_fault
        self._hooks = hooks
        self._work: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._waits_ended = asyncio.Event()
        self._summaries: set[asyncio.Task[None]] = set()
        self._planned_collapses: tuple[Collapse, ...] = ()
        self._done: asyncio.Future[int] | None = None
        self._turns = 0
        self._paused = False
        self._requests = 0
        self._last_request_time = 0.0
        self._last_request = CachedRequest()
        self._next_archiving_tokens = 0

    # Called by the runtime of the agent.

    def turn_began(self) -> None:
        """Note that a turn began. Until the turn has ended, the conversation changes only between requests."""
        self._turns += 1
        self._waits_ended.clear()

    async def turn_ended(self, stop_reason: StopReason | None) -> None:
        """Start archiving after a turn. `stop_reason` is None if the turn failed.

        If `spec.wait` is True, return when archiving is finished. The wait ends early after a timeout or a call of
        `end_waits`. There is no wait after a canceled turn.
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
        """Archive the turn so far, because the turn reached its limit of steps and will continue.

        Return when the archives and summaries are recorded, after a timeout, or after a call of `end_waits`.
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

    def end_waits(self) -> None:
        """End all waits. Archiving continues in the background."""
        self._waits_ended.set()

    async def _until_done(self, tasks: Iterable[asyncio.Task[None]], seconds: float) -> None:
        done, hurried = asyncio.create_task(asyncio.wait(tasks)), asyncio.create_task(self._waits_ended.wait())
        try:
            await asyncio.wait([done, hurried], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            done.cancel()
            hurried.cancel()

    async def before_request(self) -> str:
        """Apply the planned changes before the next request, and return the live-subagents block."""
        now = asyncio.get_running_loop().time()
        if self._pending_records_are_free(now):
            try:
                self._apply_pending_records()
            except StoreError as error:
                print(f"archiving: {error}", flush=True)  # After this error, the conversation keeps the receipts.
        self._settle()
        if self._high_tokens and self._backend.context_tokens() > self._high_tokens:
            await self._archive_before_request()
        self._requests, self._last_request_time = self._requests + 1, now
        return await self.block()

    @property
    def in_tail(self) -> bool:
        """Whether subagents are listed at the end of a request, and archives after the last record.

        Otherwise both are part of the system text.
        """
        return self._spec.in_tail

    def prompt_sent(self, system: str, prefix: PromptPrefix) -> None:
        """Use the text `system` and the `prefix` of the next request for summary requests too."""
        self._last_request = CachedRequest(system, prefix)

    def answered_by(self, backend: BackendSpec) -> None:
        """Use `backend` as the agent's own model from now on."""
        self._summarizer.answered_by(backend)

    def restrict_to_local(self, backend: BackendSpec) -> None:
        """From now on, allow only local models to read archived content. `backend` is the default model."""
        self._summarizer.restrict_to_local(backend)

    def on_branch_changed(self) -> None:
        """Cancel planned archives, because the conversation changed to another branch."""
        self._planned_collapses, self._done = (), None
        for task in self._under_way:
            task.cancel()
        self._next_archiving_tokens = 0

    def stop(self) -> None:
        """Cancel all work. Changes that are not recorded yet are discarded."""
        self._planned_collapses, self._done = (), None
        for task in (*self._under_way, *self._summaries):
            task.cancel()

    # Archiving.

    async def shorten(self) -> None:
        """Archive finished turns now, even if the conversation has not reached its limit."""
        await self._archive_before_request(now=True)

    async def _archive_before_request(self, *, now: bool = False) -> None:
        """Archive finished turns before the next request, because the conversation exceeds its limit.

        Archiving usually takes some milliseconds. After RELIEF_SECONDS, the request is sent, and archiving continues in
        the background.
        """
        self._paused = True
        try:
            async with asyncio.timeout(RELIEF_SECONDS):
                await self._wait_for_work()
                tokens = self._backend.context_tokens()
                if now or tokens > max(self._high_tokens, self._next_archiving_tokens):
                    # Ask again only after the conversation has grown. Until then, the answer would be the same.
                    self._next_archiving_tokens = tokens + self._high_tokens // 8
                    self._work = self._begin(None, now=now)
                    await self._wait_for_work()
        except TimeoutError:
            pass
        finally:
            self._paused = False

    @property
    def _high_tokens(self) -> int:
        """The size above which a request waits for archiving: that of the profile, or less in a small window."""
        high, window = self._spec.high_tokens, self._backend.info().context_limit
        return min(high, window * WINDOW_SHARE // 100) if window else high

    async def _wait_for_work(self) -> None:
        if self._work is not None:
            await asyncio.wait([self._work])

    def _begin(self, stop_reason: StopReason | None, *, now: bool = False) -> asyncio.Task[None]:
        # Copy the conversation while it is complete, because a request may start a moment later.
        conversation = tuple(self._backend.transcript())
        if stop_reason is None:
            conversation = _without_unsent(conversation)
        cached = msgspec.structs.replace(self._last_request, conversation=conversation)
        items = self._transcript.session.view.items
        last = items[-1].last if items else ""
        work = asyncio.create_task(self._plan_and_archive(stop_reason, last, cached, self._work, now=now))
        self._under_way.add(work)
        work.add_done_callback(self._under_way.discard)
        return work

    async def _plan_and_archive(
        self,
        stop_reason: StopReason | None,
        last: str,
        cached: CachedRequest,
        before: asyncio.Task[None] | None,
        *,
        now: bool,
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            estimator = getattr(self._backend, "estimator", None)
            factor = estimator.factor if estimator is not None else 1.0
            summarizer = self._summarizer
            tokens = self._backend.context_tokens()
            ask = PlanArchiving(
                stop_reason,
                last,
                tokens,
                factor,
                summarizer.is_available,
                summarizer.uses_own_model,
                now,
                self._backend.info().context_limit,
            )
            plan = await self._call(PLAN_ARCHIVING, ask, PLAN_SECONDS)
            if not plan.collapses:
                return
            collapses, orders = await self._filter_by_hooks(plan)
            if not collapses:
                return
            requests = await self._wait_until_recorded(collapses)
            done = tuple(collapse.holder for collapse in collapses)
            archived = CommitArchives(done, self._backend.context_tokens(), turns=self._turns_of(done))
            await self._call(COMMIT_ARCHIVES, archived, PLAN_SECONDS)
            if (hooks := self._hooks()) is not None:
                for collapse in collapses:
                    hooks.archived(collapse)
            if orders:
                # The model's answer must not delay the next archiving.
                asking = asyncio.create_task(self._summarize(orders, cached, requests))
                self._summaries.add(asking)
                asking.add_done_callback(self._summaries.discard)
        except OrchError as error:
            # The conversation is unchanged. Archiving is tried again after the next turn.
            print(f"archiving: {error}", flush=True)
            if isinstance(error, StoreError):
                await self._report_problem(str(error))
                self._on_fault()
        except Exception:
            traceback.print_exc()

    def _turns_of(self, holders: Sequence[str]) -> dict[str, str]:
        """Return the query ids of the archived turns. Keys are archive ids."""
        replies = self._transcript.session.replies
        archived = {reply.archived_to: id for id, reply in replies.items() if reply.archived_to}
        return {holder: archived[holder] for holder in holders if holder in archived}

    async def _filter_by_hooks(self, plan: ArchivePlan) -> tuple[tuple[Collapse, ...], tuple[SummaryOrder, ...]]:
        """Return the archives that hooks allow, and the orders for the summaries that no hook supplied."""
        hooks = self._hooks()
        if hooks is None:
            return plan.collapses, plan.summarize
        session = self._transcript.session
        view, blocked = session.view.copy(), list[range]()
        kept: list[Collapse] = []
        written: set[str] = set()
        for collapse in plan.collapses:
            entries = range(session.places[collapse.first], session.places[collapse.last] + 1)
            if any(entries.start < other.stop and other.start < entries.stop for other in blocked):
                continue  # This archive would include an entry that must stay.
            start, stop = view.part(collapse.first, collapse.last)
            decision = await hooks.before_archive(collapse, [item.message for item in view.items[start:stop]])
            if decision is None:
                blocked.append(entries)
                continue
            view.collapse(decision.collapse, 0)
            kept.append(decision.collapse)
            if decision.supplied:
                written.add(collapse.holder)
        holders = {collapse.holder for collapse in kept} - written
        return tuple(kept), tuple(order for order in plan.summarize if order.holder in holders)

    async def _report_problem(self, problem: str) -> None:
        try:
            await self._call(COMMIT_ARCHIVES, CommitArchives(problem=problem), PLAN_SECONDS)
        except OrchError as error:
            print(f"archiving: {error}", flush=True)

    async def _wait_until_recorded(self, collapses: tuple[Collapse, ...]) -> int:
        """Wait until `collapses` are recorded. Return the number of requests that were made until then."""
        self._planned_collapses, self._done = collapses, asyncio.get_running_loop().create_future()
        done = self._done
        if not self._turns or self._paused:
            self._settle()
        return await done

    def _settle(self) -> None:
        """Record planned archives. Then update the conversation from the record."""
        due, done = self._planned_collapses, self._done
        if not due or done is None:
            return
        self._planned_collapses, self._done = (), None
        try:
            self._transcript.archive(due)
        except Exception as error:
            if not done.done():
                done.set_exception(error if isinstance(error, OrchError) else StoreError(f"cannot archive: {error}"))
            return
        self._reload()
        self._next_archiving_tokens = 0
        if not done.done():
            done.set_result(self._requests)

    def _reload(self) -> None:
        session = self._transcript.session
        self._backend.load(session.messages, session.responses)

    # Summaries of archives.

    async def _summarize(self, orders: Sequence[SummaryOrder], cached: CachedRequest, requests: int) -> None:
        """Replace the receipt of each archive by a summary from a model. If the model fails, the receipt stays.

        `requests` is the number of requests that were made before the archived messages were removed from the
        conversation.
        """
        for order in orders:
            try:
                summary = await self._summarizer.summary(order, cached)
                if summary is not None:
                    self._upgrade(order.holder, summary, at_once=requests == self._requests)
            except OrchError as error:
                print(f"archiving: no summary of {order.holder}: {error}", flush=True)
                self._on_fault()
            except Exception:
                traceback.print_exc()

    def _upgrade(self, holder: str, summary: ArchiveSummary, *, at_once: bool) -> None:
        self._transcript.upgrade(RecordUpgrade(holder, summary.stub, at_once), summary.usage, summary.model)
        if at_once:
            # No request was made since the collapse, so this change does not invalidate a cached prefix.
            self._reload()

    def _pending_records_are_free(self, now: float) -> bool:
        return bool(self._transcript.session.view.pending_records) and now - self._last_request_time > CACHE_SECONDS

    def _apply_pending_records(self) -> None:
        for holder, stub in list(self._transcript.session.view.pending_records.items()):
            self._upgrade(holder, ArchiveSummary(stub), at_once=True)

    # The lists of subagents and archives.

    async def block(self) -> str:
        """Return the live-subagents block, or "" if there are no subagents.

        Archived turns are listed in it only if the block is part of the system text.
        """
        children = await live_subagents(self._call) if self._may_spawn else []
        return live_block((), 0, children) if self.in_tail else self._list(children)

    @property
    def archives(self) -> str:
        """The list of archived turns that follows their records, or "" if it is part of the live-subagents block."""
        return self._list() if self.in_tail else ""

    def _list(self, children: Sequence[LiveSubagent] = ()) -> str:
        holders = [LiveSubagent(id, f"Archive: {task}") for id, task in self._transcript.session.view.holders()]
        return live_block(
            holders, self._spec.block_entries, children, may_spawn=self._may_spawn, texts=self._text_folder
        )


def _without_unsent(conversation: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return `conversation` without the calls of the last response and what follows it.

    The last request did not contain these messages, and they stay in the conversation.
    """
    end = next((index for index in reversed(range(len(conversation))) if conversation[index].role == "assistant"), 0)
    return conversation[: end if conversation and tool_uses(conversation[end]) else end + 1]
