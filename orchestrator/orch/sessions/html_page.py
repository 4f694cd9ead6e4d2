"""Render conversations as Markdown or as HTML.

The messages are JSON data. Their content is untrusted, so control characters and markup are escaped. The HTML page
loads no external resource.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from orch_protocol.core.images import part_text

__all__ = ["html_page", "markdown_block", "markdown_page", "visible"]

CONTROL: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
PICTURES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
BASE64: Final = re.compile(r"[A-Za-z0-9+/]+={0,2}")
POLICY: Final = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE: Final = """\
body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
section{border-left:4px solid #bbb;margin:1rem 0;padding:.1rem 1rem}
section.user{border-color:#36c}section.assistant{border-color:#283}
h2{font-size:.9rem;color:#666;margin:.3rem 0}pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.4rem 0}
details pre{background:#f5f5f5;padding:.5rem}.error{color:#b00}img{max-width:100%}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}details pre{background:#222}}"""


def visible(text: str) -> str:
    """Return `text` with escaped control characters and bidirectional marks. Line ends and tabs are not escaped."""
    plain = text.replace("\r\n", "\n")
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), plain)


def markdown_page(title: str, about: str, entries: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield a Markdown page.

    Each entry has a `role`, a `timestamp`, a `content` of blocks, and optionally a `label`.
    """
    yield f"# {_line(title)}\n\n{_line(about)}\n\n"
    for number, entry in enumerate(entries, 1):
        parts = [f"## {number}. {_heading(entry)}", *map(markdown_block, entry["content"])]
        yield "\n\n".join(parts) + "\n\n"


def _heading(entry: dict[str, Any]) -> str:
    label = f" ({_line(entry['label'])})" if entry.get("label") else ""
    return f"{entry['role']}, {_line(entry['timestamp'])}{label}"


def _line(text: str) -> str:
    return visible(" ".join(text.split()))


def markdown_block(block: dict[str, Any]) -> str:
    """Return a block as Markdown. Text is unchanged. Other content is in code fences."""
    match block["type"]:
        case "text" | "image":
            return visible(part_text(block))
        case "thinking":
            return _fenced(block["thinking"], "thinking")
        case "tool_use":
            return f"Call of `{_line(block['name'])}`:\n\n{_fenced(_json(block['input']), 'json')}"
        case "tool_result":
            return f"{'Error' if block.get('is_error') else 'Result'}:\n\n{_fenced(_result_text(block), 'text')}"
    return _fenced(_json(block), "json")


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _result_text(result: dict[str, Any]) -> str:
    return "\n".join(map(part_text, result["content"]))


def _fenced(text: str, language: str) -> str:
    """Return `text` in a code fence. The fence is longer than any fence in `text`."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{visible(text)}\n{fence}"


def html_page(title: str, about: str, entries: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield an HTML page; see `markdown_page` for the arguments.

    The page has no scripts and loads nothing. The page contains its images.
    """
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{_text(_line(title))}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n"
        f"<h1>{_text(_line(title))}</h1>\n<p>{_text(_line(about))}</p>\n"
    )
    for number, entry in enumerate(entries, 1):
        role = entry["role"] if entry["role"] in ("user", "assistant", "system") else "other"
        blocks = "\n".join(map(_html, entry["content"]))
        yield f'<section class="{role}">\n<h2>{number}. {_text(_heading(entry))}</h2>\n{blocks}\n</section>\n'
    yield "</body>\n</html>\n"


def _text(text: str) -> str:
    return html.escape(visible(text), quote=True)


def _pre(text: str) -> str:
    # HTML ignores a newline that directly follows the tag.
    return f"<pre>\n{_text(text)}</pre>"


def _html(block: dict[str, Any]) -> str:
    match block["type"]:
        case "text":
            return _pre(block["text"])
        case "thinking":
            return _folded("thinking", _pre(block["thinking"]))
        case "tool_use":
            called = json.dumps(block["input"], indent=1, ensure_ascii=False)
            return _folded(f"call of {_line(block['name'])}", _pre(called))
        case "tool_result":
            inner = "\n".join(map(_html, block["content"]))
            return _folded("error" if block.get("is_error") else "result", inner, error=bool(block.get("is_error")))
        case "image":
            return _picture(block)
    return _folded("other", _pre(_json(block)))


def _folded(what: str, inner: str, *, error: bool = False) -> str:
    kind = ' class="error"' if error else ""
    return f"<details>\n<summary{kind}>{_text(what)}</summary>\n{inner}\n</details>"


def _picture(block: dict[str, Any]) -> str:
    data = re.sub(r"\s", "", str(block["data"]))
    if block["media_type"] not in PICTURES or not BASE64.fullmatch(data):
        return _pre(part_text(block))
    return f'<img alt="{_text(part_text(block))}" src="data:{block["media_type"]};base64,{data}">'
