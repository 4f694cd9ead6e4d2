"""Compare how well a model answers questions about a long session from archives and from a compaction summary.

    python benchmarks/quality.py sample sample/                     a generated session and 20 questions
    python benchmarks/quality.py questions session.jsonl questions.json --model MODEL     or write them yourself
    python benchmarks/quality.py build sample/session.json sample/questions.json out/ --model MODEL
    python benchmarks/quality.py ask out/ --model MODEL             answers, lookups and characters of each condition
    python benchmarks/quality.py score out/                         the table

The conditions are folders in `out/`:

- `archive`: the conversation as orch's archival leaves it, with the tools search_archive and read_archive
- `compaction`: a summary of 3,000 tokens and the last 20,000 tokens, without tools
- `compaction-history`: the same, with the older messages as the file history.txt for grep_files and read_file

`build` needs a recording that `orch replay` reads, and a list of questions. Without a model, `--summary` names a file
with the summary. Without both, the summary is an extract of prompts and answers. Answers can also come from elsewhere:
give `context.md` and `questions.md` to any program, answer its lookups with `lookup`, and write `answers.json`.
docs/guides/quality.md describes all files.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import re
import shutil
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import quality_session
from msgspec import Struct
from msgspec.structs import replace

from orch import ArchivalConfig, Archiver, AsyncOrchestrator, tool
from orch.sessions.formats.conversation import ImportedSession, path_to_leaf
from orch.sessions.formats.detect import read_file
from orch_protocol.core.errors import ConfigError, OrchError
from orch_protocol.core.messages import Block, Message, Text, ToolResult, assistant, user
from orch_protocol.core.text import TextEncodingError, decode_text
from orch_protocol.session.entries import MessageEntry
from orch_worker.context.compaction_summary import SYSTEM, extract_summary, parts_of, summary_prompt
from orch_worker.conversation.archive_text import entry_lines, heading
from orch_worker.conversation.tokens import TokenEstimator, clip
from orch_worker.tools.api.base import Tool

CONDITIONS: Final = ("archive", "compaction", "compaction-history")
KEPT_TOKENS, SUMMARY_TOKENS, CHARS_PER_TOKEN, BESIDE = 20_000, 3_000, 4, 12_000
PART_CHARS: Final = 200_000
"""Maximum length of the part of the conversation that one request for the summary contains."""
MAX_MESSAGES: Final = 10_000
HISTORY: Final = "history.txt"
TASK: Final = "Answer questions about work that you did earlier."
INTRODUCTION: Final = {
    "archive": "This is your conversation so far. Finished turns are archived: a record stands in the place of each. "
    "search_archive and read_archive show the archived messages.",
    "compaction": "This is your conversation so far: a summary of its older part, then the latest messages.",
    "compaction-history": "This is your conversation so far: a summary of its older part, then the latest messages. "
    f"The older messages are the lines of the file {HISTORY}, which grep_files and read_file show.",
}
RULES: Final = (
    "Answer in at most 60 words. Give names, numbers with their unit, and error messages exactly. If your conversation "
    "does not show the answer, look it up if you have tools for it. Do not guess: say what you do not know."
)


class Number(Struct, frozen=True, forbid_unknown_fields=True):
    """A number in an answer. If there are `units`, one of them must follow the number."""

    number: int | float
    units: tuple[str, ...] = ()


class Question(Struct, frozen=True, forbid_unknown_fields=True):
    """A question with the expected answer.

    An answer is right if it contains one alternative of each item of `facts`. If `facts` is empty, a person or a model
    judges the answer.
    """

    id: str
    kind: Literal["wish", "code", "error", "state"]
    question: str
    answer: str
    facts: tuple[tuple[str | Number, ...], ...] = ()
    paraphrased: bool = False

    def is_answered(self, text: str) -> bool:
        """Return whether `text` contains all facts. Without facts, return False."""
        return bool(self.facts) and all(any(contains(text, each) for each in item) for item in self.facts)


class Answer(Struct, frozen=True, forbid_unknown_fields=True):
    """An answer, the number of lookups before it, and the characters that they returned."""

    id: str
    answer: str
    lookups: int = 0
    characters: int = 0


NO_ANSWER: Final = Answer("", "")


class Condition(Struct, frozen=True):
    """The size of the context of a condition in tokens, and where its summary comes from."""

    context_tokens: int
    summary: str = ""


class Score(Struct, frozen=True):
    """The result of a condition. `open` are the ids of questions without a verdict, `wrong` those of wrong answers."""

    condition: str
    context_tokens: int
    right: int
    questions: int
    open: tuple[str, ...]
    wrong: tuple[str, ...]
    lookups: int
    characters: int


# --- Files ---


def read_json(path: Path, type: Any) -> Any:
    """Return the value in the JSON file `path`. Raises ConfigError if the file is missing or has another shape."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=type)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: {error}") from error


