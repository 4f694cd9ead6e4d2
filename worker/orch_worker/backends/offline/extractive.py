"""The offline backend, which searches with the agent's tools and answers with quotations.

The backend is deterministic and needs no model.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import BackendError, ConfigError
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, Usage, text_of, tool_uses

from ...conversation.framing import is_project, question_in, split_first_prompt
from ...conversation.recalled import hits_in, split_hits
from ...conversation.stubs import body_of, holder_of
from ...conversation.tokens import CHARS_PER_TOKEN
from ..base import AssistantTurn, BackendInfo, Conversation, OnText
from .bm25 import SearchTerm, SourceText, count, paths_of, rank, terms_of
from .passages import DEFINITION

__all__ = ["ExtractiveBackend", "from_spec"]

HEADER: Final = "Offline search (no model): quotations from files and messages."
CALL_ID: Final = "look_"
MAX_ANSWER_CHARS: Final = 1_500 * CHARS_PER_TOKEN
MAX_QUOTES: Final = 3
MAX_QUOTES_A_SOURCE: Final = 2
WORTH_QUOTING: Final = 0.25
MAX_STEPS: Final = 3
MAX_SEARCHES: Final = 4
MAX_HITS: Final = 50
MAX_HITS_A_FILE: Final = 5
MAX_PROSE_HITS: Final = 100
MAX_PROSE_HITS_A_FILE: Final = 3
MAX_HEADINGS: Final = 100
MAX_DEFINITIONS: Final = 200
MAX_FILES_READ: Final = 5
MAX_ARCHIVE_HITS: Final = 20
MAX_ENTRIES_READ: Final = 3
LINES_AROUND: Final = 8
LINES_READ: Final = 80
LINES_OF_NAMED_FILE: Final = 1_000
MAX_LISTED: Final = 300
MAX_NAMED: Final = 50
OVERVIEW_FILES: Final = 40
OVERVIEW_LINES: Final = 20
FOLDERS_SHOWN: Final = 8
PROSE_GLOB: Final = "*.{md,rst,txt,adoc}"

_HIT: Final = re.compile(r"(.+?):(\d+): (.*)")
_NUMBER: Final = re.compile(r"^ *\d+\t", re.MULTILINE)
_NUMBERED: Final = re.compile(r" *(\d+)\t(.*)")
_ARCHIVED_ENTRY: Final = re.compile(r"\[entry (\d+)\]\n")  # Archived entries have their own numbers.
_MORE: Final = re.compile(r"\[([\d,]+) more files")
_ENTRY: Final = re.compile(r"([a-f][0-9a-f]{11}) entry (\d+)")
_ENTRY_HEAD: Final = re.compile(r"\A\[entry \d+\] ([\w ]+)\n")
_RESULT_HEAD: Final = re.compile(r"^\[result \d+\]$", re.MULTILINE)
_CALL: Final = re.compile(r"> \w+(?: \w+=| \$ |\Z)")
_LEFT_OUT: Final = re.compile(r"\[.*read_archive\(.*\)( shows more)?\]")
_STOPPED: Final = "[stopped at "
_README: Final = re.compile(r"readme(\.\w+)?", re.IGNORECASE)
_FILE_WORD: Final = re.compile(r"\b(?:readme|license|changelog|contributing|makefile|dockerfile)\b", re.IGNORECASE)


class ToolResults(Struct):
    """The tool results of the current turn."""

    files: dict[str, dict[int, str]]
    """Maps paths to lines by line number."""
    listed: dict[str, None]
    total: int = 0
    """Number of all files. `listed` may contain only some of these files."""
    cut: set[str] = field(default_factory=set)
    """Patterns of searches that ended before all files were searched."""
    read: set[str] = field(default_factory=set)
    archived: dict[str, str] = field(default_factory=dict)
    """Texts of archived entries. Keys have the form `<archive id> entry <number>`."""

    def add(self, call: ToolUse, text: str) -> None:
        """Add the result `text` of `call`."""
        match call.name:
            case "read_file":
                self.read.add(call.input["path"])
                self._add_lines(call.input["path"], _numbered(text))
            case "grep_files":
                if _STOPPED in text:
                    self.cut.add(call.input["pattern"])
                for path, number, line in _grepped(text):
                    self._add_lines(path, {number: line})
            case "list_files":
                self._add_listed(text, whole="glob" not in call.input)
            case "search_archive":
                for place, passage in hits_in(text):
                    known, passage = self.archived.get(place, ""), _without_calls(passage)
                    self.archived[place] = known if passage in known else f"{known}\n\n{passage}".strip()
            case "read_archive":
                self.archived[f"{call.input['id']} entry {call.input['first']}"] = _entry_text(text)

    def _add_lines(self, path: str, lines: dict[int, str]) -> None:
        self.files.setdefault(path, {}).update(lines)

    def _add_listed(self, text: str, *, whole: bool) -> None:
        paths = (line for line in text.splitlines() if line and not line.startswith(("[", "No files")))
        self.listed.update(dict.fromkeys(paths))
        more = _MORE.search(text) if whole else None
        self.total = max(self.total, len(self.listed) + (int(more[1].replace(",", "")) if more else 0))


class TurnContext(Struct, frozen=True):
    """The state of the current turn: the question, its search terms, and the results so far."""

    question: str
    terms: tuple[SearchTerm, ...]
    steps: int
    question_index: int
    seen: ToolResults
    found: tuple[tuple[str, str], ...] = ()
    """Passages that came with the question, each with its source."""

    @property
    def searches(self) -> tuple[SearchTerm, ...]:
        """The terms that the backend searches separately."""
        return tuple(term for term in self.terms if term.usable)[:MAX_SEARCHES]

    @property
    def named(self) -> tuple[str, ...]:
        """The existing files whose names appear in the question."""
        return tuple(dict.fromkeys(filter(None, (self._file(name) for name in _names_in(self.question)))))

    def _file(self, name: str) -> str:
        """Return the file called `name` in the topmost folder, or ""."""
        lowered = name.lower().removeprefix("./")
        matches = [
            path
            for path in {*self.seen.listed, *self.seen.read}
            if f"/{path.lower()}".endswith(f"/{lowered}")
            or f"/{path.lower()}".rpartition(".")[0].endswith(f"/{lowered}")
        ]
        return min(matches, key=lambda path: (path.count("/"), path), default="")


class ExtractiveBackend(Conversation):
    """Answers a question with quotations from files and the conversation. Each quotation has its location."""

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:
        """Return the next search calls, or the answer."""
        messages = self._messages_to_send()
        turn = _turn_context(messages)
        calls = self._calls(turn)
        if calls:
            ids = (f"{CALL_ID}{len(messages)}_{number}" for number in range(1, len(calls) + 1))
            uses = tuple(ToolUse(id, name, input) for id, (name, input) in zip(ids, calls, strict=True))
            message = Message("assistant", uses)
        else:
            text = self._answer(turn, messages)
            message = Message("assistant", (Text(text),))
            if on_text is not None:
                on_text(text)
        usage = Usage(self.context_tokens(), self.estimator.message(message))
        return AssistantTurn(message, "tool_use" if calls else "end_turn", usage)

    def info(self) -> BackendInfo:
        """Return the provider and the model."""
        return BackendInfo("extractive", "", images=False)

    def _calls(self, turn: TurnContext) -> list[tuple[str, dict[str, Any]]]:
        planned = (_first_calls, _second_calls, _third_calls)[turn.steps](turn) if turn.steps < MAX_STEPS else []
        granted = {tool.name for tool in self.tools}
        return [call for call in planned if call[0] in granted]

    def _answer(self, turn: TurnContext, messages: Sequence[Message]) -> str:
        if not turn.searches:
            return _overview(turn)
        named = [source for source in _file_sources(turn) if source.label in turn.named]
        total = turn.seen.total + turn.question_index
        quotes = _quotes(named, turn.terms, total) if named else []
        sources = named
        if not quotes:
            found = [SourceText(label, text) for label, text in turn.found]
            archived = [SourceText(label, _unnumbered(text)) for label, text in sorted(turn.seen.archived.items())]
            searches = any(tool.name == "search_archive" for tool in self.tools)
            entries = _entries(messages[: turn.question_index], stubs=not searches)
            sources = [*_file_sources(turn), *found, *archived, *entries]
            quotes = _quotes(sources, turn.terms, total)
        missing = [term.word for term in turn.searches if not _occurs(term, sources)]
        if not quotes:
            words = ", ".join(term.word for term in turn.searches)
            return f"{HEADER}\n\nNothing found for {words}.\n{self._searched(turn, messages)}"
        if missing:
            quotes.append(f"Nothing found for {', '.join(missing)}.")
        return "\n\n".join([HEADER, *quotes])

    def _searched(self, turn: TurnContext, messages: Sequence[Message]) -> str:
        """Return a line that lists the places that were searched."""
        granted = {tool.name for tool in self.tools}
        places = []
        if granted & {"grep_files", "read_file"}:
            shown = f" ({_folders(tuple(turn.seen.listed), FOLDERS_SHOWN)})" if turn.seen.listed else ""
            places.append(
                f"{turn.seen.total:,} file{'s' * (turn.seen.total != 1)}{shown}"
                if "list_files" in granted
                else "the files of this folder"
            )
        if "search_archive" in granted:
            places.append("the archives of this conversation")
        if before := sum(1 for _ in _entries(messages[: turn.question_index], stubs=True)):
            places.append(f"{before:,} earlier message{'s' * (before != 1)}")
        return f"Searched: {', '.join(places) or 'nothing, since no tool to search with is granted'}."


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> ExtractiveBackend:  # noqa: ARG001
    """Return the offline backend, which takes no model and no options."""
    if spec.model or spec.options:
        raise ConfigError(
            f"the extractive backend takes no model and no options: {spec.model!r}, {sorted(spec.options)}"
        )
    return ExtractiveBackend()


def _turn_context(messages: Sequence[Message]) -> TurnContext:
    """Return the state of the turn that the last question started."""
    start = next((i for i in range(len(messages) - 1, -1, -1) if _is_question(messages[i])), None)
    if start is None:
        raise BackendError("cannot answer: the conversation has no text from a user")
    prompt = text_of(messages[start])
    task, (question, found) = split_first_prompt(prompt)[0], split_hits(question_in(prompt))
    terms = terms_of(question)
    if not any(term.usable for term in terms):
        first = next((message for message in messages if _is_question(message)), messages[start])
        terms = terms_of(task or split_first_prompt(text_of(first))[0])
    turn = messages[start + 1 :]
    calls = {call.id: call for message in turn for call in tool_uses(message)}
    seen = ToolResults({}, {})
    for call, text in _tool_results(turn, calls):
        seen.add(call, text)
    own_holders = {holder_of(text_of(message)) for message in messages if _is_own_output(message)}
    seen.archived = {
        location: text
        for location, text in seen.archived.items()
        if location.partition(" ")[0] not in own_holders and _is_evidence(text, question)
    }
    return TurnContext(question, terms, sum(message.role == "assistant" for message in turn), start, seen, found)


def _entry_text(shown: str) -> str:
    """Return the text of an archived entry without its heading and without its calls."""
    return _RESULT_HEAD.sub("", _without_calls(_ENTRY_HEAD.sub("", shown)))


def _without_calls(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not (_CALL.match(line) or _LEFT_OUT.fullmatch(line)))


def _is_evidence(text: str, question: str) -> bool:
    """Return whether the archived `text` is new information.

    Text that repeats the question, or that this backend wrote, is not new information.
    """
    plain_question, plain_text = question.strip().lower(), text.strip().lower()
    is_own_output = (
        HEADER.lower() in plain_text or '"ignore_case": true' in plain_text or '"max_results": ' in plain_text
    )
    return (
        bool(plain_text)
        and not is_own_output
        and not (plain_question in plain_text and len(plain_text) < 2 * len(plain_question))
    )


def _is_question(message: Message) -> bool:
    results = any(isinstance(block, ToolResult) for block in message.content)
    return message.role == "user" and not results and not is_project(message)


def _tool_results(turn: Sequence[Message], calls: Mapping[str, ToolUse]) -> Iterator[tuple[ToolUse, str]]:
    for message in turn:
        for block in message.content:
            if isinstance(block, ToolResult) and not block.is_error and block.tool_use_id in calls:
                yield calls[block.tool_use_id], _text(block)


def _text(result: ToolResult) -> str:
    return "\n".join(block.text for block in result.content)


def _numbered(text: str) -> dict[int, str]:
    matches = (_NUMBERED.fullmatch(line) for line in text.split("\n"))
    return {int(match[1]): match[2] for match in matches if match}


def _grepped(text: str) -> Iterator[tuple[str, int, str]]:
    for line in text.split("\n"):
        if match := _HIT.fullmatch(line):
            yield match[1], int(match[2]), match[3]


def _names_in(question: str) -> tuple[str, ...]:
    """Return words in `question` that may be file names."""
    return (*paths_of(question), *(match[0] for match in _FILE_WORD.finditer(question)))


def _first_calls(turn: TurnContext) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls of the first step: list files, search for each term, search documentation, and search the
    archives.
    """
    calls: list[tuple[str, dict[str, Any]]] = [("list_files", {"max_results": MAX_LISTED})]
    names = [*(name.rpartition("/")[2] for name in _names_in(turn.question)), *(term.text for term in turn.searches)]
    if patterns := [f"*{_any_case(name)}*" for name in dict.fromkeys(names) if re.fullmatch(r"[\w.-]+", name)]:
        glob = f"{{{','.join(patterns)}}}" if len(patterns) > 1 else patterns[0]
        calls.append(("list_files", {"glob": glob, "max_results": MAX_NAMED}))
    for term in turn.searches:
        bounds = {"max_results": MAX_HITS, "max_per_file": MAX_HITS_A_FILE}
        calls.append(("grep_files", {"pattern": term.regex, "ignore_case": True, **bounds}))
    if turn.searches:
        pattern = "|".join(term.regex for term in turn.searches)
        prose = {"glob": PROSE_GLOB, "ignore_case": True}
        bounds = {"max_results": MAX_PROSE_HITS, "max_per_file": MAX_PROSE_HITS_A_FILE}
        calls.append(("grep_files", {"pattern": f"^#+ .*(?:{pattern})", "max_results": MAX_HEADINGS, **prose}))
        calls.append(("grep_files", {"pattern": pattern, **prose, **bounds}))
        # A combined query would match the calls of an archived turn that searched for the same terms.
        calls += [("search_archive", {"query": term.text, "limit": MAX_ARCHIVE_HITS}) for term in turn.searches]
    named = paths_of(turn.question)[:MAX_FILES_READ]
    return calls + [("read_file", {"path": path, "limit": LINES_OF_NAMED_FILE}) for path in named]


