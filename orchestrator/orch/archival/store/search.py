"""Search in archives.

The index proposes messages, and the search then compares their lines with the query. The search reads further archives
to find matches that the index cannot find.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from time import monotonic
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message, ToolResult, tool_uses
from orch_protocol.services.archives.recall import SearchHit
from orch_worker.backends.offline.bm25 import SourceText, rank, terms_of
from orch_worker.conversation.archive_text import EntryLines, entry_lines, message_text
from orch_worker.conversation.neighbors import beside
from orch_worker.conversation.receipt_text import root_of

from .catalog import ArchiveRecord, SearchableCatalog
from .index import Index, Place, remove_index
from .passage import PASSAGE_CHARS, LineMatch, below_root, excerpt, match_lines, passage
from .probe import quote_as_json
from .query import STOP_WORD, Query
from .shown import Location, ShownArchives
from .text_files import remove_texts

__all__ = ["RankedHit", "Search", "distinct"]

MAX_CANDIDATES: Final = 120
"""Maximum number of messages that one question to the index proposes."""
MAX_SCANNED: Final = 60
"""Maximum number of archives that are read because they contain the query as a part of a word."""
MAX_READ: Final = 60
REGEX_SECONDS: Final = 3.0
"""A search for a regular expression reads no further lines after this time. A single line may take a second."""
RECALL_TOOLS: Final = frozenset({"search_archive", "read_archive"})
CACHED_CHARS: Final = 4_000_000
ERROR_BONUS: Final = 0.2
"""Added to the coverage of failed results if the query names an error."""
FULL: Final = 0.99
"""The coverage of a match with all terms of the query, apart from rounding."""
WEAKEST: Final = 0.7
"""Matches with less than this share of the best coverage are left out."""
COVERAGE_STEPS: Final = 20
"""Matches whose coverage differs by less than one of these steps count as equal."""
POSITIONS: Final = 2
"""The number of values at the end of a rank that are positions in one conversation."""


class _Match(Struct, frozen=True):
    """A message that matches a query. A greater `rank` is better. Matches with equal `content` say the same.

    `found` is the matching line, or None if the text is an excerpt. `row` is its row in `text`.
    """

    record: ArchiveRecord
    index: int
    location: Location
    rank: tuple[int, ...]
    text: str
    line: int
    exact: bool
    content: str
    coverage: float = 1.0
    found: LineMatch | None = None
    row: int = 0


class RankedHit(Struct, frozen=True):
    """A hit with its rank among the hits of all folders. A greater `order` is better.

    Hits with equal `content` say the same. `archived_at` is the time of the archive that stored the message.
    """

    hit: SearchHit
    order: tuple[int, ...]
    exact: bool
    content: str
    coverage: float
    archived_at: str


class _Ranked(Protocol):
    @property
    def exact(self) -> bool: ...

    @property
    def content(self) -> str: ...

    @property
    def coverage(self) -> float: ...


T = TypeVar("T", bound=_Ranked)


class Search:
    """Searches one folder of archives.

    The first search opens the index and adds archives that are not in the index.
    """

    def __init__(self, archive: SearchableCatalog) -> None:
        self._archive = archive
        self._index: Index | None = None
        self._shown: ShownArchives | None = None
        self._messages: dict[int, list[Message | None]] = {}
        self._lines: dict[Place, EntryLines] = {}
        self._cached_chars = 0

    def close(self) -> None:
        """Close the index, and discard what was read."""
        if self._index is not None:
            self._index.close()
            self._index = None
        self._shown = None
        self._lines.clear()
        self._cached_chars = 0

    def forget(self) -> None:
        """Remove the index and the text files, because they contain deleted messages. They are built again later."""
        self.close()
        remove_index(self._archive.folder)
        remove_texts(self._archive.folder)

    def shown(self, given: Collection[str] | None = None) -> ShownArchives:
        """Return the archives that the conversation shows now. `given` restricts the archives to these ids."""
        if given is not None:
            return ShownArchives(self._archive, given)
        if self._shown is None:
            self._shown = ShownArchives(self._archive)
        else:
            self._shown.update()
        return self._shown

    def add_archive(self, record: ArchiveRecord) -> None:
        """Add a new archive to the index if the index is open.

        If the index is closed, the next search adds the archive.
        """
        if self._index is not None and record.number in self._index.missing(self._archive.order)[:1]:
            self._add(self._index, record)

    def search(self, query: str, limit: int, among: Collection[str] | None = None) -> list[SearchHit]:
        """Return up to `limit` hits that contain `query` or most of its terms, best first.

        Among equal matches, edits come before other text, and the newest comes first. A path finds its latest edit
        first. A query with the words of an error finds failed results first. A query that is a regular expression and
        occurs nowhere as text finds matching lines. Hits with the same passage are left out, except for the best.
        `among` restricts the search to archives with these ids. After 3 seconds, a regular expression is compared with
        no further lines; the hits are then those in the newest archives. Raises ConfigError if nothing was found.
        """
        return [ranked.hit for ranked in self.ranked_hits(query, limit, among)]

    def ranked_hits(self, query: str, limit: int, among: Collection[str] | None = None) -> list[RankedHit]:
        """Return the hits of `search` with their ranks, to merge them with the hits of other folders."""
        parsed = Query(query)
        if not parsed.text or limit < 1:
            return []
        shown = self.shown(among)
        try:
            found = self._matches(parsed, shown, limit)
            matches = sorted(found, key=lambda match: match.rank, reverse=True)
            return [
                RankedHit(
                    _hit(*self._with_neighbor(match, parsed, shown)),
                    (int(match.exact), *match.rank[:-POSITIONS]),
                    match.exact,
                    match.content,
                    match.coverage,
                    match.record.timestamp,
                )
                for match in distinct(matches, limit)
            ]
        finally:
            self._messages.clear()

    def update_index(self) -> None:
        """Add the archives that are missing in the index."""
        self._open_index()

    def _with_neighbor(self, match: _Match, query: Query, shown: ShownArchives) -> tuple[_Match, str]:
        """Return `match` and the line beside it. The passage becomes shorter by the length of this line.

        Paths are relative to the folder that the record names, unless the query names that folder or a part of it.
        """
        number, index = place = match.record.number, match.index
        message, lines = self._message(place), self._entry(place)
        if message is None or lines is None:
            return match, ""

        def entry(neighbor: int) -> int:
            location = shown.locate(match.record, neighbor)
            return location.entry if location is not None and location.id == match.location.id else 0

        line = beside(self._messages[number], index, lines, match.line - 1, entry)
        root = root_of(self._archive.records[match.location.id].record)
        if root and (root in query.text or any(term.text in root.lower() for term in query.terms)):
            root = ""
        if root:
            line = line.replace(f"{root}/", "")
        if match.found is not None:
            found = match.found
            if root:
                lines, found = below_root(lines, found, root)
            text, row = passage(lines, found, PASSAGE_CHARS - (len(line) + 1 if line else 0))
            match = msgspec.structs.replace(match, text=text, row=row)
        return match, line

    def passages(self, question: str, era: str, limit: int) -> list[SearchHit]:
        """Return up to `limit` passages of the archive `era` that may answer `question`, best first.

        Unlike `search`, this method compares words of the question. A word that occurs in few archives has much weight.
        """
        parsed, shown = Query(question), self.shown([era])
        places = self._open_index().find(_any_term(parsed), MAX_CANDIDATES) if parsed.terms else []
        sources = {}
        for place in places[:MAX_READ]:
            record = self._archive.by_number(place[0])
            location = shown.locate(record, place[1])
            lines = self._entry(place) if location is not None else None
            if location is None or lines is None or _is_prompt(record, place[1]):
                continue  # a prompt does not answer a question
            label = f"{location.id} {location.entry}"
            sources[label] = (SourceText(label, lines.text), record, location)
        ranked = rank([source for source, _, _ in sources.values()], terms_of(question), len(self._archive.records))
        self._messages.clear()
        hits = []
        for ranked_text in ranked[:limit]:
            _, record, location = sources[ranked_text.label]
            hits.append(
                _hit(_Match(record, 0, location, (), ranked_text.text, ranked_text.number, exact=False, content=""))
            )
        return hits

    def _open_index(self) -> Index:
        if self._index is None:
            self._index = Index(self._archive.folder)
        for number in self._index.missing(self._archive.order):
            self._add(self._index, self._archive.by_number(number))
        return self._index

    def _add(self, index: Index, record: ArchiveRecord) -> None:
        messages = self._archive.own_messages(record)
        copies = _recalls(messages)
        entries = (None if message is None else entry_lines(message, copies) for message in messages)
        index.add(record.number, record.id, entries)

    def _matches(self, query: Query, shown: ShownArchives, limit: int) -> list[_Match]:
        index = self._open_index()
        weights = index.weights([term.expression for term in query.terms])
        weights = weights if sum(weights) else [1.0] * len(query.terms)
        weights = [weight * term.significance for weight, term in zip(weights, query.terms, strict=True)]
        places = dict.fromkeys(place for places in _proposals(index, query) for place in places)
        matches = [match for place in places if (match := self._compare(place, query, weights, shown))]
        if any(match.exact for match in matches):
            return matches
        # The index of words cannot find parts of words or punctuation.
        exact = [
            match
            for place in self._places_containing(query.text, shown)
            if place not in places and (match := self._compare(place, query, weights, shown)) and match.exact
        ]
        if not exact and query.regex is not None:
            found, is_complete = self._regex_matches(*query.regex, query, shown, limit)
            if not (found or matches or is_complete):
                raise ConfigError(
                    f"the regular expression {query.text[:200]!r} takes too long, and the archives that were "
                    "searched in time have no match: use fewer repetitions, or the words themselves"
                )
            if found:
                return found
        return [*matches, *exact]

    def _places_containing(self, text: str, shown: ShownArchives) -> Iterator[Place]:
        """Yield the messages of shown archives that may contain `text`, from at most 60 archives."""
        needle = quote_as_json(text)
        records = (record for record in self._archive.archives_containing(needle) if shown.contains(record))
        for record in islice(records, MAX_SCANNED):
            for index, line in enumerate(self._archive.lines(record.id)):
                if needle in line:
                    yield record.number, index

    def _regex_matches(
        self, regex: re.Pattern[str], length: int, query: Query, shown: ShownArchives, limit: int
    ) -> tuple[list[_Match], bool]:
        """Return the newest messages that have a line whose first `length` characters match `regex`.

        The second result is False if the search stopped at the time limit.
        """
        matches: list[_Match] = []
        stop_at = monotonic() + REGEX_SECONDS
        records = [record for record in self._archive.records.values() if shown.contains(record)]
        for record in reversed(records):
            messages = self._archive.own_messages(record)
            copies = _recalls(messages)
            for index, message in enumerate(messages):
                lines = entry_lines(message, copies) if message is not None else None
                location = None
                for number, line in enumerate(lines.lines if lines else ()):
                    if monotonic() > stop_at:
                        return matches, False
                    found = regex.search(line, 0, length)
                    if lines and found and (location := shown.locate(record, index)):
                        match = LineMatch(number, found.start(), min(found.end() - found.start(), 200), 1.0, {})
                        kind = _kind(lines, match, query)
                        order = (0, 0, kind, not _is_prompt(record, index), *_recency(location))
                        text, row = passage(lines, match)
                        matches.append(
                            _Match(record, index, location, order, text, number + 1, True, text, found=match, row=row)
                        )
                        break
            if len(matches) >= MAX_CANDIDATES + limit:
                break
        return matches, True

    def _compare(self, place: Place, query: Query, weights: list[float], shown: ShownArchives) -> _Match | None:
        record, index = self._archive.by_number(place[0]), place[1]
        location = shown.locate(record, index)
        lines = self._entry(place) if location is not None else None
        if location is None or lines is None:
            return None
        match = match_lines(lines, query, weights)
        text, exactness = "", 0
        exact_match = _exact_line(lines, query.text)
        if exact_match is not None:
            line, position, exactness = exact_match
            found = match.terms if match else {}
            match = LineMatch(line, position, len(query.text), match.coverage if match else 1.0, found)
        elif (message := self._message(place)) and (
            (position := (raw := message_text(message)).find(query.text)) >= 0
            and _recalls(self._messages[place[0]]).isdisjoint(
                block.tool_use_id for block in message.content if isinstance(block, ToolResult)
            )
        ):
            text, exactness = excerpt(raw, position, len(query.text)), 1
            match = match or LineMatch(0, 0, 0, 1.0, {})
        if match is None:
            return None
        is_exact = exactness > 0
        if (first := _edit_of(lines, query)) is not None:
            position = max(0, lines.lines[first].lower().find(query.terms[0].text))
            match, exactness = LineMatch(first, position, len(query.text), 1.0, match.terms), 3
        coverage = match.coverage
        if len(query.terms) > 1 and coverage > FULL and _names_edit(lines, match.line, query):
            exactness = 2
        if query.is_error and _in(match.line, lines.failures):
            coverage += ERROR_BONUS
        order = (
            exactness,
            round(coverage * COVERAGE_STEPS),
            _kind(lines, match, query),
            not _is_prompt(record, index),
            *_recency(location),
        )
        shown_match, row = None if text else match, 0
        if shown_match is not None:
            text, row = passage(lines, shown_match)
        content = lines.text if _is_edit(lines, match.line) else text
        return _Match(
            record, index, location, order, text, match.line + 1, is_exact, content, match.coverage, shown_match, row
        )

    def _message(self, place: Place) -> Message | None:
        number, index = place
        if number not in self._messages:
            self._messages[number] = self._archive.own_messages(self._archive.by_number(number))
        messages = self._messages[number]
        return messages[index] if index < len(messages) else None

    def _entry(self, place: Place) -> EntryLines | None:
        if place in self._lines:
            return self._lines[place]
        message = self._message(place)
        if message is None:
            return None
        lines = entry_lines(message, _recalls(self._messages[place[0]]))
        if self._cached_chars > CACHED_CHARS:
            self._lines.clear()
            self._cached_chars = 0
        self._lines[place] = lines
        self._cached_chars += sum(map(len, lines.lines))
        return lines


def distinct(found: Sequence[T], limit: int) -> list[T]:
    """Return the first `limit` of `found`, without weak matches and without those that say the same as earlier ones."""
    least = max((each.coverage for each in found), default=0.0) * WEAKEST
    kept: dict[str, T] = {}
    for each in found:
        if len(kept) < limit and (each.exact or each.coverage >= least):
            kept.setdefault(each.content, each)
    return list(kept.values())


def _proposals(index: Index, query: Query) -> Iterator[list[Place]]:
    """Yield lists of messages that may match `query`."""
    if not query.terms:
        return
    terms = [term.expression for term in query.terms]
    all_terms = " AND ".join(terms)
    for path in query.paths:
        others = [term for term in terms if term != path.expression]
        edited = f"edits : {path.name_expression}"
        yield index.find(edited, MAX_CANDIDATES, newest=True)
        if others:
            yield index.find(" AND ".join([edited, *others]), MAX_CANDIDATES, newest=True)
            yield index.find(f"{edited} AND ({' OR '.join(others)})", MAX_CANDIDATES, newest=True)
    if len(query.phrase) > 0:
        yield index.find(query.phrase, MAX_CANDIDATES)
        yield index.find(query.phrase, MAX_CANDIDATES, newest=True)
        yield index.find(f"edits : {query.phrase}", MAX_CANDIDATES, newest=True)
    if len(terms) > 1:
        yield index.find(all_terms, MAX_CANDIDATES)
        yield index.find(all_terms, MAX_CANDIDATES, newest=True)
        yield index.find(_any_term(query), MAX_CANDIDATES)
        if any(term.stem for term in query.terms):
            stems = [term.stem_expression for term in query.terms if term.significance > STOP_WORD]
            yield index.find(" AND ".join(stems), MAX_CANDIDATES)
            yield index.find(" OR ".join(stems), MAX_CANDIDATES)
    if query.is_error:
        yield index.find(f"failures : ({_any_term(query)})", MAX_CANDIDATES)


def _any_term(query: Query) -> str:
    return " OR ".join(term.expression for term in query.terms)


def _exact_line(lines: EntryLines, text: str) -> tuple[int, int, int] | None:
    """Return the number of a line that contains `text`, the position of `text` in it, and the exactness.

    The exactness is 2 if the line contains `text` as whole words, and 1 if only as a part of a longer word. Return None
    if no line contains `text`.
    """
    if "\n" in text:
        return None
    part = None
    for number, line in enumerate(lines.lines):
        position = line.find(text)
        while position >= 0:
            end = position + len(text)
            if not (_continues(line[position - 1 : position], text[:1]) or _continues(line[end : end + 1], text[-1:])):
                return number, position, 2
            part = part or (number, position, 1)
            position = line.find(text, end)
    return part


def _edit_of(lines: EntryLines, query: Query) -> int | None:
    """Return the first line of the edit whose file the whole query names, or None."""
    if len(query.terms) != 1 or not query.paths:
        return None
    return next((first for first, _, path in lines.edits if query.terms[0].names(path)), None)


def _continues(char: str, edge: str) -> bool:
    """Return whether `char` and `edge` belong to the same word."""
    return bool(char) and (char.isalnum() or char == "_") and (edge.isalnum() or edge == "_")


def _kind(lines: EntryLines, match: LineMatch, query: Query) -> int:
    """Return the rank of the matching line among equal matches: failures for errors, then edits, then other text."""
    if query.is_error and _in(match.line, lines.failures):
        return 4
    if _names_edit(lines, match.line, query):
        return 3
    return 2 if not query.paths and _is_edit(lines, match.line) else 1


def _is_edit(lines: EntryLines, line: int) -> bool:
    return any(first <= line < end for first, end, _ in lines.edits)


def _recalls(messages: Iterable[Message | None]) -> frozenset[str]:
    """Return the ids of calls that read archives. Their results are copies of what the archives contain."""
    uses = (use for message in messages if message is not None for use in tool_uses(message))
    return frozenset(use.id for use in uses if use.name in RECALL_TOOLS)


def _names_edit(lines: EntryLines, line: int, query: Query) -> bool:
    """Return whether `query` names the file of the edit at `line`."""
    paths = [path for first, end, path in lines.edits if first <= line < end]
    return any(term.names(path) for term in query.paths for path in paths)


def _in(line: int, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(first <= line < end for first, end in ranges)


def _recency(location: Location) -> tuple[int, int]:
    return location.position, location.entry


def _is_prompt(record: ArchiveRecord, index: int) -> bool:
    return record.kind == "turn" and index < record.prompts


def _hit(match: _Match, beside: str = "") -> SearchHit:
    location = match.location
    return SearchHit(
        location.id,
        location.entry,
        match.text,
        match.exact,
        match.record.task,
        turn=location.turn,
        age=location.age,
        line=match.line,
        coverage=round(match.coverage, 2),
        beside=beside,
        row=match.row,
    )
