"""What a model is told of a way that its conversation leaves: what came of it, by a model's word or without one."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import OrchError
from orch_protocol.core.messages import Message, Text, Usage, text_of

from ..backends.base import Backend
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

__all__ = ["BranchSummaryText", "extract_branch_summary", "left_behind", "summed_up"]

CHARS: Final = 6_000
PART_CHARS: Final = 100_000
SECONDS: Final = 90.0
UNFINISHED: Final = frozenset({"max_tokens", "budget", "refusal", "error"})
SYSTEM: Final = """\
You keep the notes of an agent. Its conversation goes back to an earlier place, and what was said and done since \
leaves its sight; of that it will know what you write, and nothing else. Write plain notes under these headings, and \
leave out one that has nothing below it:

Tried: what was asked for, and which way was taken.
Found: what came of it, with exact names, paths, figures and error texts.
Changed: files and other things that are not now as they were before.
Why it was left: what did not work, as far as that was said.

Nothing of your own, no address to anybody."""


class BranchSummaryText(Struct, frozen=True):
    """What is to be said of a way that is left, whether a model wrote it, and what that took."""

    text: str
    by_model: bool = False
    usage: Usage = Usage()


def left_behind(session: SessionState, to: str | None) -> list[Message]:
    """Return the messages that the conversation shows and would not show any more behind the entry `to`, None: anew."""
    stays = session.lineage.path(session.places[to]) if to is not None and to in session.places else None
    items = session.view.items
    return [item.message for item in items if stays is None or not stays[session.places[item.last]]]


def extract_branch_summary(left: Sequence[Message]) -> BranchSummaryText:
    """Return what can be said of `left` without a model: what was asked and answered, and what calls left behind."""
    return BranchSummaryText(_told(left, extract_summary(left, "", CHARS))) if left else BranchSummaryText("")


async def summed_up(
    left: Sequence[Message],
    model: BackendSpec,
    make: Callable[[BackendSpec], Backend],
    purse: BudgetClient,
    budgeted: Iterable[str] = (),
) -> BranchSummaryText:
    """Return what `model` writes about `left`, between turns; what can be said without it when it has no words, or not
    in time, or what it takes is more than is left of what is `budgeted`."""
    spec = writer_of(model)
    if spec is None or not left:
        return extract_branch_summary(left)
    asking, usage, body = None, Usage(), ""
    purse.budgeted = frozenset(budgeted)
    try:
        async with asyncio.timeout(SECONDS):
            asking = make(spec)
            asking.append_system(SYSTEM, ())
            parts = parts_of(left, PART_CHARS)
            for number, part in enumerate(parts, 1):
                asking.load((), number - 1)
                asking.append_user((Text(summary_prompt(part, body, CHARS, number, len(parts))),))
                hold = await purse.reserve(asking, beside=True)
                turn = await purse.response(asking, hold)
                hold.settle(took := turn.usage.of_a_response())
                usage += took
                body = "" if turn.stop_reason in UNFINISHED else usable_summary(text_of(turn.message), CHARS)
                if not body:
                    break
    except (TimeoutError, OrchError) as error:
        print(f"going back: no summary of what is left: {error or 'it took too long'}", flush=True)
        body = ""
    except Exception:
        traceback.print_exc()
        body = ""
    finally:
        if asking is not None:
            await asking.close()
    return (
        BranchSummaryText(_told(left, body), by_model=True, usage=usage)
        if body
        else replace(extract_branch_summary(left), usage=usage)
    )


def _told(left: Sequence[Message], body: str) -> str:
    """Return `body` with the calls that were made; the task and the question stay with what is not left."""
    known = digest_of(left, CompactionDigest(), within=False)
    return summary_text(replace(known, task="", question="", archives=False), body, CHARS)
