"""The root's record of one agent."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import (
    AgentError,
    ArchiveDeletedError,
    ErrorInfo,
    Outcome,
    SessionDeletedError,
    outcome_of,
)
from orch_protocol.core.messages import Message, Reply, Text, Usage
from orch_protocol.core.prompts import PromptSpec
from orch_protocol.core.taint import without_sources as taint_bare
from orch_protocol.policy.policy import EXIT_PLAN
from orch_protocol.services.agents.status import Status
from orch_protocol.session.entries import TranscriptPosition
from orch_worker.conversation.stubs import deletion_marker

from ..journal.entries import ContentDeleted, CredentialsRecord, QueryStarted, SteeringQueued

__all__ = [
    "AgentRecord",
    "BusyTime",
    "QueryResult",
    "archive_deleted_error",
    "erase_session",
    "forget_deleted",
    "in_plan_mode",
    "mark_archive_deleted",
    "redacted_message",
    "redacted_reply",
    "redacted_spec",
    "session_deleted_error",
]


# --- Replacements for deleted content ---


def archive_deleted_error(id: str, when: str) -> ArchiveDeletedError:
    """Return the error for a request to the deleted archive `id`."""
    return ArchiveDeletedError(
        f"the content of archive {id} was deleted on {when[:10]} (at {when[11:19]} UTC); at most the record of the "
        "archive in the conversation remains"
    )


def session_deleted_error(name: str, id: str, when: str) -> SessionDeletedError:
    """Return the error for a request to the deleted session of the agent `id`."""
    return SessionDeletedError(
        f"the session of agent {name!r} ({id}) was deleted on {when[:10]} (at {when[11:19]} UTC); spawn another agent"
    )


def redacted_message(message: Message, when: str) -> Message:
    """Return `message` with a deletion marker in place of its content."""
    return Message(message.role, (Text(deletion_marker(when)),))


def redacted_reply(reply: Reply, when: str) -> Reply:
    """Return `reply` with a deletion marker in place of its content."""
    return msgspec.structs.replace(reply, text=deletion_marker(when), files_changed=(), marks=taint_bare(reply.marks))


# --- Working time ---


@dataclass(slots=True)
class BusyTime:
    """The time during which at least one turn was in progress, in seconds.

    The times of journal entries determine this time.
    """

    turns: int = 0
    """Number of turns in progress."""
    since: float = 0.0
    before: float = 0.0
    """Seconds of busy time that were counted before the time `since`."""

    def begin(self, at: float) -> None:
        """Count the start of a turn."""
        if not self.turns:
            self.since = at
        self.turns += 1

    def end(self, at: float) -> None:
        """Count the end of a turn."""
        self.turns -= 1
        if not self.turns:
            self.before += max(0.0, at - self.since)

    def skip(self, seconds: float) -> None:
        """Subtract `seconds` from a turn in progress, because the run had no root during that time."""
        if self.turns:
            self.since += seconds

    def seconds(self, now: float) -> float:
        """Return the busy time until `now`, in seconds."""
        return self.before + (max(0.0, now - self.since) if self.turns else 0.0)


@dataclass(slots=True)
class QueryResult:
    """The result of one query."""

    query_id: str
    reply: Reply | None
    error: ErrorInfo | None
    taken_by: str | None
    taken_at: float | None
    asker: str | None
    ended: bool = False
    """Whether the user ended the turn together with the agent's process."""
    stays: bool = False
    """Whether the result is kept until a caller collects the result, even if other queries follow."""
    item: str = ""
    """The question of a map that the query asked, or ""."""

    @property
    def outcome(self) -> Outcome:
        """Return how the query ended."""
        return self.reply.outcome if self.reply is not None else outcome_of(self.error) if self.error else "done"


