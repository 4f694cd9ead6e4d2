"""The backend that needs no model: searches with the granted tools, and answers in quotations. Deterministic."""

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
MAX_LOOKS: Final = 3
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
_HELD: Final = re.compile(r"\[entry (\d+)\]\n")  # what a holder holds has numbers of its own
_MORE: Final = re.compile(r"\[([\d,]+) more files")
_ENTRY: Final = re.compile(r"([a-f][0-9a-f]{11}) entry (\d+)")
_ENTRY_HEAD: Final = re.compile(r"\A\[entry \d+\]\n## \w+\n")
_STOPPED: Final = "[stopped at "
_RESULT: Final = re.compile(r"\]?\n\[tool_result: |\A\[tool_result: |\]\Z")
_README: Final = re.compile(r"readme(\.\w+)?", re.IGNORECASE)
_FILE_WORD: Final = re.compile(r"\b(?:readme|license|changelog|contributing|makefile|dockerfile)\b", re.IGNORECASE)


class ToolResults(Struct):
    """What the tools have shown in the turn so far."""

    files: dict[str, dict[int, str]]
    """Lines by path and number."""
    listed: dict[str, None]
    total: int = 0
    """How many files there are, of which `listed` are some."""
    cut: set[str] = field(default_factory=set)
    """The patterns of searches that stopped before every file was searched."""
    read: set[str] = field(default_factory=set)
    archived: dict[str, str] = field(default_factory=dict)
    """Text of archived entries, by `<archive id> entry <number>`."""

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
                    known = self.archived.get(place, "")
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
    """The turn so far: what is asked, what to look for, and what the tools have shown."""

    question: str
    terms: tuple[SearchTerm, ...]
    steps: int
    began: int
    seen: ToolResults
    found: tuple[tuple[str, str], ...] = ()
    """Passages that came with the question, and where each is from."""

    @property
    def searches(self) -> tuple[SearchTerm, ...]:
        """The terms worth a search each."""
        return tuple(term for term in self.terms if term.usable)[:MAX_SEARCHES]

    @property
    def named(self) -> tuple[str, ...]:
        """The files that the question names, as far as they are known to exist."""
        return tuple(dict.fromkeys(filter(None, (self._file(name) for name in _names_in(self.question)))))

    def _file(self, name: str) -> str:
        """Return the file called `name`, in the highest folder that has one; "" when there is none."""
        lowered = name.lower().removeprefix("./")
        matches = [
            path
            for path in {*self.seen.listed, *self.seen.read}
            if f"/{path.lower()}".endswith(f"/{lowered}")
            or f"/{path.lower()}".rpartition(".")[0].endswith(f"/{lowered}")
        ]
        return min(matches, key=lambda path: (path.count("/"), path), default="")


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

    def _calls(self, look: TurnContext) -> list[tuple[str, dict[str, Any]]]:
        planned = (_first_look, _second_look, _third_look)[look.steps](look) if look.steps < MAX_LOOKS else []
        granted = {tool.name for tool in self.tools}
        return [call for call in planned if call[0] in granted]

    def _answer(self, look: TurnContext, messages: Sequence[Message]) -> str:
        if not look.searches:
            return _overview(look)
        named = [source for source in _file_sources(look) if source.label in look.named]
        total = look.seen.total + look.began
        quotes = _quotes(named, look.terms, total) if named else []
        sources = named
        if not quotes:
            found = [SourceText(label, text) for label, text in look.found]
            archived = [SourceText(label, _unnumbered(text)) for label, text in sorted(look.seen.archived.items())]
            searches = any(tool.name == "search_archive" for tool in self.tools)
            entries = _entries(messages[: look.began], stubs=not searches)
            sources = [*_file_sources(look), *found, *archived, *entries]
            quotes = _quotes(sources, look.terms, total)
        missing = [term.word for term in look.searches if not _occurs(term, sources)]
        if not quotes:
            words = ", ".join(term.word for term in look.searches)
            return f"{HEADER}\n\nNothing found for {words}.\n{self._searched(look, messages)}"
        if missing:
            quotes.append(f"Nothing found for {', '.join(missing)}.")
        return "\n\n".join([HEADER, *quotes])

    def _searched(self, look: TurnContext, messages: Sequence[Message]) -> str:
        """Return a line that lists what was searched."""
        granted = {tool.name for tool in self.tools}
        places = []
        if granted & {"grep_files", "read_file"}:
            shown = f" ({_folders(tuple(look.seen.listed), FOLDERS_SHOWN)})" if look.seen.listed else ""
            places.append(
                f"{look.seen.total:,} file{'s' * (look.seen.total != 1)}{shown}"
                if "list_files" in granted
                else "the files of this folder"
            )
        if "search_archive" in granted:
            places.append("the archives of this conversation")
        if said := sum(1 for _ in _entries(messages[: look.began], stubs=True)):
            places.append(f"{said:,} earlier message{'s' * (said != 1)}")
        return f"Searched: {', '.join(places) or 'nothing, since no tool to search with is granted'}."


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> ExtractiveBackend:  # noqa: ARG001
    """Return the backend; it has neither models nor options."""
    if spec.model or spec.options:
        raise ConfigError(
            f"the extractive backend takes no model and no options: {spec.model!r}, {sorted(spec.options)}"
        )
    return ExtractiveBackend()


