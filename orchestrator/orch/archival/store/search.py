"""Search over archives: the index proposes, the messages decide, and what no index knows is found by reading."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import chain, islice
from typing import Final

import msgspec

from orch_protocol.core.text import scrub
from orch_protocol.services.recall import SearchHit
from orch_worker.backends.offline.bm25 import SourceText, rank, terms_of

from .catalog import ArchiveRecord, SearchableCatalog
from .index import Index, passage, remove_index, words_of

__all__ = ["Search"]

MOST_ARCHIVES: Final = 400
MOST_READ: Final = 12
PLACES: Final = 3
"""The most places of one archive that a search shows."""


class Search:
    """Searches one folder of archives. The index is opened, and caught up, at the first search."""

    def __init__(self, archive: SearchableCatalog) -> None:
        self._archive = archive
        self._index: Index | None = None

    def close(self) -> None:
        """Close the index."""
        if self._index is not None:
            self._index.close()
            self._index = None

    def forget(self) -> None:
        """Remove the index: words of what is deleted now are in it. The next search makes another."""
        self.close()
        remove_index(self._archive.folder)

    def added(self, record: ArchiveRecord) -> None:
        """Take a new archive in, if the index is open; else the next search does."""
        if self._index is not None and record.number in self._index.missing(self._archive.order)[:1]:
            self._index.add(record.number, record.id, self._archive.texts(record))

    def search(self, query: str, limit: int, among: Container[str] | None = None) -> list[SearchHit]:
        """Return up to `limit` places for `query`, those that hold all of it first.

        With `among` only archives with these ids are searched.
        """
        query = query.strip()
        if not query or limit < 1:
            return []
        index = self._opened()
        stages = index.stages(query) if among is None else self._only(index.stages(query, MOST_ARCHIVES), among)
        first = next(stages, [])
        exact = self._exact(map(self._archive.numbered, first), query, limit)
        if not exact:
            # What an index of words cannot know: the middle of one, mere punctuation.
            containing = self._archive.containing(_quoted(query))
            exact = self._exact((each for each in containing if among is None or each.id in among), query, limit)
        if exact:
            return exact
        return self._near(chain([first], stages), query, limit)

    def _only(self, stages: Iterable[list[int]], among: Container[str]) -> Iterator[list[int]]:
        """Yield of each of `stages` the archives whose ids are `among` these."""
        return ([number for number in numbers if self._archive.numbered(number).id in among] for numbers in stages)

    def passages(self, question: str, among: Container[str], limit: int) -> list[SearchHit]:
        """Return up to `limit` passages of the archives `among` (ids) that may answer `question`, the best first.

        Unlike `search` this weighs words: what few archives say counts most.
        """
        *_, numbers = self._opened().stages(question, MOST_ARCHIVES) if question.strip() else [[]]
        records = [record for record in map(self._archive.numbered, numbers) if record.id in among]
        sources = {
            f"{record.id} {place}": (SourceText(f"{record.id} {place}", text), record, place)
            for record in records[:MOST_READ]
            for place, text in enumerate(self._archive.texts(record))
            if text and (record.kind != "turn" or place >= record.prompts)  # to be asked the same is no answer
        }
        ranked = rank([source for source, _, _ in sources.values()], terms_of(question), len(self._archive.records))
        hits = []
        for found in ranked[:limit]:
            _, record, place = sources[found.label]
            hits.append(SearchHit(record.id, self._archive.entry(record, place), found.text, False, record.task))
        return hits

    def _opened(self) -> Index:
        if self._index is None:
            self._index = Index(self._archive.folder)
        for number in self._index.missing(self._archive.order):
            record = self._archive.numbered(number)
            self._index.add(number, record.id, self._archive.texts(record))
        return self._index

    def _exact(self, records: Iterable[ArchiveRecord], query: str, limit: int) -> list[SearchHit]:
        """Return places in `records` where `query` stands letter by letter, at most `limit`.

        The best place of each archive comes before the second one of any.
        """
        wanted = _quoted(query)
        held = ((record, self._exactly(record, query, wanted)) for record in records)
        found = list(islice(((record, places) for record, places in held if places), limit))
        rows = [(rank, record, *each) for record, places in found for rank, each in enumerate(places)]
        best = sorted(rows, key=lambda row: row[0])[:limit]
        return [self._hit(record, place, text, query) for _, record, place, text in best]

    def _exactly(self, record: ArchiveRecord, query: str, wanted: bytes) -> list[tuple[int, str]]:
        """Return places and texts of the archive's messages that hold `query`: what was asked behind what was found."""
        lines = self._archive.lines(record.id)
        places = [place for place, line in enumerate(lines) if wanted in line]
        if not places:
            return []
        texts = self._archive.texts(record)
        found = [(place, texts[place]) for place in places if place < len(texts) and query in texts[place]]
        prompts = record.prompts if record.kind == "turn" else 0
        return sorted(found, key=lambda each: each[0] < prompts)[:PLACES]

    def _hit(self, record: ArchiveRecord, place: int, text: str, query: str) -> SearchHit:
        found = passage(text, query)
        return SearchHit(record.id, self._archive.entry(record, place), found[0] if found else "", True, record.task)

    def _near(self, stages: Iterable[list[int]], query: str, limit: int) -> list[SearchHit]:
        """Return places that resemble `query`: those that hold all of it in another case, then by how much they do."""
        found: list[tuple[int, ArchiveRecord, int, str]] = []
        seen: set[int] = set()
        for numbers in stages:
            for number in numbers:
                if number not in seen and len(found) < limit:
                    seen.add(number)
                    found += self._resembling(self._archive.numbered(number), query)
            if found:
                break
        best = sorted(found, key=lambda each: -each[0])[:limit]
        return [
            SearchHit(record.id, self._archive.entry(record, place), text, False, record.task)
            for _, record, place, text in best
        ]

    def _resembling(self, record: ArchiveRecord, query: str) -> list[tuple[int, ArchiveRecord, int, str]]:
        """Return the place of `record` that resembles `query` most, with how much, and what stands there; or nothing.

        More of its words count more; of two that hold as many, the one that was found rather than asked.
        """
        words = words_of(query)
        prompts = record.prompts if record.kind == "turn" else 0
        best: tuple[tuple[int, bool], int, str] | None = None
        for place, text in enumerate(self._archive.texts(record)):
            found = passage(text, query) if text else None
            if found is None:
                continue
            lowered = text.lower()
            score = (len(words) + 1 if found[1] else sum(word in lowered for word in words), place >= prompts)
            if best is None or score > best[0]:
                best = (score, place, found[0])
        return [(best[0][0], record, best[1], best[2])] if best else []


def _quoted(query: str) -> bytes:
    """Return `query` the way a file has it."""
    return msgspec.json.encode(scrub(query))[1:-1]
