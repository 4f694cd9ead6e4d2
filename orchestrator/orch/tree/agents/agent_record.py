"""One agent of a run: all that its root knows of it."""

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
from orch_protocol.core.taint import without_sources as taint_bare
from orch_protocol.policy.policy import EXIT_PLAN
from orch_protocol.services.requests import Status
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


# --- What is said in place of what was deleted for good ---


def archive_deleted_error(id: str, when: str) -> ArchiveDeletedError:
    """Return the error for who asks for the archive `id`."""
    return ArchiveDeletedError(
        f"what archive {id} held was deleted on {when[:10]} (at {when[11:19]} UTC, by prune): "
        "at most its record in the conversation is left"
    )


def session_deleted_error(name: str, id: str, when: str) -> SessionDeletedError:
    """Return the error for who asks for the session of the agent `id`."""
    return SessionDeletedError(
        f"the session of agent {name!r} ({id}) was deleted on {when[:10]} (at {when[11:19]} UTC, by prune): "
        "spawn another one"
    )


def redacted_message(message: Message, when: str) -> Message:
    """Return `message` without what it said."""
    return Message(message.role, (Text(deletion_marker(when)),))


def redacted_reply(reply: Reply, when: str) -> Reply:
    """Return `reply` without what it said."""
    return msgspec.structs.replace(reply, text=deletion_marker(when), files_changed=(), marks=taint_bare(reply.marks))


# --- For how long there was work ---


@dataclass(slots=True)
class BusyTime:
    """Seconds in which at least one turn was under way. Times are those of the entries that begin and end turns."""

    turns: int = 0
    """How many are under way."""
    since: float = 0.0
    before: float = 0.0
    """Seconds until `since`."""

    def begin(self, at: float) -> None:
        """A turn begins."""
        if not self.turns:
            self.since = at
        self.turns += 1

    def end(self, at: float) -> None:
        """A turn ends."""
        self.turns -= 1
        if not self.turns:
            self.before += max(0.0, at - self.since)

    def skip(self, seconds: float) -> None:
        """For so long nobody was there who could have worked."""
        if self.turns:
            self.since += seconds

    def seconds(self, now: float) -> float:
        """Return how long there was work until `now`."""
        return self.before + (max(0.0, now - self.since) if self.turns else 0.0)


@dataclass(slots=True)
class QueryResult:
    """The answer to one query, kept until the run is deleted."""

    query_id: str
    reply: Reply | None
    error: ErrorInfo | None
    taken_by: str | None
    taken_at: float | None
    asker: str | None
    ended: bool = False
    """Whether the user ended the turn together with the agent's process."""
    stays: bool = False
    """Whether it is there until somebody takes it."""

    @property
    def outcome(self) -> Outcome:
        """How the query ended."""
        return self.reply.outcome if self.reply is not None else outcome_of(self.error) if self.error else "done"


