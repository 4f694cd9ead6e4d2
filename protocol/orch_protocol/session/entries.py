"""Entries of a session file: one JSON object per line, with the keys of pi v3 (`type`, `id`, `parentId`, `timestamp`).

To each line, the store adds `s` (sequence number) and, at the end, `c` (checksum). `s` and `c` are not part of the
entry. The first line of a file is the `SessionHeader`. The parent of an entry is the entry that it follows, so a file
is a tree. The conversation is the path from the root of the tree to the entry on the last line. To return to an earlier
entry, orch adds a new entry. The parent of the new entry is the earlier entry. Field names are camelCase on disk.
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
    "AnyMessageEntry",
    "ArchiveEntry",
    "BranchSummary",
    "Checkout",
    "CompactionEntry",
    "CompactionReason",
    "CompactionWriter",
    "ConversationEntry",
    "Custom",
    "CustomMessage",
    "Entry",
    "Label",
    "MessageEntry",
    "ModelChange",
    "Origin",
    "PhaseEntry",
    "PlanApproved",
    "SessionHeader",
    "SessionInfo",
    "TaintEntry",
    "TasksEntry",
    "ThinkingLevelChange",
    "TranscriptPosition",
    "TurnEndEntry",
    "TurnStartEntry",
    "UpgradeEntry",
]

SESSION_VERSION = 4
"""Version of session files and of all files with a `SessionHeader`. Other versions are not read. pi uses 1 to 3."""
CompactionReason: TypeAlias = Literal["size", "refused", "asked", "hook"]
"""The cause of a compaction.

- "size": the size of the conversation
- "refused": the provider refused a request as too long
- "asked": a user requested the compaction
- "hook": a hook requested the compaction
"""
CompactionWriter: TypeAlias = Literal["model", "extract", "hook"]
LEFT_BRANCH = "[What came of a branch of this conversation that was left:]"


class TranscriptPosition(Struct, frozen=True, gc=False, array_like=True):
    """The position of a line in a session file: its sequence number (`s`), and its checksum (`c`) as an integer."""

    seq: int
    checksum: int


class SessionHeader(Struct, frozen=True, gc=False, tag="session", tag_field="type", rename="camel"):
    """The first line of a session file. `agent` is the id of the agent that owns the transcript.

    `parent_session` is the file or the agent from which the conversation was copied. For a new conversation,
    `parent_session` is None.
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
    """The model, stop reason and usage of an imported message, as the imported file gives them.

    No budget or estimate counts this usage.
    """

    api: str = ""
    provider: str = ""
    model: str = ""
    stop: str = ""
    usage: Usage | None = None


class MessageEntry(_Entry, frozen=True, gc=False, kw_only=True, tag="message"):
    """A message of the conversation. `turn` is the query id, or "" for history that was given at the start.

    - `usage`: for a response, the usage of its request. For tool results, the usage of models that the tools called.
    - `model`: for a response, the model as `PROVIDER:NAME`; "" if it is unknown.
    - `steer_id`: the id of the steering message that the entry contains, otherwise "".
    - `deleted`: the time at which its content was permanently deleted, otherwise "".
    - `origin`: more about an imported message.
    """

    message: Message
    turn: str = ""
    usage: Usage | None = None
    model: str = ""
    deleted: str = ""
    origin: Origin | None = None
    steer_id: str = ""


