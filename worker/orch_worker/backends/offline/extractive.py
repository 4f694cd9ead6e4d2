"""The backend that needs no model: looks with the granted tools, and answers in quotations. Offline, deterministic."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import BackendError, ConfigError
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, Usage, text_of, tool_uses

from ...conversation.framing import is_project, question_in, split_first_prompt
from ...conversation.recalled import split_hits
from ...conversation.tokens import CHARS_PER_TOKEN
from ..base import AssistantTurn, BackendInfo, Conversation, OnText
from .bm25 import Source, Term, count, paths_of, rank, terms_of

__all__ = ["ExtractiveBackend", "from_spec"]

HEADER: Final = "Extractive answer: quotations, no model."
CALL_ID: Final = "look_"
MAX_ANSWER_CHARS: Final = 1_500 * CHARS_PER_TOKEN
MAX_QUOTES: Final = 8
MAX_QUOTES_A_SOURCE: Final = 3
WORTH_QUOTING: Final = 0.25
MAX_SEARCHES: Final = 4
MAX_HITS: Final = 50
MAX_HITS_A_FILE: Final = 5
MAX_FILES_READ: Final = 4
LINES_AROUND: Final = 8
LINES_READ: Final = 40
LINES_OF_NAMED_FILE: Final = 200
MAX_LISTED: Final = 300
OVERVIEW_FILES: Final = 40
OVERVIEW_LINES: Final = 20

_HIT: Final = re.compile(r"(.+?):(\d+): (.*)")
_NUMBERED: Final = re.compile(r" *(\d+)\t(.*)")
_HELD: Final = re.compile(r"\[entry (\d+)\]\n")  # what a holder holds has numbers of its own
_README: Final = re.compile(r"readme(\.\w+)?", re.IGNORECASE)


class Look(Struct, frozen=True):
    """The turn so far: what is asked, what to look for, and what the tools have shown."""

    question: str
    terms: tuple[Term, ...]
    steps: int
    began: int
    files: dict[str, dict[int, str]]
    hits: dict[str, dict[str, int]]
    listed: tuple[str, ...]
    read: frozenset[str]
    found: tuple[tuple[str, str], ...] = ()
    """Passages that came with the question, and where each is from."""

    @property
    def searches(self) -> tuple[Term, ...]:
        """The terms worth a search each."""
        return tuple(term for term in self.terms if term.usable)[:MAX_SEARCHES]


class ExtractiveBackend(Conversation):
    """Answers a question with what the agent's files and conversation say about its terms, each with its place."""

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:
        """Return the next calls of the look around, or the answer."""
        messages = self._request()[1]
        look = _look(messages)
        calls = self._calls(look)
        if calls:
            ids = (f"{CALL_ID}{len(messages)}_{number}" for number in range(1, len(calls) + 1))
            uses = tuple(ToolUse(id, name, input) for id, (name, input) in zip(ids, calls, strict=True))
            message = Message("assistant", uses)
        else:
            text = self._answer(look, messages)
            message = Message("assistant", (Text(text),))
            if on_text is not None:
                on_text(text)
        usage = Usage(self.context_tokens(), self.estimator.message(message))
        return AssistantTurn(message, "tool_use" if calls else "end_turn", usage)

    def info(self) -> BackendInfo:
        """Return who answers."""
        return BackendInfo("extractive", "")

    def _calls(self, look: Look) -> list[tuple[str, dict[str, Any]]]:
        planned = _first_look(look) if look.steps == 0 else _second_look(look) if look.steps == 1 else []
        granted = {tool.name for tool in self.tools}
        return [call for call in planned if call[0] in granted]

    def _answer(self, look: Look, messages: Sequence[Message]) -> str:
        if not look.searches:
            return _overview(look)
        found = [Source(label, text) for label, text in look.found]
        sources = [*_file_sources(look), *found, *_entries(messages[: look.began])]
        quotes = _quotes(sources, look.terms, len(look.listed) + look.began)
        missing = [term.word for term in look.searches if not _occurs(term, sources)]
        if not quotes:
            return f"{HEADER}\n\nNothing found for {', '.join(term.word for term in look.searches)}."
        if missing:
            quotes.append(f"Nothing found for {', '.join(missing)}.")
        return "\n\n".join([HEADER, *quotes])


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> ExtractiveBackend:  # noqa: ARG001
    """Return the backend; it has neither models nor options."""
    if spec.model or spec.options:
        raise ConfigError(
            f"the extractive backend takes no model and no options: {spec.model!r}, {sorted(spec.options)}"
        )
    return ExtractiveBackend()