def _second_calls(turn: TurnContext) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls of the second step, which read the results of the first step.

    Named files and archived entries are read completely. Other files are read around their best lines.
    """
    if not turn.searches:
        readme = next((path for path in turn.seen.listed if _README.fullmatch(path)), None)
        return [("read_file", {"path": readme, "limit": LINES_READ})] if readme else []
    calls: list[tuple[str, dict[str, Any]]] = []
    for path in turn.named:
        if path not in turn.seen.read:
            calls.append(("read_file", {"path": path, "limit": LINES_OF_NAMED_FILE}))
    asks_for_code = any(term.asks_for_code for term in turn.terms)
    often = [term for term in turn.searches if term.regex in turn.seen.cut and (asks_for_code or term.is_identifier)]
    if often and not turn.named:
        names = "|".join(re.escape(term.text) for term in often)
        pattern = rf"^(?:{DEFINITION.pattern}\w*(?:{names})\w{{0,3}}\b|(?:{names})\w{{0,3}}\s*(?::[^=]*)?=[^=])"
        bounds = {"max_results": MAX_DEFINITIONS, "max_per_file": MAX_HITS_A_FILE}
        calls.append(("grep_files", {"pattern": pattern, "ignore_case": True, **bounds}))
    else:
        calls += _reads(turn)
    hits = rank([SourceText(place, text) for place, text in turn.seen.archived.items()], turn.terms)
    for place in list(dict.fromkeys(hit.label for hit in hits))[:MAX_ENTRIES_READ]:
        if match := _ENTRY.fullmatch(place):
            entry = int(match[2])
            calls.append(("read_archive", {"id": match[1], "first": entry, "last": entry}))
    return calls


def _third_calls(turn: TurnContext) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls of the third step, which read the files that a search for definitions found in the
    second step.
    """
    return _reads(turn) if turn.searches and not turn.named and not turn.seen.read else []


