"""HTML as text a model can read: headings, lists, links, tables and code as in Markdown, without the rest."""

from __future__ import annotations

import re
import time
from html import unescape
from html.parser import HTMLParser
from typing import Final, NamedTuple
from urllib.parse import urljoin

__all__ = ["html_text"]

CHUNK: Final = 1 << 14
SKIPPED: Final = frozenset(
    {"script", "style", "template", "svg", "math", "iframe", "object", "canvas", "noscript", "select", "button"}
)
BLOCKS: Final = frozenset(
    {"address", "article", "aside", "blockquote", "body", "details", "div", "dl", "fieldset", "figcaption", "figure"}
    | {"footer", "form", "header", "main", "nav", "p", "section", "summary", "table"}
)
LINES: Final = frozenset({"tr", "dt", "dd", "caption", "option"})
HEADINGS: Final = {f"h{level}": "#" * level for level in range(1, 7)}

_SPACE: Final = re.compile(r"\s+")
_MANY_LINES: Final = re.compile(r"\n{3,}")


def html_text(html: str, url: str, stop_at: float) -> str:
    """Return `html`, found at `url`, as text; what is not converted at `stop_at` (monotonic) is left out and told."""
    reader = _TextExtractor(url)
    for start in range(0, len(html), CHUNK):
        if time.monotonic() > stop_at:
            return f"{reader.text()}\n\n[time was up: {len(html) - start:,} of {len(html):,} characters not converted]"
        reader.feed(html[start : start + CHUNK])
    reader.end()
    return reader.text()


def _tidy(text: str) -> str:
    lines = (line.rstrip() for line in text.split("\n"))
    return _MANY_LINES.sub("\n\n", "\n".join(lines)).strip()


class _OpenLink(NamedTuple):
    """A link that is open: where it leads, which part of the text it begins in, and how much was said before it."""

    address: str
    at: int
    said: int


class _TextExtractor(HTMLParser):
    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self._url = url
        self._parts: list[str] = []
        self._skipping: list[str] = []
        self._lists: list[int | None] = []  # the last number of each list that is open, None where there are bullets
        self._links: list[_OpenLink] = []
        self._said = 0  # how much was said so far that can be seen
        self._pre = 0

    def text(self) -> str:
        return _tidy("".join(self._parts))

    def end(self) -> None:
        """Take what was held back until more would come. A long tag without an end is no text."""
        if len(self.rawdata) < CHUNK:
            self.close()
        else:
            self.handle_data(unescape(self.rawdata.partition("<")[0]))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in SKIPPED:
            self._skipping.append(tag)
        if self._skipping:
            return
        about = dict(attrs)
        if tag in HEADINGS:
            self._parts.append(f"\n\n{HEADINGS[tag]} ")
        elif tag == "title":
            self._parts.append("\n\n")
        elif tag == "li":
            self._item()
        elif tag == "br":
            self._parts.append("\n")
        elif tag == "hr":
            self._parts.append("\n\n---\n\n")
        elif tag == "pre":
            self._pre += 1
            self._parts.append("\n\n```\n")
        elif tag == "code" and not self._pre:
            self._parts.append("`")
        elif tag in ("td", "th"):
            self._parts.append("| " if self._parts and self._parts[-1].endswith("\n") else " | ")
        elif tag == "a":
            self._links.append(_OpenLink(self._address(about.get("href")), len(self._parts), self._said))
            self._parts.append("[" if self._links[-1].address else "")
        elif tag == "img" and about.get("alt"):
            self._parts.append(f"(image: {about['alt']})")
            self._said += 1
        elif tag in LINES:
            self._parts.append("\n")
        elif tag in ("ul", "ol"):
            self._parts.append("" if self._lists else "\n")
            self._lists.append(0 if tag == "ol" else None)
        elif tag in BLOCKS:
            self._parts.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._skipping:
            while self._skipping.pop() != tag:
                pass
        if self._skipping:
            return
        if tag == "pre" and self._pre:
            self._pre -= 1
            self._parts.append("```\n\n" if self._parts[-1].endswith("\n") else "\n```\n\n")
        elif tag == "code" and not self._pre:
            self._parts.append("`")
        elif tag == "a" and self._links:
            link = self._links.pop()
            if link.said == self._said:
                self._parts[link.at] = ""
            elif link.address:
                self._parts.append(f"]({link.address})")
        elif tag in ("ul", "ol") and self._lists:
            self._lists.pop()
            self._parts.append("" if self._lists else "\n\n")
        elif tag in BLOCKS or tag in HEADINGS or tag == "title":
            self._parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        if self._skipping:
            return
        self._said += not data.isspace()
        if self._pre:
            self._parts.append(data)
        elif text := _SPACE.sub(" ", data):
            at_start = not self._parts or self._parts[-1].endswith(("\n", " "))
            self._parts.append(text.lstrip() if at_start else text)

    def _item(self) -> None:
        depth = max(len(self._lists) - 1, 0)
        mark = "-"
        if self._lists and self._lists[-1] is not None:
            self._lists[-1] += 1
            mark = f"{self._lists[-1]}."
        self._parts.append(f"\n{'  ' * min(depth, 8)}{mark} ")

    def _address(self, href: str | None) -> str:
        try:
            address = urljoin(self._url, (href or "").strip())
        except ValueError:
            return ""
        if not href or href.startswith("#") or not address.startswith(("http://", "https://")):
            return ""
        return address.replace(" ", "%20").replace(")", "%29")
