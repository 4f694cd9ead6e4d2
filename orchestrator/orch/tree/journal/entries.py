"""The entries of a root's journal. Each line of the file contains one entry.

Times are seconds since the epoch. The journal contains only the beginning of a prompt; the transcript contains the
whole prompt. An asynchronous query is an exception: the journal contains the whole prompt of the query. If the root
dies before the transcript contains the prompt, the next root sends the query again.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from orch_protocol.agent.models import RecordModel
from orch_protocol.agent.spec import AgentSpec, BackendSpec, QueueMode, ToolSpec
from orch_protocol.core.archives import ArchiveSource
from orch_protocol.core.errors import ErrorInfo
from orch_protocol.core.messages import Image, Reply, Usage
from orch_protocol.core.taint import TaintLabel
from orch_protocol.core.text import scrub
from orch_protocol.policy.budget import Budget, BudgetAmounts, BudgetChange
from orch_protocol.session.entries import TranscriptPosition
from orch_protocol.wire.frames import DECODE_ERRORS

__all__ = [
    "AgentEntry",
    "AgentKilled",
    "AgentPlanApproved",
    "AgentResumed",
    "AgentSpawned",
    "AgentWoken",
    "BudgetChanged",
    "BudgetReleased",
    "BudgetReserved",
    "CatalogChanged",
    "ContentDeleted",
    "CredentialsRecord",
    "CredentialsSet",
    "CustomEventEmitted",
    "Entry",
    "LocalOnlySet",
    "ModelChanged",
    "PlanStarted",
    "QueryFinished",
    "QueryStarted",
    "QueueModesChanged",
    "ReplyCollected",
    "RootBudgetChanged",
    "RunSnapshot",
    "RunStarted",
    "Snapshot",
    "SourceMoved",
    "SteeringDelivered",
    "SteeringQueued",
    "SteeringRetracted",
    "TaintAdded",
    "TitleChanged",
    "ToolsRevoked",
    "TranscriptRewritten",
    "TurnsArchived",
    "UsageRecorded",
    "WorkerExited",
    "WorkerLaunched",
    "WorkerReady",
    "WorkerStopping",
    "decode_entry",
    "encode_entry",
    "encoder",
    "read_entry",
]


class _Entry(Struct, frozen=True, gc=False, kw_only=True, tag_field="type", omit_defaults=True):
    at: float


class RunStarted(_Entry, frozen=True, gc=False, kw_only=True, tag="run_started"):
    """A root opened the run."""

    pid: int


class _AgentEntry(_Entry, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    id: str


class CredentialsRecord(Struct, frozen=True, gc=False, omit_defaults=True):
    """The credentials of an agent's models.

    `fingerprints` are salted fingerprints by provider. `source` is where the credentials come from.
    """

    fingerprints: dict[str, str]
    source: str = ""


class AgentSpawned(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="agent_spawned"):
    """An agent was spawned.

    A repeated request has the same `request_id`. A `cold` agent has no process; its first query starts
    one. It may already have a transcript. `repaired` describes the problems of the session from which the agent was
    created. If `ends_with_connection` is True, the agent ends when the client that spawned it disconnects.
    """

    spec: AgentSpec
    request_id: str | None = None
    cold: bool = False
    repaired: str = ""
    credentials: CredentialsRecord | None = None
    ends_with_connection: bool = False


class CredentialsSet(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="credentials_set"):
    """The agent and its descendants use other credentials from now on.

    If `credentials` is None, they use the credentials of the agent's parent. `base_url` is the new address of the
    server of the agent's model, "" if the address did not change.
    """

    credentials: CredentialsRecord | None = None
    base_url: str = ""


class WorkerLaunched(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="worker_launched"):
    """The start of a process was requested."""

    incarnation: int


class WorkerReady(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="worker_ready"):
    """The process opened the agent's transcript and is ready. `repaired` describes problems of the transcript.

    `executor_tools` are the tools that the agent's executor lists. None means that the root already knows the tools.
    """

    pid: int
    model: str = ""
    context_tokens: int = 0
    context_limit: int = 0
    repaired: str = ""
    transcript: TranscriptPosition | None = None
    executor_tools: tuple[ToolSpec, ...] | None = None


class QueryStarted(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="query_started"):
    """A query was accepted. `asker` is the querying agent, None for the user's program.

    If `stays` is True, the result is kept until a caller collects the result, even if other queries follow. While an
    asynchronous query runs, `prompt` is the whole prompt and `images` are its images. Otherwise both are empty.
    `item` identifies the question of a map, or is "".
    """

    query_id: str
    head: str
    asker: str | None = None
    waits: bool = False
    wake: str | int | None = None
    from_inbox: bool = False
    request_id: str | None = None
    stays: bool = False
    prompt: str = ""
    images: tuple[Image, ...] = ()
    item: str = ""


class QueryFinished(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="query_finished"):
    """A query ended with a reply or an error.

    `taken_by` is the caller that waited and received the result. `ended` is True if the user ended the query together
    with the agent's process. `transcript` is the last line of the agent's transcript at the end of the query.
    """

    query_id: str
    reply: Reply | None = None
    error: ErrorInfo | None = None
    usage: Usage = Usage()
    context_tokens: int = 0
    taken_by: str | None = None
    ended: bool = False
    transcript: TranscriptPosition | None = None


class TranscriptRewritten(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="transcript_rewritten"):
    """The agent's transcript is being rewritten or was rewritten.

    `transcript` is None while the rewrite is in progress. After the rewrite, `transcript` is the last line of the new
    file. If the rewrite deletes archives, `before` is the last line of the file before the rewrite. If the root is
    killed during such a rewrite, the next root finishes the deletion.
    """

    transcript: TranscriptPosition | None = None
    before: TranscriptPosition | None = None


class ReplyCollected(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="reply_collected"):
    """A caller collected the reply to a query."""

    query_id: str
    by: str


class WorkerStopping(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="worker_stopping"):
    """The root requested that the process exits. After the exit, the agent is cold."""


class WorkerExited(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="worker_exited"):
    """The process ended.

    `status` is the agent's new status: `cold`, `died`, `failed` or `killed`, and `starting` before a restart. If
    `crash` is True, the exit counts toward the limit of restarts.
    """

    incarnation: int
    status: str
    code: int | None = None
    error: str | None = None
    crash: bool = False


class AgentKilled(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="agent_killed"):
    """`by` requested to kill the agent, and the agent was killed."""

    by: str


class AgentResumed(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="agent_resumed"):
    """A killed or failed agent was resumed and accepts queries again.

    If `ends_with_connection` is True, the agent ends when the client that resumed it disconnects.
    """

    ends_with_connection: bool = False


class BudgetChanged(BudgetChange, frozen=True, gc=False, kw_only=True, tag_field="type", tag="budget_changed"):
    """The agent's limits changed. The new limits apply to all usage of the agent, including past usage."""

    at: float
    id: str


