"""What a model is asked about an archived turn, and what counts as an answer. No model is called here.

A long turn is shown in pieces, each asked about by itself; what they say is put together by rule. A summary is never
made of summaries.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from orch_protocol.agent.config import SummaryConfig
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message
from orch_protocol.core.text import scrub
from orch_protocol.services.archiving import SummaryRequest
from orch_worker.conversation.rendering import turn_pieces
from orch_worker.conversation.tokens import clip

__all__ = [
    "Summary",
    "SummaryRequester",
    "SummaryStyle",
    "in_conversation_summary_prompts",
    "parse",
    "request_summary",
    "summary_prompts",
]


SummaryStyle: TypeAlias = Literal["structured", "paragraph"]

CHUNK_CHARS: Final = 60_000
FINDINGS: Final = 5
MAX_CHARS: Final = 1_600
ANSWER_CHARS: Final = 100_000

_STRUCTURED: Final = """\
You compress a finished piece of an agent's work. The full transcript is kept elsewhere and can be looked up; what \
you write is all the agent still sees of it. Answer with one JSON object and nothing else:
{"outcome": one short sentence, "key_findings": [at most 5 sentences, with exact names, paths and figures], \
"open_questions": [what is left undone or unknown, or nothing]}"""
_PARAGRAPH: Final = """\
You compress a finished piece of an agent's work. The full transcript is kept elsewhere and can be looked up; what \
you write is all the agent still sees of it. Answer with one paragraph of three to five sentences: what was asked, \
what was done, what came of it, what is still open. Exact names, paths and figures; no headings, no lists."""
_IN_CONVERSATION: Final = """\
[This is not part of the conversation. Call no tools.]
The piece of work is the turn that began with: {task}

{instructions}"""
_FENCE: Final = re.compile(r"\A\s*```\w*\n(.*?)\n?```\s*\Z", re.S)


class Summary(Struct, frozen=True):
    """What a model says of a turn in the structured style."""

    outcome: Annotated[str, Meta(min_length=1)]
    key_findings: Annotated[tuple[str, ...], Meta(max_length=FINDINGS)] = ()
    open_questions: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"Outcome: {self.outcome}"]
        lines += [f"- {finding}" for finding in self.key_findings]
        lines += [f"Open: {question}" for question in self.open_questions]
        return "\n".join(lines)


def request_summary(
    messages: Sequence[Message],
    style: SummaryStyle,
    model: str | None,
    asked: Callable[[SummaryRequest], str],
) -> str | None:
    """Return what the model behind `asked` says of `messages`, as text; None when it gives no usable answer."""
    asking = summary_prompts(messages, style, model)
    try:
        request = next(asking)
        while True:
            request = asking.send(asked(request))
    except StopIteration as over:
        text: str | None = over.value
        return text


def summary_prompts(
    messages: Sequence[Message], style: SummaryStyle, model: str | None
) -> Generator[SummaryRequest, str, str | None]:
    """Yield what a model is to be asked about `messages`, and be sent its answers; return the summary, None if none.

    An answer that does not fit is sent back once with what is wrong about it.
    """
    system = _STRUCTURED if style == "structured" else _PARAGRAPH
    parts = turn_pieces(messages, CHUNK_CHARS)
    found: list[Summary] = []
    for number, part in enumerate(parts, 1):
        which = f" (part {number} of {len(parts)})" if len(parts) > 1 else ""
        request = SummaryRequest(system, f"Summarise this finished turn{which}:\n\n{part}", model)
        answer = parse((yield request), style)
        if isinstance(answer, str):
            again = f"{request.prompt}\n\nYour answer before was not usable: {answer}. Answer again."
            answer = parse((yield SummaryRequest(system, again, model)), style)
        if isinstance(answer, str):
            return None
        found.append(answer)
    if not found:
        return None
    if style == "paragraph":
        return clip("\n".join(summary.outcome for summary in found), MAX_CHARS, "the archive holds it all")
    findings = [finding for row in _rows([summary.key_findings for summary in found]) for finding in row]
    whole = Summary(found[-1].outcome, tuple(findings[:FINDINGS]), found[-1].open_questions)
    return clip(str(whole), MAX_CHARS, "the archive holds it all")


