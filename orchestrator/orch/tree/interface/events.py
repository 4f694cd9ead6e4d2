"""Events that cause decisions of the tree: facts and requests. The module contains only data types."""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from orch_protocol.agent.models import RecordModel
from orch_protocol.agent.spec import AgentSpec, BackendSpec, QueueMode
from orch_protocol.core.errors import ErrorInfo
from orch_protocol.core.messages import Image, Reply, Usage
from orch_protocol.core.taint import TaintLabel
from orch_protocol.policy.budget import BudgetChange
from orch_protocol.session.entries import TranscriptPosition
from orch_protocol.wire.worker_messages import Ready

from ..journal.entries import CredentialsRecord

__all__ = [
    "BOOT_SECONDS",
    "REQUESTS",
    "AddAgent",
    "AddHolder",
    "AddTaint",
    "ApprovePlan",
    "BootTimeout",
    "CancelRequested",
    "ChangeModel",
    "ChangeTitle",
    "CollectReply",
    "ConfirmSteering",
    "DiscardSessions",
    "Event",
    "FinishQuery",
    "KillRequested",
    "LaunchFailed",
    "LocalOnlyRequested",
    "ProcessExited",
    "QueueSteering",
    "RecordArchives",
    "RecordCatalog",
    "RecordDeletion",
    "RecordUsage",
    "Recover",
    "RestartWorker",
    "ResumeRequested",
    "RetireIdleAgents",
    "RetractionRequested",
    "RevokeTools",
    "SetQueueModes",
    "SpawnRequested",
    "StartPlan",
    "StartQuery",
    "StartWorker",
    "StopIfIdle",
    "StopTimeout",
    "TurnTimeout",
    "WorkerBooted",
]

BOOT_SECONDS: Final = 110.0
"""Time limit for a process to become ready.

Importing an SDK takes four seconds of CPU time. If eight other processes compete for the CPU, the import takes more
than a minute. If a tool spawned the agent, the error must arrive within the time limit of the tool.
"""


class SpawnRequested(Struct, frozen=True, gc=False):
    """Request of `caller` (an agent's id, None for the user's program) to spawn an agent.

    The tree sets the sequence number, name and depth of the new agent. If `start` is False, the agent gets a process
    with its first query.
    """

    spec: AgentSpec
    caller: str | None = None
    request_id: str | None = None
    credentials: CredentialsRecord | None = None
    ends_with_connection: bool = False
    start: bool = True


class StartQuery(Struct, frozen=True, gc=False):
    """Request of `asker` to send a query to agent `id`.

    If `waits` is True, the asker blocks until the reply. If `stays` is True, the result is kept until a caller collects
    the result. `prompt` is the whole prompt of an asynchronous query, with its `images`, otherwise "". If the root dies
    before the agent's transcript contains the prompt, the next root sends the query again. `item` identifies the
    question of a map, see QueryAgent.
    """

    id: str
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


class WorkerBooted(Struct, frozen=True, gc=False):
    """The process number `incarnation` of the agent is ready. `ready` is the worker's report."""

    id: str
    incarnation: int
    pid: int
    ready: Ready = Ready()


class FinishQuery(Struct, frozen=True, gc=False):
    """The worker reports the end of a query.

    `taken_by` is the caller that waits for the result and receives the result now. `transcript` is the last line of the
    agent's transcript.
    """

    id: str
    query_id: str
    reply: Reply | None = None
    error: ErrorInfo | None = None
    usage: Usage = Usage()
    context_tokens: int = 0
    taken_by: str | None = None
    transcript: TranscriptPosition | None = None


class LaunchFailed(Struct, frozen=True, gc=False):
    """The process could not be started. If `timed_out` is True, the start exceeded the time limit."""

    id: str
    incarnation: int
    error: str
    timed_out: bool = False


class ProcessExited(Struct, frozen=True, gc=False):
    """The process ended.

    `begun` is True if the transcript contains the pending query. `recovered` is the reply to this query, if the
    transcript contains a reply. `usage` is the usage of the query. `timed_out` is True if the process was ended because
    it exceeded a time limit. `oom` is the evidence that the kernel killed the process for lack of memory, "" without
    evidence.
    """

    id: str
    incarnation: int
    code: int | None
    recovered: Reply | None = None
    begun: bool = True
    taken_by: str | None = None
    detail: str = ""
    usage: Usage = Usage()
    timed_out: bool = False
    oom: str = ""