@dataclass(slots=True, weakref_slot=True)
class AgentRecord:
    """The record of one agent. Only `TreeState.apply` changes records."""

    spec: AgentSpec
    created_at: float
    last_activity: float
    status: Status = "starting"
    incarnation: int = 0
    running: bool = False
    """Whether a process exists, is starting or is stopping."""
    pid: int | None = None
    pending: QueryStarted | None = None
    stopping: bool = False
    last: QueryResult | None = None
    earlier: list[QueryResult] = field(default_factory=list)
    """Older results that no caller has collected, oldest first, and the older result that was collected last."""
    usage: Usage = field(default_factory=Usage)
    worked: BusyTime = field(default_factory=BusyTime)
    """The time during which the agent or any of its descendants worked."""
    payers: tuple[str, ...] = ()
    """Agents that are charged for this agent's usage in addition to this agent's ancestors; see `TreeState.payers`."""
    peer_usage: Usage = field(default_factory=Usage)
    """Usage of other agents, in finished turns, that is charged to this agent although they are not its descendants."""
    peer_processes: int = 0
    """Number of processes started for this agent's queries to agents other than its descendants."""
    queries: int = 0
    model: str = ""
    context_tokens: int = 0
    context_limit: int = 0
    error: str | None = None
    children: list[str] = field(default_factory=list)
    exit_code: int | None = None
    """Exit code of the agent's last process, None if the exit code is unknown."""
    end: str = ""
    """The reason why the agent's last process ended."""
    came_up: bool = False
    """Whether any process of the agent ever became ready."""
    crashes: list[float] = field(default_factory=list)
    """Times at which the agent's processes crashed at startup or during a turn, since the last finished turn."""
    repaired: str = ""
    """The last problem that was found in the agent's transcript."""
    untold: str = ""
    """The problem in `repaired`, until a reply has reported the problem. Afterwards ""."""
    transcript: TranscriptPosition | None = None
    """The last acknowledged line of the agent's transcript. None if no line is known."""
    unheard: dict[str, SteeringQueued] = field(default_factory=dict)
    """Steering messages and follow-ups that the agent's conversation does not contain yet, by id, in order."""
    title: str = ""
    """The title of the agent's session."""
    archives: dict[str, str] = field(default_factory=dict)
    """The tasks of the agent's archives, by the id of the archive's holder, in order of creation. The task of a deleted
    archive is "".
    """
    deleted: str = ""
    """The time at which the archive of this holder, or the session of this agent, was deleted. "" if nothing was
    deleted.
    """
    forgotten: dict[str, str] = field(default_factory=dict)
    """The times at which replies were deleted, by query id."""
    inbox: list[str] = field(default_factory=list)
    watching: dict[str, str | int] = field(default_factory=dict)
    news: list[str] = field(default_factory=list)
    requests: dict[str, str] = field(default_factory=dict)
    credentials: CredentialsRecord | None = None
    """The credentials of the agent's models. None if the agent uses the credentials of its parent."""
    ends_with_connection: bool = False
    """Whether the agent ends when the client that spawned or resumed it disconnects."""

    @property
    def is_holder(self) -> bool:
        """Whether the agent is the holder of an archive."""
        return self.spec.kind == "holder"

    @property
    def alive(self) -> bool:
        """Whether the agent counts toward `max_concurrent`.

        An agent counts if it has a process or will get a process. Holders do not count; another limit applies to
        holders.
        """
        return (
            self.spec.kind != "holder"
            and (self.running or self.status == "starting")
            and self.status != "killed"
            and (not self.stopping or self.pending is not None)
        )

    @property
    def resting(self) -> bool:
        """Whether the record cannot change until the agent is queried.

        This is true for a killed agent, and for a holder without a process, unless a descendant is working.
        """
        at_work = self.running or self.pending is not None or self.worked.turns > 0
        return not at_work and (self.status == "killed" or self.is_holder)

    @property
    def last_turn_was_ended(self) -> bool:
        """Whether the user ended the agent's last turn together with the agent's process.

        The next process may not know that the user ended the turn.
        """
        return self.last is not None and self.last.ended

    def refusal(self) -> AgentError:
        """Return the error for a request to the agent after its content was deleted."""
        if self.is_holder:
            return archive_deleted_error(self.spec.id, self.deleted)
        return session_deleted_error(self.spec.name, self.spec.id, self.deleted)

    def with_warning(self, reply: Reply | None) -> Reply | None:
        """Return `reply` with a warning about a problem of the agent's transcript, if no reply has reported the problem
        yet.
        """
        return msgspec.structs.replace(reply, warning=self.untold) if reply is not None and self.untold else reply


def forget_deleted(record: AgentRecord, pruned: ContentDeleted) -> None:
    """Remove the content named in `pruned` from the record."""
    record.forgotten |= pruned.turns
    record.archives |= dict.fromkeys(pruned.holders, "")
    for result in (*record.earlier, record.last):
        if result is not None and result.reply is not None and (when := pruned.turns.get(result.query_id)):
            result.reply = redacted_reply(result.reply, when)


def mark_archive_deleted(holder: AgentRecord, when: str) -> None:
    holder.status, holder.deleted, holder.last = "killed", when, None
    holder.transcript = None
    holder.earlier.clear()
    holder.unheard.clear()
    holder.spec = msgspec.structs.replace(holder.spec, task=deletion_marker(when), source=None)


def erase_session(record: AgentRecord, when: str) -> None:
    """Remove the content of a deleted session from the record. The agent's number, name and usage remain."""
    record.status, record.deleted, record.last, record.title = "killed", when, None, ""
    record.error, record.end, record.repaired, record.untold, record.transcript = None, "", "", "", None
    for content in (
        record.earlier,
        record.unheard,
        record.inbox,
        record.news,
        record.watching,
        record.forgotten,
        record.requests,
    ):
        content.clear()
    record.archives = dict.fromkeys(record.archives, "")
    record.spec = redacted_spec(record.spec, when)


def redacted_spec(spec: AgentSpec, when: str) -> AgentSpec:
    """Return `spec` without the task, the prompts, and the data that was given to the model and the tools."""
    return msgspec.structs.replace(
        spec,
        task=deletion_marker(when),
        history=(),
        env={},
        backend=BackendSpec(spec.backend.provider, spec.backend.model),
        born=None,
        prompt=PromptSpec(),
        marks=taint_bare(spec.marks),
    )


def in_plan_mode(spec: AgentSpec, plan: str) -> AgentSpec:
    """Return `spec` in the plan mode with id `plan`. The tools of the result include the tool that leaves plan mode."""
    withdrawn = tuple(name for name in spec.withdrawn if name != EXIT_PLAN)
    return msgspec.structs.replace(
        spec, plan=True, plan_id=plan, tools=tuple(dict.fromkeys((*spec.tools, EXIT_PLAN))), withdrawn=withdrawn
    )
