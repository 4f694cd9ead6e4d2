"""Search in archives.

The index proposes archives, and the search then checks their messages. The search reads further archives to find
matches that the index cannot find.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import chain, islice
from typing import Final

import msgspec

from orch_protocol.core.text import scrub
from orch_protocol.services.archives.recall import SearchHit
from orch_worker.backends.offline.bm25 import SourceText, rank, terms_of

from .catalog import ArchiveRecord, SearchableCatalog
from .index import Index, passage, remove_index, words_of

__all__ = ["Search"]

MAX_ARCHIVES: Final = 400
MAX_READ: Final = 12
HITS_PER_ARCHIVE: Final = 3
"""Maximum number of hits from one archive."""


class Search:
    """Searches one folder of archives.

    The first search opens the index and adds archives that are not in the index.
    """

    def __init__(self, archive: SearchableCatalog) -> None:
        self._archive = archive
        self._index: Index | None = None

    def close(self) -> None:
        """Close the index."""
        if self._index is not None:
            self._index.close()
            self._index = None

    def forget(self) -> None:
        """Remove the index, because it contains words of deleted messages. The next search builds a new index."""
        self.close()
        remove_index(self._archive.folder)

    def add_archive(self, record: ArchiveRecord) -> None:
        """Add a new archive to the index if the index is open.

        If the index is closed, the next search adds the archive.
        """
        if self._index is not None and record.number in self._index.missing(self._archive.order)[:1]:
            self._index.add(record.number, record.id, self._archive.texts(record))

    def search(self, query: str, limit: int, among: Container[str] | None = None) -> list[SearchHit]:
        """Return up to `limit` hits that contain `query`. If there are none, return hits that resemble `query`.

        `among` restricts the search to archives with these ids.
        """
        query = query.strip()
        if not query or limit < 1:
            return []
        index = self._open_index()
        stages = index.stages(query) if among is None else self._restrict(index.stages(query, MAX_ARCHIVES), among)
        first = next(stages, [])
        exact = self._exact_hits(map(self._archive.by_number, first), query, limit)
        if not exact:
            # The index of words cannot find parts of words or punctuation.
            archives_containing = self._archive.archives_containing(_quote_as_json(query))
            exact = self._exact_hits(
                (each for each in archives_containing if among is None or each.id in among), query, limit
            )
        if exact:
            return exact
        return self._similar_hits(chain([first], stages), query, limit)

    def _restrict(self, stages: Iterable[list[int]], among: Container[str]) -> Iterator[list[int]]:
        """Yield the archives of each stage, restricted to the ids in `among`."""
        return ([number for number in numbers if self._archive.by_number(number).id in among] for numbers in stages)

    def passages(self, question: str, among: Container[str], limit: int) -> list[SearchHit]:
        """Return up to `limit` passages that may answer `question`, best first.

        Only archives with ids in `among` are searched. Unlike `search`, this method compares words. A word that occurs
        in few archives has much weight.
        """
        *_, numbers = self._open_index().stages(question, MAX_ARCHIVES) if question.strip() else [[]]
        records = [record for record in map(self._archive.by_number, numbers) if record.id in among]
        sources = {
            f"{record.id} {position}": (SourceText(f"{record.id} {position}", text), record, position)
            for record in records[:MAX_READ]
            for position, text in enumerate(self._archive.texts(record))
            if text and (record.kind != "turn" or position >= record.prompts)  # a prompt does not answer a question
        }
        ranked = rank([source for source, _, _ in sources.values()], terms_of(question), len(self._archive.records))
        hits = []
        for ranked_text in ranked[:limit]:
            _, record, position = sources[ranked_text.label]
            hits.append(
                SearchHit(record.id, self._archive.entry(record, position), ranked_text.text, False, record.task)
            )
        return hits

    def _open_index(self) -> Index:
        if self._index is None:
            self._index = Index(self._archive.folder)
        for number in self._index.missing(self._archive.order):
            record = self._archive.by_number(number)
            self._index.add(number, record.id, self._archive.texts(record))
        return self._index

    def _exact_hits(self, records: Iterable[ArchiveRecord], query: str, limit: int) -> list[SearchHit]:
        """Return at most `limit` hits in `records` that contain `query` exactly.

        The best hit of each archive comes before the second hit of any archive.
        """
        needle = _quote_as_json(query)
        matches = ((record, self._exact_matches(record, query, needle)) for record in records)
        found_records = list(islice(((record, positions) for record, positions in matches if positions), limit))
        rows = [(rank, record, *each) for record, positions in found_records for rank, each in enumerate(positions)]
        best = sorted(rows, key=lambda row: row[0])[:limit]
        return [self._hit(record, position, text, query) for _, record, position, text in best]

    def _exact_matches(self, record: ArchiveRecord, query: str, needle: bytes) -> list[tuple[int, str]]:
        """Return the positions and texts of those messages of the archive that contain `query`. Prompts come last."""
        lines = self._archive.lines(record.id)
        indexes = [index for index, line in enumerate(lines) if needle in line]
        if not indexes:
            return []
        texts = self._archive.texts(record)
        found = [(index, texts[index]) for index in indexes if index < len(texts) and query in texts[index]]
        prompts = record.prompts if record.kind == "turn" else 0
        return sorted(found, key=lambda each: each[0] < prompts)[:HITS_PER_ARCHIVE]

    def _hit(self, record: ArchiveRecord, index: int, text: str, query: str) -> SearchHit:
        match = passage(text, query)
        return SearchHit(record.id, self._archive.entry(record, index), match[0] if match else "", True, record.task)

    def _similar_hits(self, stages: Iterable[list[int]], query: str, limit: int) -> list[SearchHit]:
        """Return up to `limit` hits that resemble `query`, most similar first.

        A hit that differs from the query only in case is the most similar.
        """
        matches: list[tuple[int, ArchiveRecord, int, str]] = []
        seen: set[int] = set()
        for numbers in stages:
            for number in numbers:
                if number not in seen and len(matches) < limit:
                    seen.add(number)
                    matches += self._most_similar(self._archive.by_number(number), query)
            if matches:
                break
        best = sorted(matches, key=lambda match: -match[0])[:limit]
        return [
            SearchHit(record.id, self._archive.entry(record, index), text, False, record.task)
            for _, record, index, text in best
        ]

    def _most_similar(self, record: ArchiveRecord, query: str) -> list[tuple[int, ArchiveRecord, int, str]]:
        """Return a list with the message of `record` that resembles `query` most, with score and passage.

        The list is empty if no message resembles `query`. A message with more matching words has a higher score. With
        equal scores, other messages are preferred over prompts.
        """
        words = words_of(query)
        prompts = record.prompts if record.kind == "turn" else 0
        best: tuple[tuple[int, bool], int, str] | None = None
        for index, text in enumerate(self._archive.texts(record)):
            match = passage(text, query) if text else None
            if match is None:
                continue
            lowered = text.lower()
            score = (len(words) + 1 if match[1] else sum(word in lowered for word in words), index >= prompts)
            if best is None or score > best[0]:
                best = (score, index, match[0])
        return [(best[0][0], record, best[1], best[2])] if best else []


def _quote_as_json(query: str) -> bytes:
    """Return `query` as it appears in JSON."""
    return msgspec.json.encode(scrub(query))[1:-1]
