"""Requests of the root to an agent's process that change the session between turns or compact the conversation."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from ..agent.models import RecordModel
from ..core.errors import ErrorInfo
from ..core.messages import Usage
from ..core.workspace import Step
from ..hooks.stages import HookRow
from .entries import CompactionReason, CompactionWriter

__all__ = [
    "AddMessage",
    "Change",
    "ChangeArtifacts",
    "ClearTasks",
    "CompactRequest",
    "CompactResult",
    "CompactionDone",
    "EditResult",
    "MoveLeaf",
    "SessionEdit",
    "SetLabel",
    "SetMetadata",
    "SetModel",
    "SetThinking",
    "SetTitle",
]


class MoveLeaf(Struct, frozen=True, gc=False, tag="move"):
    """Continue the conversation after the entry `to`. None means the beginning of the session.

    `summary` is a summary of the branch that the conversation leaves. The model receives this summary. If `summarize`
    is True, the summary is written first, by a model if possible.
    """

    to: str | None
    summary: str | None = None
    summarize: bool = False


class SetLabel(Struct, frozen=True, gc=False, tag="label"):
    """Set the label of the entry `target`; None removes it."""

    target: str
    label: str | None = None


class SetTitle(Struct, frozen=True, gc=False, tag="name"):
    """Set the title of the session; None removes it."""

    name: str | None = None


class AddMessage(Struct, frozen=True, gc=False, tag="add_message"):
    """Add a message from a program for the model. `custom_type` is the type of the message.

    Front ends show the message only if `display` is True.
    """

    custom_type: str
    text: str
    display: bool = True


class SetMetadata(Struct, frozen=True, gc=False, tag="set_metadata"):
    """Store JSON data of a program with the session. `custom_type` is the type of the data.

    The model does not receive this data.
    """

    custom_type: str
    data: Any = None


class ClearTasks(Struct, frozen=True, gc=False, tag="tasks"):
    """Clear the agent's task list."""


class SetModel(Struct, frozen=True, gc=False, tag="model"):
    """Set the agent's own model to `provider:model`."""

    model: str


class SetThinking(Struct, frozen=True, gc=False, tag="thinking"):
    """Set the reasoning effort to one of `models.THINKING`."""

    level: str


class ChangeArtifacts(Struct, frozen=True, gc=False, tag="arrange"):
    """Change the agent's workspace."""

    steps: tuple[Step, ...]


Change: TypeAlias = (
    MoveLeaf | SetLabel | SetTitle | AddMessage | SetMetadata | ClearTasks | ChangeArtifacts | SetModel | SetThinking
)


class SessionEdit(Struct, frozen=True):
    """Change the agent's session between turns. The new entry gets the id `entry`.

    A repetition of the request has no further effect. `answers` is the model after the change. None means unchanged.
    """

    entry: str
    change: Change
    answers: RecordModel | None = None


class EditResult(Struct, frozen=True, omit_defaults=True):
    """The result of a SessionEdit: the change is recorded and applied to the conversation, or `error` is set."""

    context_tokens: int = 0
    error: ErrorInfo | None = None


class CompactRequest(Struct, frozen=True):
    """The same request as CompactSession, sent to the agent's process.

    `hooks` and `budgeted` are the same as in Query.
    """

    instructions: str = ""
    hooks: tuple[HookRow, ...] = ()
    budgeted: tuple[str, ...] = ()


class CompactionDone(Struct, frozen=True):
    """The conversation was compacted. `summary`, in the entry `entry`, replaces the beginning of the conversation.

    `messages` is the number of replaced messages. `tokens_before` and `tokens_after` are the approximate sizes of the
    next request in tokens, without and with the compaction. `writer` is "model", "hook", or "extract" for a summary
    computed without a model. `usage` is the usage of the models that wrote the summary.
    """

    entry: str
    messages: int
    tokens_before: int
    tokens_after: int
    reason: CompactionReason
    writer: CompactionWriter
    summary: str
    usage: Usage = Usage()


class CompactResult(Struct, frozen=True, omit_defaults=True):
    """The result of CompactRequest. Exactly one of `done` and `error` is set."""

    done: CompactionDone | None = None
    error: ErrorInfo | None = None