class RestartWorker(Struct, frozen=True, gc=False):
    """The delay before the restart of agent `id` is over. The process number `incarnation` has ended.

    `refused` is the reason why no process can be started, "" if a process can be started.
    """

    id: str
    incarnation: int
    refused: str = ""


class BootTimeout(Struct, frozen=True, gc=False):
    """The process did not become ready within the time limit."""

    id: str
    incarnation: int


class StopTimeout(Struct, frozen=True, gc=False):
    """The process did not exit within the time limit after a stop request."""

    id: str
    incarnation: int


class TurnTimeout(Struct, frozen=True, gc=False):
    """The process did not end its turn within the time limit and the grace period."""

    id: str
    incarnation: int
    query_id: str


class RetireIdleAgents(Struct, frozen=True, gc=False):
    """Request to stop the processes of agents that have been idle for too long."""


class RecordArchives(Struct, frozen=True, gc=False):
    """Agent `id` recorded archives, or failed to record archives.

    `holders` contains the id of each archive's holder and the archive's task. `problem` is the reason of a failure. If
    `is_complete` is True, `holders` is complete, because the agent's transcript was searched for archives.
    """

    id: str
    holders: tuple[tuple[str, str], ...] = ()
    context_tokens: int = 0
    problem: str = ""
    is_complete: bool = False
    turns: dict[str, str] = {}
    """The query ids of archived turns, by holder id."""


class RecordUsage(Struct, frozen=True, gc=False):
    """Agent `id` used tokens outside its turns."""

    id: str
    usage: Usage


class AddAgent(Struct, frozen=True, gc=False):
    """Request to add the agent in `spec` without starting a process. The agent's transcript already exists.

    The tree sets the sequence number and the name. `repaired` describes the problems of the session from which the
    agent was created.
    """

    spec: AgentSpec
    repaired: str = ""
    credentials: CredentialsRecord | None = None


class AddHolder(Struct, frozen=True, gc=False):
    """Request to add the holder in `spec` as a cold agent. If the holder exists, update the location of its archive."""

    spec: AgentSpec


class StopIfIdle(Struct, frozen=True, gc=False):
    """Stop the process of agent `id` if it is idle."""

    id: str


class RecordDeletion(Struct, frozen=True, gc=False):
    """Archives of agent `id` and replies to its queries were deleted.

    `holders` contains the times of deletion by the id of the archive's holder; `turns` contains them by query id.
    """

    id: str
    holders: dict[str, str]
    turns: dict[str, str]


class CollectReply(Struct, frozen=True, gc=False):
    """Request of `by` for a result of agent `id`.

    `asker` is the requesting agent, None for the user's program. `query` is the id of the query, "" for any query.
    """

    id: str
    by: str
    again: bool = False
    asker: str | None = None
    query: str = ""


class KillRequested(Struct, frozen=True, gc=False):
    """A request to kill the agents `ids` and their descendants. `by` made the request.

    `used` contains the usage of their running queries so far, by query id.
    """

    ids: tuple[str, ...]
    by: str
    used: dict[str, Usage] = {}


class QueueSteering(Struct, frozen=True, gc=False):
    """Request to send `text` to agent `id` as a steering message or follow-up."""

    id: str
    steer_id: str
    text: str
    follow_up: bool = False


class ConfirmSteering(Struct, frozen=True, gc=False):
    """The worker reports that the steering message is in the conversation."""

    id: str
    steer_id: str


class CancelRequested(Struct, frozen=True, gc=False):
    """Request to end the turn of agent `id`.

    If `hard` is True, the agent's process is killed. `usage` is the usage of the turn so far.
    """

    id: str
    hard: bool = False
    usage: Usage = Usage()


class ResumeRequested(Struct, frozen=True, gc=False):
    """Request to let a killed or failed agent accept queries again, and to apply `budget`.

    The budget is applied in every status of the agent.
    """

    id: str
    budget: BudgetChange = BudgetChange()
    ends_with_connection: bool = False


