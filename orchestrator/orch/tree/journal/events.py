"""What can happen to a tree of agents, and what a supervisor can be told to do about it. Data alone."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from msgspec import Struct

from orch_protocol.agent.models import RecordModel
from orch_protocol.agent.spec import AgentSpec, BackendSpec, QueueMode
from orch_protocol.core.errors import ErrorInfo
from orch_protocol.core.messages import Reply, Usage
from orch_protocol.core.taint import TaintLabel
from orch_protocol.policy.budget import BudgetChange
from orch_protocol.session.entries import TranscriptPosition
from orch_protocol.wire.worker_messages import Ready

from .entries import CredentialsRecord, Entry

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
    "Decision",
    "DiscardSession",
    "Event",
    "FinishQuery",
    "Instruction",
    "KillRequested",
    "Launch",
    "LaunchFailed",
    "LocalOnlyRequested",
    "Notify",
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
    "Send",
    "SetQueueModes",
    "Signal",
    "SpawnRequested",
    "StartPlan",
    "StartQuery",
    "StartWorker",
    "StopIfIdle",
    "StopTimeout",
    "Timer",
    "TurnTimeout",
    "WorkerBooted",
]

BOOT_SECONDS: Final = 110.0
"""A process that is not up by then is given up. An SDK's import takes four seconds of a processor, which are over a
minute where eight others want it; and whoever spawns by a tool is to hear of it within the time that tools have."""


# Events: what happened, or what somebody wants.


class SpawnRequested(Struct, frozen=True, gc=False):
    """`caller` (an agent's id, None for the user's program) wants an agent; the tree sets seq, name and depth."""

    spec: AgentSpec
    caller: str | None = None
    request_id: str | None = None
    credentials: CredentialsRecord | None = None


class StartQuery(Struct, frozen=True, gc=False):
    """`asker` puts a query to agent `id`. `waits` says that it will block until the answer, `stays` that the answer is
    there until somebody takes it. `prompt` is the whole prompt of a query that is asked again if the root dies before
    the agent's transcript has it."""

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


class WorkerBooted(Struct, frozen=True, gc=False):
    """The process of incarnation `incarnation` is ready, and `ready` is what it says of itself."""

    id: str
    incarnation: int
    pid: int
    ready: Ready = Ready()


class FinishQuery(Struct, frozen=True, gc=False):
    """The worker reports the end of a query; `taken_by` names a waiter that gets it now, `transcript` the last line of
    the agent's transcript."""

    id: str
    query_id: str
    reply: Reply | None = None
    error: ErrorInfo | None = None
    usage: Usage = Usage()
    context_tokens: int = 0
    taken_by: str | None = None
    transcript: TranscriptPosition | None = None


class LaunchFailed(Struct, frozen=True, gc=False):
    """No process came to be; with `late` it had all the time there is."""

    id: str
    incarnation: int
    error: str
    late: bool = False


class ProcessExited(Struct, frozen=True, gc=False):
    """The process ended. `recovered` is the pending query's reply if the transcript holds it, `begun` whether that
    holds anything of the query at all, `usage` what the query used by it. A `late` one was ended since its time was
    over; `oom` is what shows that it was ended for want of memory."""

    id: str
    incarnation: int
    code: int | None
    recovered: Reply | None = None
    begun: bool = True
    taken_by: str | None = None
    detail: str = ""
    usage: Usage = Usage()
    late: bool = False
    oom: str = ""


class RestartWorker(Struct, frozen=True, gc=False):
    """The pause before another process of agent `id` is over, after the one of `incarnation`; `refused` says why there
    can be none."""

    id: str
    incarnation: int
    refused: str = ""


class BootTimeout(Struct, frozen=True, gc=False):
    """The process had its time to become ready."""

    id: str
    incarnation: int


class StopTimeout(Struct, frozen=True, gc=False):
    """The process was asked to leave and had its time."""

    id: str
    incarnation: int


class TurnTimeout(Struct, frozen=True, gc=False):
    """The process was to end its turn by itself, and had more than its time."""

    id: str
    incarnation: int
    query_id: str


class RetireIdleAgents(Struct, frozen=True, gc=False):
    """Time to look for agents that have idled long enough."""


class RecordArchives(Struct, frozen=True, gc=False):
    """Agent `id` has put archives on record (holder's id, what it is about), or could not: `problem`.

    Somebody `looked`: there are no others.
    """

    id: str
    holders: tuple[tuple[str, str], ...] = ()
    context_tokens: int = 0
    problem: str = ""
    looked: bool = False
    turns: dict[str, str] = {}
    """The query ids of archived turns, by holder."""


class RecordUsage(Struct, frozen=True, gc=False):
    """Agent `id` used something beside its turns."""

    id: str
    usage: Usage


class AddAgent(Struct, frozen=True, gc=False):
    """Somebody has made a transcript: let there be the agent `spec` that goes on with it, cold. The tree sets seq and
    name. `repaired` tells what was wrong with what it was made from."""

    spec: AgentSpec
    repaired: str = ""
    credentials: CredentialsRecord | None = None


class AddHolder(Struct, frozen=True, gc=False):
    """Somebody asks for the holder `spec` describes: let there be an agent, cold, if there is none yet.

    If there is, what it holds may stand elsewhere than it knows.
    """

    spec: AgentSpec


class StopIfIdle(Struct, frozen=True, gc=False):
    """Agent `id` is to go cold, if it idles."""

    id: str


