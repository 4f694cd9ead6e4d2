"""What an agent that archives and its root say to each other: what is to go, what went, and what a model says of it."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ..agent.spec import BackendSpec
from ..core.archives import Collapse
from ..core.messages import StopReason
from .service import ARCHIVING_AGENTS, Empty, Service

__all__ = [
    "COMMIT_ARCHIVES",
    "PLAN_ARCHIVING",
    "SUMMARIZE_ARCHIVE",
    "ArchivePlan",
    "CommitArchives",
    "PlanArchiving",
    "SummarizeArchive",
    "SummaryOrder",
    "SummaryRequest",
    "SummaryStep",
]


class PlanArchiving(Struct, frozen=True):
    """The calling agent asks what of its conversation is to go to holders now.

    Between turns `stop_reason` says how the last one ended, None means that a turn is under way; `last` is the entry
    that the conversation ended with then. `context_tokens` is the size of its next request, and `factor` how many
    tokens were reported for each one estimated. Without `summaries` no model is there to be asked for any; `beside`
    says that it is the agent's own, which has the conversation cached. With `now` all finished turns are to go that
    become smaller by that, whether that would pay or not.
    """

    stop_reason: StopReason | None = None
    last: str = ""
    context_tokens: int = 0
    factor: float = 1.0
    summaries: bool = False
    beside: bool = False
    now: bool = False


class SummaryOrder(Struct, frozen=True):
    """A model is to be asked about the archive `holder`: beside the conversation as it was, or apart from it."""

    holder: str
    beside: bool = False


class ArchivePlan(Struct, frozen=True):
    """What is to be put on record, in this order and at once; and about which of these a model is to be asked."""

    collapses: tuple[Collapse, ...] = ()
    summarise: tuple[SummaryOrder, ...] = ()


class CommitArchives(Struct, frozen=True):
    """These archives of the calling agent are on record, and its next request has `context_tokens`.

    None are when `problem` says why not. `turns` has the query ids of archived turns, by holder.
    """

    holders: tuple[str, ...] = ()
    context_tokens: int = 0
    problem: str = ""
    turns: dict[str, str] = {}


class SummaryRequest(Struct, frozen=True):
    """One question to a model. `model` is the configured one, None: the asker's choice."""

    system: str
    prompt: str
    model: str | None = None


class SummarizeArchive(Struct, frozen=True):
    """How far the summary of the archive `holder` is: what the model answered last, None before it was asked."""

    holder: str
    answer: str | None = None
    beside: bool = False


class SummaryStep(Struct, frozen=True):
    """What follows: the next question, to the model behind `backend` (None: the asker's own); or the text for the
    archive's stub; or neither, when there is none to be had."""

    request: SummaryRequest | None = None
    backend: BackendSpec | None = None
    stub: str | None = None


PLAN_ARCHIVING: Final = Service(
    "plan_archiving",
    PlanArchiving,
    ArchivePlan,
    ARCHIVING_AGENTS,
    "Plan which turns of the calling agent to archive now.",
)
COMMIT_ARCHIVES: Final = Service(
    "commit_archives", CommitArchives, Empty, ARCHIVING_AGENTS, "Record archives that the calling agent has written."
)
SUMMARIZE_ARCHIVE: Final = Service(
    "summarize_archive",
    SummarizeArchive,
    SummaryStep,
    ARCHIVING_AGENTS,
    "Take the next step of summarizing an archive.",
)
