"""Services that show and change the session of an agent."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from ...session.tree import Change
from ..service import USERS_ONLY, Service

__all__ = [
    "CHANGE_SESSION",
    "LIST_SESSION_METADATA",
    "SHOW_SESSION",
    "Branch",
    "ChangeSession",
    "EntryRow",
    "ListMetadata",
    "SessionChanged",
    "SessionMetadata",
    "SessionTree",
    "ShowSession",
]


class EntryRow(Struct, frozen=True, gc=False):
    """One entry of a session.

    - `id`, `parent_id`: the id of the entry, and the id of the entry before it in the tree (None means that this is the
      first entry).
    - `type`: the entry type (see docs/concepts/sessions.md), or "lost" if the line is damaged and only the id is known.
    - `timestamp`: ISO 8601 time at which the entry was written.
    - `role`: "user", "assistant", "tool" (tool results), or "" if the entry is not a message.
    - `head`: the beginning of the entry's text, at most 80 characters.
    - `turn`: the id of the query that the entry belongs to, or "".
    - `label`: the label of the entry. None means no label.
    - `on_path`: whether the entry is part of the current conversation.
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

    - `id`: the last entry of the branch; None for an empty branch.
    - `from_id`: the entry of the current branch after which this branch begins. None means the beginning of the
      session.
    - `entries`: the number of entries after `from_id`. For the current branch, the number of all entries.
    - `head`: the first prompt after `from_id`, shortened.
    - `timestamp`: ISO 8601 time of the last entry. `label`: the label of that entry.
    - `current`: whether the conversation continues on this branch.
    """

    id: str | None
    from_id: str | None
    entries: int
    head: str
    timestamp: str
    label: str | None = None
    current: bool = False


class ShowSession(Struct, frozen=True, forbid_unknown_fields=True):
    """Show the session of `ref` with its last `limit` entries. None means all entries."""

    ref: str
    limit: int | None = None


class SessionTree(Struct, frozen=True):
    """A session as a tree of entries.

    - `id`, `name`: the id and the name of the session's agent. `id` and `name` are "" if no agent of this run has the
      session.
    - `title`: the session's title, or "".
    - `folder`: the folder that contains the session file. `cwd`: the working folder of the agent's tools.
    - `parent_session`: the agent or file from which the session was copied. None means that the session is not a copy.
    - `leaf`: the id of the entry after which the conversation continues. None means that the session is empty.
    - `entries`: the requested entries, in file order. `count`: the number of entries in the file.
    - `branches`: the branches, including the current branch.
    - `labels`: maps entry ids to labels.
    - `model`, `thinking`: the model for the next query, and its reasoning effort ("" means the model's default).
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
    """Change the session of `ref`. Entries are given by id, unique prefix, label, or `root`.

    If `ask_anew` is True, a move to a prompt goes to the place before the prompt, and the result contains the prompt.
    """

    ref: str
    change: Change
    ask_anew: bool = False


class SessionChanged(Struct, frozen=True):
    """The change is recorded in the entry `entry`, which is now the leaf. See `ChangeSession`.

    If the change left a branch with a summary, `summary` is this summary, and `by_model` is True if a model wrote it.
    `model` is the agent's new model, and `thinking` is the new reasoning effort (the nearest supported level). `model`
    and `thinking` are None if the change does not affect them.
    """

    id: str
    entry: str
    text: str | None = None
    summary: str | None = None
    by_model: bool = False
    model: str | None = None
    thinking: str | None = None


class ListMetadata(Struct, frozen=True, forbid_unknown_fields=True):
    """List the metadata of type `custom_type` in the session of `ref`. None means all types but `orch.hooks`."""

    ref: str
    custom_type: str | None = None


class SessionMetadata(Struct, frozen=True):
    """Metadata in the entry `entry` of the current branch, written at `timestamp`."""

    entry: str
    timestamp: str
    custom_type: str
    data: Any = None


SHOW_SESSION: Final = Service(
    "session", ShowSession, SessionTree, USERS_ONLY, "Show the entries of a session.", reads_files=True
)
CHANGE_SESSION: Final = Service(
    "change_session", ChangeSession, SessionChanged, USERS_ONLY, "Change a session: label, move, add a message."
)
LIST_SESSION_METADATA: Final = Service(
    "list_session_metadata",
    ListMetadata,
    list[SessionMetadata],
    USERS_ONLY,
    "List the metadata of a session.",
    reads_files=True,
)