def _reads(turn: TurnContext) -> list[tuple[str, dict[str, Any]]]:
    """Return calls that read the most relevant files. Each call reads the lines around the best match in its file."""
    best = _relevant_files(turn)[: 0 if turn.named else MAX_FILES_READ]
    return [
        ("read_file", {"path": path, "offset": max(1, number - LINES_AROUND), "limit": LINES_READ})
        for path, number in best
    ]


def _relevant_files(turn: TurnContext) -> list[tuple[str, int]]:
    """Return the files that are worth reading, best first, each with the number of its best line."""
    sources = list(_file_sources(turn))
    sources += [SourceText(path, path, (1,)) for path in turn.seen.listed if path not in turn.seen.files]
    best: dict[str, int] = {}
    for passage in rank(sources, turn.terms, turn.seen.total):
        best.setdefault(passage.label, passage.number)
    return [(path, number) for path, number in best.items() if path not in turn.seen.read]


def _any_case(name: str) -> str:
    """Return a glob pattern that matches `name` regardless of case."""
    return "".join(f"[{char}{char.upper()}]" if char.isascii() and char.islower() else char for char in name.lower())


def _file_sources(turn: TurnContext) -> Iterator[SourceText]:
    for path, lines in sorted(turn.seen.files.items()):
        numbers = tuple(sorted(lines))
        yield SourceText(path, "\n".join(lines[number] for number in numbers), numbers)


