"""Sessions as trees: what they look like from outside, and what changes them between turns."""

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
    "ArrangeArtifacts",
    "Branch",
    "Change",
    "ChangeSession",
    "CheckSession",
    "ClearTasks",
    "CompactRequest",
    "CompactResult",
    "CompactSession",
    "CompactionDone",
    "EditResult",
    "EntryRow",
    "FileFinding",
    "ForkResult",
    "ForkSession",
    "ListMetadata",
    "MoveLeaf",
    "PruneSessions",
    "PrunedSession",
    "PrunedSessions",
    "SessionChanged",
    "SessionChecked",
    "SessionEdit",
    "SessionMetadata",
    "SessionTree",
    "SetLabel",
    "SetMetadata",
    "SetModel",
    "SetPlanMode",
    "SetThinking",
    "SetTitle",
    "ShowSession",
]


class EntryRow(Struct, frozen=True, gc=False):
    """One entry of a session.

    - `id`, `parent_id`: its id and that of the entry it follows (None: the first entry).
    - `type`: the entry type, see docs/sessions.md; "lost" when its line is damaged and only the id is known.
    - `timestamp`: ISO 8601 time at which it was written.
    - `role`: "user", "assistant", "tool" (tool results), or "" when the entry is not a message.
    - `head`: the beginning of its text, at most 80 characters.
    - `turn`: the id of the query it belongs to, "" for none.
    - `label`: its label, None without one.
    - `on_path`: whether it is part of the current conversation.
    """

    id: str
    parent_id: str | None
    type: str
    timestamp: str = ""
    role: str = ""
    head: str = ""
    turn: str = ""
    label: str | None = None
    on_path: bool = False


class Branch(Struct, frozen=True, gc=False):
    """One branch of a session.

    - `id`: its last entry, None for an empty branch.
    - `from_id`: the entry of the current branch after which it begins, None for the beginning of the session.
    - `entries`: the number of its entries after `from_id`; all of them for the current branch.
    - `head`: the first prompt after `from_id`, shortened.
    - `timestamp`: ISO 8601 time of its last entry. `label`: the label of that entry.
    - `current`: whether this is the branch on which the conversation continues.
    """

    id: str | None
    from_id: str | None
    entries: int
    head: str
    timestamp: str
    label: str | None = None
    current: bool = False


class MoveLeaf(Struct, frozen=True, gc=False, tag="move"):
    """The conversation goes on behind the entry `to`, None: anew. With `summary` the model is told what came of what
    it leaves; with `summarize` that is first written, by its model if it has one."""

    to: str | None
    summary: str | None = None
    summarize: bool = False


class SetLabel(Struct, frozen=True, gc=False, tag="label"):
    """The entry `target` is called `label`, None: nothing any more."""

    target: str
    label: str | None = None


class SetTitle(Struct, frozen=True, gc=False, tag="name"):
    """The session is called `name`, None: nothing any more."""

    name: str | None = None


class AddMessage(Struct, frozen=True, gc=False, tag="add_message"):
    """A program tells the model `text`; people are shown it with `display` alone. `custom_type` says what it is."""

    custom_type: str
    text: str
    display: bool = True


class SetMetadata(Struct, frozen=True, gc=False, tag="set_metadata"):
    """A program keeps `data`, JSON data, with the session. The model is not told; `custom_type` says what it is."""

    custom_type: str
    data: Any = None


class ClearTasks(Struct, frozen=True, gc=False, tag="tasks"):
    """The agent means to do nothing any more of what it noted as tasks."""


class SetModel(Struct, frozen=True, gc=False, tag="model"):
    """From now on `model`, `provider:name`, is the agent's own."""

    model: str


class SetThinking(Struct, frozen=True, gc=False, tag="thinking"):
    """From now on the agent's model is to think as much as `level` says, one of `models.THINKING`."""

    level: str


class ArrangeArtifacts(Struct, frozen=True, gc=False, tag="arrange"):
    """Something becomes of what the agent has at hand."""

    steps: tuple[Step, ...]


Change: TypeAlias = (
    MoveLeaf | SetLabel | SetTitle | AddMessage | SetMetadata | ClearTasks | ArrangeArtifacts | SetModel | SetThinking
)


class SessionEdit(Struct, frozen=True):
    """Something about the agent's session changes, between turns. The entry that says so is to have the id `entry`.

    Asked for twice, it is done once. `answers` says whose model answers from there on, None: as before.
    """

    entry: str
    change: Change
    answers: RecordModel | None = None


class EditResult(Struct, frozen=True, omit_defaults=True):
    """The change is on record, and the conversation is what it says; or `error` says why not."""

    context_tokens: int = 0
    error: ErrorInfo | None = None


class ShowSession(Struct, frozen=True, forbid_unknown_fields=True):
    """The session of `ref`, with its last `most` entries, None: all."""

    ref: str
    most: int | None = None


class SessionTree(Struct, frozen=True):
    """A session as a tree of entries.

    - `id`, `name`: the id and the name of its agent ("" for a session that no agent of this run has).
    - `title`: the session's title, "" without one.
    - `folder`: the folder that holds the session file. `cwd`: where the agent's tools run.
    - `parent_session`: the agent or file that it was copied from, None for none.
    - `leaf`: the id of the entry after which the conversation continues, None for an empty session.
    - `entries`: the entries that were requested, in file order. `count`: the number of entries in the file.
    - `branches`: the branches, including the current one.
    - `labels`: the label of each labelled entry, by entry id.
    - `model`, `thinking`: what answers the next query, and its reasoning effort ("": the model's default).
    """

    id: str
    name: str
    title: str
    folder: str
    cwd: str
    parent_session: str | None
    leaf: str | None
    entries: tuple[EntryRow, ...]
    count: int
    branches: tuple[Branch, ...]
    labels: dict[str, str]
    model: str = ""
    thinking: str = ""


