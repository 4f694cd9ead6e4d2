"""Estimates from the index and the files of a folder whether a search there finds something, without reading archives.

A search in many folders reads only the folders that promise hits.
"""

from __future__ import annotations

import mmap
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from orch_protocol.core.text import scrub

from .index import Index
from .query import Query

__all__ = ["Promise", "contains_text", "promise_of", "quote_as_json"]


class Promise(NamedTuple):
    """What the index of a folder promises for a query. A greater promise is better.

    `phrase` and `all_terms` are whether a message contains the query, or all its terms. `terms` is the significance of
    the terms in the folder.
    """

    phrase: bool
    all_terms: bool
    terms: float


def promise_of(folder: Path, query: Query, archives: int) -> Promise:
    """Return the promise of the folder with `archives` archives. An incomplete index promises everything."""
    with closing(Index(folder)) as index:
        if index.count != archives:
            return Promise(True, True, float(len(query.terms)))
        known = [term for term in query.terms if index.find(term.stem_expression, 1)]
        every = len(known) == len(query.terms) > 0
        return Promise(
            every and bool(index.find(query.phrase, 1)),
            every and bool(index.find(" AND ".join(term.stem_expression for term in known), 1)),
            sum(term.significance for term in known),
        )


def contains_text(folder: Path, text: str) -> bool:
    """Return whether a file of archives in `folder` contains `text`, also as a part of words."""
    needle = quote_as_json(text)
    for path in folder.glob("archive-*.jsonl"):
        with open(path, "rb") as file:
            try:
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
                    if data.find(needle) >= 0:
                        return True
            except ValueError:  # the file is empty
                continue
    return False


def quote_as_json(text: str) -> bytes:
    """Return `text` as it appears in JSON."""
    return msgspec.json.encode(scrub(text))[1:-1]