def _look(messages: Sequence[Message]) -> Look:
    """Return where the turn stands that the last question began."""
    began = next((i for i in range(len(messages) - 1, -1, -1) if _is_question(messages[i])), None)
    if began is None:
        raise BackendError("there is no question to answer: the conversation holds no text of a user")
    asked = text_of(messages[began])
    task, (question, found) = split_first_prompt(asked)[0], split_hits(question_in(asked))
    terms = terms_of(question)
    if not any(term.usable for term in terms):
        first = next((message for message in messages if _is_question(message)), messages[began])
        terms = terms_of(task or split_first_prompt(text_of(first))[0])
    turn = messages[began + 1 :]
    calls = {call.id: call for message in turn for call in tool_uses(message)}
    files: dict[str, dict[int, str]] = defaultdict(dict)
    hits: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    listed: list[str] = []
    read: set[str] = set()
    for call, text in _shown(turn, calls):
        if call.name == "read_file":
            read.add(call.input["path"])
            files[call.input["path"]].update(_numbered(text))
        elif call.name == "grep_files":
            for path, number, line in _grepped(text):
                files[path][number] = line
                hits[call.input["pattern"]][path] += 1
        elif call.name == "list_files":
            listed += [line for line in text.splitlines() if line and not line.startswith(("[", "No files"))]
    steps = sum(message.role == "assistant" for message in turn)
    return Look(question, terms, steps, began, files, hits, tuple(listed), frozenset(read), found)


def _is_question(message: Message) -> bool:
    results = any(isinstance(block, ToolResult) for block in message.content)
    return message.role == "user" and not results and not is_project(message)


def _shown(turn: Sequence[Message], calls: Mapping[str, ToolUse]) -> Iterator[tuple[ToolUse, str]]:
    for message in turn:
        for block in message.content:
            if isinstance(block, ToolResult) and not block.is_error and block.tool_use_id in calls:
                yield calls[block.tool_use_id], _text(block)


def _text(result: ToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, Text))


def _numbered(text: str) -> dict[int, str]:
    matches = (_NUMBERED.fullmatch(line) for line in text.split("\n"))
    return {int(match[1]): match[2] for match in matches if match}


def _grepped(text: str) -> Iterator[tuple[str, int, str]]:
    for line in text.split("\n"):
        if match := _HIT.fullmatch(line):
            yield match[1], int(match[2]), match[3]


def _first_look(look: Look) -> list[tuple[str, dict[str, Any]]]:
    calls: list[tuple[str, dict[str, Any]]] = [("list_files", {"max_results": MAX_LISTED})]
    for term in look.searches:
        bounds = {"max_results": MAX_HITS, "max_per_file": MAX_HITS_A_FILE}
        calls.append(("grep_files", {"pattern": term.regex, "ignore_case": True, **bounds}))
    named = paths_of(look.question)[:MAX_FILES_READ]
    return calls + [("read_file", {"path": path, "limit": LINES_OF_NAMED_FILE}) for path in named]


def _second_look(look: Look) -> list[tuple[str, dict[str, Any]]]:
    if not look.searches:
        readme = next((path for path in look.listed if _README.fullmatch(path)), None)
        return [("read_file", {"path": readme, "limit": LINES_READ})] if readme else []
    calls: list[tuple[str, dict[str, Any]]] = []
    for path in _promising(look)[:MAX_FILES_READ]:
        if _named(path, look.searches):
            calls.append(("read_file", {"path": path, "limit": LINES_OF_NAMED_FILE}))
        else:
            best = min(look.files[path].items(), key=lambda line: (-_weight(line[1], look.terms), line[0]))[0]
            offset = max(1, best - LINES_AROUND)
            calls.append(("read_file", {"path": path, "offset": offset, "limit": LINES_READ}))
    return calls


