"""Replaces the beginning of an agent's conversation by a summary, between two requests of a turn.

A compaction is one entry in the transcript, and the messages stay in the file. Nothing changes before the entry is
written. If no model writes a summary, the summary is extracted from the messages.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from orch_protocol.agent.spec import BackendSpec, CompactionSpec
from orch_protocol.core.errors import ConfigError, ContextOverflowError, OrchError
from orch_protocol.core.messages import INCOMPLETE_STOPS, Message, Text, Usage, text_of
from orch_protocol.session.entries import CompactionEntry, CompactionReason, CompactionWriter
from orch_protocol.session.tree import CompactionDone

from ..backends.base import ONE_REQUEST, Backend
from ..conversation.stubs import is_summary
from ..conversation.tokens import CHARS_PER_TOKEN, TokenEstimator
from ..session.session import SessionState
from ..session.transcript import Transcript
from ..session.visible_messages import VisibleMessage
from ..tools.dispatch.budget_client import BudgetClient, BudgetReservation
from .compaction_rules import CompactionCut, plan_compaction, requested_cut
from .compaction_summary import (
    REMEMBER,
    SYSTEM,
    CompactionDigest,
    details_of,
    digest_of,
    extract_summary,
    in_context_prompt,
    parts_of,
    recorded_digest,
    split_memory_items,
    summary_prompt,
    summary_text,
    usable_summary,
)
from .summarizer import writer_of

if TYPE_CHECKING:
    from ..hooks.session_events import ArchivalHooks
    from ..memory.memory_session import MemorySession

__all__ = ["Compactor"]

CHARS_ASKED: Final = 2
"""Maximum number of characters in one summary request, per token of the context window.

