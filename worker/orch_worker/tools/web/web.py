"""The web: fetch_url, and web_search where there is a key for it."""

from __future__ import annotations

import asyncio
import codecs
import re
import time
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from ...system.secrets import SEARCH_KEY
from ..api.base import ToolContext, ToolError, ToolOutput, tool
from .html_text import html_text
from .http import FetchedPage, fetch, post_json

__all__ = ["fetch_url", "page_text", "search", "web_search"]

FETCH_SECONDS: Final = 30.0
SEARCH_API: Final = "https://api.tavily.com"
MAX_SNIPPET: Final = 500
SNIFF_BYTES: Final = 8_192
NO_CHARSETS: Final = frozenset({"idna", "punycode"})
"""Encodings of Python's that are for names alone: what is long takes them for ever."""

_CHARSET: Final = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_HTML: Final = re.compile(rb"\s*(<!doctype html|<html|<head|<body)", re.IGNORECASE)


class SearchResult(Struct, frozen=True):
    """One result of a search."""

    title: str
    url: str
    content: str = ""


class SearchResults(Struct, frozen=True):
    """What the search service answers with."""

    results: list[SearchResult]


@tool(category="web")
async def fetch_url(context: ToolContext, url: str) -> ToolOutput:
    """Fetch a page of the public web by http or https; answers with its text.

    Args:
        url: The full address.
    """
    seconds = min(FETCH_SECONDS, context.seconds * 0.8)
    page = await fetch(url, seconds=seconds)
    text = await asyncio.to_thread(page_text, page, time.monotonic() + context.seconds * 0.1)
    about = f"[{page.url}: status {page.status}]"
    more = "\n\n[there is more of it than the 5 MiB fetched]" if page.truncated else ""
    return ToolOutput(f"{about}\n\n{text}{more}", is_error=page.status >= 400, origin=page.url)


def _has_key(context: ToolContext) -> bool:
    return bool(context.keys.get(SEARCH_KEY))


@tool(category="web", available=_has_key)
async def web_search(context: ToolContext, query: str, max_results: Annotated[int, Meta(ge=1, le=20)] = 5) -> str:
    """Search the web; answers with title, address and a few lines of each result.

    Args:
        query: What to search for.
        max_results: How many results to return at most.
    """
    seconds = min(FETCH_SECONDS, context.seconds * 0.9)
    return await search(query, context.keys[SEARCH_KEY], max_results, seconds)


async def search(query: str, key: str, most: int, seconds: float, api: str = SEARCH_API) -> str:
    """Return what the search service at `api` finds for `query`, as text. Raises ToolError."""
    body = {"query": query, "max_results": most}
    page = await post_json(f"{api}/search", body, headers={"Authorization": f"Bearer {key}"}, seconds=seconds)
    if page.status != 200:
        said = page.body[:500].decode(errors="replace").replace(key, "(key)")
        raise ToolError(f"The search service answered with status {page.status}: {said}")
    try:
        found = msgspec.json.decode(page.body, type=SearchResults).results[:most]
    except msgspec.MsgspecError as error:
        raise ToolError(f"The search service answered with something else than results: {error}.") from error
    shown = (f"{each.title}\n{each.url}\n{' '.join(each.content.split())[:MAX_SNIPPET]}" for each in found)
    return "\n\n".join(shown) or f"Nothing found for {query!r}."


def page_text(page: FetchedPage, stop_at: float) -> str:
    """Return the text of `page`. Raises ToolError for what is none."""
    kind = page.content_type.partition(";")[0].strip().lower()
    is_html = kind in ("text/html", "application/xhtml+xml") or (not kind and bool(_HTML.match(page.body)))
    if b"\0" in page.body[:SNIFF_BYTES] or kind.startswith(("image/", "audio/", "video/", "font/")):
        raise ToolError(f"{page.url!r} is not text but {kind or 'binary'}, {len(page.body):,} bytes.")
    text = _decoded(page, is_html)
    return html_text(text, page.url, stop_at) if is_html else text


def _decoded(page: FetchedPage, is_html: bool) -> str:
    said = _CHARSET.search(page.content_type)
    if said is None and is_html:
        said = _CHARSET.search(page.body[:SNIFF_BYTES].decode("ascii", errors="replace"))
    try:
        charset = codecs.lookup(said[1] if said else "utf-8").name
        return page.body.decode("utf-8" if charset in NO_CHARSETS else charset, errors="replace")
    except (LookupError, UnicodeError):  # no such encoding, or one that knows nothing of replacing
        return page.body.decode(errors="replace")