def text_in(path: Path) -> str:
    """Return the text of the file `path`. Raises ConfigError."""
    try:
        return decode_text(path.read_bytes())
    except (OSError, TextEncodingError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` as JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def questions_in(path: Path) -> list[Question]:
    """Return the questions in the file `path`. Raises ConfigError, also for an id that occurs twice."""
    found: list[Question] = read_json(path, list[Question])
    ids = [each.id for each in found]
    if twice := next((id for id in ids if ids.count(id) > 1), None):
        raise ConfigError(f"{path}: the id {twice!r} occurs twice; each question needs its own id")
    if not found:
        raise ConfigError(f"{path} contains no question")
    return found


def check_new(path: Path) -> None:
    """Raise ConfigError if `path` exists."""
    if path.exists():
        raise ConfigError(f"{path} exists; give a new file")


def sample(folder: Path) -> None:
    """Write the generated session and its questions to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "session.json").write_text(json.dumps(quality_session.session(), indent=1))
    shutil.copy(quality_session.QUESTIONS, folder / "questions.json")


# --- Questions ---

PROPOSAL: Final = (
    "This is part of a conversation between a user and an agent. Write {count} questions that the agent could get in a "
    "later turn, when it no longer sees this text: an equal number about wishes of the user, code, errors, and the "
    "state at the end. Half of the questions must use other words than the text (paraphrased). Each has one right "
    "answer, which stands in the text. `facts` are the exact words or numbers that a right answer contains, with "
    "alternatives. Leave `facts` empty only if no exact words decide."
)


async def proposed(
    messages: Sequence[Message], count: int, orchestrator: AsyncOrchestrator, chosen: dict[str, Any]
) -> tuple[list[Question], int]:
    """Return questions that a model writes about `messages`, and the number of its questions that are left out.

    A question is left out if the text does not contain its facts. Raises AgentError.
    """
    parts = parts_of(messages, PART_CHARS)
    found: list[Question] = []
    left_out = 0
    for number, part in enumerate(parts):
        share = count * (number + 1) // len(parts) - count * number // len(parts)
        if not share:
            continue
        agent = await orchestrator.spawn(
            PROPOSAL.format(count=share), tools=[], context="none", persist=False, **chosen
        )
        given = await agent.query(part, returns=list[Question])
        await agent.kill()
        kept = [each for each in given if each.is_answered(part) or not each.facts]
        left_out += len(given) - len(kept)
        found += kept[:share]
    return [replace(each, id=f"q{number}") for number, each in enumerate(found, 1)], left_out


# --- Conditions ---


def messages_of(conversation: ImportedSession) -> list[Message]:
    """Return the messages of a conversation."""
    return [entry.message for entry in path_to_leaf(conversation) if isinstance(entry, MessageEntry)]


def archived(messages: Sequence[Message], folder: Path, estimator: TokenEstimator) -> tuple[list[Message], str]:
    """Archive `messages` in `folder` as the default profile does during a session.

    Return what stays of them, and the list of archives that follows them in a request.
    """
    live: list[Message] = []
    with Archiver(folder, "orch", estimator=estimator, beside=BESIDE) as archiver:
        for at, message in enumerate(messages, 1):
            live.append(message)
            if at == len(messages):
                live = archiver.fold(live, stop_reason="end_turn")
            elif messages[at].role == "assistant":
                live = archiver.fold(live)
        return live, archiver.block(live)


def compacted_at(messages: Sequence[Message], estimator: TokenEstimator) -> tuple[int, str]:
    """Return the number of messages that compaction replaces, and the last 20,000 tokens as text.

    The text begins with the end of the last replaced message.
    """
    cut, left = len(messages), KEPT_TOKENS
    while cut and estimator.message(messages[cut - 1]) <= left:
        cut -= 1
        left -= estimator.message(messages[cut])
    latest = as_text(messages[cut:])
    if not cut:
        return 0, latest
    end = as_text([messages[cut - 1]])
    chars = len(end) * left // max(1, estimator.text(end))
    return cut, "\n\n".join(filter(None, [end[-chars:].partition("\n")[2] if chars else "", latest]))


def as_text(messages: Sequence[Message]) -> str:
    """Return `messages` as plain text, with the records of archived turns."""
    return "\n\n".join(f"[{each.role}]\n{block_text(each, block)}" for each in messages for block in each.content)


def block_text(message: Message, block: Block) -> str:
    """Return a block of `message` as plain text."""
    return block.text if isinstance(block, Text) else entry_lines(Message(message.role, (block,))).text


async def summary_of(messages: Sequence[Message], orchestrator: AsyncOrchestrator, chosen: dict[str, Any]) -> str:
    """Return a model's summary of `messages`, with the prompts of orch's own compaction. Raises AgentError."""
    chars = SUMMARY_TOKENS * CHARS_PER_TOKEN
    summary = ""
    parts = parts_of(messages, PART_CHARS)
    for number, part in enumerate(parts, 1):
        agent = await orchestrator.spawn(SYSTEM, tools=[], context="none", persist=False, **chosen)
        summary = (await agent.query(summary_prompt(part, summary, chars, number, len(parts)))).text
        await agent.kill()
    return clip(summary, chars, "cut")


class Split(Struct, frozen=True):
    """A recorded conversation. Compaction replaces the messages before `cut`, and keeps the text `latest`."""

    messages: tuple[Message, ...]
    cut: int
    latest: str
    estimator: TokenEstimator

    @property
    def older(self) -> tuple[Message, ...]:
        """The messages before `cut`."""
        return self.messages[: self.cut]


def split(recording: Path, number: int = 1) -> Split:
    """Read the conversation `number` (from 1) of a recording. Raises ConfigError if there is none, and StoreError."""
    found = [each for each in read_file(recording, repair=True) if messages_of(each)]
    if not 1 <= number <= len(found):
        raise ConfigError(f"{recording} contains {len(found)} conversations; there is no conversation {number}")
    messages, estimator = messages_of(found[number - 1]), TokenEstimator(found[number - 1].ratios)
    return Split(tuple(messages), *compacted_at(messages, estimator), estimator)


def build(parts: Split, summary: tuple[str, str], questions: Path, folder: Path) -> None:
    """Write the conditions and the questions to `folder`.

    `summary` is the source and the text of the summary of the older messages. Raises ConfigError for invalid questions,
    and if `folder` is not empty.
    """
    asked = questions_in(questions)
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; give a new folder")
    for name in CONDITIONS:
        (folder / name).mkdir(parents=True)
    live, block = archived(parts.messages, folder / "archive" / "store", parts.estimator)
    notes = f"Summary of the older part:\n\n{summary[1]}\n\n" if parts.older else ""
    latest = notes + parts.latest
    sizes = {}
    for name, text in zip(CONDITIONS, (f"{as_text(live)}\n\n{block}", latest, latest), strict=True):
        (folder / name / "context.md").write_text(f"{INTRODUCTION[name]}\n\n{text}\n")
        sizes[name] = Condition(parts.estimator.text(text), "" if name == "archive" else summary[0])
    write_json(folder / "conditions.json", sizes)
    write_json(folder / "archive" / "messages.json", live)
    (folder / "compaction-history" / HISTORY).write_text(history(parts.older))
    write_json(folder / "questions.json", asked)
    rows = "\n".join(f"{each.id}: {each.question}" for each in asked)
    (folder / "questions.md").write_text(f"{RULES}\n\n{rows}\n")


def history(messages: Sequence[Message]) -> str:
    """Return `messages` as a text file for `grep`: a heading for each message, and its lines."""
    return "".join(f"{heading(message)}\n{entry_lines(message).text}\n\n" for message in messages)


# --- Answers ---


def archive_tools(archiver: Archiver) -> list[Tool]:
    """Return the two recall tools. Their results do not depend on the model."""

    @tool(bits=())
    async def search_archive(query: str, limit: int | None = None) -> str:
        """Search the archived turns of this conversation for words, identifiers, paths, numbers or errors.

        Args:
            query: What to search for: exact terms, or a regular expression.
            limit: Maximum number of matches. Without it, only the best of ten matches are shown in full.
        """
        return archiver.call("search_archive", {"query": query, "limit": limit})

    @tool(bits=())
    async def read_archive(id: str, first: int = 1, last: int | None = None, lines: str | None = None) -> str:
        """Show entries of an archived turn as text: edits as diffs, results as they were, long results shortened.

        Args:
            id: The id of the archived turn, as in its record.
            first: The first entry to show.
            last: The last entry to show. Without it, all entries from first.
            lines: Lines of the entry first, such as 40-80. Shows only these.
        """
        return archiver.call("read_archive", {"id": id, "first": first, "last": last, "lines": lines})

    return [search_archive, read_archive]


@contextmanager
def opened(folder: Path) -> Iterator[Archiver]:
    """Yield the archives of the condition `archive` in `folder`, as at the end of the recording."""
    live = read_json(folder / "archive" / "messages.json", list[Message])
    config = ArchivalConfig(turns=False, phase=False, rollup_tokens=0)  # nothing more is archived
    with Archiver(folder / "archive" / "store", "orch", config=config) as archiver:
        archiver.fold(live)
        yield archiver


async def ask(
    folder: Path,
    orchestrator: AsyncOrchestrator,
    chosen: dict[str, Any],
    names: Sequence[str] = CONDITIONS,
    progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Ask a model all questions that have no answer yet, and write each answer to `answers.json` of its condition.

    Each question goes to a new agent with the context of the condition. `chosen` contains the arguments of `spawn` that
    select the model. Raises ConfigError and the errors of a query.
    """
    questions = questions_in(folder / "questions.json")
    for name in names:
        with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
            tools: list[Any] = []
            if name == "archive":
                tools = archive_tools(stack.enter_context(opened(folder)))
            elif name == "compaction-history":
                shutil.copy(folder / name / HISTORY, scratch)  # the agent cannot see the expected answers
                tools = ["grep_files", "read_file"]
            context = text_in(folder / name / "context.md")
            answers = answers_in(folder / name)
            for question in questions:
                if question.id in answers:
                    continue
                agent = await orchestrator.spawn(
                    f"{TASK} {RULES}",
                    tools=tools,
                    history=[user(context), assistant("I am ready for questions.")],
                    cwd=scratch,
                    context="none",
                    persist=False,
                    **chosen,
                )
                reply = await agent.query(question.question)
                results = results_in((await agent.show(MAX_MESSAGES)).messages)
                await agent.kill()
                answers[question.id] = Answer(question.id, reply.text, len(results), sum(map(len, results)))
                write_json(folder / name / "answers.json", list(answers.values()))
                progress(f"{name} {question.id}: {len(results)} lookups")


def results_in(messages: Iterable[Message]) -> list[str]:
    """Return the text of each tool result in `messages`."""
    return [
        "\n".join(part.text for part in block.content)
        for message in messages
        for block in message.content
        if isinstance(block, ToolResult)
    ]


def answers_in(folder: Path) -> dict[str, Answer]:
    """Return the answers of the condition in `folder`, by question."""
    path = folder / "answers.json"
    found: list[Answer] = read_json(path, list[Answer]) if path.exists() else []
    return {each.id: each for each in found}


def lookup(folder: Path, name: str, arguments: str) -> str:
    """Return the result of a recall tool of the condition `archive`. `arguments` are its arguments as JSON."""
    try:
        given = json.loads(arguments)
    except ValueError as error:
        raise ConfigError(f"the arguments of {name} must be a JSON object; got {arguments!r}: {error}") from error
    with opened(folder) as archiver:
        return archiver.call(name, given)


# --- Scores ---

_MARKUP: Final = str.maketrans("", "", "`*")
_NUMBER: Final = re.compile(r"(?<![\w.,])-?\d+(?:\.\d+)?")


def plain(text: str) -> str:
    """Return `text` in lower case, with single spaces, without Markdown and without commas in numbers."""
    text = unicodedata.normalize("NFKC", text).translate(_MARKUP).casefold()
    return " ".join(re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text).split())


