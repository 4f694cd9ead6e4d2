"""Entries of a session file: one JSON object a line, in pi v3's shape (`type`, `id`, `parentId`, `timestamp`).

The store adds `s` (sequence) and, last, `c` (checksum) to each line; neither is part of an entry. The first line of a
file is the `SessionHeader`. An entry's parent is the entry it follows, so a file is a tree and a conversation a path
through it: the one that ends with the last line. Going back to an earlier entry is itself an entry, which follows that
one. Field names are camelCase on disk.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from ..agent.plan import Task
from ..core.archives import Collapse, RecordUpgrade
from ..core.messages import Image, Message, Reply, Text, Usage, user
from ..core.phases import By, Phase
from ..core.taint import TaintLabel

__all__ = [
    "SESSION_VERSION",
    "ArchiveEntry",
    "BranchSummary",
    "Checkout",
    "CompactionEntry",
    "CompactionReason",
    "CompactionWriter",
    "Custom",
    "CustomMessage",
    "Entry",
    "Label",
    "MarksEntry",
    "MessageEntry",
    "ModelChange",
    "Origin",
    "PhaseEntry",
    "PlanApproved",
    "SessionHeader",
    "SessionInfo",
    "TasksEntry",
    "Telling",
    "ThinkingLevelChange",
    "TranscriptPosition",
    "TurnEndEntry",
    "TurnStartEntry",
    "UpgradeEntry",
]

SESSION_VERSION = 3
CompactionReason: TypeAlias = Literal["size", "refused", "asked", "hook"]
"""Why a conversation was compacted: it had grown past its share of the model's window, was refused as too long, or
somebody asked for it."""
CompactionWriter: TypeAlias = Literal["model", "extract", "hook"]
LEFT_BRANCH = "[What came of a branch of this conversation that was left:]"


class TranscriptPosition(Struct, frozen=True, gc=False, array_like=True):
    """One line of a session file: its sequence number (`s`) and its checksum (`c`) as an integer."""

    seq: int
    checksum: int


class SessionHeader(Struct, frozen=True, gc=False, tag="session", tag_field="type", rename="camel"):
    """The first line of a session file. `agent` is the id of the agent whose transcript this is.

    `parent_session` is the file that the conversation was taken over from, or the agent whose it is a copy of; None
    when it began here.
    """

    id: str
    timestamp: str
    cwd: str
    version: int = SESSION_VERSION
    agent: str = ""
    parent_session: str | None = None


class _Entry(Struct, frozen=True, gc=False, kw_only=True, tag_field="type", rename="camel", omit_defaults=True):
    id: str
    parent_id: str | None
    timestamp: str


class Origin(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """What the file that a message was taken over from says about it: who gave it, why it ended, what it took.

    None of it happened here: no budget and no estimate knows of it.
    """

    api: str = ""
    provider: str = ""
    model: str = ""
    stop: str = ""
    usage: Usage | None = None


class MessageEntry(_Entry, frozen=True, gc=False, kw_only=True, tag="message"):
    """A message of the conversation. `turn` is the query id of the turn it belongs to ("" for seeded history).

    `usage` is what the request took whose response this is, or what models used for the results of tools in it.
    `said` is the id of what somebody said to the agent while it worked, when this is that.
    `deleted` is when what it said was deleted for good, "" while it is there. `origin` is there when the message was
    taken over from elsewhere and more was known of it.
    """

    message: Message
    turn: str = ""
    usage: Usage | None = None
    deleted: str = ""
    origin: Origin | None = None
    said: str = ""


class CompactionEntry(_Entry, frozen=True, gc=False, kw_only=True, tag="compaction"):
    """`summary` stands in place of what was said before the message `first_kept_entry_id`.

    When that is none of the messages before this entry, it stands in place of all of them. What the agent was told of
    its project in front stays, and so do the ids of archives.

    It was made in the query `turn` ("" between turns), for `reason`, and `usage` is what models took for it; `writer`
    says who wrote it: a model, or a `hook`, or nobody (`extract`): then it is taken from what was said. `details` are
    what the next summary goes on from, as JSON data. `deleted` is when what it said was deleted for good.
    """

    summary: str
    first_kept_entry_id: str
    tokens_before: int = 0
    turn: str = ""
    reason: CompactionReason | None = None
    writer: CompactionWriter | None = None
    usage: Usage | None = None
    details: Any = None
    deleted: str = ""


class TurnStartEntry(_Entry, frozen=True, gc=False, kw_only=True, tag="turn_start"):
    """A query was accepted. Written only when the turn before it was cut short, to say so."""

    turn: str
    interrupted: str


class TurnEndEntry(_Entry, frozen=True, gc=False, kw_only=True, tag="turn_end"):
    """A turn is over. This line is what makes a reply true: without it the turn was interrupted.

    `deleted` is when what the reply said was deleted.
    """

    turn: str
    reply: Reply
    deleted: str = ""


class ArchiveEntry(_Entry, frozen=True, gc=False, kw_only=True, tag="archive"):
    """A part of the conversation left it for a holder. This line is what commits that.

    `deleted` is when what the holder held was deleted.
    """

    collapse: Collapse
    deleted: str = ""


class UpgradeEntry(_Entry, frozen=True, gc=False, kw_only=True, tag="archive_summary"):
    """What stands in a holder's place reads better now."""

    upgrade: RecordUpgrade


