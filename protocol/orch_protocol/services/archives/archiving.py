"""Services for archival in a running agent: plan archiving, commit archives, and summarize archives."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ...agent.spec import BackendSpec
from ...core.archives import Collapse
from ...core.messages import StopReason
from ..service import ARCHIVING_AGENTS, AgentFields, Empty, Service

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
    """The calling agent asks which parts of its conversation to archive now.

    - `stop_reason`: how the last turn ended. None means that a turn is running. `last`: the last entry of the
      conversation at that time.
    - `context_tokens`: size of the next request. `factor`: reported tokens for each estimated token.
    - `summaries`: whether a model can write summaries. `with_conversation`: this model is the agent's own model, and
      the conversation is in the model's prompt cache.
    - `now`: archive each finished turn whose archive makes the conversation smaller, without comparing costs.
    - `window`: context window of the model. 0 means that it is unknown.
    """

    stop_reason: StopReason | None = None
    last: str = ""
    context_tokens: int = 0
    factor: float = 1.0
    summaries: bool = False
    with_conversation: bool = False
    now: bool = False
    window: int = 0


class SummaryOrder(Struct, frozen=True):
    """Summarize the archive `holder` with a model.

    If `with_conversation` is True, the request contains the conversation.
    """

    holder: str
    with_conversation: bool = False


class ArchivePlan(Struct, frozen=True):
    """The collapses to record in this order and with one write, and the archives to summarize."""

    collapses: tuple[Collapse, ...] = ()
    summarize: tuple[SummaryOrder, ...] = ()


class CommitArchives(Struct, frozen=True):
    """The calling agent has recorded these archives. `context_tokens` is the size of the agent's next request.

    If `problem` is set, no archive was recorded. `turns` maps holders to the query ids of archived turns.
    """

    holders: tuple[str, ...] = ()
    context_tokens: int = 0
    problem: str = ""
    turns: dict[str, str] = {}


class SummaryRequest(Struct, frozen=True):
    """A request to a model. `model` is the configured model. None means that the caller chooses the model."""

    system: str
    prompt: str
    model: str | None = None


class SummarizeArchive(Struct, frozen=True):
    """Ask for the next step of the summary of `holder`.

    `answer` is the model's last answer. In the first step, `answer` is None.
    """

    holder: str
    answer: str | None = None
    with_conversation: bool = False


class SummaryStep(Struct, frozen=True):
    """The next step of a summary: a request to the model `backend` (None means the caller's own model), or the final
    text `stub`.

    If neither is set, there will be no summary.
    """

    request: SummaryRequest | None = None
    backend: BackendSpec | None = None
    stub: str | None = None


PLAN_ARCHIVING: Final = Service(
    "plan_archiving",
    PlanArchiving,
    ArchivePlan,
    ARCHIVING_AGENTS,
    "Plan which turns of the calling agent to archive now.",
    AgentFields(
        free=("stop_reason", "last", "context_tokens", "factor", "summaries", "with_conversation", "now", "window")
    ),
)
COMMIT_ARCHIVES: Final = Service(
    "commit_archives",
    CommitArchives,
    Empty,
    ARCHIVING_AGENTS,
    "Record archives that the calling agent has written.",
    AgentFields(free=("holders", "context_tokens", "problem", "turns")),
)
SUMMARIZE_ARCHIVE: Final = Service(
    "summarize_archive",
    SummarizeArchive,
    SummaryStep,
    ARCHIVING_AGENTS,
    "Take the next step of summarizing an archive.",
    AgentFields(free=("holder", "answer", "with_conversation")),
)