def _look(messages: Sequence[Message]) -> TurnContext:
    """Return where the turn stands that the last question began."""
    began = next((i for i in range(len(messages) - 1, -1, -1) if _is_question(messages[i])), None)
    if began is None:
        raise BackendError("cannot answer: the conversation has no text from a user")
    asked = text_of(messages[began])
    task, (question, found) = split_first_prompt(asked)[0], split_hits(question_in(asked))
    terms = terms_of(question)
    if not any(term.usable for term in terms):
        first = next((message for message in messages if _is_question(message)), messages[began])
        terms = terms_of(task or split_first_prompt(text_of(first))[0])
    turn = messages[began + 1 :]
    calls = {call.id: call for message in turn for call in tool_uses(message)}
    seen = ToolResults({}, {})
    for call, text in _shown(turn, calls):
        seen.add(call, text)
    ours = {holder_of(text_of(message)) for message in messages if _is_ours(message)}
    seen.archived = {
        place: text
        for place, text in seen.archived.items()
        if place.partition(" ")[0] not in ours and _is_evidence(text, question)
    }
    return TurnContext(question, terms, sum(message.role == "assistant" for message in turn), began, seen, found)


def _entry_text(shown: str) -> str:
    """Return what an entry says that read_archive has shown, without its head and the calls in it."""
    text = _ENTRY_HEAD.sub("", shown)
    if text.startswith("[tool_result: "):
        text = _RESULT.sub("\n\n", text)
    return "\n".join(line for line in text.split("\n") if not line.startswith(("[tool_use: ", "[more lines follow")))


def _is_evidence(text: str, question: str) -> bool:
    """Return whether the archived `text` is more than the same question, or a call or an answer of this backend."""
    asked, bare = question.strip().lower(), text.strip().lower()
    ours = HEADER.lower() in bare or '"ignore_case": true' in bare or '"max_results": ' in bare
    return bool(bare) and not ours and not (asked in bare and len(bare) < 2 * len(asked))


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


def _names_in(question: str) -> tuple[str, ...]:
    """Return what in `question` may be the name of a file."""
    return (*paths_of(question), *(match[0] for match in _FILE_WORD.finditer(question)))


