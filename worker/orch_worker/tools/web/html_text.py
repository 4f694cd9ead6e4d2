"""Converts HTML to text for a model: headings, lists, links, tables and code in Markdown form."""

from __future__ import annotations

import re
import time
from html import unescape
from html.parser import HTMLParser
from typing import Final, NamedTuple
from urllib.parse import urljoin

__all__ = ["html_text"]

CHUNK: Final = 1 << 14
SKIPPED_TAGS: Final = frozenset(
    {"script", "style", "template", "svg", "math", "iframe", "object", "canvas", "noscript", "select", "button"}
)
BLOCK_TAGS: Final = frozenset(
    {"address", "article", "aside", "blockquote", "body", "details", "div", "dl", "fieldset", "figcaption", "figure"}
    | {"footer", "form", "header", "main", "nav", "p", "section", "summary", "table"}
)
LINE_TAGS: Final = frozenset({"tr", "dt", "dd", "caption", "option"})
HEADINGS: Final = {f"h{level}": "#" * level for level in range(1, 7)}

_SPACE: Final = re.compile(r"\s+")
_MANY_LINES: Final = re.compile(r"\n{3,}")


def html_text(html: str, url: str, stop_at: float, *, whole_page: bool = False) -> str:
    """Return the page `html`, which was found at `url`, as text.

    At `stop_at` (time.monotonic), the conversion stops with a note.

    If `whole_page` is False, return only the title and the main content. The main content is `<main>`, or the
    `<article>` elements if they contain most of the text. A note gives the number of omitted characters.
    """
    extractor = _TextExtractor(url)
    note = ""
    for start in range(0, len(html), CHUNK):
        if time.monotonic() > stop_at:
            note = f"\n\n[time was up: {len(html) - start:,} of {len(html):,} characters not converted]"
            break
        extractor.feed(html[start : start + CHUNK])
    else:
        extractor.end()
    text = extractor.text()
    content = "" if whole_page else extractor.main_content(len(text))
    if content and len(content) < len(text):
        omitted = len(text) - len(content)
        return f"{content}\n\n[{omitted:,} characters outside the main content left out: set whole_page]{note}"
    return text + note


def _tidy(text: str) -> str:
    lines = (line.rstrip() for line in text.split("\n"))
    return _MANY_LINES.sub("\n\n", "\n".join(lines)).strip()


class _OpenLink(NamedTuple):
    """An open link: its address, the index of its first text part, and the number of visible parts before the link."""

    address: str
    part_index: int
    parts_before: int


class _Region:
    """The outermost elements with a certain tag, as ranges of text parts.

    An element that is not closed ends with the page.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._ranges: list[slice] = []

    def open(self, part_index: int) -> None:
        if not self._depth:
            self._ranges.append(slice(part_index, None))
        self._depth += 1

    def close(self, part_index: int) -> None:
        if self._depth == 1:
            self._ranges[-1] = slice(self._ranges[-1].start, part_index)
        self._depth = max(self._depth - 1, 0)

    def text(self, parts: list[str]) -> str:
        return _tidy("".join(part for each in self._ranges for part in parts[each]))


class _TextExtractor(HTMLParser):
    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self._url = url
        self._parts: list[str] = []
        self._skipped_tags: list[str] = []
        self._lists: list[int | None] = []  # The last number of each open list. None for lists with bullets.
        self._links: list[_OpenLink] = []
        self._visible_parts = 0  # The number of visible parts so far.
        self._pre_depth = 0
        self._regions = {tag: _Region() for tag in ("title", "main", "article")}

    def text(self) -> str:
        return _tidy("".join(self._parts))

    def main_content(self, size: int) -> str:
        """Return the title and the main content of the page. Return "" if the page marks no main content.

        `size` is the number of characters of the whole text.
        """
        title, main, articles = (region.text(self._parts) for region in self._regions.values())
        content = main or (articles if len(articles) * 2 > size else "")  # Articles can be teasers or comments.
        return content and f"{title}\n\n{content}".lstrip()

    def end(self) -> None:
        """Process the remaining input. A long tag that is not finished is not text."""
        if len(self.rawdata) < CHUNK:
            self.close()
        else:
            self.handle_data(unescape(self.rawdata.partition("<")[0]))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in SKIPPED_TAGS:
            self._skipped_tags.append(tag)
        if self._skipped_tags:
            return
        if tag in self._regions:
            self._regions[tag].open(len(self._parts))
        attributes = dict(attrs)
        if tag in HEADINGS:
            self._parts.append(f"\n\n{HEADINGS[tag]} ")
        elif tag == "title":
            self._parts.append("\n\n")
        elif tag == "li":
            self._start_item()
        elif tag == "br":
            self._parts.append("\n")
        elif tag == "hr":
            self._parts.append("\n\n---\n\n")
        elif tag == "pre":
            self._pre_depth += 1
            self._parts.append("\n\n```\n")
        elif tag == "code" and not self._pre_depth:
            self._parts.append("`")
        elif tag in ("td", "th"):
            self._parts.append("| " if self._parts and self._parts[-1].endswith("\n") else " | ")
        elif tag == "a":
            self._links.append(_OpenLink(self._address(attributes.get("href")), len(self._parts), self._visible_parts))
            self._parts.append("[" if self._links[-1].address else "")
        elif tag == "img" and attributes.get("alt"):
            self._parts.append(f"(image: {attributes['alt']})")
            self._visible_parts += 1
        elif tag in LINE_TAGS:
            self._parts.append("\n")
        elif tag in ("ul", "ol"):
            self._parts.append("" if self._lists else "\n")
            self._lists.append(0 if tag == "ol" else None)
        elif tag in BLOCK_TAGS:
            self._parts.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._skipped_tags:
            while self._skipped_tags.pop() != tag:
                pass
        if self._skipped_tags:
            return
        if tag == "pre" and self._pre_depth:
            self._pre_depth -= 1
            self._parts.append("```\n\n" if self._parts[-1].endswith("\n") else "\n```\n\n")
        elif tag == "code" and not self._pre_depth:
            self._parts.append("`")
        elif tag == "a" and self._links:
            link = self._links.pop()
            if link.parts_before == self._visible_parts:
                self._parts[link.part_index] = ""
            elif link.address:
                self._parts.append(f"]({link.address})")
        elif tag in ("ul", "ol") and self._lists:
            self._lists.pop()
            self._parts.append("" if self._lists else "\n\n")
        elif tag in BLOCK_TAGS or tag in HEADINGS or tag == "title":
            self._parts.append("\n\n")
        if tag in self._regions:
            self._regions[tag].close(len(self._parts))

    def handle_data(self, data: str) -> None:
        if self._skipped_tags:
            return
        self._visible_parts += not data.isspace()
        if self._pre_depth:
            self._parts.append(data)
        elif text := _SPACE.sub(" ", data):
            at_start = not self._parts or self._parts[-1].endswith(("\n", " "))
            self._parts.append(text.lstrip() if at_start else text)

    def _start_item(self) -> None:
        depth = max(len(self._lists) - 1, 0)
        bullet = "-"
        if self._lists and self._lists[-1] is not None:
            self._lists[-1] += 1
            bullet = f"{self._lists[-1]}."
        self._parts.append(f"\n{'  ' * min(depth, 8)}{bullet} ")

    def _address(self, href: str | None) -> str:
        try:
            address = urljoin(self._url, (href or "").strip())
        except ValueError:
            return ""
        if not href or href.startswith("#") or not address.startswith(("http://", "https://")):
            return ""
        return address.replace(" ", "%20").replace(")", "%29")