def contains(answer: str, expected: str | Number) -> bool:
    """Return whether `answer` contains the words `expected`, or a number with a unit.

    Words are complete: `80` is not in `180`, and `read` is not in `ready`.
    """
    text = plain(answer)
    if isinstance(expected, str):
        return re.search(rf"(?<!\w){re.escape(plain(expected))}(?!\w)", text) is not None
    units = "|".join(re.escape(plain(unit)) for unit in expected.units)
    unit = re.compile(rf"[\s-]*(?:{units})(?!\w)") if units else re.compile(r"(?!\d|[.,]\d)")
    return any(float(match[0]) == expected.number and unit.match(text, match.end()) for match in _NUMBER.finditer(text))


def score(folder: Path) -> list[Score]:
    """Return the score of each condition with answers. Raises ConfigError for an answer to an unknown question."""
    questions = questions_in(folder / "questions.json")
    sizes = read_json(folder / "conditions.json", dict[str, Condition])
    scores = []
    for name in CONDITIONS:
        answers = answers_in(folder / name)
        if unknown := sorted(set(answers) - {each.id for each in questions}):
            raise ConfigError(f"{folder / name / 'answers.json'}: there is no question {unknown[0]!r}")
        if not answers:
            continue
        path = folder / name / "verdicts.json"
        verdicts: dict[str, bool] = read_json(path, dict[str, bool]) if path.exists() else {}
        for question in questions:
            if question.facts and question.id not in verdicts:
                verdicts[question.id] = question.is_answered(answers.get(question.id, NO_ANSWER).answer)
            elif question.id not in answers:
                verdicts[question.id] = False
        scores.append(
            Score(
                name,
                sizes[name].context_tokens,
                sum(verdicts.values()),
                len(questions),
                tuple(each.id for each in questions if each.id not in verdicts),
                tuple(each.id for each in questions if not verdicts.get(each.id, True)),
                sum(each.lookups for each in answers.values()),
                sum(each.characters for each in answers.values()),
            )
        )
    if not scores:
        raise ConfigError(f"{folder} contains no answers.json in {', '.join(CONDITIONS)}")
    return scores


