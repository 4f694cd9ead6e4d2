"""What a root's journal can say: what happened to its agents, one entry a line.

Times are seconds since the epoch. Prompts are in the agents' transcripts; here is their head, and the whole prompt of
an asynchronous query, which is asked again if its root dies before the transcript has it.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from orch_protocol.agent.models import RecordModel
from orch_protocol.agent.spec import AgentSpec, BackendSpec, QueueMode
from orch_protocol.core.archives import ArchiveSource
from orch_protocol.core.errors import ErrorInfo
from orch_protocol.core.messages import Reply, Usage
from orch_protocol.core.taint import TaintLabel
from orch_protocol.core.text import scrub
from orch_protocol.policy.budget import Budget, BudgetAmounts, BudgetChange
from orch_protocol.session.entries import TranscriptPosition
from orch_protocol.wire.frames import DECODE_ERRORS

__all__ = [
    "OLD_TAGS",
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
    "decode_state",
    "encode_entry",
    "encoder",
    "read_entry",
]


class _Entry(Struct, frozen=True, gc=False, kw_only=True, tag_field="type", omit_defaults=True):
    at: float


class RunStarted(_Entry, frozen=True, gc=False, kw_only=True, tag="run_started"):
    """A root took the run over."""

    pid: int


class _AgentEntry(_Entry, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    id: str


class CredentialsRecord(Struct, frozen=True, gc=False, omit_defaults=True):
    """Which variables an agent's models are reached with: salted fingerprints by provider, and where they are from."""

    fingerprints: dict[str, str]
    source: str = ""


class AgentSpawned(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="agent_spawned"):
    """An agent exists. `request_id` is the caller's, for a repeated request.

    A `cold` one has a transcript already, and no process until it is asked; `repaired` tells what was wrong with what
    it was made from.
    """

    spec: AgentSpec
    request_id: str | None = None
    cold: bool = False
    repaired: str = ""
    credentials: CredentialsRecord | None = None


class CredentialsSet(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="credentials_set"):
    """The agent and those below it use other credentials from now on; None: those of the agent above it.

    `base_url` is the address of its model's server from now on, "" for no change.
    """

    credentials: CredentialsRecord | None = None
    base_url: str = ""


class WorkerLaunched(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="worker_launched"):
    """A process was asked for."""

    incarnation: int


class WorkerReady(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="worker_ready"):
    """The process has opened its transcript and waits; `repaired` tells what was wrong with that."""

    pid: int
    model: str = ""
    context_tokens: int = 0
    context_limit: int = 0
    repaired: str = ""
    transcript: TranscriptPosition | None = None


class QueryStarted(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="query_started"):
    """A query was accepted. `asker` is the agent that asks, None for the user's program.

    `stays` says that the answer is there until somebody takes it, however many queries follow. `prompt` is the whole
    prompt of an asynchronous query, "" for others and once the query is over.
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


class QueryFinished(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="query_finished"):
    """A query is over, one way or the other. `taken_by` says who waited and so got the answer.

    `ended` says that the user ended it together with the agent's process. `transcript` is the last line of the agent's
    transcript then.
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
    """The transcript was rewritten, and `transcript` is its last line; None while it is being rewritten."""

    transcript: TranscriptPosition | None = None


class ReplyCollected(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="reply_collected"):
    """Somebody took the answer."""

    query_id: str
    by: str


class WorkerStopping(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="worker_stopping"):
    """The process was asked to leave; its agent goes cold."""


class WorkerExited(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="worker_exited"):
    """The process is gone. `status` is what the agent is now: cold, died, failed or killed; `starting` when another
    process is about to be started. With `crash` it counts against how many there may be."""

    incarnation: int
    status: str
    code: int | None = None
    error: str | None = None
    crash: bool = False


class AgentKilled(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="agent_killed"):
    """The agent was killed on purpose."""

    by: str


class AgentResumed(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="agent_resumed"):
    """A killed or failed agent may answer again."""


class BudgetChanged(BudgetChange, frozen=True, gc=False, kw_only=True, tag_field="type", tag="budget_changed"):
    """The agent may use so much from now on, with everything that it used before."""

    at: float
    id: str


class RootBudgetChanged(_Entry, frozen=True, gc=False, kw_only=True, tag="root_budget_changed"):
    """All agents together may use so much, for as long as the configuration says what it said then."""

    change: BudgetChange
    configured: Budget


class LocalOnlySet(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="local_only_set"):
    """The agent's conversation is for models of this machine alone from now on: for the one behind `backend`."""

    backend: BackendSpec


class ModelChanged(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="model_changed"):
    """`answers` is who answers for the agent from now on."""

    answers: RecordModel


class TaintAdded(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="taint_added"):
    """All that came to the agent with what other agents asked it."""

    marks: tuple[TaintLabel, ...]


class ToolsRevoked(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="tools_revoked"):
    """The agent may not use these of its tools any more: all of them, those of before included."""

    withdrawn: tuple[str, ...]


class AgentPlanApproved(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="plan_approved"):
    """Somebody approved the agent's plan, or let it out of plan mode without one: it is not in it any more."""


class PlanStarted(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="plan_started"):
    """Somebody let the agent go on in plan mode; `plan` is the id of that."""

    plan: str


class SteeringQueued(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="steering_queued"):
    """Something was said to the agent, to be heard while it works."""

    steer_id: str
    text: str
    follow_up: bool = False


class SteeringDelivered(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="steering_delivered"):
    """What was said is in the agent's conversation."""

    steer_id: str


class TitleChanged(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="title_changed"):
    """What the agent's session is called now, "" for nothing; its file says so, too."""

    title: str


