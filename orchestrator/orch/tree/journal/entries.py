"""What a root's journal can say: what happened to its agents, one entry a line.

Times are seconds since the epoch. Prompts are in the agents' transcripts; here is their head, and the whole prompt of
an asynchronous query, which is asked again if its root dies before the transcript has it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from orch_protocol.agent.models import Answers
from orch_protocol.agent.spec import AgentSpec, BackendSpec, QueueMode
from orch_protocol.core.archives import Source
from orch_protocol.core.budget import Amounts, Budget, BudgetChange
from orch_protocol.core.errors import ErrorInfo
from orch_protocol.core.messages import Reply, Usage
from orch_protocol.core.taint import Mark
from orch_protocol.core.text import scrub
from orch_protocol.session.entries import TranscriptPosition
from orch_protocol.wire.frames import DECODE_ERRORS

__all__ = [
    "Acknowledged",
    "Answered",
    "Archived",
    "Asked",
    "Budgeted",
    "CatalogChanged",
    "Chosen",
    "Collected",
    "CredentialsRecord",
    "CredentialsSet",
    "Ended",
    "Entry",
    "Heard",
    "Hearing",
    "Kept",
    "KeptRun",
    "Killed",
    "Launched",
    "LetGo",
    "Localised",
    "Marked",
    "Moved",
    "Narrowed",
    "Opened",
    "PlanApproved",
    "PlanBegun",
    "Pruned",
    "PutAside",
    "Resumed",
    "RootBudgeted",
    "Spawned",
    "Spent",
    "Steered",
    "Stopping",
    "Titled",
    "Unsaid",
    "Up",
    "Woken",
    "decoded",
    "decoder",
    "encoded",
    "encoder",
]


class _Entry(Struct, frozen=True, gc=False, kw_only=True, tag_field="type", omit_defaults=True):
    at: float


class Opened(_Entry, frozen=True, gc=False, kw_only=True, tag="opened"):
    """A root took the run over."""

    pid: int


class _Agent(_Entry, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    id: str


class CredentialsRecord(Struct, frozen=True, gc=False, omit_defaults=True):
    """Which variables an agent's models are reached with: salted fingerprints by provider, and where they are from."""

    fingerprints: dict[str, str]
    source: str = ""


class Spawned(_Agent, frozen=True, gc=False, kw_only=True, tag="spawned"):
    """An agent exists. `request_id` is the caller's, for a repeated request.

    A `cold` one has a transcript already, and no process until it is asked; `repaired` tells what was wrong with what
    it was made from.
    """

    spec: AgentSpec
    request_id: str | None = None
    cold: bool = False
    repaired: str = ""
    credentials: CredentialsRecord | None = None


class CredentialsSet(_Agent, frozen=True, gc=False, kw_only=True, tag="credentials_set"):
    """The agent and those below it use other credentials from now on; None: those of the agent above it.

    `base_url` is the address of its model's server from now on, "" for no change.
    """

    credentials: CredentialsRecord | None = None
    base_url: str = ""


class Launched(_Agent, frozen=True, gc=False, kw_only=True, tag="launched"):
    """A process was asked for."""

    incarnation: int


class Up(_Agent, frozen=True, gc=False, kw_only=True, tag="up"):
    """The process has opened its transcript and waits; `repaired` tells what was wrong with that."""

    pid: int
    model: str = ""
    context_tokens: int = 0
    context_limit: int = 0
    repaired: str = ""
    transcript: TranscriptPosition | None = None


class Asked(_Agent, frozen=True, gc=False, kw_only=True, tag="asked"):
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


class Answered(_Agent, frozen=True, gc=False, kw_only=True, tag="answered"):
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


class Acknowledged(_Agent, frozen=True, gc=False, kw_only=True, tag="acknowledged"):
    """The transcript was rewritten, and `transcript` is its last line; None while it is being rewritten."""

    transcript: TranscriptPosition | None = None


class Collected(_Agent, frozen=True, gc=False, kw_only=True, tag="collected"):
    """Somebody took the answer."""

    query_id: str
    by: str


class Stopping(_Agent, frozen=True, gc=False, kw_only=True, tag="stopping"):
    """The process was asked to leave; its agent goes cold."""


class Ended(_Agent, frozen=True, gc=False, kw_only=True, tag="ended"):
    """The process is gone. `status` is what the agent is now: cold, died, failed or killed; `starting` when another
    process is about to be started. With `crash` it counts against how many there may be."""

    incarnation: int
    status: str
    code: int | None = None
    error: str | None = None
    crash: bool = False


class Killed(_Agent, frozen=True, gc=False, kw_only=True, tag="killed"):
    """The agent was killed on purpose."""

    by: str


class Resumed(_Agent, frozen=True, gc=False, kw_only=True, tag="resumed"):
    """A killed or failed agent may answer again."""


class Budgeted(BudgetChange, frozen=True, gc=False, kw_only=True, tag_field="type", tag="budgeted"):
    """The agent may use so much from now on, with everything that it used before."""

    at: float
    id: str


class RootBudgeted(_Entry, frozen=True, gc=False, kw_only=True, tag="root_budgeted"):
    """All agents together may use so much, for as long as the configuration says what it said then."""

    change: BudgetChange
    configured: Budget


class Localised(_Agent, frozen=True, gc=False, kw_only=True, tag="localised"):
    """The agent's conversation is for models of this machine alone from now on: for the one behind `backend`."""

    backend: BackendSpec