def _first_look(look: TurnContext) -> list[tuple[str, dict[str, Any]]]:
    """List and search: the terms one by one, all of them in documentation, and the archives."""
    calls: list[tuple[str, dict[str, Any]]] = [("list_files", {"max_results": MAX_LISTED})]
    names = [*(name.rpartition("/")[2] for name in _names_in(look.question)), *(term.text for term in look.searches)]
    if patterns := [f"*{_any_case(name)}*" for name in dict.fromkeys(names) if re.fullmatch(r"[\w.-]+", name)]:
        glob = f"{{{','.join(patterns)}}}" if len(patterns) > 1 else patterns[0]
        calls.append(("list_files", {"glob": glob, "max_results": MAX_NAMED}))
    for term in look.searches:
        bounds = {"max_results": MAX_HITS, "max_per_file": MAX_HITS_A_FILE}
        calls.append(("grep_files", {"pattern": term.regex, "ignore_case": True, **bounds}))
    if look.searches:
        pattern = "|".join(term.regex for term in look.searches)
        prose = {"glob": PROSE_GLOB, "ignore_case": True}
        bounds = {"max_results": MAX_PROSE_HITS, "max_per_file": MAX_PROSE_HITS_A_FILE}
        calls.append(("grep_files", {"pattern": f"^#+ .*(?:{pattern})", "max_results": MAX_HEADINGS, **prose}))
        calls.append(("grep_files", {"pattern": pattern, **prose, **bounds}))
        # Together they would be found word for word in the calls of an archived turn that searched for them.
        calls += [("search_archive", {"query": term.text, "limit": MAX_ARCHIVE_HITS}) for term in look.searches]
    named = paths_of(look.question)[:MAX_FILES_READ]
    return calls + [("read_file", {"path": path, "limit": LINES_OF_NAMED_FILE}) for path in named]


def _second_look(look: TurnContext) -> list[tuple[str, dict[str, Any]]]:
    """Read what the first look found: named files whole, others around the best lines, archived entries whole."""
    if not look.searches:
        readme = next((path for path in look.seen.listed if _README.fullmatch(path)), None)
        return [("read_file", {"path": readme, "limit": LINES_READ})] if readme else []
    calls: list[tuple[str, dict[str, Any]]] = []
    for path in look.named:
        if path not in look.seen.read:
            calls.append(("read_file", {"path": path, "limit": LINES_OF_NAMED_FILE}))
    asks_for_code = any(term.asks_for_code for term in look.terms)
    often = [term for term in look.searches if term.regex in look.seen.cut and (asks_for_code or term.is_identifier)]
    if often and not look.named:
        names = "|".join(re.escape(term.text) for term in often)
        pattern = rf"^(?:{DEFINITION.pattern}\w*(?:{names})\w{{0,3}}\b|(?:{names})\w{{0,3}}\s*(?::[^=]*)?=[^=])"
        bounds = {"max_results": MAX_DEFINITIONS, "max_per_file": MAX_HITS_A_FILE}
        calls.append(("grep_files", {"pattern": pattern, "ignore_case": True, **bounds}))
    else:
        calls += _reads(look)
    hits = rank([SourceText(place, text) for place, text in look.seen.archived.items()], look.terms)
    for place in list(dict.fromkeys(hit.label for hit in hits))[:MAX_ENTRIES_READ]:
        if match := _ENTRY.fullmatch(place):
            entry = int(match[2])
            calls.append(("read_archive", {"id": match[1], "first": entry, "last": entry}))
    return calls


def _third_look(look: TurnContext) -> list[tuple[str, dict[str, Any]]]:
    """Read what the second look found, when that was a search for definitions."""
    return _reads(look) if look.searches and not look.named and not look.seen.read else []


def _reads(look: TurnContext) -> list[tuple[str, dict[str, Any]]]:
    """Return calls that read the files worth it, around their best lines."""
    best = _promising(look)[: 0 if look.named else MAX_FILES_READ]
    return [
        ("read_file", {"path": path, "offset": max(1, number - LINES_AROUND), "limit": LINES_READ})
        for path, number in best
    ]