def _entries(messages: Sequence[Message], *, stubs: bool) -> Iterator[SourceText]:
    """Yield the conversation before this turn, without questions to this backend and without its own calls and answers.

    If `stubs` is True, include the records of archived turns.
    """
    for index, message in enumerate(messages):
        next_message = messages[index + 1] if index + 1 < len(messages) else None
        if (
            is_project(message)
            or _is_left_out(message, stubs)
            or (_is_question(message) and next_message is not None and _is_left_out(next_message, stubs))
        ):
            continue
        results = (b for b in message.content if isinstance(b, ToolResult) and not b.tool_use_id.startswith(CALL_ID))
        if text := "\n\n".join(filter(None, [text_of(message), *map(_text, results)])):
            entry_heading = _ARCHIVED_ENTRY.match(text)
            yield SourceText(
                f"entry {entry_heading[1] if entry_heading else index + 1}",
                _unnumbered(text[entry_heading.end() :] if entry_heading else text),
            )


def _is_own_output(message: Message) -> bool:
    if message.role != "assistant":
        return False
    text = body_of(text_of(message))
    is_answer = text.startswith(HEADER) or f"\n{HEADER}\n" in text
    return is_answer or any(use.id.startswith(CALL_ID) for use in tool_uses(message))


def _is_left_out(message: Message, stubs: bool) -> bool:
    return _is_own_output(message) or (not stubs and holder_of(text_of(message)) is not None)