class RootBudgetChanged(_Entry, frozen=True, gc=False, kw_only=True, tag="root_budget_changed"):
    """The budget of the whole run changed.

    The change applies only while the budget in the configuration equals `configured`.
    """

    change: BudgetChange
    configured: Budget


class LocalOnlySet(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="local_only_set"):
    """From now on, the agent's conversation may be sent only to the model of `backend`, which runs on this machine."""

    backend: BackendSpec


class ModelChanged(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="model_changed"):
    """The agent's model changed to the model in `answers`."""

    answers: RecordModel


class TaintAdded(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="taint_added"):
    """All taint labels that the agent has received through queries from other agents."""

    marks: tuple[TaintLabel, ...]


class ToolsRevoked(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="tools_revoked"):
    """All tools that the agent may no longer use. The list includes the tools of earlier revocations."""

    withdrawn: tuple[str, ...]


class AgentPlanApproved(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="plan_approved"):
    """The agent's plan was approved, or the agent left plan mode without a plan."""


class PlanStarted(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="plan_started"):
    """The agent entered plan mode; `plan` is the id of this plan mode."""

    plan: str


class SteeringQueued(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="steering_queued"):
    """A steering message or a follow-up was queued for the agent."""

    steer_id: str
    text: str
    follow_up: bool = False


class SteeringDelivered(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="steering_delivered"):
    """The steering message was added to the agent's conversation."""

    steer_id: str


class TitleChanged(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="title_changed"):
    """The title of the agent's session changed. "" removes the title. The session file contains the title too."""

    title: str


class CatalogChanged(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="catalog_changed"):
    """The agent's catalog of slash commands changed. Front ends that show the commands reload the catalog."""

    digest: str


class CustomEventEmitted(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="custom_event"):
    """A program emitted the event `name` about the agent. `data` is JSON data, as hooks changed it."""

    name: str
    data: dict[str, Any]
    query_id: str = ""