With this value, the characters fill about half of the window.
"""
MIN_ASKED: Final = 4_000
MAX_ASKED: Final = 400_000


class _PlannedCompaction(Struct, frozen=True):
    """A compaction that will be done now. `replaced` are the replaced messages. `kept` is the first message that stays.

    `tokens` is the size of the conversation, and `known` contains the facts about the messages. The summary may have
    about `chars` characters. `room` is the free space in the context window, in tokens.
    """

    turn: str
    reason: CompactionReason
    cut: CompactionCut
    replaced: list[Message]
    kept: VisibleMessage[int]
    known: CompactionDigest
    tokens: int
    chars: int
    room: int


class _WrittenSummary(Struct):
    """The summary and its writer, with the budget reservations for the summary and their usage.

    `turn` is the query, or "" between turns.
    """

    body: str = ""
    writer: CompactionWriter = "extract"
    reservations: list[tuple[BudgetReservation, Usage]] = []
    turn: str = ""


class Compactor:
    """Compacts the conversation of one agent by `rules`.

    `model` returns the current model of the agent. `make` creates a backend for this model, and `budget` reserves the
    budget of its requests. `memory` receives facts that the agent should remember.
    """

    def __init__(
        self,
        rules: CompactionSpec,
        transcript: Transcript,
        backend: Backend,
        budget: BudgetClient,
        *,
        model: Callable[[], BackendSpec],
        make: Callable[[BackendSpec], Backend],
        memory: MemorySession | None = None,
    ) -> None:
        self._rules = rules
        self._transcript = transcript
        self._backend = backend
        self._budget = budget
        self._model = model
        self._make = make
        self._memory = memory
        self._uncounted_usage = Usage()

    async def compact(
        self,
        turn: str,
        reason: CompactionReason,
        hooks: ArchivalHooks | None = None,
        instructions: str = "",
        refusals: int = 0,
    ) -> CompactionDone | None:
        """Compact the conversation in the query `turn`.

        `refusals` is the number of times that the provider refused the request. From the second refusal on, no model
        writes the summary, because the last summary is recent.

        Return None if compaction is not necessary, does not help, or is forbidden by a hook. `hooks` may forbid the
        compaction, write the summary, or add lines. The model gets `instructions`. The rules limit the time that the
        model has. Raise StoreError if the entry cannot be written. Raise ConfigError if a requested compaction is not
        possible. After an error or a cancellation, the conversation is unchanged.
        """
        refusals = max(refusals, int(reason == "refused"))
        due = self._plan(turn, reason, refusals)
        if due is None:
            if reason == "asked":
                raise ConfigError(self._nothing_to_compact_text())
            return None
        decision = None
        if hooks is not None:
            decision = await hooks.before_compaction(reason, due.replaced, due.tokens, instructions)
            if decision is None and reason == "asked":
                raise ConfigError(
                    "a hook prevents the compaction of this conversation; `orch hooks list` shows all hooks"
                )
            if decision is None:
                return None
            instructions = decision.instructions
        written = _WrittenSummary(reservations=[], turn=turn)
        try:
            if decision is not None and decision.summary:
                written.body, written.writer = decision.summary, "hook"
            elif refusals < 2:
                await self._ask(written, due, instructions)
                await self._flush(written)
            if not written.body:
                written.body, written.writer = extract_summary(due.replaced, due.known.body, due.chars), "extract"
            written.body = "\n".join((written.body, *(decision.added if decision is not None else ())))
            entry, usage = self._record(due, written)
        except BaseException:
            self._budget.losses.add(self._uncounted_usage)
            self._uncounted_usage = Usage()
            raise
        finally:
            for reservation, took in written.reservations:
                reservation.settle(took)
        after, supplied = self._backend.context_tokens(), written.writer == "hook"
        if hooks is not None:
            hooks.compacted(reason, entry.summary, tokens_before=due.tokens, tokens_after=after, supplied=supplied)
        sizes = (due.tokens, after)
        return CompactionDone(entry.id, len(due.replaced), *sizes, reason, written.writer, entry.summary, usage)

    def _nothing_to_compact_text(self) -> str:
        """Return the reason why no message can be compacted."""
        return (
            f"there is nothing to compact: of {self._backend.context_tokens():,} tokens in "
            f"{len(self._transcript.session.view.items)} messages, the part that could be replaced is "
            "no longer than a summary"
        )

    def _plan(self, turn: str, reason: CompactionReason, refusals: int) -> _PlannedCompaction | None:
        session, backend, rules = self._transcript.session, self._backend, self._rules
        view, window, tokens = session.view, backend.info().context_limit, backend.context_tokens()
        size = (getattr(backend, "estimator", None) or TokenEstimator()).message
        if reason in ("asked", "hook"):
            cut = requested_cut(view.items, size, rules, tokens=tokens, context_messages=view.project_items)
        else:
            cut = plan_compaction(
                view.items,
                size,
                rules,
                tokens=tokens,
                window=window,
                context_messages=view.project_items,
                refusals=refusals,
            )
        if cut is None:
            return None
        replaced = [item.message for item in view.items[view.project_items : cut.stop]]
        return _PlannedCompaction(
            turn=turn,
            reason=reason,
            cut=cut,
            replaced=replaced,
            kept=view.items[cut.stop],
            known=digest_of(
                replaced, _before(session, replaced), within=cut.within, chars=cut.summary * CHARS_PER_TOKEN
            ),
            tokens=tokens,
            chars=cut.summary * CHARS_PER_TOKEN,
            room=window - tokens if not refusals else 0,
        )

    async def _flush(self, written: _WrittenSummary) -> None:
        """Save the items to remember in memory before they leave the conversation."""
        written.body, items = split_memory_items(written.body)
        if self._memory is not None and items:
            await self._memory.flush(items)

    def _record(self, due: _PlannedCompaction, written: _WrittenSummary) -> tuple[CompactionEntry, Usage]:
        """Record the compaction and update the conversation."""
        usage = self._uncounted_usage
        entry = self._transcript.compaction(
            summary=summary_text(due.known, written.body, due.chars),
            first_kept_entry_id=due.kept.first,
            tokens_before=due.tokens,
            turn=due.turn,
            reason=due.reason,
            writer=written.writer,
            usage=usage if usage != Usage() else None,
            details=details_of(due.known, written.body),
        )
        self._uncounted_usage = Usage()
        session = self._transcript.session
        self._backend.load(session.messages, session.responses)
        return entry, usage

    # Requests to the model.

    async def _ask(self, written: _WrittenSummary, due: _PlannedCompaction, more: str) -> None:
        """Let the model write the summary. `more` contains additional instructions.

        On failure or timeout, the summary stays empty.
        """
        spec = writer_of(self._model())
        if spec is None:
            return
        if self._memory is not None and self._memory.flushes:
            more = f"{more}\n{REMEMBER}".lstrip()
        backend: Backend | None = None
        try:
            async with asyncio.timeout(self._rules.seconds):
                backend = self._make(spec)
                # The agent's own backend may know a smaller window, which the server named.
                is_own_model = spec is self._model()
                window = (self._backend if is_own_model else backend).info().context_limit
                if due.room * CHARS_PER_TOKEN > 2 * due.chars and is_own_model:
                    written.body = await self._summarize_in_context(backend, written, due, more)
                if not written.body:
                    written.body = await self._summarize_in_parts(backend, written, due, more, window)
                written.writer = "model"
        except TimeoutError:
            print(f"compacting: no summary within {self._rules.seconds:g} s", flush=True)
        except OrchError as error:
            print(f"compacting: no summary: {error}", flush=True)
        except Exception:
            traceback.print_exc()
        finally:
            if backend is not None:
                await backend.close()

    async def _summarize_in_context(
        self, backend: Backend, written: _WrittenSummary, due: _PlannedCompaction, more: str
    ) -> str:
        """Return a summary by a model. The model gets the whole conversation from the provider's cache.

        Return "" if the model gives no usable summary, or if the request is too long.
        """
        own_backend = self._backend
        backend.append_system(getattr(own_backend, "system", ""), getattr(own_backend, "tools", ()))
        backend.load(tuple(own_backend.transcript()), 0)
        backend.prefix = own_backend.prefix
        # At the tail, the prompt follows the cache markers, so that the request reads the cache and writes nothing.
        backend.tail = f"{in_context_prompt(text_of(due.kept.message), due.chars)}\n{more}".rstrip()
        try:
            return await self._answer(backend, written, due.chars)
        except ContextOverflowError:
            return ""

    async def _summarize_in_parts(
        self, backend: Backend, written: _WrittenSummary, due: _PlannedCompaction, more: str, window: int
    ) -> str:
        """Return a summary by a model that gets only the replaced messages, in parts if necessary.

        `window` is the context window of the model. Return "" on failure.
        """
        body = due.known.body
        limit = max(MIN_ASKED, min(window * CHARS_ASKED if window else MAX_ASKED, MAX_ASKED))
        parts = parts_of(due.replaced, limit)
        backend.append_system(f"{SYSTEM}\n{more}".rstrip(), ())
        backend.prefix, backend.tail = ONE_REQUEST, ""
        for number, part in enumerate(parts, 1):
            backend.load((), number - 1)
            backend.append_user((Text(summary_prompt(part, body, due.chars, number, len(parts))),))
            body = await self._answer(backend, written, due.chars)
            if not body:
                return ""
        return body

    async def _answer(self, backend: Backend, written: _WrittenSummary, chars: int) -> str:
        reservation = await self._budget.reserve(backend, outside_turn=not written.turn)
        turn = await self._budget.response(backend, reservation)
        usage = turn.usage.with_one_model_call()
        written.reservations.append((reservation, usage))
        self._uncounted_usage += usage
        return "" if turn.stop_reason in INCOMPLETE_STOPS else usable_summary(text_of(turn.message), chars)


def _before(session: SessionState, replaced: Iterable[Message]) -> CompactionDigest:
    """Return the facts of the previous compaction.

    If the previous summary is not among `replaced`, return only the task.
    """
    known = recorded_digest(session.compacted)
    return known if any(map(is_summary, replaced)) else CompactionDigest(task=known.task)