def _promising(look: TurnContext) -> list[tuple[str, int]]:
    """Return the files worth reading, best first, each with the line to read about."""
    sources = list(_file_sources(look))
    sources += [SourceText(path, path, (1,)) for path in look.seen.listed if path not in look.seen.files]
    best: dict[str, int] = {}
    for passage in rank(sources, look.terms, look.seen.total):
        best.setdefault(passage.label, passage.number)
    return [(path, number) for path, number in best.items() if path not in look.seen.read]


def _any_case(name: str) -> str:
    """Return a glob that matches `name` in any case."""
    return "".join(f"[{char}{char.upper()}]" if char.isascii() and char.islower() else char for char in name.lower())


def _file_sources(look: TurnContext) -> Iterator[SourceText]:
    for path, lines in sorted(look.seen.files.items()):
        numbers = tuple(sorted(lines))
        yield SourceText(path, "\n".join(lines[number] for number in numbers), numbers)


def _entries(messages: Sequence[Message], *, stubs: bool) -> Iterator[SourceText]:
    """Yield the conversation before the turn, without the questions to this backend, its calls and its answers.

    `stubs` says whether to yield the records of archived turns too.
    """
    for index, message in enumerate(messages):
        after = messages[index + 1] if index + 1 < len(messages) else None
        if (
            is_project(message)
            or _is_left_out(message, stubs)
            or (_is_question(message) and after is not None and _is_left_out(after, stubs))
        ):
            continue
        results = (b for b in message.content if isinstance(b, ToolResult) and not b.tool_use_id.startswith(CALL_ID))
        if text := "\n\n".join(filter(None, [text_of(message), *map(_text, results)])):
            held = _HELD.match(text)
            yield SourceText(
                f"entry {held[1] if held else index + 1}", _unnumbered(text[held.end() :] if held else text)
            )


def _is_ours(message: Message) -> bool:
    if message.role != "assistant":
        return False
    text = body_of(text_of(message))
    ours = text.startswith(HEADER) or f"\n{HEADER}\n" in text
    return ours or any(use.id.startswith(CALL_ID) for use in tool_uses(message))


def _is_left_out(message: Message, stubs: bool) -> bool:
    return _is_ours(message) or (not stubs and holder_of(text_of(message)) is not None)


def _unnumbered(text: str) -> str:
    """Return `text` without the line numbers that read_file puts in front of lines."""
    return _NUMBER.sub("", text)


def _occurs(term: SearchTerm, sources: Sequence[SourceText]) -> bool:
    return any(count(term, source.text.lower()) or count(term, source.label.lower()) for source in sources)


def _quotes(sources: Sequence[SourceText], terms: Sequence[SearchTerm], total: int) -> list[str]:
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
        if any(bare in other for other in seen) or taken[passage.label] == MAX_QUOTES_A_SOURCE or len(quote) + 2 > room:
            continue
        quotes.append(quote)
        room -= len(quote) + 2
        taken[passage.label] += 1
        seen.add(bare)
    return quotes


def _overview(look: TurnContext) -> str:
    """Return what there is to see when the question names nothing to look for."""
    parts = [HEADER]
    for path, lines in sorted(look.seen.files.items()):
        first = sorted(lines)[:OVERVIEW_LINES]
        parts.append(
            "\n".join([f"{path}:{first[0] if first else 1}", *(f"> {lines[number][:200]}" for number in first)])
        )
    if look.seen.listed:
        parts.append(f"{look.seen.total:,} files in: {_folders(tuple(look.seen.listed), OVERVIEW_FILES)}")
    if len(parts) == 1:
        asked = look.question.strip()[:80] or "an empty question"
        parts.append(f"Nothing found for {asked!r}: it names nothing to look for.")
    return "\n\n".join(parts)[:MAX_ANSWER_CHARS]


def _folders(paths: Sequence[str], most: int) -> str:
    """Return the folders and files at the top of `paths`, at most `most` of them."""
    folders = sorted({f"{path.partition('/')[0]}/" for path in paths if "/" in path})
    names = [*folders, *(path for path in paths if "/" not in path)]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