class CompactionEntry(_Entry, frozen=True, gc=False, kw_only=True, tag="compaction"):
    """`summary` replaces the messages before the message `first_kept_entry_id`.

    If no earlier entry has this id, `summary` replaces all messages before this entry. The project context at the
    beginning and the ids of archives stay. `turn` is the query in which the summary was written, or "" between turns.
    `writer` is "model", "hook", or "extract" for a summary computed without a model. `usage` is the usage of the models
    that wrote the summary. `details` is JSON data for the next summary. `deleted` is the time at which the content was
    permanently deleted, otherwise "".
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
    """A query was accepted. This entry is written only after an interrupted turn, to record the interruption."""

    turn: str
    interrupted: str


class TurnEndEntry(_Entry, frozen=True, gc=False, kw_only=True, tag="turn_end"):
    """A turn ended. Without this line, the turn counts as interrupted and has no reply.

    `deleted` is the time at which the reply's text was deleted, otherwise "".
    """

    turn: str
    reply: Reply
    deleted: str = ""


class ArchiveEntry(_Entry, frozen=True, gc=False, kw_only=True, tag="archive"):
    """A part of the conversation was archived. The archive exists as soon as this line is written.

    `deleted` is the time at which the archive was deleted, otherwise "".
    """

    collapse: Collapse
    deleted: str = ""


class UpgradeEntry(_Entry, frozen=True, gc=False, kw_only=True, tag="archive_summary"):
    """A better text replaced the record of an archive.

    `usage` is the usage of the model that wrote the text, and `model` this model as `PROVIDER:NAME`.
    """

    upgrade: RecordUpgrade
    usage: Usage | None = None
    model: str = ""


class Checkout(_Entry, frozen=True, gc=False, kw_only=True, tag="checkout"):
    """The conversation continues after the parent of this entry. `from_id` is the leaf before this change."""

    from_id: str | None = None


class BranchSummary(_Entry, frozen=True, gc=False, kw_only=True, tag="branch_summary"):
    """The conversation continues after the parent of this entry.

    `summary` describes the branch that the conversation left.

    `from_id` is the leaf of the left branch. `details` is JSON data for people and programs.
    """

    from_id: str | None
    summary: str
    details: Any = None

    @property
    def message(self) -> Message:
        """The message that the model sees."""
        return user(f"{LEFT_BRANCH}\n\n{self.summary}")


class Label(_Entry, frozen=True, gc=False, kw_only=True, tag="label"):
    """Set the label of the entry `target_id`; None removes it."""

    target_id: str
    label: str | None = None


class PlanApproved(_Entry, frozen=True, gc=False, kw_only=True, tag="plan_approved"):
    """The last plan of `agent` was approved, which ends its plan mode.

    If another agent continues the session, the entry has no effect on that agent. `plan` is the id of the plan mode
    that ends. "" means the plan mode in which the agent started.
    """

    agent: str
    plan: str = ""


class TasksEntry(_Entry, frozen=True, gc=False, kw_only=True, tag="tasks"):
    """The agent's task list from this entry on. The agent wrote the list in the query `turn`.

    `deleted` is the time at which the list was permanently deleted, otherwise "".
    """

    turn: str
    tasks: tuple[Task, ...] = ()
    deleted: str = ""


class TaintEntry(_Entry, frozen=True, gc=False, kw_only=True, tag="marks"):
    """New taint labels of the conversation, from the query `turn`.

    `deleted` is the time at which the content that caused the labels was deleted, otherwise "".
    """

    turn: str
    marks: tuple[TaintLabel, ...]
    deleted: str = ""


class PhaseEntry(_Entry, frozen=True, gc=False, kw_only=True, tag="phase"):
    """Rules or the model `model` assessed the prompt of the query `turn`, or reflected on the outcome of this query.

    `note` is the resulting note. `actions` lists the actions. `error` is the reason why there are no actions. `usage`
    is the usage of the model. `deleted` is the time at which the note was permanently deleted, otherwise "".
    """

    turn: str
    phase: Phase
    by: By
    model: str = ""
    note: str = ""
    actions: tuple[str, ...] = ()
    error: str = ""
    usage: Usage | None = None
    deleted: str = ""


class Custom(_Entry, frozen=True, gc=False, kw_only=True, tag="custom"):
    """The state of an extension. The model never receives this state."""

    custom_type: str
    data: Any = None


class CustomMessage(_Entry, frozen=True, gc=False, kw_only=True, tag="custom_message"):
    """A message from a program to the model, sent as a user message.

    Front ends show the message only if `display` is True.

    `details` is JSON data for people and programs.
    """

    custom_type: str
    content: tuple[Text | Image, ...]
    display: bool = True
    details: Any = None

    @property
    def message(self) -> Message:
        """The message that the model sees."""
        return Message("user", self.content)


class SessionInfo(_Entry, frozen=True, gc=False, kw_only=True, tag="session_info"):
    """The title of the session."""

    name: str | None = None


class ModelChange(_Entry, frozen=True, gc=False, kw_only=True, tag="model_change"):
    """From this entry on, another model answers.

    If `own` is True, the model becomes the agent's own model. Otherwise the model answers for one turn only.
    """

    provider: str
    model_id: str
    own: bool = False


class ThinkingLevelChange(_Entry, frozen=True, gc=False, kw_only=True, tag="thinking_level_change"):
    """The reasoning effort from this entry on."""

    thinking_level: str


AnyMessageEntry: TypeAlias = MessageEntry | CustomMessage | BranchSummary
"""An entry that contains a message of the conversation."""

ConversationEntry: TypeAlias = (
    AnyMessageEntry
    | CompactionEntry
    | TurnStartEntry
    | TurnEndEntry
    | ArchiveEntry
    | UpgradeEntry
    | PlanApproved
    | TasksEntry
    | TaintEntry
    | PhaseEntry
    | Custom
    | SessionInfo
    | Checkout
    | Label
    | ModelChange
    | ThinkingLevelChange
)
"""An entry of any type except the header."""

Entry: TypeAlias = SessionHeader | ConversationEntry
