"""The rank of the right entry in a search of archives, and the characters that a lookup returns. Without a model.

Recorded sessions are given as files, or as a folder in $BENCH_RECORDINGS. Without sessions, the rows are skipped. Each
session is archived as a whole. The queries are of four kinds: words of a sentence that the agent wrote, a file and an
identifier of one of its edits, and the latest edit of a file by path and by name. The peer is `grep` over the same
messages as plain text, which shows the matching lines with two lines around each.

The 20 questions of `quality_sample` are asked in the same way, with the words of each question as the query.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from posixpath import basename
from statistics import mean

import harness
import quality
import quality_session
from harness import Args, Row

from orch import Archiver
from orch.sessions.formats.conversation import path_to_leaf
from orch.sessions.formats.detect import read_file
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse
from orch_protocol.session.entries import MessageEntry
from orch_worker.conversation.tokens import TokenEstimator, strings

KINDS = {
    "words of a sentence": ">= 0.95",
    "file and identifier": ">= 0.8",
    "latest edit by path": ">= 0.95",
    "latest edit by name": ">= 0.95",
}
TOP, QUERIES, CONTEXT, MAX_CHARS = 10, 50, 2, 4_000
WORD = re.compile(r"[A-Za-z_][\w.]{2,}")
IDENTIFIER = re.compile(r"[A-Za-z_]\w{6,}")
COMMON = frozenset(
    {"the", "and", "with", "for", "from", "that", "this", "have", "has", "not", "now", "let", "will", "can", "are"}
    | {"was", "were", "all", "its", "into", "then", "there", "these", "which", "what", "when", "also", "only", "one"}
    | {"you", "your", "our"}
)
PATHS, NEW = ("file_path", "path"), ("new_string", "newText", "content")


@dataclass(frozen=True)
class Query:
    """A query, and the message that answers it."""

    kind: str
    text: str
    message: Message


def measure(args: Args) -> list[Row]:
    """Archive each given session and search it."""
    if not args.files:
        reason = "no recorded session was given"
        rows = [
            harness.skipped(f"{kind}: right entry in ten", reason, must=must, aim=">= 1")
            for kind, must in KINDS.items()
        ]
        rows.append(harness.skipped("characters of a lookup", reason, must="<= 4000", aim="<= 2400"))
        with harness.scratch() as folder:
            return [*rows, *asked_in_words(folder)]
    with harness.scratch() as folder:
        rows = [row for file in args.files for row in recorded(file, folder / file.stem)]
        return [*rows, *asked_in_words(folder / "questions")]


def asked_in_words(folder: Path) -> Iterator[Row]:
    """Yield the rows of the generated session: the share of questions that one lookup answers, and its characters."""
    quality.sample(folder)
    parts = quality.split(folder / "session.json")
    quality.archived(parts.messages, folder / "archive", parts.estimator)
    ours: list[tuple[bool, int]] = []
    peers: list[tuple[bool, int]] = []
    with Archiver(folder / "archive", "orch") as archiver:
        for question in quality.questions_in(quality_session.QUESTIONS):
            query = " ".join(word for word in WORD.findall(question.question) if word.lower() not in COMMON)
            found = archiver.call("search_archive", {"query": query})
            shown = grep(parts.messages, query)[1]
            ours.append((question.is_answered(found), len(found)))
            peers.append((question.is_answered(shown), len(shown)))
    figure = f"{len(ours)} questions: "
    for name, each in (("", ours), (", grep", peers)):
        share, chars = mean(right for right, _ in each), mean(size for _, size in each)
        yield harness.counted(f"{figure}answered by one lookup{name}", share, must=">= 0" if name else ">= 0.5")
        bound = ">= 0" if name else "<= 4000"
        yield harness.counted(f"{figure}characters of a lookup{name}", chars, must=bound, aim=bound)


def recorded(file: Path, folder: Path) -> Iterator[Row]:
    """Yield the rows of one file."""
    found: dict[str, list[tuple[bool, bool]]] = {}
    ours: list[int] = []
    peers: list[int] = []
    for number, conversation in enumerate(read_file(file, repair=True)):
        entries = path_to_leaf(conversation)
        messages = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
        with Archiver(
            folder / str(number), "orch", estimator=TokenEstimator(conversation.ratios), beside=12_000
        ) as made:
            live: list[Message] = []
            for message in messages:
                live = made.fold([*live, message])
            for query, right in asked(made, messages):
                ours.append(len(made.call("search_archive", {"query": query.text})))
                owners, text = grep(messages, query.text)
                found.setdefault(query.kind, []).append((right, query.message in [messages[each] for each in owners]))
                peers.append(len(text))
    for kind, must in KINDS.items():
        if each := found.get(kind):
            figure = f"{file.name}: {kind}: right entry in ten ({len(each)})"
            yield harness.counted(figure, mean(right for right, _ in each), must=must, aim=">= 1")
            yield harness.counted(f"{figure}, grep", mean(right for _, right in each), must=">= 0", aim=">= 0")
    if ours:
        yield harness.counted(f"{file.name}: characters of a lookup", mean(ours), must="<= 4000", aim="<= 2400")
        yield harness.counted(f"{file.name}: characters of a lookup, grep", mean(peers), must=">= 0", aim=">= 0")


def asked(archiver: Archiver, messages: Sequence[Message]) -> Iterator[tuple[Query, bool]]:
    """Yield queries about archived messages, and whether the right entry is among ten hits."""
    places: dict[str, set[tuple[str, int]]] = {}
    for record in archiver.archives():
        for entry, message in enumerate(archiver.read_archive(record.id), 1):
            places.setdefault(repr(message), set()).add((record.id, entry))
    for query in queries([message for message in messages if repr(message) in places]):
        hits = archiver.search(query.text, TOP)
        yield query, any((hit.id, hit.entry) in places[repr(query.message)] for hit in hits)


def queries(messages: Sequence[Message]) -> list[Query]:
    """Return at most 50 queries of each kind."""
    chance = random.Random(4)
    found: dict[str, list[Query]] = {kind: [] for kind in KINDS}
    latest: dict[str, Message] = {}
    for message in messages:
        for block in message.content:
            if isinstance(block, Text) and message.role == "assistant":
                for sentence in re.split(r"(?<=[.!?:])\s+|\n", block.text):
                    words = [word for word in WORD.findall(sentence) if word.lower() not in COMMON]
                    if len(words) >= 7:
                        text = " ".join(chance.sample(words, 4))
                        found["words of a sentence"].append(Query("words of a sentence", text, message))
            elif isinstance(block, ToolUse) and (edit := edited(block)):
                path, new = edit
                latest[path] = message
                if names := IDENTIFIER.findall(new):
                    text = f"{basename(path)} {chance.choice(names)}"
                    found["file and identifier"].append(Query("file and identifier", text, message))
    for path, message in latest.items():
        found["latest edit by path"].append(Query("latest edit by path", path, message))
        found["latest edit by name"].append(Query("latest edit by name", basename(path), message))
    return [query for each in found.values() for query in chance.sample(each, min(len(each), QUERIES))]


def edited(call: ToolUse) -> tuple[str, str] | None:
    """Return the path and the new text of an edit, or None if the call is no edit."""
    path = next((call.input[key] for key in PATHS if isinstance(call.input.get(key), str)), None)
    new = next((call.input[key] for key in NEW if isinstance(call.input.get(key), str)), None)
    return (path, new) if path and new is not None else None


def grep(messages: Sequence[Message], query: str) -> tuple[list[int], str]:
    """Return the messages of the first ten matching lines, and what `grep` shows of them.

    A line matches if it contains all words of `query`; if there is none, any word. Each message is plain text with a
    line for each call.
    """
    lines = [(number, line) for number, message in enumerate(messages) for line in plain(message)]
    words = query.split()
    matching = [index for index, (_, line) in enumerate(lines) if all(word in line for word in words)]
    matching = matching or [index for index, (_, line) in enumerate(lines) if any(word in line for word in words)]
    shown = dict.fromkeys(
        near
        for index in matching[:TOP]
        for near in range(max(0, index - CONTEXT), min(len(lines), index + CONTEXT + 1))
    )
    return [lines[index][0] for index in matching[:TOP]], "\n".join(lines[index][1] for index in shown)[:MAX_CHARS]


def plain(message: Message) -> Iterator[str]:
    """Yield the lines of a message: a line for each call, and the lines of texts and results."""
    for block in message.content:
        if isinstance(block, ToolUse):
            yield f"{block.name} {json.dumps(block.input, ensure_ascii=False)}"
        elif isinstance(block, ToolResult):
            yield from "\n".join(part.text for part in block.content).split("\n")
        elif isinstance(block, Text):
            yield from block.text.split("\n")
        else:
            yield from strings(getattr(block, "raw", ""))


if __name__ == "__main__":
    harness.main(measure)
