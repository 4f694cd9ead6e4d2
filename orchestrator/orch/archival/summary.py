"""What a model is asked about an archived turn, and what counts as an answer. No model is called here.

A long turn is shown in pieces, each asked about by itself; what they say is put together by rule. A summary is never
made of summaries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from orch_protocol.messages import Message
from orch_protocol.services import SummaryRequest
from orch_worker.rendering import pieces, render_turn
from orch_worker.tokens import clip

__all__ = ["Style", "Summary", "ask", "parse", "questions", "questions_beside"]

Style: TypeAlias = Literal["structured", "paragraph"]

CHUNK_CHARS: Final = 60_000
FINDINGS: Final = 5
MOST_CHARS: Final = 1_600
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
_BESIDE: Final = """\
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


def ask(
    messages: Sequence[Message],
    style: Style,
    model: str | None,
    asked: Callable[[SummaryRequest], str],
) -> str | None:
    """Return what the model behind `asked` says of `messages`, as text; None when it gives no usable answer."""
    asking = questions(messages, style, model)
    try:
        request = next(asking)
        while True:
            request = asking.send(asked(request))
    except StopIteration as over:
        text: str | None = over.value
        return text


def questions(
    messages: Sequence[Message], style: Style, model: str | None
) -> Generator[SummaryRequest, str, str | None]:
    """Yield what a model is to be asked about `messages`, and be sent its answers; return the summary, None if none.

    An answer that does not fit is sent back once with what is wrong about it.
    """
    system = _STRUCTURED if style == "structured" else _PARAGRAPH
    parts = pieces(render_turn(messages), CHUNK_CHARS)
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
        return clip("\n".join(summary.outcome for summary in found), MOST_CHARS, "the archive holds it all")
    findings = [finding for row in _rows([summary.key_findings for summary in found]) for finding in row]
    whole = Summary(found[-1].outcome, tuple(findings[:FINDINGS]), found[-1].open_questions)
    return clip(str(whole), MOST_CHARS, "the archive holds it all")


def questions_beside(task: str, style: Style) -> Generator[SummaryRequest, str, str | None]:
    """Yield what a model that sees the conversation is to be asked about its turn `task`, and be sent its answers.

    Returns the summary, None if there is none.
    """
    instructions = _STRUCTURED if style == "structured" else _PARAGRAPH
    prompt = _BESIDE.format(task=task, instructions=instructions)
    answer = parse((yield SummaryRequest("", prompt)), style)
    if isinstance(answer, str):
        again = f"{prompt}\n\nYour answer before was not usable: {answer}. Answer again."
        answer = parse((yield SummaryRequest("", again)), style)
    if isinstance(answer, str):
        return None
    return clip(answer.outcome if style == "paragraph" else str(answer), MOST_CHARS, "the archive holds it all")


def parse(answer: str, style: Style) -> Summary | str:
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