def _promising(look: Look) -> list[str]:
    """Return the files worth reading, best first: rare terms count more, a term in the name counts most."""
    scores: dict[str, float] = defaultdict(float)
    total = max(len(look.listed), len(look.files)) + 1
    for term in look.searches:
        found = look.hits.get(term.regex, {})
        rarity = term.weight * math.log(1 + total / (len(found) + 1))
        for path, hits in found.items():
            scores[path] += rarity * hits / (hits + 1)
    for path in {*look.listed, *scores}:
        if named := _named(path, look.searches):
            scores[path] += named * math.log(1 + total)
    return sorted((path for path in scores if path not in look.read), key=lambda path: (-scores[path], path))


def _named(path: str, terms: Sequence[Term]) -> float:
    name = path.rpartition("/")[2].lower()
    return sum(term.weight for term in terms if count(term, name))


def _weight(line: str, terms: Sequence[Term]) -> float:
    lowered = line.lower()
    return sum(term.weight for term in terms if count(term, lowered))


def _file_sources(look: Look) -> Iterator[Source]:
    for path, lines in sorted(look.files.items()):
        numbers = tuple(sorted(lines))
        yield Source(path, "\n".join(lines[number] for number in numbers), numbers)


def _entries(messages: Sequence[Message]) -> Iterator[Source]:
    """Yield the conversation before the turn, but for the questions to this backend, its looks and its answers."""
    for index, message in enumerate(messages):
        after = messages[index + 1] if index + 1 < len(messages) else None
        if (
            is_project(message)
            or _is_ours(message)
            or (_is_question(message) and after is not None and _is_ours(after))
        ):
            continue
        results = (b for b in message.content if isinstance(b, ToolResult) and not b.tool_use_id.startswith(CALL_ID))
        if text := "\n\n".join(filter(None, [text_of(message), *map(_text, results)])):
            held = _HELD.match(text)
            yield Source(f"entry {held[1] if held else index + 1}", text[held.end() :] if held else text)


def _is_ours(message: Message) -> bool:
    if message.role != "assistant":
        return False
    return text_of(message).startswith(HEADER) or any(use.id.startswith(CALL_ID) for use in tool_uses(message))


def _occurs(term: Term, sources: Sequence[Source]) -> bool:
    return any(count(term, source.text.lower()) or count(term, source.label.lower()) for source in sources)


def _quotes(sources: Sequence[Source], terms: Sequence[Term], total: int) -> list[str]:
    """Return the best passages as quotations that fit the answer, most telling first."""
    quotes: list[str] = []
    room = MAX_ANSWER_CHARS - 500
    taken: dict[str, int] = defaultdict(int)
    seen: set[str] = set()
    least = 0.0
    for passage in rank(sources, terms, total):
        least = least or passage.score * WORTH_QUOTING
        if passage.score < least or len(quotes) == MAX_QUOTES:
            break
        bare = "".join(passage.text.split())
        quote = "\n".join([passage.where, *(f"> {line}" for line in passage.text.split("\n"))])
        if bare in seen or taken[passage.label] == MAX_QUOTES_A_SOURCE or len(quote) + 2 > room:
            continue
        quotes.append(quote)
        room -= len(quote) + 2
        taken[passage.label] += 1
        seen.add(bare)
    return quotes


def _overview(look: Look) -> str:
    """Return what there is to see when the question names nothing to look for."""
    parts = [HEADER]
    for path, lines in sorted(look.files.items()):
        first = sorted(lines)[:OVERVIEW_LINES]
        parts.append(
            "\n".join([f"{path}:{first[0] if first else 1}", *(f"> {lines[number][:200]}" for number in first)])
        )
    if look.listed:
        folders = sorted({f"{path.partition('/')[0]}/" for path in look.listed if "/" in path})
        names = [*folders, *(path for path in look.listed if "/" not in path)]
        more = f" and {len(names) - OVERVIEW_FILES} more" if len(names) > OVERVIEW_FILES else ""
        count = f"{len(look.listed):,}{'+' if len(look.listed) >= MAX_LISTED else ''}"
        parts.append(f"{count} files in: {', '.join(names[:OVERVIEW_FILES])}{more}")
    if len(parts) == 1:
        asked = look.question.strip()[:80] or "an empty question"
        parts.append(f"Nothing found for {asked!r}: it names nothing to look for.")
    return "\n\n".join(parts)[:MAX_ANSWER_CHARS]