class ChangeSession(Struct, frozen=True, forbid_unknown_fields=True):
    """Change the session of `ref`. Entries are named as people name them: by id, its beginning, a label, or `root`.

    With `ask_anew` a move to a question goes before it, and what was asked is returned.
    """

    ref: str
    change: Change
    ask_anew: bool = False


class SessionChanged(Struct, frozen=True):
    """What was asked for is on record in the entry `entry`, which is the leaf now; see `ChangeSession`.

    `summary` is what the model is told of what it left, if that was written, `by_model` whether a model did. Where the
    change is about that, `model` is who answers from now on, and `thinking` how much it is told to think, which is the
    next level that it has; None: it is not told.
    """

    id: str
    entry: str
    text: str | None = None
    summary: str | None = None
    by_model: bool = False
    model: str | None = None
    thinking: str | None = None


class CompactSession(Struct, frozen=True, forbid_unknown_fields=True):
    """Let the beginning of the conversation of `ref` give way to a summary now; whoever writes it is told
    `instructions`."""

    ref: str
    instructions: str = ""


class CompactRequest(Struct, frozen=True):
    """The same, to the agent's process; see Query for `hooks` and `budgeted`."""

    instructions: str = ""
    hooks: tuple[HookRow, ...] = ()
    budgeted: tuple[str, ...] = ()


class CompactionDone(Struct, frozen=True):
    """The entry `entry` stands in place of the first `messages` messages that the conversation had, and says `summary`.

    The next request has about `tokens_after` tokens instead of `tokens_before`. `writer` says whose words they are: a
    `model`'s, a `hook`'s, or what was asked and answered there (`extract`); `usage` is what models took for it.
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
    """The answer to Compact. Exactly one of `done` and `error` is set."""

    done: CompactionDone | None = None
    error: ErrorInfo | None = None


class ListMetadata(Struct, frozen=True, forbid_unknown_fields=True):
    """What programs keep with the session of `ref`, of the kind `custom_type`, None: of all."""

    ref: str
    custom_type: str | None = None


class SessionMetadata(Struct, frozen=True):
    """A program kept `data` in the entry `entry`, which is on the way that the conversation went, at `timestamp`."""

    entry: str
    timestamp: str
    custom_type: str
    data: Any = None


class SetPlanMode(Struct, frozen=True, forbid_unknown_fields=True):
    """Let `ref` go on in plan mode, or without it."""

    ref: str
    on: bool = True


class ForkSession(Struct, frozen=True, forbid_unknown_fields=True):
    """Make an agent whose session is a copy of the path to the entry or turn `at` (None: the current path).

    With `all` the copy has every branch. With `model` another model answers.
    """

    ref: str
    at: str | None = None
    name: str | None = None
    model: str | None = None
    all: bool = False


class ForkResult(Struct, frozen=True):
    """The agent `id` has the copy, whose entries have the same ids, and no process before it is asked."""

    id: str
    seq: int
    name: str
    leaf: str | None


class FileFinding(Struct, frozen=True):
    """One thing that is wrong with the file or folder at `path`, and what to do about it.

    `kind` is `torn` (a write that did not end), `damaged` (a line), `tree` (what a line follows), `entry` (what a line
    says), `truncated` (acknowledged lines are missing), `archive`, `index` (of a search), `owner`, `foreign`, or `open`
    (to other users). `mended` says what was done, if something was.
    """

    path: str
    kind: str
    what: str
    do: str
    mended: str = ""


class CheckSession(Struct, frozen=True, forbid_unknown_fields=True):
    """Look for damage in the session file of `ref`; with `repair` put a mended copy in its place, if there is some."""

    ref: str
    repair: bool = False


class SessionChecked(Struct, frozen=True):
    """What is wrong with the session file of the agent `id`, at `path`.

    What was `repaired`, in words; `kept` is where the damaged file is since, "" when nothing was done.
    """

    id: str
    path: str
    found: tuple[FileFinding, ...] = ()
    repaired: tuple[str, ...] = ()
    kept: str = ""


class PruneSessions(Struct, frozen=True, forbid_unknown_fields=True):
    """Delete for good the sessions of agents that were over longer ago than `older`: seconds, or a text such as "30d".

    The `keep` of these that were active last stay. With `dry_run` nothing is deleted. With `idle` those that nobody
    ended go too, when they have had no process and nothing to do for as long.
    """

    older: float | str
    keep: int = 0
    dry_run: bool = False
    idle: bool = False


class PrunedSession(Struct, frozen=True):
    """An agent whose session was deleted: `title` is what it was called, or for; `bytes` what its folder took."""

    id: str
    seq: int
    name: str
    title: str
    last_activity: str
    bytes: int


class PrunedSessions(Struct, frozen=True):
    """What was (with `dry_run`: would be) deleted, the oldest first, and how many bytes that are.

    `busy` tells why the sessions of some agents stayed, by the agent's id.
    """

    sessions: tuple[PrunedSession, ...] = ()
    bytes: int = 0
    busy: dict[str, str] = {}
