"""Prompts for summaries of archived turns, and parsing of the answers. This module calls no model.

A long turn is summarized in pieces, and rules combine the results. No summary is made from other summaries.
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
from orch_protocol.core.archives import ArchiveKind
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message
from orch_protocol.core.text import scrub
from orch_protocol.services.archives.archiving import SummaryRequest
from orch_worker.conversation.rendering import turn_pieces
from orch_worker.conversation.tokens import clip
from orch_worker.conversation.turns import calls_of

__all__ = [
    "Summary",
    "SummaryRequester",
    "SummaryStyle",
    "in_conversation_summary_prompts",
    "parse",
    "request_summary",
    "requested_style",
    "summary_prompts",
]


SummaryStyle: TypeAlias = Literal["structured", "paragraph"]

CHUNK_CHARS: Final = 60_000
FINDINGS: Final = 5
MAX_CHARS: Final = 1_600
ANSWER_CHARS: Final = 100_000
MAX_ARGUMENTS: Final = 300

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
The piece of work is {piece}

{instructions}"""
_FENCE: Final = re.compile(r"\A\s*```\w*\n(.*?)\n?```\s*\Z", re.S)


class Summary(Struct, frozen=True):
    """A summary in the structured style."""

    outcome: Annotated[str, Meta(min_length=1)]
    key_findings: Annotated[tuple[str, ...], Meta(max_length=FINDINGS)] = ()
    open_questions: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"Outcome: {self.outcome}"]
        lines += [f"- {finding}" for finding in self.key_findings]
        lines += [f"Open: {question}" for question in self.open_questions]
        return "\n".join(lines)


def requested_style(configured: Literal["none", "structured", "paragraph"] | None) -> SummaryStyle:
    """Return the style of a summary that is requested although none is written by default: "structured"."""
    return "paragraph" if configured == "paragraph" else "structured"


def request_summary(
    messages: Sequence[Message],
    style: SummaryStyle,
    model: str | None,
    send: Callable[[SummaryRequest], str],
) -> str | None:
    """Return a summary of `messages` as text.

    Return None if there is no usable answer. `send` sends a request to the model.
    """
    requests = summary_prompts(messages, style, model)
    try:
        request = next(requests)
        while True:
            request = requests.send(send(request))
    except StopIteration as end:
        text: str | None = end.value
        return text


def summary_prompts(
    messages: Sequence[Message], style: SummaryStyle, model: str | None
) -> Generator[SummaryRequest, str, str | None]:
    """Yield the requests for a summary of `messages` and receive the answers. Return the summary or None.

    If an answer is not valid, one more request contains the error.
    """
    system = _STRUCTURED if style == "structured" else _PARAGRAPH
    parts = turn_pieces(messages, CHUNK_CHARS)
    summaries: list[Summary] = []
    for number, part in enumerate(parts, 1):
        part_label = f" (part {number} of {len(parts)})" if len(parts) > 1 else ""
        request = SummaryRequest(system, f"Summarize this finished turn{part_label}:\n\n{part}", model)
        answer = parse((yield request), style)
        if isinstance(answer, str):
            retry_prompt = f"{request.prompt}\n\nYour previous answer was not usable: {answer}. Answer again."
            answer = parse((yield SummaryRequest(system, retry_prompt, model)), style)
        if isinstance(answer, str):
            return None
        summaries.append(answer)
    if not summaries:
        return None
    if style == "paragraph":
        return clip("\n".join(summary.outcome for summary in summaries), MAX_CHARS, "the archive holds it all")
    findings = [finding for row in _interleave([summary.key_findings for summary in summaries]) for finding in row]
    combined = Summary(summaries[-1].outcome, tuple(findings[:FINDINGS]), summaries[-1].open_questions)
    return clip(str(combined), MAX_CHARS, "the archive holds it all")


def in_conversation_summary_prompts(
    kind: ArchiveKind, task: str, messages: Sequence[Message], style: SummaryStyle
) -> Generator[SummaryRequest, str, str | None]:
    """Yield requests for a summary of the turn or phase `messages` with the task `task`, and receive the answers.

    The model of the conversation answers the requests. Return the summary or None.
    """
    instructions = _STRUCTURED if style == "structured" else _PARAGRAPH
    piece = f"the turn that began with: {task}"
    if kind == "phase" and (calls := calls_of(messages)):
        arguments = clip(msgspec.json.encode(calls[-1].input).decode(), MAX_ARGUMENTS, "cut")
        piece = f"a part of {piece}\nThe part ends with the result of this call: {calls[-1].name} {arguments}"
    prompt = _IN_CONVERSATION.format(piece=piece, instructions=instructions)
    answer = parse((yield SummaryRequest("", prompt)), style)
    if isinstance(answer, str):
        retry_prompt = f"{prompt}\n\nYour previous answer was not usable: {answer}. Answer again."
        answer = parse((yield SummaryRequest("", retry_prompt)), style)
    if isinstance(answer, str):
        return None
    return clip(answer.outcome if style == "paragraph" else str(answer), MAX_CHARS, "the archive holds it all")


