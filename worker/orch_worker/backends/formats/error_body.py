"""Reads the bodies of error responses, which have many shapes: JSON objects, lists, texts, HTML, or nothing.

This module does no I/O.
"""

from __future__ import annotations

import html
import re
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec import Struct

__all__ = ["ErrorBody", "is_web_page", "parsed", "read_error_body"]

MAX_CHARS: Final = 1 << 16
"""Only this part of a body is read."""
MAX_DEPTH: Final = 6
MAX_ITEMS: Final = 5
"""Maximum number of errors of a list that are shown."""
MESSAGES: Final = (
    "message",
    "error",
    "detail",
    "details",
    "errors",
    "msg",
    "error_message",
    "errorMessage",
    "error_msg",
)
MORE_MESSAGES: Final = ("Message", "error_description", "description", "reason", "title", "text")
KINDS: Final = ("type", "code", "status", "error_type", "errorType", "error_code", "__type")
NUMBERS: Final = ("n_ctx", "n_prompt_tokens")
WEB_PAGE: Final = re.compile(
    r"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*<(!doctype html|html|head|body|title|h1|center)\b", re.I | re.S
)
TITLE: Final = re.compile(r"<title\b[^>]*>(.*?)</title", re.I | re.S)
INVISIBLE: Final = re.compile(r"<(script|style|head|noscript|svg)\b.*?(</\1\s*>|\Z)|<!--.*?(-->|\Z)", re.I | re.S)
BREAK: Final = re.compile(r"</?(p|div|br|hr|h\d|li|tr|td|center|pre|section|body)\b[^>]*>", re.I)
TAG: Final = re.compile(r"<[^<>]*>")


class ErrorBody(Struct, frozen=True):
    """The content of an error response.

    `text` is the message; "" means that the body contains no message. `kinds` are types and codes of the error and of
    the errors inside it. `fields` are numbers about the context window.
    """

    text: str = ""
    kinds: tuple[str, ...] = ()
    fields: dict[str, int] = {}


def read_error_body(body: Any, status: int = 0) -> ErrorBody:
    """Return the content of `body`, which is decoded JSON or text. The text is never empty.

    `status` is the HTTP status of the response; 0 means that it is unknown. The text is not shortened, so that secrets
    in it can still be found.
    """
    kinds: list[str] = []
    fields: dict[str, int] = {}
    text = _text(body, kinds, fields, MAX_DEPTH)
    return ErrorBody(text or _without_text(status), tuple(dict.fromkeys(kinds)), fields)


def is_web_page(text: str) -> bool:
    """Return whether `text` is the beginning of an HTML page."""
    return WEB_PAGE.match(text) is not None


def parsed(text: str) -> Any:
    """Return the JSON value in `text`, or None if `text` is not JSON."""
    try:
        return msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _without_text(status: int) -> str:
    try:
        return f"{HTTPStatus(status).phrase} (the response has no message)"
    except ValueError:
        return "the response has no message"


def _text(value: Any, kinds: list[str], fields: dict[str, int], depth: int) -> str:
    """Return the message in `value`. Add the types and numbers beside it to `kinds` and `fields`."""
    if depth == 0:
        return ""
    if isinstance(value, str):
        return _text_of_string(value[:MAX_CHARS], kinds, fields, depth)
    if isinstance(value, list):
        texts = [_text(item, kinds, fields, depth - 1) for item in value[:MAX_ITEMS]]
        return "; ".join(dict.fromkeys(filter(None, texts)))
    if not isinstance(value, dict):
        return "" if value is None or isinstance(value, bool) else str(value)
    kinds += [str(value[name]) for name in KINDS if isinstance(value.get(name), str | int) and value[name] != ""]
    fields |= {name: value[name] for name in NUMBERS if type(value.get(name)) is int and value[name] > 0}
    texts = [text for name in MESSAGES if (text := _text(value.get(name), kinds, fields, depth - 1))]
    texts = texts or [text for name in MORE_MESSAGES if (text := _text(value.get(name), kinds, fields, depth - 1))]
    metadata = value.get("metadata")
    if isinstance(metadata, dict) and (raw := _text(metadata.get("raw"), kinds, fields, depth - 1)):
        texts.append(raw)  # OpenRouter puts the error of the provider here.
    if isinstance(value.get("loc"), list) and texts:
        return f"{'.'.join(map(str, value['loc']))}: {texts[0]}"
    texts = [text for text in dict.fromkeys(texts) if not any(text != other and text in other for other in texts)]
    if texts:
        return ": ".join(texts)
    return _compact(value) if depth == MAX_DEPTH and value else ""


def _text_of_string(text: str, kinds: list[str], fields: dict[str, int], depth: int) -> str:
    if is_web_page(text):
        return _text_of_page(text)
    text = text.strip()
    if text[:1] in ("{", "[") and (value := parsed(text)) is not None:
        return _text(value, kinds, fields, depth - 1) or text
    # Gateways put the error of the provider into their own message: `BadRequestError: {"error": ...}`.
    if (start := text.find("{")) > 0 and (end := text.rfind("}")) > start:
        inner = text[start : end + 1]
        value = parsed(inner)
        if value is None:
            value = parsed(inner.replace('\\"', '"'))
        if isinstance(value, dict):
            _text(value, kinds, fields, depth - 1)
    return text


def _text_of_page(page: str) -> str:
    """Return the title and the visible text of an HTML page."""
    title = _plain(found[1]) if (found := TITLE.search(page)) else ""
    body = _plain(BREAK.sub(" ", INVISIBLE.sub(" ", page)))
    if title and body.lower().startswith(title.lower()):
        body = body[len(title) :].strip()
    return ": ".join(filter(None, (title, body)))


def _plain(markup: str) -> str:
    return " ".join(html.unescape(TAG.sub("", markup)).split())


def _compact(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return ""
