"""Services for archives: list, search, read and delete archives."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ...core.archives import ArchiveKind
from ...core.messages import Message
from ...core.taint import TaintLabel
from ..service import USERS_ONLY, AgentFields, Reach, Service, agents_with

__all__ = [
    "LIST_ARCHIVES",
    "LIST_TAINT_LABELS",
    "READ_ARCHIVE",
    "SEARCH_ARCHIVE",
    "ArchiveRow",
    "ListArchives",
    "ListTaintLabels",
    "ReadArchive",
    "SearchArchive",
    "SearchHit",
]


class ListArchives(Struct, frozen=True, forbid_unknown_fields=True):
    """List the archives of `ref` and its subagents.

    If `ref` is None, a user gets all archives. An agent gets the archives of itself and of its subagents, and the
    archives that its parent passed on.
    """

    ref: str | None = None


class ArchiveRow(Struct, frozen=True):
    """An archive of the agent `owner`.

    `messages`, `turns` and `calls` are the numbers of messages, turns and model calls in the archive.

    `level` is the level of an era. `members` are the archives that were merged into the era. `record` is the text that
    remains in the conversation.
    """

    id: str
    owner: str
    kind: ArchiveKind
    task: str
    created_at: str
    messages: int
    turns: int
    calls: int
    tokens: int
    level: int
    reason: str
    summarized: bool
    record: str
    members: tuple[str, ...] = ()


class SearchArchive(Struct, frozen=True, forbid_unknown_fields=True):
    """Search for `query` in the archives of `ref` and its subagents.

    If `ref` is None, the archives are the same as in ListArchives.
    """

    query: str
    limit: int = 10
    ref: str | None = None


class SearchHit(Struct, frozen=True):
    """A match in an archive. `entry` is the number of the message, counted from 1, as in `read_archive`.

    `text` is the passage. `exact` is True if the passage contains the query verbatim. `task` is the title of the
    archive that stored the message. `turn` is the number of the turn in the conversation, 0 if unknown, and `age` the
    number of turns since then. `line` is the number of the matching line of the entry, counted from 1. `row` is the
    number of this line in `text`, counted from 0.

    `coverage` is the weighted share of the query's terms in the message, from 0 to 1. `beside` is a line about a
    neighbor of the message: the outcome of a call, the call of a result, or the beginning of the reply to a prompt.
    """

    id: str
    entry: int
    text: str
    exact: bool
    task: str
    turn: int = 0
    age: int = 0
    line: int = 1
    coverage: float = 1.0
    beside: str = ""
    row: int = 0


class ReadArchive(Struct, frozen=True, forbid_unknown_fields=True):
    """Read the messages `first` to `last` of an archive, both included. Messages are counted from 1.

    `id` may be a unique prefix.
    """

    id: str
    first: int = 1
    last: int | None = None


class ListTaintLabels(Struct, frozen=True, forbid_unknown_fields=True):
    """List the taint labels that content of the archives `ids` adds to a conversation."""

    ids: tuple[str, ...]


LIST_ARCHIVES: Final = Service(
    "list_archives", ListArchives, list[ArchiveRow], USERS_ONLY, "List archives.", reads_files=True
)
SEARCH_ARCHIVE: Final = Service(
    "search_archive",
    SearchArchive,
    list[SearchHit],
    agents_with("search_archive"),
    "Search archived messages.",
    AgentFields(free=("query", "limit"), refs={"ref": Reach("use archives of", "read")}),
    reads_files=True,
)
LIST_TAINT_LABELS: Final = Service(
    "list_taint_labels",
    ListTaintLabels,
    list[TaintLabel],
    agents_with("search_archive", "read_archive"),
    "List the taint labels of archives.",
    AgentFields(free=("ids",)),
    reads_files=True,
)
READ_ARCHIVE: Final = Service(
    "read_archive",
    ReadArchive,
    list[Message],
    agents_with("read_archive"),
    "Read messages of an archive.",
    AgentFields(free=("first", "last"), refs={"id": Reach("", "ask")}),
    reads_files=True,
)