@dataclass(slots=True, weakref_slot=True)
class AgentRecord:
    """One agent. Only `Nodes.apply` assigns to it."""

    spec: AgentSpec
    created_at: float
    last_activity: float
    status: Status = "starting"
    incarnation: int = 0
    running: bool = False
    """Whether a process exists or is being made, also one that was told to end."""
    pid: int | None = None
    pending: QueryStarted | None = None
    stopping: bool = False
    last: QueryResult | None = None
    earlier: list[QueryResult] = field(default_factory=list)
    """Answers before that one which nobody has taken yet, the oldest first, and of them the one that was taken last."""
    usage: Usage = field(default_factory=Usage)
    worked: BusyTime = field(default_factory=BusyTime)
    """For how long it, or any agent below it, was at work."""
    payers: tuple[str, ...] = ()
    """Agents that are charged for what it uses, besides those above it: the path of the peer that asked it last."""
    peer_usage: Usage = field(default_factory=Usage)
    """What it is charged for agents that are not below it, in turns that are over."""
    peer_processes: int = 0
    """How many processes of agents that are not below it were started for its queries."""
    queries: int = 0
    model: str = ""
    context_tokens: int = 0
    context_limit: int = 0
    error: str | None = None
    children: list[str] = field(default_factory=list)
    exit_code: int | None = None
    """How its last process ended, as far as that is known."""
    end: str = ""
    """What was said of that."""
    came_up: bool = False
    """Whether any process of it was ever ready."""
    crashes: list[float] = field(default_factory=list)
    """When its processes ended before or in a turn, since one was finished."""
    repaired: str = ""
    """What was found wrong with its transcript, the last time that anything was."""
    untold: str = ""
    """That, until it was told to somebody who asks the agent."""
    transcript: TranscriptPosition | None = None
    """The last acknowledged line of its transcript, None when none is known."""
    unheard: dict[str, SteeringQueued] = field(default_factory=dict)
    title: str = ""
    """What was said to it and is not in its conversation yet, by id, in order."""
    archives: dict[str, str] = field(default_factory=dict)
    """What each of its archives is about, by the holder's id, in order."""
    deleted: str = ""
    """When what this holder held, or all that was said to this agent, was deleted for good."""
    forgotten: dict[str, str] = field(default_factory=dict)
    """When the replies to its queries were deleted, by query id, as far as they are."""
    inbox: list[str] = field(default_factory=list)
    watching: dict[str, str | int] = field(default_factory=dict)
    news: list[str] = field(default_factory=list)
    requests: dict[str, str] = field(default_factory=dict)
    credentials: CredentialsRecord | None = None
    """What its models are reached with, None: what the agent above it is reached with."""

    @property
    def is_holder(self) -> bool:
        """Whether it holds a part of another agent's conversation."""
        return self.spec.kind == "holder"

    @property
    def alive(self) -> bool:
        """Whether it counts against the limit: it has a process, or is to have one as soon as the last one has left.

        Holders have a limit of their own.
        """
        return (
            not self.is_holder
            and (self.running or self.status == "starting")
            and self.status != "killed"
            and (not self.stopping or self.pending is not None)
        )

    @property
    def resting(self) -> bool:
        """Whether nothing happens to it until somebody asks for it: it was killed, or is a holder without a process.

        So long nobody below it is at work either.
        """
        at_work = self.running or self.pending is not None or self.worked.turns > 0
        return not at_work and (self.status == "killed" or self.is_holder)

    @property
    def last_turn_was_ended(self) -> bool:
        """Whether somebody ended its last turn, which its process may not know."""
        return self.last is not None and self.last.ended

    def refusal(self) -> AgentError:
        """Return the error for who asks for what was `deleted`."""
        if self.is_holder:
            return archive_deleted_error(self.spec.id, self.deleted)
        return session_deleted_error(self.spec.name, self.spec.id, self.deleted)

    def with_warning(self, reply: Reply | None) -> Reply | None:
        """Return `reply` with what whoever asked has yet to be told of the agent's transcript."""
        return msgspec.structs.replace(reply, warning=self.untold) if reply is not None and self.untold else reply


def forget_deleted(node: AgentRecord, pruned: ContentDeleted) -> None:
    """Let the agent know no more of what was deleted for good of its conversation."""
    node.forgotten |= pruned.turns
    node.archives |= dict.fromkeys(pruned.holders, "")
    for result in (*node.earlier, node.last):
        if result is not None and result.reply is not None and (when := pruned.turns.get(result.query_id)):
            result.reply = redacted_reply(result.reply, when)


def mark_archive_deleted(holder: AgentRecord, when: str) -> None:
    """Let the holder be one whose archive was deleted."""
    holder.status, holder.deleted, holder.last = "killed", when, None
    holder.transcript = None
    holder.earlier.clear()
    holder.unheard.clear()
    holder.spec = msgspec.structs.replace(holder.spec, task=deletion_marker(when), source=None)


def erase_session(node: AgentRecord, when: str) -> None:
    """Let the agent be one whose session was deleted: its number, its name and what it used are left."""
    node.status, node.deleted, node.last, node.title = "killed", when, None, ""
    node.error, node.end, node.repaired, node.untold, node.transcript = None, "", "", "", None
    for said in (node.earlier, node.unheard, node.inbox, node.news, node.watching, node.forgotten, node.requests):
        said.clear()
    node.archives = dict.fromkeys(node.archives, "")
    node.spec = redacted_spec(node.spec, when)


def redacted_spec(spec: AgentSpec, when: str) -> AgentSpec:
    """Return `spec` without what it says of what the agent was for, and what its model and tools were given."""
    backend = BackendSpec(spec.backend.provider, spec.backend.model)
    return msgspec.structs.replace(spec, task=deletion_marker(when), history=(), env={}, backend=backend, born=None)


def in_plan_mode(spec: AgentSpec, plan: str) -> AgentSpec:
    """Return the agent `spec` in the plan mode `plan`, with its own way out of that."""
    withdrawn = tuple(name for name in spec.withdrawn if name != EXIT_PLAN)
    return msgspec.structs.replace(
        spec, plan=True, plan_id=plan, tools=tuple(dict.fromkeys((*spec.tools, EXIT_PLAN))), withdrawn=withdrawn
    )