def in_conversation_summary_prompts(task: str, style: SummaryStyle) -> Generator[SummaryRequest, str, str | None]:
    """Yield what a model that sees the conversation is to be asked about its turn `task`, and be sent its answers.

    Returns the summary, None if there is none.
    """
    instructions = _STRUCTURED if style == "structured" else _PARAGRAPH
    prompt = _IN_CONVERSATION.format(task=task, instructions=instructions)
    answer = parse((yield SummaryRequest("", prompt)), style)
    if isinstance(answer, str):
        again = f"{prompt}\n\nYour answer before was not usable: {answer}. Answer again."
        answer = parse((yield SummaryRequest("", again)), style)
    if isinstance(answer, str):
        return None
    return clip(answer.outcome if style == "paragraph" else str(answer), MAX_CHARS, "the archive holds it all")


def parse(answer: str, style: SummaryStyle) -> Summary | str:
    """Return `answer` as a summary, or what is wrong about it. A fence around JSON is forgiven. Never raises."""
    if not isinstance(answer, str):
        return f"it is a {type(answer).__name__}, not text"
    if len(answer) > ANSWER_CHARS:
        return f"it is {len(answer):,} characters long, which is no summary"
    text = answer.strip()
    if fenced := _FENCE.match(text):
        text = fenced[1].strip()
    if style == "paragraph":
        return Summary(text) if text else "it is empty"
    try:
        return msgspec.json.decode(text, type=Summary)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        return f"not the JSON object that was asked for ({error})"


def _rows(columns: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return what stands first in each column, then second, and so on."""
    longest = max(map(len, columns), default=0)
    return [[column[place] for column in columns if place < len(column)] for place in range(longest)]


# --- Asking a caller's function for summaries ---

MAX_PENDING: Final = 4
REASON_CHARS: Final = 300


class _PendingSummary(Struct):
    """One archive that is asked about, and what came of it: a text, or why there is none."""

    id: str
    text: str | None = None
    failure: tuple[str, str] | None = None


class SummaryRequester:
    """Asks `summarise` about archives, in threads that may take longer than anybody waits for them.

    Why there is no summary goes to `notes`, once for each kind of reason. Raises ConfigError for what cannot be called
    like that.
    """

    def __init__(self, summarise: Callable[[SummaryRequest], str], settings: SummaryConfig, notes: list[str]) -> None:
        if not callable(summarise) or inspect.iscoroutinefunction(summarise):
            kind = "an async function" if callable(summarise) else f"a {type(summarise).__name__}"
            raise ConfigError(f"summarise is {kind}: give a function that takes a SummaryRequest and returns text")
        self._summarise = summarise
        self._settings = settings
        self._notes = notes
        self._told: set[str] = set()
        self._late: list[tuple[threading.Thread, _PendingSummary]] = []

    def ask(self, id: str, messages: Sequence[Message]) -> str | None:
        """Return a summary of `messages`, the archive `id`; None when there is none in time. Never raises."""
        if sum(thread.is_alive() for thread, _ in self._late) >= MAX_PENDING:
            self._tell(id, ("busy", f"{MAX_PENDING} are being waited for"))
            return None
        question = _PendingSummary(id)
        # A thread, because nothing else gives up on a caller's function that does not return.
        thread = threading.Thread(target=self._work, args=(question, messages), name="orch-summary", daemon=True)
        thread.start()
        thread.join(self._settings.timeout_seconds)
        if thread.is_alive():
            self._late.append((thread, question))
            self._tell(id, ("late", f"not within {self._settings.timeout_seconds:g} s; put in when it comes"))
            return None
        return self._answer(question)

    def late(self) -> list[tuple[str, str]]:
        """Return the summaries, with the archives' ids, that came since they were last asked for. Waits for none."""
        done = [question for thread, question in self._late if not thread.is_alive()]
        self._late = [each for each in self._late if each[1] not in done]
        answers = [(question.id, self._answer(question)) for question in done]
        return [(id, text) for id, text in answers if text]

    def _work(self, question: _PendingSummary, messages: Sequence[Message]) -> None:
        settings = self._settings
        try:
            text = request_summary(messages, settings.style, settings.model, self._summarise)
        except BaseException as error:  # the caller's code: whatever it raises, the turn is archived
            name = type(error).__name__
            question.failure = (name, f"{name}: {error}")
        else:
            question.text = None if text is None else scrub(text)
            question.failure = ("unusable", f"what came back is no {settings.style} summary") if text is None else None

    def _answer(self, question: _PendingSummary) -> str | None:
        if question.failure is not None:
            self._tell(question.id, question.failure)
        return question.text

    def _tell(self, id: str, failure: tuple[str, str]) -> None:
        kind, reason = failure
        if kind not in self._told:
            self._told.add(kind)
            self._notes.append(f"no summary of archive {id}: {reason[:REASON_CHARS]} (said once)")
