"""Summarizes, with or without a model, the branch that a conversation leaves when it returns to an earlier entry."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import OrchError
from orch_protocol.core.messages import INCOMPLETE_STOPS, Message, Text, Usage, text_of

from ..backends.base import ONE_REQUEST, Backend
from ..session.session import SessionState
from ..tools.dispatch.budget_client import BudgetClient
from .compaction_summary import (
    CompactionDigest,
    digest_of,
    extract_summary,
    parts_of,
    summary_prompt,
    summary_text,
    usable_summary,
)
from .summarizer import writer_of

__all__ = ["BranchSummaryText", "extract_branch_summary", "left_behind", "summarize_branch"]

CHARS: Final = 6_000
PART_CHARS: Final = 100_000
SECONDS: Final = 90.0
SYSTEM: Final = """\
You write notes for an agent. Its conversation returns to an earlier position, and the agent can no longer see the \
later part. The agent knows only what you write about that part. Write plain notes under these headings, and leave out \
headings without content:

Tried: what was requested, and which approach was used.
Found: the results, with exact names, paths, figures and error texts.
Changed: files and other things that are different now.
Why it was left: what did not work, as far as this is known.

Write only these notes. Do not add your own opinions, and do not address a reader."""


class BranchSummaryText(Struct, frozen=True):
    """The summary of a branch. `by_model` is True if a model wrote the summary."""

    text: str
    by_model: bool = False
    usage: Usage = Usage()


def left_behind(session: SessionState, to: str | None) -> list[Message]:
    """Return the visible messages that are not on the branch of the entry `to`. None means the start of the session."""
    stays = session.lineage.path(session.places[to]) if to is not None and to in session.places else None
    items = session.view.items
    return [item.message for item in items if stays is None or not stays[session.places[item.last]]]


def extract_branch_summary(left: Sequence[Message]) -> BranchSummaryText:
    """Return a summary of `left` without a model: prompts, answers, and a receipt of the calls."""
    return BranchSummaryText(_summary_text(left, extract_summary(left, "", CHARS))) if left else BranchSummaryText("")


async def summarize_branch(
    left: Sequence[Message],
    model: BackendSpec,
    make: Callable[[BackendSpec], Backend],
    budget: BudgetClient,
    budgeted: Iterable[str] = (),
) -> BranchSummaryText:
    """Return a summary of `left` by `model`, or a summary without a model if the model fails.

    The model fails if it times out, returns no usable summary, or exceeds a budget of the kinds `budgeted`. This
    function runs between turns.
    """
    spec = writer_of(model)
    if spec is None or not left:
        return extract_branch_summary(left)
    backend, usage, body = None, Usage(), ""
    budget.budgeted = frozenset(budgeted)
    try:
        async with asyncio.timeout(SECONDS):
            backend = make(spec)
            backend.append_system(SYSTEM, ())
            backend.prefix = ONE_REQUEST
            parts = parts_of(left, PART_CHARS)
            for number, part in enumerate(parts, 1):
                backend.load((), number - 1)
                backend.append_user((Text(summary_prompt(part, body, CHARS, number, len(parts))),))
                reservation = await budget.reserve(backend, outside_turn=True)
                turn = await budget.response(backend, reservation)
                reservation.settle(took := turn.usage.with_one_model_call())
                usage += took
                body = "" if turn.stop_reason in INCOMPLETE_STOPS else usable_summary(text_of(turn.message), CHARS)
                if not body:
                    break
    except (TimeoutError, OrchError) as error:
        print(f"branch summary: no summary by a model: {error or 'it took too long'}", flush=True)
        body = ""
    except Exception:
        traceback.print_exc()
        body = ""
    finally:
        if backend is not None:
            await backend.close()
    return (
        BranchSummaryText(_summary_text(left, body), by_model=True, usage=usage)
        if body
        else replace(extract_branch_summary(left), usage=usage)
    )


def _summary_text(left: Sequence[Message], body: str) -> str:
    """Return `body` with a receipt of the calls.

    The task and the open question are left out, because they stay in the conversation.
    """
    known = digest_of(left, CompactionDigest(), within=False)
    return summary_text(replace(known, task="", question="", archives=False), body, CHARS)