class Checkout(_Entry, frozen=True, gc=False, kw_only=True, tag="checkout"):
    """The conversation goes on behind the entry that this one follows, or anew; `from_id` is where it had come to."""

    from_id: str | None = None


class BranchSummary(_Entry, frozen=True, gc=False, kw_only=True, tag="branch_summary"):
    """The conversation goes on behind the entry that this one follows, and the model is told what came of a branch.

    `from_id` is where that had come to; `details` are for people and programs, as JSON data.
    """

    from_id: str | None
    summary: str
    details: Any = None

    @property
    def message(self) -> Message:
        """What the model reads."""
        return user(f"{LEFT_BRANCH}\n\n{self.summary}")


class Label(_Entry, frozen=True, gc=False, kw_only=True, tag="label"):
    """A name for the entry `target_id`, in place of the one it had; without `label` it has none any more."""

    target_id: str
    label: str | None = None


class PlanApproved(_Entry, frozen=True, gc=False, kw_only=True, tag="plan_approved"):
    """Somebody approved the plan of `agent`, the last one it handed in: from here on it is not in plan mode.

    In the session of another agent, which goes on with that conversation, it says nothing. `plan` is the id of the plan
    mode that it ends, "" for the one that the agent began in.
    """

    agent: str
    plan: str = ""


class TasksEntry(_Entry, frozen=True, gc=False, kw_only=True, tag="tasks"):
    """What the agent means to do from here on, in place of what it meant before; said in the query `turn`.

    `deleted` is when that was deleted for good, "" when it was not.
    """

    turn: str
    tasks: tuple[Task, ...] = ()
    deleted: str = ""


class MarksEntry(_Entry, frozen=True, gc=False, kw_only=True, tag="marks"):
    """What came into the conversation, or was done, from here on, that matters for what may be done next.

    It was in the query `turn`. `deleted` is when it was deleted what brought it, "" when that was not.
    """

    turn: str
    marks: tuple[TaintLabel, ...]
    deleted: str = ""


class PhaseEntry(_Entry, frozen=True, gc=False, kw_only=True, tag="phase"):
    """In the query `turn` its prompt was assessed, or its outcome reflected upon: by rules, or by `model`.

    `note` is what was said, `did` what came of it, `error` why nothing did; `usage` is what the model took. `deleted`
    is when what it said was deleted for good.
    """

    turn: str
    phase: Phase
    by: By
    model: str = ""
    note: str = ""
    did: tuple[str, ...] = ()
    error: str = ""
    usage: Usage | None = None
    deleted: str = ""


class Custom(_Entry, frozen=True, gc=False, kw_only=True, tag="custom"):
    """State of an extension; never in the model's context."""

    custom_type: str
    data: Any = None


class CustomMessage(_Entry, frozen=True, gc=False, kw_only=True, tag="custom_message"):
    """Something a program tells the model, as a user would. People are shown it with `display` alone.

    `details` are for people and programs, as JSON data.
    """

    custom_type: str
    content: tuple[Text | Image, ...]
    display: bool = True
    details: Any = None

    @property
    def message(self) -> Message:
        """What the model reads."""
        return Message("user", self.content)


class SessionInfo(_Entry, frozen=True, gc=False, kw_only=True, tag="session_info"):
    """A name for the session."""

    name: str | None = None


class ModelChange(_Entry, frozen=True, gc=False, kw_only=True, tag="model_change"):
    """From here on another model answers: as the agent's `own`, or for a turn."""

    provider: str
    model_id: str
    own: bool = False


class ThinkingLevelChange(_Entry, frozen=True, gc=False, kw_only=True, tag="thinking_level_change"):
    """From here on the model thinks this much."""

    thinking_level: str


Telling: TypeAlias = MessageEntry | CustomMessage | BranchSummary
"""An entry with a `message` of the conversation."""

Entry: TypeAlias = (
    SessionHeader
    | MessageEntry
    | CompactionEntry
    | TurnStartEntry
    | TurnEndEntry
    | ArchiveEntry
    | UpgradeEntry
    | PlanApproved
    | TasksEntry
    | MarksEntry
    | PhaseEntry
    | Custom
    | SessionInfo
    | Checkout
    | BranchSummary
    | Label
    | CustomMessage
    | ModelChange
    | ThinkingLevelChange
)
