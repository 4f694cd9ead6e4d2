"""Asking a model about a turn: what it is shown, what counts as an answer, what happens when it gives none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orch.archival.summary import CHUNK_CHARS, FINDINGS, MAX_CHARS, Summary, parse, request_summary
from orch_protocol.core.messages import Message, Opaque, Text, ToolResult, ToolUse, assistant, user
from orch_protocol.services.archiving import SummaryRequest
from orch_worker.conversation.rendering import MOST_PIECES, render_turn

GOOD = {"outcome": "done", "key_findings": ["a", "b"], "open_questions": ["c"]}


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("", "not the JSON"),
        ("[]", "not the JSON"),
        ('{"outcome": ""}', "not the JSON"),
        ('{"outcome": 7}', "not the JSON"),
        ('{"key_findings": []}', "not the JSON"),
        (json.dumps(GOOD | {"key_findings": ["x"] * (FINDINGS + 1)}), "not the JSON"),
        ("[" * 100_000, "not the JSON"),
        (None, "NoneType"),
    ],
)
def test_answers_that_do_not_fit(answer: Any, complaint: str) -> None:
    """What is not the object that was asked for is named, never shown."""
    assert complaint in str(parse(answer, "structured"))


def test_fence_is_forgiven() -> None:
    """JSON in a fence is JSON."""
    assert parse(f"```json\n{json.dumps(GOOD)}\n```", "structured") == Summary("done", ("a", "b"), ("c",))


def test_wrong_answer_is_sent_back_once() -> None:
    """The model is told what is wrong and asked again, once."""
    answers = iter(["nonsense", json.dumps(GOOD)])
    prompts: list[str] = []

    def model(request: SummaryRequest) -> str:
        prompts.append(request.prompt)
        return next(answers)

    assert request_summary([user("q"), assistant("a")], "structured", None, model) == "Outcome: done\n- a\n- b\nOpen: c"
    assert "was not usable" in prompts[1]
    assert prompts[1].startswith(prompts[0])


def test_two_wrong_answers_are_none() -> None:
    """After the second wrong answer there is no summary."""
    asked: list[SummaryRequest] = []
    assert request_summary([user("q")], "structured", None, lambda request: asked.append(request) or "x") is None  # type: ignore[func-returns-value]
    assert len(asked) == 2


def test_long_turn_is_asked_about_in_parts() -> None:
    """A turn too long for one question is several, none of a summary; what they say is put together by rule."""
    messages = [user("q"), *(assistant(f"part {n} " + "word " * 4000) for n in range(10))]
    seen: list[str] = []

    def model(request: SummaryRequest) -> str:
        seen.append(request.prompt)
        number = len(seen)
        return json.dumps({"outcome": f"o{number}", "key_findings": [f"f{number}a", f"f{number}b"]})

    text = request_summary(messages, "structured", None, model)
    assert len(seen) == 5
    assert all(len(prompt) < 62_000 and "Outcome" not in prompt for prompt in seen)
    assert text == "Outcome: o5\n- f1a\n- f2a\n- f3a\n- f4a\n- f5a"


@pytest.mark.parametrize(
    "messages",
    [
        [user("Say it."), assistant("word " * 6_000_000)],
        [assistant("word " * 2_000) for _ in range(3_000)],
        [assistant("words") for _ in range(200_000)],
        [assistant("word " * 100_000) for _ in range(50)],
    ],
    ids=["one of 30 MB", "many long ones", "very many short ones", "some very long ones"],
)
def test_requests_about_a_turn_are_bounded(messages: list[Message]) -> None:
    """However long a turn is, a model is asked about it a few times, in prompts of bounded size."""
    asked: list[SummaryRequest] = []

    def answer(request: SummaryRequest) -> str:
        asked.append(request)
        return json.dumps({"outcome": "Done."})

    assert request_summary(messages, "structured", None, answer) is not None
    assert len(asked) <= (2 if len(messages) == 2 else MOST_PIECES)
    assert all(len(request.prompt) < CHUNK_CHARS + 200 for request in asked)


def test_endless_answers_are_cut() -> None:
    """However much a model says, the record stays short."""
    text = request_summary([user("q")], "paragraph", None, lambda _: "word " * 9000)
    assert text is not None
    assert len(text) <= MAX_CHARS


def test_long_results_are_cut_for_the_reader() -> None:
    """One huge result does not fill the question: head and tail of it do."""
    turn = [
        Message("assistant", (ToolUse("c", "cat", {}),)),
        Message("user", (ToolResult("c", (Text("A" * 99_999 + "Z"),)),)),
    ]
    text = render_turn(turn)
    assert len(text) < 5_000
    assert text.endswith("Z]")


def test_odd_blocks_are_named() -> None:
    """A block of a provider's own is told by its type."""
    turn = [Message("assistant", (Opaque("p", {"type": "server_tool_use"}), Opaque("p", 7)))]
    assert render_turn(turn) == "## assistant\n[server_tool_use]\n[block]"