def parse(answer: str, style: SummaryStyle) -> Summary | str:
    """Return the summary in `answer`. If `answer` is not valid, return a string with the error.

    The JSON may be in a code fence. Does not raise.
    """
    if not isinstance(answer, str):
        return f"it is a {type(answer).__name__}, not text"
    if len(answer) > ANSWER_CHARS:
        return f"it is {len(answer):,} characters long, which is too long for a summary"
    text = answer.strip()
    if fenced := _FENCE.match(text):
        text = fenced[1].strip()
    if style == "paragraph":
        return Summary(text) if text else "it is empty"
    try:
        return msgspec.json.decode(text, type=Summary)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        return f"it is not the requested JSON object ({error})"


def _interleave(columns: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the first items of all columns, then all second items, and so on."""
    longest = max(map(len, columns), default=0)
    return [[column[index] for column in columns if index < len(column)] for index in range(longest)]


# --- Summaries from a caller's function ---

MAX_PENDING: Final = 4
REASON_CHARS: Final = 300


class _PendingSummary(Struct):
    """A requested summary and its result. The result is a text, or the reason why there is no text."""

    id: str
    text: str | None = None
    failure: tuple[str, str] | None = None


class SummaryRequester:
    """Requests summaries from the function `summarize`, in threads with a time limit.

    Failures are added to `notes`, once for each kind. Raises ConfigError if `summarize` is not a plain function.
    """

    def __init__(self, summarize: Callable[[SummaryRequest], str], settings: SummaryConfig, notes: list[str]) -> None:
        if not callable(summarize) or inspect.iscoroutinefunction(summarize):
            kind = "an async function" if callable(summarize) else f"a {type(summarize).__name__}"
            raise ConfigError(f"summarize is {kind}; pass a function that takes a SummaryRequest and returns text")
        self._summarize = summarize
        self._settings = settings
        self._notes = notes
        self._reported: set[str] = set()
        self._overdue: list[tuple[threading.Thread, _PendingSummary]] = []

    def request(self, id: str, messages: Sequence[Message]) -> str | None:
        """Return a summary of `messages`, which are the archive `id`.

        Return None if no summary arrives in time. Does not raise.
        """
        if sum(thread.is_alive() for thread, _ in self._overdue) >= MAX_PENDING:
            self._add_note(id, ("busy", f"{MAX_PENDING} summaries are already pending"))
            return None
        pending = _PendingSummary(id)
        # Only a thread can be abandoned if the caller's function does not return.
        thread = threading.Thread(target=self._run, args=(pending, messages), name="orch-summary", daemon=True)
        thread.start()
        thread.join(self._settings.timeout_seconds)
        if thread.is_alive():
            self._overdue.append((thread, pending))
            self._add_note(
                id,
                (
                    "late",
                    f"it did not arrive within {self._settings.timeout_seconds:g} s; it is inserted when it arrives",
                ),
            )
            return None
        return self._take_result(pending)

    def late_summaries(self) -> list[tuple[str, str]]:
        """Return the summaries that arrived since the last call, with the ids of their archives. Does not wait."""
        finished = [pending for thread, pending in self._overdue if not thread.is_alive()]
        self._overdue = [each for each in self._overdue if each[1] not in finished]
        answers = [(pending.id, self._take_result(pending)) for pending in finished]
        return [(id, text) for id, text in answers if text]

    def _run(self, pending: _PendingSummary, messages: Sequence[Message]) -> None:
        settings = self._settings
        style = requested_style(settings.style)
        try:
            text = request_summary(messages, style, settings.model, self._summarize)
        except BaseException as error:  # an exception in the caller's code must not prevent archiving
            name = type(error).__name__
            pending.failure = (name, f"{name}: {error}")
        else:
            pending.text = None if text is None else scrub(text)
            pending.failure = ("unusable", f"the result is not a {style} summary") if text is None else None

    def _take_result(self, pending: _PendingSummary) -> str | None:
        if pending.failure is not None:
            self._add_note(pending.id, pending.failure)
        return pending.text

    def _add_note(self, id: str, failure: tuple[str, str]) -> None:
        kind, reason = failure
        if kind not in self._reported:
            self._reported.add(kind)
            self._notes.append(f"no summary of archive {id}: {reason[:REASON_CHARS]} (reported only once)")
