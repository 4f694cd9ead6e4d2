"""The tool fetch_url, and the tool web_search if its API key is set."""

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
"""Python encodings that are meant for host names only and are extremely slow for long input."""

_CHARSET: Final = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_HTML: Final = re.compile(rb"\s*(<!doctype html|<html|<head|<body)", re.IGNORECASE)


class SearchResult(Struct, frozen=True):
    """One search result."""

    title: str
    url: str
    content: str = ""


class SearchResults(Struct, frozen=True):
    """The response of the search service."""

    results: list[SearchResult]


@tool
async def fetch_url(context: ToolContext, url: str, whole_page: bool = False) -> ToolOutput:
    """Fetch a page of the public web by http or https. Returns the text of its main content.

    Args:
        url: The full address.
        whole_page: Also return navigation, sidebars and footers.
    """
    seconds = min(FETCH_SECONDS, context.seconds * 0.8)
    page = await fetch(url, seconds=seconds)
    deadline = time.monotonic() + context.seconds * 0.1
    text = await asyncio.to_thread(page_text, page, deadline, whole_page=whole_page)
    header = f"[{page.url}: status {page.status}]"
    truncation_note = "\n\n[there is more of it than the 5 MiB fetched]" if page.truncated else ""
    return ToolOutput(f"{header}\n\n{text}{truncation_note}", is_error=page.status >= 400, origin=page.url)


def _has_key(context: ToolContext) -> bool:
    return bool(context.keys.get(SEARCH_KEY))


@tool(available=_has_key)
async def web_search(context: ToolContext, query: str, max_results: Annotated[int, Meta(ge=1, le=20)] = 5) -> str:
    """Search the web. Returns title, address and a few lines of each result.

    Args:
        query: What to search for.
        max_results: Maximum number of results.
    """
    seconds = min(FETCH_SECONDS, context.seconds * 0.9)
    return await search(query, context.keys[SEARCH_KEY], max_results, seconds)


async def search(query: str, key: str, limit: int, seconds: float, api: str = SEARCH_API) -> str:
    """Return the results of the search service at `api` for `query` as text. Raise ToolError if the search fails."""
    body = {"query": query, "max_results": limit}
    page = await post_json(f"{api}/search", body, headers={"Authorization": f"Bearer {key}"}, seconds=seconds)
    if page.status != 200:
        text = page.body[:500].decode(errors="replace").replace(key, "(key)")
        raise ToolError(f"The search service answered with status {page.status}: {text}")
    try:
        found = msgspec.json.decode(page.body, type=SearchResults).results[:limit]
    except msgspec.MsgspecError as error:
        raise ToolError(f"The search service did not return search results: {error}.") from error
    shown = (f"{each.title}\n{each.url}\n{' '.join(each.content.split())[:MAX_SNIPPET]}" for each in found)
    return "\n\n".join(shown) or f"Nothing found for {query!r}."


def page_text(page: FetchedPage, stop_at: float, *, whole_page: bool = False) -> str:
    """Return the text of `page`. HTML is converted by `html_text`. Raise ToolError if the page is not text."""
    media_type = page.content_type.partition(";")[0].strip().lower()
    is_html = media_type in ("text/html", "application/xhtml+xml") or (not media_type and bool(_HTML.match(page.body)))
    if b"\0" in page.body[:SNIFF_BYTES] or media_type.startswith(("image/", "audio/", "video/", "font/")):
        raise ToolError(f"{page.url!r} is not text but {media_type or 'binary'}, {len(page.body):,} bytes.")
    text = _decode_page(page, is_html)
    return html_text(text, page.url, stop_at, whole_page=whole_page) if is_html else text


def _decode_page(page: FetchedPage, is_html: bool) -> str:
    declared = _CHARSET.search(page.content_type)
    if declared is None and is_html:
        declared = _CHARSET.search(page.body[:SNIFF_BYTES].decode("ascii", errors="replace"))
    try:
        charset = codecs.lookup(declared[1] if declared else "utf-8").name
        return page.body.decode("utf-8" if charset in NO_CHARSETS else charset, errors="replace")
    except (LookupError, UnicodeError):  # The encoding is unknown, or does not support errors="replace".
        return page.body.decode(errors="replace")
