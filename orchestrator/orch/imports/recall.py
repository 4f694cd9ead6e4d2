"""Searches and reads imported sessions. The turns of a session are shown as one list of entries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from orch_protocol.core.errors import ConfigError, DamagedError, ForeignFileError, StoreError
from orch_protocol.core.messages import Message
from orch_protocol.services.archives.recall import SearchHit

from ..archival.recall import check_entries, check_search
from ..archival.store.probe import contains_text, promise_of
from ..archival.store.query import Query
from ..archival.store.search import RankedHit, Search, distinct
from ..archival.store.store import ArchiveStore
from .catalog import ImportCatalog, ImportRecord

__all__ = ["ImportedHit", "read_session", "search_sessions"]


ENOUGH: Final = 3
"""The search ends when it has this number of exact hits for each hit that it returns."""
MAX_SESSIONS: Final = 60
"""Maximum number of sessions that are searched after there are enough hits that do not contain the whole query."""


class ImportedHit(SearchHit, frozen=True):
    """A match in an imported session. `id` is the id of the session, and `entry` the number of the message in it.

    `session` is the title of the session, `date` the time of the turn, `source` the path of the file and `record` the
    record of the session.
    """

    session: str = ""
    date: str = ""
    source: str = ""
    record: str = ""


def search_sessions(catalog: ImportCatalog, query: str, limit: int) -> tuple[list[ImportedHit], dict[str, str]]:
    """Return up to `limit` hits in all imported sessions, best first, and the latest first among equal hits.

    The second result contains the reason for each session that could not be searched completely. Raises ConfigError.
    """
    check_search(query, limit)
    if not query.strip():
        raise ConfigError("the query is empty: pass search terms")
    parsed = Query(query)
    records = catalog.records()
    unread: dict[str, str] = {}
    found: list[tuple[RankedHit, ImportRecord]] = []
    waiting: list[ImportRecord] = []

    def search(record: ImportRecord) -> int:
        """Search one session. Return the number of all exact hits so far."""
        try:
            store = catalog.open(record)
            found.extend((ranked, record) for ranked in _hits(store, record, query, limit))
            if len(store.records) != record.turns:
                unread[record.id] = _damage(record)
        except (ConfigError, StoreError, ForeignFileError) as error:
            unread[record.id] = str(error)
        return sum(ranked.hit.exact for ranked, _ in found)

    promises = {record.id: promise_of(catalog.store_folder(record), parsed, record.turns) for record in records}
    exact = 0
    for number, record in enumerate(sorted(records, key=lambda record: promises[record.id], reverse=True)):
        promise = promises[record.id]
        if exact >= ENOUGH * limit:
            break
        if promise.terms and (number < MAX_SESSIONS or len(found) < limit):
            exact = search(record)
        else:
            waiting.append(record)
    for record in waiting if not exact else ():
        # The index of words cannot find parts of words, punctuation or regular expressions.
        if parsed.regex is not None or contains_text(catalog.store_folder(record), parsed.text):
            exact = search(record)
        if exact >= ENOUGH * limit:
            break
    found.sort(key=lambda pair: (pair[0].order, pair[0].archived_at), reverse=True)
    owners = {id(ranked): record for ranked, record in found}
    hits = distinct([ranked for ranked, _ in found], limit)
    return [_imported_hit(ranked, owners[id(ranked)]) for ranked in hits], unread


def read_session(catalog: ImportCatalog, ref: str, first: int = 1, last: int | None = None) -> list[Message]:
    """Return the messages `first` to `last` of the imported session `ref`. `ref` may be a unique prefix of its id.

    Raises AgentNotFoundError, AmbiguousRefError, ConfigError, DamagedError, StoreError.
    """
    check_entries(ref, first, last)
    record = catalog.find(ref)
    store = catalog.open(record)
    if len(store.records) != record.turns:  # the numbers of the entries are unknown
        raise DamagedError(_damage(record))
    messages: list[Message] = []
    for id, start in _starts(store).items():
        end = start + store.records[id].count
        if end >= first and (last is None or start < last):
            inside = store.messages(id)[max(0, first - 1 - start) : None if last is None else last - start]
            messages += (stored.message for stored in inside)
    return messages


def _damage(record: ImportRecord) -> str:
    return (
        f"the copy of {record.source} is damaged: remove it with `orch import --forget {record.id}`, then import the "
        "file again"
    )


def _hits(store: ArchiveStore, record: ImportRecord, query: str, limit: int) -> Iterator[RankedHit]:
    search = Search(store)
    try:
        found = search.ranked_hits(query, limit)
    finally:
        search.close()
    for ranked in found:
        yield msgspec.structs.replace(ranked, hit=msgspec.structs.replace(ranked.hit, id=record.id))


def _starts(store: ArchiveStore) -> dict[str, int]:
    """Return for each turn of a session the number of entries before the turn."""
    starts: dict[str, int] = {}
    total = 0
    for id in store.order:
        starts[id] = total
        total += store.records[id].count
    return starts


def _imported_hit(ranked: RankedHit, record: ImportRecord) -> ImportedHit:
    fields = {name: getattr(ranked.hit, name) for name in SearchHit.__struct_fields__}
    return ImportedHit(
        **fields, session=record.title, date=ranked.archived_at, source=record.source, record=record.record
    )
