"""What the records of archived turns name: the edited files, and the read files that are used later. Without a model.

Recorded sessions are given as files, or as a folder in $BENCH_RECORDINGS. Without sessions, the rows are skipped. Each
session is archived as `orch replay` does it, once as far as the profile archives by itself, and at the end as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from posixpath import basename

import harness
from harness import Args, Row

from orch import Archiver
from orch.sessions.formats.conversation import path_to_leaf
from orch.sessions.formats.detect import read_file
from orch_protocol.core.messages import Message, Text, ToolUse
from orch_protocol.session.entries import MessageEntry
from orch_worker.conversation.stubs import body_of, holder_of
from orch_worker.conversation.tokens import CharsPerToken, TokenEstimator, strings

EDITS = re.compile(r"write|edit|replace|create|patch|insert", re.IGNORECASE)
READS = re.compile(r"\b(?:read|view)", re.IGNORECASE)
PATH_KEYS = ("path", "file_path", "notebook_path", "target_file")
GROUP = re.compile(r"([^\s,;:{}]*)\{([^{}]*)\}([.\w]*)")
FINAL_ANSWER = "\n\nFinal answer:\n"
MOST_TOKENS = 3_000
"""The size of a model's compaction summary of a session."""


def measure(args: Args) -> list[Row]:
    """Archive each given session."""
    if not args.files:
        reason = "no recorded session was given"
        return [
            harness.skipped("edited files that the records name", reason, must=">= 0.95", aim=">= 1"),
            harness.skipped("read files used later that the records name", reason, must=">= 0.7", aim=">= 0.9"),
            harness.skipped("tokens of the records of a session", reason, must=f"<= {MOST_TOKENS}", aim="<= 2000"),
        ]
    with harness.scratch() as folder:
        return [row for file in args.files for row in recorded(file, folder / file.stem)]


def recorded(file: Path, folder: Path) -> Iterator[Row]:
    """Yield the rows of one file. A session without archived edits or reads has no row for them."""
    edited: list[bool] = []
    used: list[bool] = []
    largest = 0
    for number, conversation in enumerate(read_file(file, repair=True)):
        entries = path_to_leaf(conversation)
        messages = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
        session = Session(messages, folder / str(number), conversation.ratios)
        edited += session.edited
        used += session.used
        largest = max(largest, session.record_tokens)
    for figure, named, must in (
        ("edited files that the records name", edited, ">= 0.95"),
        ("read files used later that the records name", used, ">= 0.7"),
    ):
        if named:
            yield harness.counted(
                f"{file.name}: {figure} ({len(named)})", sum(named) / len(named), must=must, aim=">= 1"
            )
    if largest:
        yield harness.counted(
            f"{file.name}: tokens of the records of a session", largest, must=f"<= {MOST_TOKENS}", aim="<= 2000"
        )


class Session:
    """A session that is archived step by step.

    `edited` tells for each file that archived messages edit whether the records at the end name it. `used` tells for
    each read file that the session uses after archiving whether the records name it at that time. `record_tokens` is
    the size of the records at the end, without final answers.
    """

    def __init__(self, messages: Sequence[Message], folder: Path, ratios: CharsPerToken) -> None:
        estimator = TokenEstimator(ratios)
        self.edited: list[bool] = []
        self.used: list[bool] = []
        archived: set[int] = set()
        edits: dict[str, None] = {}
        context: list[Message] = []
        with Archiver(folder, "orch", estimator=estimator, beside=12_000) as archiver:
            for position, message in enumerate(messages):
                context.append(message)
                if position + 1 < len(messages) and messages[position + 1].role != "assistant":
                    continue
                last = position + 1 == len(messages)
                context = archiver.fold(context, stop_reason="end_turn" if last else None)
                if not archiver.folded:
                    continue
                live = {id(each) for each in context}
                gone = [at for at in range(position + 1) if id(messages[at]) not in live and at not in archived]
                archived |= set(gone)
                text = records_in(context)
                edits |= dict.fromkeys(path for at in gone for path in files_of(messages[at], EDITS))
                read = dict.fromkeys(path for at in gone for path in files_of(messages[at], READS) if path not in edits)
                later = "\n".join(calls_in(messages[position + 1 :]))
                self.used += [is_named(path, text) for path in read if path in later or basename(path) in later]
            text = records_in(context)
        self.edited = [is_named(path, text) for path in edits]
        self.record_tokens = estimator.text(text) if text else 0


def records_in(context: Sequence[Message]) -> str:
    """Return the text of all records in `context`, without final answers."""
    stubs = [block.text for message in context for block in message.content if isinstance(block, Text)]
    return "\n".join(body_of(text).partition(FINAL_ANSWER)[0] for text in stubs if holder_of(text))


def files_of(message: Message, kind: re.Pattern[str]) -> Iterator[str]:
    """Yield the paths in the calls of `message` whose tools match `kind`."""
    for block in message.content:
        if isinstance(block, ToolUse) and kind.search(block.name):
            yield from (path for key in PATH_KEYS if isinstance(path := block.input.get(key), str))


def calls_in(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the texts in the arguments of all calls in `messages`."""
    for message in messages:
        for block in message.content:
            if isinstance(block, ToolUse):
                yield from strings(block.input)


def is_named(path: str, records: str) -> bool:
    """Return whether `records` name the file, as a path or in a group such as `lib/{a@3,+b@7}.py`."""
    name = basename(path)
    if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", records):
        return True
    for folder, members, extension in GROUP.findall(records):
        stems = {re.split(r"[@ ]", member.strip().lstrip("+"))[0] for member in members.split(",")}
        if any(path.endswith(f"{folder.lstrip('+')}{stem}{extension}") for stem in stems):
            return True
    return False


if __name__ == "__main__":
    harness.main(measure)
