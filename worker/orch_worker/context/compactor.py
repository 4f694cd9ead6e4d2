"""Lets the beginning of an agent's conversation give way to a summary, between two requests of a turn.

One line of the session file does it; what was said stays on its lines. Until that line is written nothing has changed,
and a summary is always to be had: where no model writes one, it is made of what was said.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from orch_protocol.agent.spec import BackendSpec, CompactionSpec
from orch_protocol.core.errors import ConfigError, ContextOverflowError, OrchError
from orch_protocol.core.messages import Message, Text, Usage, text_of
from orch_protocol.session.entries import CompactionEntry, CompactionReason, CompactionWriter
from orch_protocol.session.tree import CompactionDone

from ..backends.base import Backend
from ..conversation.stubs import is_summary
from ..conversation.tokens import CHARS_PER_TOKEN, TokenEstimator
from ..session.session import SessionState
from ..session.transcript import Transcript
from ..session.visible_messages import VisibleMessage
from ..tools.dispatch.budget_client import BudgetClient, BudgetReservation
from .compaction_rules import CompactionCut, asked_for, max_request_tokens, plan_compaction, summary_tokens
from .compaction_summary import (
    REMEMBER,
    SYSTEM,
    CompactionDigest,
    details_of,
    digest_of,
    extract_summary,
    on_record,
    parts_of,
    question_beside,
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
"""Characters of a conversation that are shown at once, for each token of the window: half of it, at most."""
LEAST_ASKED: Final = 4_000
MOST_ASKED: Final = 400_000
UNFINISHED: Final = frozenset({"max_tokens", "budget", "refusal", "error"})


class _DueCompaction(Struct, frozen=True):
    """A compaction that is due: `gone` is to go of a conversation of `tokens`, and `kept` is the first that stays.

    `known` is what is known of what goes, and its summary may have about `chars` characters. There is `room` for so
    many tokens in the window beside the conversation.
    """

    turn: str
    reason: CompactionReason
    cut: CompactionCut
    gone: list[Message]
    kept: VisibleMessage[int]
    known: CompactionDigest
    tokens: int
    chars: int
    room: int


class _WrittenSummary(Struct):
    """What stands there in the end, who wrote it, and the money that was put aside for it, with what it took: for the
    query `turn`, "" for none."""

    body: str = ""
    writer: CompactionWriter = "extract"
    holds: list[tuple[BudgetReservation, Usage]] = []
    turn: str = ""


class Compactor:
    """Compacts one agent's conversation by `rules`.

    `model` says which model answers the agent now, `make` makes a backend of it, which is paid from `purse`. What that
    finds worth knowing in other conversations goes to `memory` first.
    """

    def __init__(
        self,
        rules: CompactionSpec,
        transcript: Transcript,
        backend: Backend,
        purse: BudgetClient,
        *,
        model: Callable[[], BackendSpec],
        make: Callable[[BackendSpec], Backend],
        memory: MemorySession | None = None,
    ) -> None:
        self._rules = rules
        self._transcript = transcript
        self._backend = backend
        self._purse = purse
        self._model = model
        self._make = make
        self._memory = memory
        self._unclaimed = Usage()

    async def compact(
        self, turn: str, reason: CompactionReason, hooks: ArchivalHooks | None = None, instructions: str = ""
    ) -> CompactionDone | None:
        """Compact the conversation in the query `turn`, if that is due and helps; return None if it does not.

        `hooks` may forbid it, write the summary themselves, or add to it; each compaction asks them, and tells them.
        A model that writes is told `instructions`. Waits for one as long as the rules say. Raises StoreError when it
        cannot be recorded: then the conversation is what it was, as it is for who is cancelled. What somebody asked for
        and cannot be is a ConfigError.
        """
        due = self._due(turn, reason)
        if due is None:
            if reason == "asked":
                raise ConfigError(self._nothing())
            return None
        told = None
        if hooks is not None:
            told = await hooks.before_compaction(reason, due.gone, due.tokens, instructions)
            if told is None and reason == "asked":
                raise ConfigError(
                    "a hook forbids that this conversation is compacted: `orch hooks` shows which there are"
                )
            if told is None:
                return None
            instructions = told.instructions
        written = _WrittenSummary(holds=[], turn=turn)
        try:
            if told is not None and told.summary:
                written.body, written.writer = told.summary, "hook"
            else:
                await self._ask(written, due, instructions)
                await self._flush(written)
            if not written.body:
                written.body, written.writer = extract_summary(due.gone, due.known.body, due.chars), "extract"
            written.body = "\n".join((written.body, *(told.added if told is not None else ())))
            entry, usage = self._record(due, written)
        except BaseException:
            self._purse.owe(self._unclaimed)
            self._unclaimed = Usage()
            raise
        finally:
            for hold, took in written.holds:
                hold.settle(took)
        after, supplied = self._backend.context_tokens(), written.writer == "hook"
        if hooks is not None:
            hooks.compacted(reason, entry.summary, tokens_before=due.tokens, tokens_after=after, supplied=supplied)
        sizes = (due.tokens, after)
        return CompactionDone(entry.id, len(due.gone), *sizes, reason, written.writer, entry.summary, usage)

    def _nothing(self) -> str:
        """Return why there is nothing to compact."""
        return (
            f"there is nothing to compact: of {self._backend.context_tokens():,} tokens in "
            f"{len(self._transcript.session.view.items)} messages, all that could go is no longer than a summary of it"
        )

    def _due(self, turn: str, reason: CompactionReason) -> _DueCompaction | None:
        session, backend, rules = self._transcript.session, self._backend, self._rules
        view, window, tokens = session.view, backend.info().context_limit, backend.context_tokens()
        size = (getattr(backend, "estimator", None) or TokenEstimator()).message
        refused = reason == "refused"
        if reason in ("asked", "hook"):
            cut = asked_for(view.items, size, rules, tokens=tokens, told=view.told)
        else:
            cut = plan_compaction(
                view.items, size, rules, tokens=tokens, window=window, told=view.told, refused=refused
            )
        if cut is None:
            return None
        gone = [item.message for item in view.items[view.told : cut.stop]]
        return _DueCompaction(
            turn=turn,
            reason=reason,
            cut=cut,
            gone=gone,
            kept=view.items[cut.stop],
            known=digest_of(gone, _before(session, gone), within=cut.within),
            tokens=tokens,
            chars=summary_tokens(max_request_tokens(rules, window, tokens, refused=reason != "size")) * CHARS_PER_TOKEN,
            room=window - tokens if reason != "refused" else 0,
        )

    async def _flush(self, written: _WrittenSummary) -> None:
        """Keep what is to be remembered elsewhere, before it leaves the conversation."""
        written.body, items = split_memory_items(written.body)
        if self._memory is not None and items:
            await self._memory.flush(items)

    def _record(self, due: _DueCompaction, written: _WrittenSummary) -> tuple[CompactionEntry, Usage]:
        """Record it, and go on with the conversation as it is from now on."""
        usage = self._unclaimed
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
        self._unclaimed = Usage()
        session = self._transcript.session
        self._backend.load(session.messages, session.responses)
        return entry, usage

    # The model.

    async def _ask(self, written: _WrittenSummary, due: _DueCompaction, more: str) -> None:
        """Let a model write, which is told `more`; when it does not, or takes too long, nothing is written."""
        spec = writer_of(self._model())
        if spec is None:
            return
        if self._memory is not None and self._memory.flushes:
            more = f"{more}\n{REMEMBER}".lstrip()
        asking: Backend | None = None
        try:
            async with asyncio.timeout(self._rules.seconds):
                asking = self._make(spec)
                if due.room * CHARS_PER_TOKEN > 2 * due.chars and spec is self._model():
                    written.body = await self._beside(asking, written, due, more)
                if not written.body:
                    written.body = await self._apart(asking, written, due, more)
                written.writer = "model"
        except TimeoutError:
            print(f"compacting: no summary within {self._rules.seconds:g} s", flush=True)
        except OrchError as error:
            print(f"compacting: no summary: {error}", flush=True)
        except Exception:
            traceback.print_exc()
        finally:
            if asking is not None:
                await asking.close()

    async def _beside(self, asking: Backend, written: _WrittenSummary, due: _DueCompaction, more: str) -> str:
        """Return what a model writes that has the conversation before it, which its provider has cached; "": nothing.

        It is asked apart when that is too long after all.
        """
        mine = self._backend
        asking.append_system(getattr(mine, "system", ""), getattr(mine, "tools", ()))
        asking.load(tuple(mine.transcript()), 0)
        prompt = f"{question_beside(text_of(due.kept.message), due.chars)}\n{more}".rstrip()
        try:
            return await self._answer(asking, written, prompt, due.chars)
        except ContextOverflowError:
            return ""

    async def _apart(self, asking: Backend, written: _WrittenSummary, due: _DueCompaction, more: str) -> str:
        """Return what a model writes that is shown what goes, in parts if that is too much at once; "": nothing."""
        window, body = asking.info().context_limit, due.known.body
        most = max(LEAST_ASKED, min(window * CHARS_ASKED if window else MOST_ASKED, MOST_ASKED))
        parts = parts_of(due.gone, most)
        asking.append_system(f"{SYSTEM}\n{more}".rstrip(), ())
        for number, part in enumerate(parts, 1):
            asking.load((), number - 1)
            prompt = summary_prompt(part, body, due.chars, number, len(parts))
            body = await self._answer(asking, written, prompt, due.chars)
            if not body:
                return ""
        return body

    async def _answer(self, asking: Backend, written: _WrittenSummary, prompt: str, chars: int) -> str:
        asking.append_user((Text(prompt),))
        hold = await self._purse.reserve(asking, beside=not written.turn)
        turn = await self._purse.response(asking, hold)
        usage = turn.usage.of_a_response()
        written.holds.append((hold, usage))
        self._unclaimed += usage
        return "" if turn.stop_reason in UNFINISHED else usable_summary(text_of(turn.message), chars)


def _before(session: SessionState, gone: Iterable[Message]) -> CompactionDigest:
    """Return what the compaction before this one has on record; of one that is not shown any more, what never ends."""
    known = on_record(session.compacted)
    return known if any(map(is_summary, gone)) else CompactionDigest(task=known.task)