class Chosen(_Agent, frozen=True, gc=False, kw_only=True, tag="chosen"):
    """`answers` is who answers for the agent from now on."""

    answers: Answers


class Marked(_Agent, frozen=True, gc=False, kw_only=True, tag="marked"):
    """All that came to the agent with what other agents asked it."""

    marks: tuple[Mark, ...]


class Narrowed(_Agent, frozen=True, gc=False, kw_only=True, tag="narrowed"):
    """The agent may not use these of its tools any more: all of them, those of before included."""

    withdrawn: tuple[str, ...]


class PlanApproved(_Agent, frozen=True, gc=False, kw_only=True, tag="plan_approved"):
    """Somebody approved the agent's plan, or let it out of plan mode without one: it is not in it any more."""


class PlanBegun(_Agent, frozen=True, gc=False, kw_only=True, tag="plan_begun"):
    """Somebody let the agent go on in plan mode; `plan` is the id of that."""

    plan: str


class Steered(_Agent, frozen=True, gc=False, kw_only=True, tag="steered"):
    """Something was said to the agent, to be heard while it works."""

    steer_id: str
    text: str
    follow_up: bool = False


class Heard(_Agent, frozen=True, gc=False, kw_only=True, tag="heard"):
    """What was said is in the agent's conversation."""

    steer_id: str


class Titled(_Agent, frozen=True, gc=False, kw_only=True, tag="titled"):
    """What the agent's session is called now, "" for nothing; its file says so, too."""

    title: str


class CatalogChanged(_Agent, frozen=True, gc=False, kw_only=True, tag="catalog_changed"):
    """Other commands can be executed in the agent's session than before; for whoever shows them."""

    digest: str


class Unsaid(_Agent, frozen=True, gc=False, kw_only=True, tag="unsaid"):
    """What was said is not to be heard any more."""

    steer_ids: tuple[str, ...]


class Hearing(_Agent, frozen=True, gc=False, kw_only=True, tag="hearing"):
    """How many of the things said to the agent it hears at once from now on."""

    steering: QueueMode
    follow_up: QueueMode


class Archived(_Agent, frozen=True, gc=False, kw_only=True, tag="archived"):
    """Parts of the agent's conversation are holders' now: their ids and what they are about. Its transcript says all
    of it, and knows better: when somebody `looked` there are no more. `problem` says why nothing could be archived."""

    holders: tuple[tuple[str, str], ...] = ()
    context_tokens: int = 0
    problem: str = ""
    looked: bool = False
    turns: dict[str, str] = {}
    """The query ids of archived turns, by holder: `archived_to` of their replies."""


class Spent(_Agent, frozen=True, gc=False, kw_only=True, tag="spent"):
    """The agent used something beside its turns: for a summary of what it had archived."""

    usage: Usage


class PutAside(_Agent, frozen=True, gc=False, kw_only=True, tag="put_aside"):
    """The agent is about to use something in its query, `least` at least: what its budgets have is less by that."""

    query_id: str
    hold: str
    least: Amounts


class LetGo(_Agent, frozen=True, gc=False, kw_only=True, tag="let_go"):
    """What the agent used of what was put aside is on record, or nothing was."""

    hold: str


class Moved(_Agent, frozen=True, gc=False, kw_only=True, tag="moved"):
    """What a holder holds stands elsewhere now. None: a later entry says where."""

    source: Source | None


class Pruned(_Agent, frozen=True, gc=False, kw_only=True, tag="pruned"):
    """What `holders` of the agent held was deleted for good: ids, and when. So were the replies to its queries `turns`;
    with `session` all that was said to it, whose folder is "going" and then "gone".

    Nothing in the journal tells what they said; see `orch.tree.rules.deletions`.
    """

    holders: dict[str, str] = {}
    turns: dict[str, str] = {}
    session: Literal["", "going", "gone"] = ""


class Kept(_Agent, frozen=True, gc=False, kw_only=True, tag="kept"):
    """All that the entries before this one came to of the agent, a Node; they are in the file no more."""

    state: msgspec.Raw


class KeptRun(_Entry, frozen=True, gc=False, kw_only=True, tag="kept_run"):
    """All that they came to of what is no agent's."""

    state: msgspec.Raw


class Woken(_Agent, frozen=True, gc=False, kw_only=True, tag="woken"):
    """News for the agent, to be its next prompt."""

    text: str


Entry: TypeAlias = (
    Opened
    | Spawned
    | Launched
    | Up
    | Asked
    | Answered
    | Acknowledged
    | Collected
    | Stopping
    | Ended
    | Killed
    | Resumed
    | Budgeted
    | RootBudgeted
    | Localised
    | Marked
    | PlanApproved
    | PlanBegun
    | Narrowed
    | Woken
    | Steered
    | Heard
    | Titled
    | CatalogChanged
    | Chosen
    | CredentialsSet
    | Unsaid
    | Hearing
    | Archived
    | Spent
    | PutAside
    | LetGo
    | Moved
    | Pruned
    | Kept
    | KeptRun
)

encoder = msgspec.json.Encoder()
decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)


def encoded(entry: Entry) -> bytes:
    """Return `entry` as a line."""
    try:
        return encoder.encode(entry)
    except UnicodeEncodeError:
        return encoder.encode(scrub(msgspec.to_builtins(entry)))


def decoded(line: bytes) -> Entry | None:
    """Return the entry that `line` is, None when it is none that this version knows."""
    try:
        return decoder.decode(line)
    except DECODE_ERRORS:
        return None