class CatalogChanged(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="catalog_changed"):
    """Other commands can be executed in the agent's session than before; for whoever shows them."""

    digest: str


class SteeringRetracted(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="steering_retracted"):
    """What was said is not to be heard any more."""

    steer_ids: tuple[str, ...]


class QueueModesChanged(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="queue_modes_changed"):
    """How many of the things said to the agent it hears at once from now on."""

    steering: QueueMode
    follow_up: QueueMode


class TurnsArchived(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="turns_archived"):
    """Parts of the agent's conversation are holders' now: their ids and what they are about. Its transcript says all
    of it, and knows better: when somebody `looked` there are no more. `problem` says why nothing could be archived."""

    holders: tuple[tuple[str, str], ...] = ()
    context_tokens: int = 0
    problem: str = ""
    looked: bool = False
    turns: dict[str, str] = {}
    """The query ids of archived turns, by holder: `archived_to` of their replies."""


class UsageRecorded(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="usage_recorded"):
    """The agent used something beside its turns: for a summary of what it had archived."""

    usage: Usage


class BudgetReserved(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="budget_reserved"):
    """The agent is about to use something in its query, `least` at least: what its budgets have is less by that."""

    query_id: str
    hold: str
    least: BudgetAmounts


class BudgetReleased(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="budget_released"):
    """What the agent used of what was put aside is on record, or nothing was."""

    hold: str


class SourceMoved(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="source_moved"):
    """What a holder holds stands elsewhere now. None: a later entry says where."""

    source: ArchiveSource | None


class ContentDeleted(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="content_deleted"):
    """What `holders` of the agent held was deleted for good: ids, and when. So were the replies to its queries `turns`;
    with `session` all that was said to it, whose folder is "going" and then "gone".

    Nothing in the journal tells what they said; see `orch.tree.rules.deletions`.
    """

    holders: dict[str, str] = {}
    turns: dict[str, str] = {}
    session: Literal["", "going", "gone"] = ""


class Snapshot(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="snapshot"):
    """All that the entries before this one came to of the agent, a Node; they are in the file no more."""

    state: msgspec.Raw


class RunSnapshot(_Entry, frozen=True, gc=False, kw_only=True, tag="run_snapshot"):
    """All that they came to of what is no agent's."""

    state: msgspec.Raw


class AgentWoken(_AgentEntry, frozen=True, gc=False, kw_only=True, tag="agent_woken"):
    """News for the agent, to be its next prompt."""

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
"""An entry about one agent that an earlier entry introduced."""

Entry: TypeAlias = RunStarted | AgentSpawned | RootBudgetChanged | Snapshot | RunSnapshot | AgentEntry

T = TypeVar("T")

OLD_TAGS: Final = {
    "opened": "run_started",
    "spawned": "agent_spawned",
    "launched": "worker_launched",
    "up": "worker_ready",
    "asked": "query_started",
    "answered": "query_finished",
    "acknowledged": "transcript_rewritten",
    "collected": "reply_collected",
    "stopping": "worker_stopping",
    "ended": "worker_exited",
    "killed": "agent_killed",
    "resumed": "agent_resumed",
    "budgeted": "budget_changed",
    "root_budgeted": "root_budget_changed",
    "localised": "local_only_set",
    "chosen": "model_changed",
    "marked": "taint_added",
    "narrowed": "tools_revoked",
    "plan_begun": "plan_started",
    "steered": "steering_queued",
    "heard": "steering_delivered",
    "titled": "title_changed",
    "unsaid": "steering_retracted",
    "hearing": "queue_modes_changed",
    "archived": "turns_archived",
    "spent": "usage_recorded",
    "put_aside": "budget_reserved",
    "let_go": "budget_released",
    "moved": "source_moved",
    "pruned": "content_deleted",
    "kept": "snapshot",
    "kept_run": "run_snapshot",
    "woken": "agent_woken",
}
"""Tags of entries in journals that were written by earlier versions, and the tags of today."""
_TAG_START: Final = b'{"type":"'

encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)


def encode_entry(entry: Entry) -> bytes:
    """Return `entry` as one line of JSON."""
    try:
        return encoder.encode(entry)
    except UnicodeEncodeError:
        return encoder.encode(scrub(msgspec.to_builtins(entry)))


def read_entry(line: bytes) -> Entry:
    """Return the entry in `line`, which may have an old tag. Raises DECODE_ERRORS for a damaged or unknown line."""
    try:
        return _decoder.decode(line)
    except msgspec.ValidationError:
        renamed = _with_current_tag(line)
        if renamed is None:
            raise
        return _decoder.decode(renamed)


def decode_entry(line: bytes) -> Entry | None:
    """Return the entry in `line`, or None if the line is damaged or its type is unknown."""
    try:
        return read_entry(line)
    except DECODE_ERRORS:
        return None


def decode_state(state: msgspec.Raw, type: type[T]) -> T:
    """Return the state in a snapshot; entries inside it may have old tags."""
    try:
        return msgspec.json.decode(state, type=type)
    except msgspec.ValidationError:
        found = msgspec.json.decode(state)
        nested = (found.get("pending"), *found.get("unheard", {}).values(), *found.get("root_budgets", ()))
        for entry in nested:
            if entry is not None:
                entry["type"] = OLD_TAGS.get(entry["type"], entry["type"])
        return msgspec.convert(found, type)


def _with_current_tag(line: bytes) -> bytes | None:
    """Return `line` with the current tag in place of an old one, or None if its tag is not an old one."""
    if not line.startswith(_TAG_START):
        return None
    old, quote, rest = line[len(_TAG_START) :].partition(b'"')
    new = OLD_TAGS.get(old.decode(errors="replace"))
    return _TAG_START + new.encode() + quote + rest if new is not None else None