class DiscardSessions(Struct, frozen=True, gc=False):
    """Request to delete the sessions of the killed agents `ids`.

    Either all of these sessions are deleted, or none of them is.
    """

    ids: tuple[str, ...]


class LocalOnlyRequested(Struct, frozen=True, gc=False):
    """From now on, only the local model of `backend` may receive the conversation of agent `id`."""

    id: str
    backend: BackendSpec


class ChangeModel(Struct, frozen=True, gc=False):
    """The model of agent `id` changed to `answers`, and the conversation contains the change."""

    id: str
    answers: RecordModel


class StartWorker(Struct, frozen=True, gc=False):
    """Request to start a process for agent `id` without a query."""

    id: str


class ChangeTitle(Struct, frozen=True, gc=False):
    """The title of the session of agent `id` changed to `title`. "" means no title."""

    id: str
    title: str


class RecordCatalog(Struct, frozen=True, gc=False):
    """The catalog of slash commands of agent `id` changed; `digest` is the new catalog's digest."""

    id: str
    digest: str


class RetractionRequested(Struct, frozen=True, gc=False):
    """Retract the messages `steer_ids` of agent `id`. Its process, if there is one, has already removed them."""

    id: str
    steer_ids: tuple[str, ...]


class SetQueueModes(Struct, frozen=True, gc=False):
    """Request to set the delivery modes of agent `id` for steering messages and follow-ups."""

    id: str
    steering: QueueMode
    follow_up: QueueMode


class AddTaint(Struct, frozen=True, gc=False):
    """Agent `id` was queried by other agents. Their conversations have the taint labels `marks`.

    The conversation of agent `id` inherits these labels.
    """

    id: str
    marks: tuple[TaintLabel, ...]


class RevokeTools(Struct, frozen=True, gc=False):
    """Request to revoke all tools of agent `id` that are not in `keep`."""

    id: str
    keep: tuple[str, ...]


class ApprovePlan(Struct, frozen=True, gc=False):
    """The plan of agent `id` was approved, or the agent left plan mode without a plan."""

    id: str


class StartPlan(Struct, frozen=True, gc=False):
    """Request that agent `id` enters plan mode. `plan` is the id of this plan mode."""

    id: str
    plan: str


class Recover(Struct, frozen=True, gc=False):
    """A root opens the run. No process of the previous root is running.

    `replies` and `used` contain the replies and the usage of queries, by query id. The values come from transcripts.
    `begun` contains the queries whose transcript contains the prompt or cannot be read.
    """

    pid: int
    replies: dict[str, Reply] = {}
    used: dict[str, Usage] = {}
    begun: frozenset[str] = frozenset()


Event: TypeAlias = (
    SpawnRequested
    | AddAgent
    | AddHolder
    | StartQuery
    | WorkerBooted
    | FinishQuery
    | LaunchFailed
    | ProcessExited
    | BootTimeout
    | StopTimeout
    | TurnTimeout
    | RetireIdleAgents
    | RecordArchives
    | StopIfIdle
    | RecordDeletion
    | RecordUsage
    | CollectReply
    | KillRequested
    | QueueSteering
    | ConfirmSteering
    | StartWorker
    | ChangeTitle
    | RecordCatalog
    | ChangeModel
    | RetractionRequested
    | SetQueueModes
    | CancelRequested
    | ResumeRequested
    | DiscardSessions
    | LocalOnlyRequested
    | AddTaint
    | ApprovePlan
    | StartPlan
    | RevokeTools
    | Recover
    | RestartWorker
)

REQUESTS = (
    SpawnRequested,
    AddAgent,
    AddHolder,
    StartQuery,
    CollectReply,
    QueueSteering,
    SetQueueModes,
    CancelRequested,
    ResumeRequested,
    DiscardSessions,
    LocalOnlyRequested,
    AddTaint,
    ApprovePlan,
    StartPlan,
    RevokeTools,
)
"""Events that the tree may reject. The tree never rejects other events: they are facts, or requests that must not fail.
KillRequested must not fail, because the processes would continue. RetractionRequested must not fail, because the
process has already removed the messages.
"""