def _unnumbered(text: str) -> str:
    """Return `text` without the line numbers that read_file added."""
    return _NUMBER.sub("", text)


def _occurs(term: SearchTerm, sources: Sequence[SourceText]) -> bool:
    return any(count(term, source.text.lower()) or count(term, source.label.lower()) for source in sources)


def _quotes(sources: Sequence[SourceText], terms: Sequence[SearchTerm], total: int) -> list[str]:
    """Return the best passages as quotations, best first, within the size limit."""
    quotes: list[str] = []
    remaining_chars = MAX_ANSWER_CHARS - 500
    quotes_by_source: dict[str, int] = defaultdict(int)
    quoted_texts: set[str] = set()
    minimum = 0.0
    for passage in rank(sources, terms, total):
        minimum = minimum or passage.score * WORTH_QUOTING
        if passage.score < minimum or len(quotes) == MAX_QUOTES:
            break
        squeezed_text = "".join(passage.text.split())
        quote = "\n".join([passage.where, *(f"> {line}" for line in passage.text.split("\n"))])
        if (
            any(squeezed_text in other for other in quoted_texts)
            or quotes_by_source[passage.label] == MAX_QUOTES_A_SOURCE
            or len(quote) + 2 > remaining_chars
        ):
            continue
        quotes.append(quote)
        remaining_chars -= len(quote) + 2
        quotes_by_source[passage.label] += 1
        quoted_texts.add(squeezed_text)
    return quotes


def _overview(turn: TurnContext) -> str:
    """Return an overview of the files, for a question without search terms."""
    parts = [HEADER]
    for path, lines in sorted(turn.seen.files.items()):
        first = sorted(lines)[:OVERVIEW_LINES]
        parts.append(
            "\n".join([f"{path}:{first[0] if first else 1}", *(f"> {lines[number][:200]}" for number in first)])
        )
    if turn.seen.listed:
        parts.append(f"{turn.seen.total:,} files in: {_folders(tuple(turn.seen.listed), OVERVIEW_FILES)}")
    if len(parts) == 1:
        asked = turn.question.strip()[:80] or "an empty question"
        parts.append(f"Nothing found for {asked!r}: the question contains no search terms.")
    return "\n\n".join(parts)[:MAX_ANSWER_CHARS]


def _folders(paths: Sequence[str], limit: int) -> str:
    """Return the top-level folders and files of `paths`, at most `limit`."""
    folders = sorted({f"{path.partition('/')[0]}/" for path in paths if "/" in path})
    names = [*folders, *(path for path in paths if "/" not in path)]
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{', '.join(names[:limit])}{more}"
