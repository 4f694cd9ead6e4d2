"""Sentences of a text: cutting, requests of the user, and figures with their words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

__all__ = [
    "CLIENT_INSTRUCTIONS",
    "CUT_MARK",
    "cut_at_sentence",
    "figures_in",
    "first_request",
    "flat",
    "is_request",
    "last_sentences",
    "request_in",
    "sentences",
    "shorten",
]

CUT_MARK: Final = "[…]"

_SENTENCE_END: Final = re.compile(
    r"(?<=[^\s.\d(])[.!?…。！？][\"'*)»\]]*(?=\s|$)|(?<=\d[)%\"'*»\]])[.!?](?=\s|$)|(?<=[\w%)])[.!?](?=\s+[A-Z`*\"]|$)|[。！？]|\n"
)
_LIST_NUMBER: Final = re.compile(r"(?:^|\s)\d+\.$")
_CODE: Final = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
CLIENT_INSTRUCTIONS: Final = r"system-reminder|environment_context|(?:user|permissions|skills)[ _]instructions"
"""The names of the tags around instructions that clients put before the prompt of the user, as a regular expression."""
_NOTICE: Final = re.compile(
    r"\A\s*(?:"
    r"\[Request interrupted by user[^\]]*\]|\[(?:Interrupted|Denied)\b[^\]]*\]"
    rf"|<({CLIENT_INSTRUCTIONS}|task-notification|local-command-[\w-]+|command-(?:message|contents)"
    r"|bash-(?:input|stdout|stderr)|ide_[\w-]+|turn_aborted|user_action)\b[^>]*>"
    r".*?(?:</\1>|\Z)"
    r"|<(skill|file) name=[^>]*>.*?</\2>"  # a user may write the first of these tags without the second
    r"|# AGENTS\.md instructions\b[^\n]*\s*<INSTRUCTIONS>.*?(?:</INSTRUCTIONS>|\Z)"
    r"|# Context from my IDE setup:.*?(?:## My request for Codex:|\Z)"
    r")\s*",
    re.DOTALL,
)
_CALLED: Final = re.compile(
    r"<command-name>\s*(.*?)\s*</command-name>(?:.*?<command-args>(.*?)</command-args>)?", re.DOTALL
)
_AFTER_NOTICE: Final = re.compile(
    r"\A(?:Read the output file to retrieve the (?:result|output)\b[^\n]*|Base directory for this skill:.*"
    r"|Caveat: .*)\Z",
    re.DOTALL,
)
_COMMAND: Final = re.compile(r"/\S+")
_CONTINUED: Final = re.compile(r"\AThis session is being continued from a previous conversation", re.IGNORECASE)
_EMPTY_WORDS: Final = re.compile(
    r"(?:(?:please|pls|ok(?:ay)?|yes|yep|yeah|sure|now|and|just|then|great|good|perfect|thanks?|thank you|nice|cool"
    r"|alright|"
    r"fine|right|wow|lgtm|sounds good|looks good|go(?: on| ahead| for it)?|continue|proceed|resume|carry on|keep going|"
    r"do it|next|retry|try again|y|k|yo|weiter|ja|continua|continuez|sigue|继续|続けて)[\s,.!:;-]*)+",
    re.IGNORECASE,
)
NUMBER: Final = re.compile(
    r"(?<![\w.,/-])[-+]?\d[\d,]*(?:\.\d+)?\s?(?:%|(?:ms|µs|us|ns|s|min|h|[kKMGT]i?B|bytes?|tokens?|px|x|USD|°C|bar)\b|€)"
    r"|(?<![\w.,/-])\$?(?:\d{1,3}(?:,\d{3})+|\d{3,})(?:\.\d+)?(?![\w/-])"
)
"""A number that has at least three digits or a unit."""
_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_CLAUSE_STARTS: Final = (", ", "; ", ". ", "(", " - ", " — ")
_CLAUSE_ENDS: Final = (", ", "; ", ". ", ")", " - ", " — ")
_LINE_NUMBER: Final = re.compile(r"\b(?:lines?|#|[Pp]ort|PR|issue|to|and)\s*$|[:#@]$")
FIGURE_CHARS: Final = 70


def flat(text: str) -> str:
    """Return `text` on one line."""
    return " ".join(text.split())


def shorten(text: str, chars: int) -> str:
    """Return `text` on one line with at most `chars` characters. A cut text ends with "…"."""
    line = flat(text)
    return line if len(line) <= chars else f"{line[: max(chars - 1, 0)].rstrip()}…"


def cut_at_sentence(text: str, chars: int, mark: str = CUT_MARK) -> str:
    """Return `text` whole, or its first sentences and `mark`, in at most `chars` characters.

    A sentence that is too long by itself is cut after a word.
    """
    text = text.strip()
    if len(text) <= chars:
        return text
    room = chars - len(mark) - 1
    if room <= 0:
        return mark[: max(chars, 0)]
    end = 0
    for match in _SENTENCE_END.finditer(text[: room + 1]):
        if match.end() <= room and not _LIST_NUMBER.search(text[: match.end()]):
            end = match.end()
    if end < room // 4:
        end = max(text.rfind(" ", 0, room), text.rfind("\n", 0, room))
        end = end if end > room // 2 else room
    return f"{text[:end].rstrip()} {mark}"


def last_sentences(text: str, count: int, chars: int) -> str:
    """Return the last `count` sentences of `text` on one line, each cut to `chars` characters. Code blocks are left
    out.
    """
    found = list(sentences(_CODE.sub("\n", text)))
    return " ".join(shorten(sentence, chars) for sentence in found[-count:])


def request_in(text: str) -> str:
    """Return the words of the user in a user message: without notices of programs, and with the name of a command."""
    if match := _CALLED.search(text):
        return flat(f"{match[1]} {match[2] or ''}")
    before = None
    while before != text:
        before = text
        text = _NOTICE.sub("", text, count=1) if _NOTICE.match(text) else text
    text = text.strip()
    if _AFTER_NOTICE.match(text) or _CONTINUED.match(text):
        return ""
    return text


def is_request(text: str) -> bool:
    """Return whether a user message asks for something.

    Interruptions, notifications of programs, and words such as "continue" do not.
    """
    words = request_in(text)
    return bool(words) and not _EMPTY_WORDS.fullmatch(words)


def first_request(texts: Iterable[str]) -> str:
    """Return the first words of the user in the user messages `texts`. Return "" if the user wrote nothing.

    A command without arguments and words such as "continue" are skipped if a request follows.
    """
    found = [words for text in texts if (words := request_in(text))]
    requests = (words for words in found if is_request(words) and not _COMMAND.fullmatch(words))
    return next(requests, found[0] if found else "")


def figures_in(text: str) -> Iterator[str]:
    """Yield the clauses of `text` that state a figure, with their words. A clause without words is left out."""
    for line in _CODE.sub("\n", text).split("\n"):
        for match in NUMBER.finditer(line):
            before, after = line[: match.start()], line[match.end() :]
            starts = [place + len(mark) for mark in _CLAUSE_STARTS if (place := before.rfind(mark)) >= 0]
            start = max(starts, default=0)
            ends = [place for mark in _CLAUSE_ENDS if (place := after.find(mark)) >= 0]
            end = match.end() + (min(ends) if ends else len(after))
            clause = flat(line[start:end]).strip("-*#|`.,;: ")
            if _LINE_NUMBER.search(before) or re.match(r"\s*lines?\b", after):
                continue
            if _WORD.search(clause.replace(match[0], " ")) and len(clause) <= FIGURE_CHARS:
                yield clause


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of `text`."""
    begin = 0
    for match in _SENTENCE_END.finditer(text):
        if _LIST_NUMBER.search(text[: match.end()]):
            continue
        if sentence := text[begin : match.end()].strip():
            yield sentence
        begin = match.end()
    if rest := text[begin:].strip():
        yield rest