class SteeringRetracted(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="steering_retracted"):
    """Queued steering messages and follow-ups were retracted."""

    steer_ids: tuple[str, ...]


class QueueModesChanged(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="queue_modes_changed"):
    """The agent's delivery modes for steering messages and follow-ups changed."""

    steering: QueueMode
    follow_up: QueueMode


class TurnsArchived(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="turns_archived"):
    """Parts of the agent's conversation were archived.

    `holders` contains the id of each archive's holder and the archive's task. If this entry and the transcript
    disagree, the transcript is right. If `looked` is True, `holders` is complete, because the transcript was searched
    for archives. `problem` is the reason why nothing could be archived.
    """

    holders: tuple[tuple[str, str], ...] = ()
    context_tokens: int = 0
    problem: str = ""
    looked: bool = False
    turns: dict[str, str] = {}
    """The query ids of archived turns, by holder id. The replies to these queries have this id as `archived_to`."""


class UsageRecorded(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="usage_recorded"):
    """The agent used tokens outside its turns, for example for the summary of an archive."""

    usage: Usage


class BudgetReserved(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="budget_reserved"):
    """The agent reserved a part of its budget for a request within its query.

    `hold` is the id of the reservation, and `minimum` its minimum amount.
    """

    query_id: str
    hold: str
    minimum: BudgetAmounts


class BudgetReleased(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="budget_released"):
    """The reservation with the id `hold` ended. The usage under this reservation is recorded separately."""

    hold: str


class SourceMoved(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="source_moved"):
    """The archive of a holder was moved to `source`. If `source` is None, a later entry contains the location."""

    source: ArchiveSource | None


class ContentDeleted(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="content_deleted"):
    """Archives and replies of the agent, or its whole session, were deleted.

    `holders` contains the times of deletion by the id of the archive's holder; `turns` contains them by query id. If
    the whole session was deleted, `session` is "going" while the folder is being removed, then "gone". The root removes
    the deleted content from the journal too; see `orch.tree.rules.deletions`.
    """

    holders: dict[str, str] = {}
    turns: dict[str, str] = {}
    session: Literal["", "going", "gone"] = ""


class Snapshot(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="snapshot"):
    """The AgentRecord after all earlier entries about the agent.

    The snapshot replaces the earlier entries in the file.
    """

    state: msgspec.Raw


class RunSnapshot(_Entry, frozen=True, gc=False, kw_only=True, tag="run_snapshot"):
    """The state of the run after all earlier entries. The snapshot replaces the earlier entries in the file."""

    state: msgspec.Raw


class AgentWoken(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="agent_woken"):
    """A wake message was created for the agent. The message becomes the agent's next prompt."""

    text: str


AgentEntry: TypeAlias = (
    WorkerLaunched
    | WorkerReady
    | QueryStarted
    | QueryFinished
    | TranscriptRewritten
    | ReplyCollected
    | WorkerStopping
    | WorkerExited
    | AgentKilled
    | AgentResumed
    | BudgetChanged
    | LocalOnlySet
    | TaintAdded
    | AgentPlanApproved
    | PlanStarted
    | ToolsRevoked
    | AgentWoken
    | SteeringQueued
    | SteeringDelivered
    | TitleChanged
    | CatalogChanged
    | CustomEventEmitted
    | ModelChanged
    | CredentialsSet
    | SteeringRetracted
    | QueueModesChanged
    | TurnsArchived
    | UsageRecorded
    | BudgetReserved
    | BudgetReleased
    | SourceMoved
    | ContentDeleted
)
"""An entry about an agent that an earlier entry added."""

Entry: TypeAlias = RunStarted | AgentSpawned | RootBudgetChanged | Snapshot | RunSnapshot | AgentEntry

encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)


def encode_entry(entry: Entry) -> bytes:
    """Return `entry` as one line of JSON."""
    try:
        return encoder.encode(entry)
    except UnicodeEncodeError:
        return encoder.encode(scrub(msgspec.to_builtins(entry)))


def read_entry(line: bytes) -> Entry:
    """Return the entry in `line`.

    Raises one of DECODE_ERRORS if the line is damaged or the type of the entry is unknown.
    """
    return _decoder.decode(line)


def decode_entry(line: bytes) -> Entry | None:
    """Return the entry in `line`. Return None if the line is damaged or the type of the entry is unknown."""
    try:
        return read_entry(line)
    except DECODE_ERRORS:
        return None