def to_judge(folder: Path, scores: Sequence[Score]) -> str:
    """Return the answers without a verdict, beside the expected answers."""
    questions = {each.id: each for each in questions_in(folder / "questions.json")}
    parts = []
    for each in scores:
        answers = answers_in(folder / each.condition)
        parts += [
            f"{each.condition} {id}: {questions[id].question}\nExpected: {questions[id].answer}\n"
            f"Answer: {answers[id].answer}"
            for id in each.open
        ]
    return "\n\n".join(parts)


def table(scores: Sequence[Score]) -> str:
    """Return the scores as a Markdown table."""
    lines = [
        "| condition | context tokens | right | to judge | lookups | characters | per lookup |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for each in scores:
        mean = f"{each.characters / each.lookups:,.0f}" if each.lookups else "-"
        lines.append(
            f"| {each.condition} | {each.context_tokens:,} | {each.right} of {each.questions} | {len(each.open)} "
            f"| {each.lookups} | {each.characters:,} | {mean} |"
        )
    lines += [f"wrong, {each.condition}: {', '.join(each.wrong)}" for each in scores if each.wrong]
    return "\n".join(lines)


# --- Command line ---


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        description=inspect.getdoc(sys.modules[__name__]), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = made.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("sample", help="write a generated session and 20 questions")
    verb.add_argument("folder", type=Path)
    verb = verbs.add_parser("questions", help="let a model write questions about a recording, to be checked by you")
    verb.add_argument("recording", type=Path)
    verb.add_argument("questions", type=Path, help="the file to write")
    verb.add_argument("--model", required=True)
    verb.add_argument("--count", type=int, default=20)
    verb.add_argument("--conversation", type=int, default=1, help="number of the conversation in the recording")
    verb = verbs.add_parser("build", help="write the conditions of a recording")
    verb.add_argument("recording", type=Path)
    verb.add_argument("questions", type=Path)
    verb.add_argument("folder", type=Path)
    verb.add_argument("--model", help="model that writes the summary, such as anthropic:claude-sonnet-5-5")
    verb.add_argument("--summary", type=Path, help="file with a summary")
    verb.add_argument("--conversation", type=int, default=1, help="number of the conversation in the recording")
    verb = verbs.add_parser("ask", help="ask a model the questions; answered questions are skipped")
    verb.add_argument("folder", type=Path)
    verb.add_argument("--model", required=True, help="any model of orch; extractive: is the offline one")
    verb.add_argument("--condition", action="append", choices=CONDITIONS, help="default: all")
    verb = verbs.add_parser("lookup", help="call a recall tool for answers that another program writes")
    verb.add_argument("folder", type=Path)
    verb.add_argument("tool", choices=("search_archive", "read_archive"))
    verb.add_argument("arguments", help='JSON, such as \'{"query": "timeout"}\'')
    verb = verbs.add_parser("score", help="print the table and the answers to judge")
    verb.add_argument("folder", type=Path)
    return made


async def summary_for(parts: Split, model: str | None, file: Path | None) -> tuple[str, str]:
    """Return the source and the text of the summary: of a file, of a model, or an extract of prompts and answers."""
    if file is not None:
        return str(file), text_in(file)
    if model is None:
        return "extract", extract_summary(parts.older, "", SUMMARY_TOKENS * CHARS_PER_TOKEN)
    async with AsyncOrchestrator() as o:
        return model, await summary_of(parts.older, o, {"model": model})


async def run(given: argparse.Namespace) -> None:
    """Run one verb."""
    match given.verb:
        case "sample":
            sample(given.folder)
        case "questions":
            messages = split(given.recording, given.conversation).messages
            check_new(given.questions)
            async with AsyncOrchestrator() as o:
                found, left_out = await proposed(messages, given.count, o, {"model": given.model})
            write_json(given.questions, found)
            print(f"{len(found)} questions; {left_out} left out, because the recording does not contain their facts")
        case "build":
            parts = split(given.recording, given.conversation)
            build(parts, await summary_for(parts, given.model, given.summary), given.questions, given.folder)
        case "ask":
            async with AsyncOrchestrator() as o:
                names = given.condition or CONDITIONS
                await ask(given.folder, o, {"model": given.model}, names, lambda line: print(line, file=sys.stderr))
        case "lookup":
            print(lookup(given.folder, given.tool, given.arguments))
        case "score":
            scores = score(given.folder)
            print("\n\n".join(filter(None, [table(scores), to_judge(given.folder, scores)])))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    try:
        asyncio.run(run(parser().parse_args(arguments)))
    except (OrchError, OSError) as error:
        print(f"quality.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