class RecordDeletion(Struct, frozen=True, gc=False):
    """What `holders` of agent `id` held is deleted (ids, and when), and the replies to its queries `turns` with it."""

    id: str
    holders: dict[str, str]
    turns: dict[str, str]


class CollectReply(Struct, frozen=True, gc=False):
    """`by`, which is agent `asker` or the user's program, wants an answer of agent `id`.

    `query` is the id of the query whose answer that is, "" for any.
    """

    id: str
    by: str
    again: bool = False
    asker: str | None = None
    query: str = ""


class KillRequested(Struct, frozen=True, gc=False):
    """`by` ends the agents `ids` and everything below them; `used` is what their queries used so far, by query id."""

    ids: tuple[str, ...]
    by: str
    used: dict[str, Usage] = {}


class QueueSteering(Struct, frozen=True, gc=False):
    """Somebody says `text` to agent `id`."""

    id: str
    steer_id: str
    text: str
    follow_up: bool = False


class ConfirmSteering(Struct, frozen=True, gc=False):
    """The worker tells that what was said is in the conversation."""

    id: str
    steer_id: str


class CancelRequested(Struct, frozen=True, gc=False):
    """Somebody wants the turn of agent `id` to end; `hard` does not ask its process, and `usage` is what it used."""

    id: str
    hard: bool = False
    usage: Usage = Usage()


class ResumeRequested(Struct, frozen=True, gc=False):
    """Let a killed or failed agent answer again; what `budget` sets holds from now on, whatever the agent's status."""

    id: str
    budget: BudgetChange = BudgetChange()


class DiscardSession(Struct, frozen=True, gc=False):
    """All that was said to agent `id`, which was killed, is to be deleted for good."""

    id: str


class LocalOnlyRequested(Struct, frozen=True, gc=False):
    """From now on the conversation of agent `id` is for the model behind `backend` alone, which is of this machine."""

    id: str
    backend: BackendSpec


class ChangeModel(Struct, frozen=True, gc=False):
    """The conversation of agent `id` has it on record that `answers` is who answers for it."""

    id: str
    answers: RecordModel


class StartWorker(Struct, frozen=True, gc=False):
    """Let agent `id` have a process, though nobody asks it anything."""

    id: str


class ChangeTitle(Struct, frozen=True, gc=False):
    """The session of agent `id` is called `title`, "" for nothing."""

    id: str
    title: str


class RecordCatalog(Struct, frozen=True, gc=False):
    """Other commands can be executed in the session of agent `id` than before; `digest` is that of the catalog now."""

    id: str
    digest: str


class RetractionRequested(Struct, frozen=True, gc=False):
    """What these name is not going to be heard by agent `id`."""

    id: str
    steer_ids: tuple[str, ...]


class SetQueueModes(Struct, frozen=True, gc=False):
    """Agent `id` hears so many of the things said to it at once from now on."""

    id: str
    steering: QueueMode
    follow_up: QueueMode


class AddTaint(Struct, frozen=True, gc=False):
    """Agent `id` is asked by others whose conversations have `marks`: what is new of them is its own from now on."""

    id: str
    marks: tuple[TaintLabel, ...]


class RevokeTools(Struct, frozen=True, gc=False):
    """Agent `id` may use no tools from now on but those of `keep` that it may use already."""

    id: str
    keep: tuple[str, ...]


class ApprovePlan(Struct, frozen=True, gc=False):
    """Somebody approved the plan of agent `id`, or wants none of it."""

    id: str


class StartPlan(Struct, frozen=True, gc=False):
    """Somebody wants a plan of agent `id` before it goes on; `plan` is the id of that plan mode."""

    id: str
    plan: str


class Recover(Struct, frozen=True, gc=False):
    """A root takes over: no process of the last one is left.

    `replies` and what was `used` are found in transcripts, by query id. Of the queries `begun` the transcript has the
    prompt, or cannot be read.
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
    | DiscardSession
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
    DiscardSession,
    LocalOnlyRequested,
    AddTaint,
    ApprovePlan,
    StartPlan,
    RevokeTools,
)
"""Events that somebody wants and that may be refused. The others are facts, or, like a kill, must not fail."""


# Instructions: the five things a supervisor can do.


class Launch(Struct, frozen=True, gc=False):
    """Start a process for agent `id`."""

    id: str
    incarnation: int


class Signal(Struct, frozen=True, gc=False):
    """End a process: `stop` asks it to leave, `kill` does not ask, and `late` is a kill of one whose time is over."""

    id: str
    incarnation: int
    how: str


class Send(Struct, frozen=True, gc=False):
    """Send the worker of agent `id` a frame of kind `kind` about `query_id`. Without `body` it is the query itself."""

    id: str
    query_id: str
    kind: str = "query"
    body: Struct | None = None


class Timer(Struct, frozen=True, gc=False):
    """Hand `event` in after `seconds`, by up to `spread` of that more or less."""

    seconds: float
    event: Event
    spread: float = 0.0


class Notify(Struct, frozen=True, gc=False):
    """Tell whoever waits for `topic` (`query:ID`, `up:ID`, `gone:ID:N`, `wake:ID`)."""

    topic: str
    value: Any = None
    error: ErrorInfo | None = None


Instruction: TypeAlias = Launch | Signal | Send | Timer | Notify


class Decision(Struct, frozen=True, gc=False):
    """What follows from an event: entries to write, instructions to perform then, and a value for the one who asked."""

    entries: list[Entry] = []
    instructions: list[Instruction] = []
    value: Any = None
