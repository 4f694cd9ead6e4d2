"""What can be asked of a root about what its agents have archived: parameters and results."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ..core.archives import ArchiveKind
from ..core.messages import Message
from ..core.taint import TaintLabel
from .service import USERS_ONLY, Service, agents_with

__all__ = [
    "LIST_ARCHIVES",
    "LIST_TAINT_LABELS",
    "PRUNE_ARCHIVES",
    "READ_ARCHIVE",
    "SEARCH_ARCHIVE",
    "ArchiveRow",
    "ListArchives",
    "ListTaintLabels",
    "PruneArchives",
    "PrunedArchives",
    "ReadArchive",
    "SearchArchive",
    "SearchHit",
]


class ListArchives(Struct, frozen=True, forbid_unknown_fields=True):
    """List the archives of `ref`, and of the agents below it; None means everybody's, for an agent its own."""

    ref: str | None = None


class ArchiveRow(Struct, frozen=True):
    """One archive of the agent `owner`. It holds `messages` messages, of `turns` turns and `calls` model calls.

    `level` is an era's, `members` are the archives whose messages are among its own, and `record` is what stays of it
    in the conversation.
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
    summarised: bool
    record: str
    members: tuple[str, ...] = ()


class SearchArchive(Struct, frozen=True, forbid_unknown_fields=True):
    """Find `query` in the archives of `ref` and the agents below it; None means everybody's, for an agent its own."""

    query: str
    limit: int = 10
    ref: str | None = None


class SearchHit(Struct, frozen=True):
    """A place in an archive. `entry` counts its messages from 1, as `read_archive` does.

    `text` is the passage; `exact` says whether all of the query stands in it, letter by letter.
    """

    id: str
    entry: int
    text: str
    exact: bool
    task: str


class ReadArchive(Struct, frozen=True, forbid_unknown_fields=True):
    """The messages `first` to `last` (from 1, both included) of an archive; `id` may be the unique beginning of one."""

    id: str
    first: int = 1
    last: int | None = None


class ListTaintLabels(Struct, frozen=True, forbid_unknown_fields=True):
    """What the archives `ids` bring into a conversation that is shown something of them."""

    ids: tuple[str, ...]


class PruneArchives(Struct, frozen=True, forbid_unknown_fields=True):
    """Delete for good what was archived longer ago than `older`: seconds, or a text such as "30d".

    Of `ref` and the agents below it; None means everybody's. With `dry_run` nothing is deleted.
    """

    older: float | str
    ref: str | None = None
    dry_run: bool = False


class PrunedArchives(Struct, frozen=True):
    """What was (with `dry_run`: would be) deleted: archives, and how many bytes their messages and sessions had.

    `busy` tells why the archives of some agents stayed, by the agent's id: they were at work.
    """

    archives: tuple[ArchiveRow, ...] = ()
    bytes: int = 0
    busy: dict[str, str] = {}


LIST_ARCHIVES: Final = Service("list_archives", ListArchives, list[ArchiveRow], USERS_ONLY, "List archives.")
SEARCH_ARCHIVE: Final = Service(
    "search_archive", SearchArchive, list[SearchHit], agents_with("search_archive"), "Search archived messages."
)
LIST_TAINT_LABELS: Final = Service(
    "list_taint_labels",
    ListTaintLabels,
    list[TaintLabel],
    agents_with("search_archive", "read_archive"),
    "List the taint labels of archives.",
)
READ_ARCHIVE: Final = Service(
    "read_archive", ReadArchive, list[Message], agents_with("read_archive"), "Read messages of an archive."
)
PRUNE_ARCHIVES: Final = Service(
    "prune_archives", PruneArchives, PrunedArchives, USERS_ONLY, "Delete archives older than a given age."
)
