"""Summaries of turns by a model: the request, valid answers, and the behavior without a valid answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orch.archival.summary import CHUNK_CHARS, FINDINGS, MAX_CHARS, Summary, parse, request_summary
from orch_protocol.core.messages import Message, Opaque, Text, ToolResult, ToolUse, assistant, user
from orch_protocol.services.archives.archiving import SummaryRequest
from orch_worker.conversation.rendering import MAX_PIECES, turn_pieces

GOOD = {"outcome": "done", "key_findings": ["a", "b"], "open_questions": ["c"]}


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("", "not the requested JSON"),
        ("[]", "not the requested JSON"),
        ('{"outcome": ""}', "not the requested JSON"),
        ('{"outcome": 7}', "not the requested JSON"),
        ('{"key_findings": []}', "not the requested JSON"),
        (json.dumps(GOOD | {"key_findings": ["x"] * (FINDINGS + 1)}), "not the requested JSON"),
        ("[" * 100_000, "not the requested JSON"),
        (None, "NoneType"),
    ],
)
def test_invalid_summaries_are_refused(answer: Any, complaint: str) -> None:
    """The error names the problem."""
    assert complaint in str(parse(answer, "structured"))


def test_json_in_a_fence_is_accepted() -> None:
    """A JSON answer in a code fence is a valid summary."""
    assert parse(f"```json\n{json.dumps(GOOD)}\n```", "structured") == Summary("done", ("a", "b"), ("c",))


def test_invalid_answer_is_sent_back_once() -> None:
    """The second request repeats the first and adds the problem."""
    answers = iter(["nonsense", json.dumps(GOOD)])
    prompts: list[str] = []

    def model(request: SummaryRequest) -> str:
        prompts.append(request.prompt)
        return next(answers)

    assert request_summary([user("q"), assistant("a")], "structured", None, model) == "Outcome: done\n- a\n- b\nOpen: c"
    assert "was not usable" in prompts[1]
    assert prompts[1].startswith(prompts[0])


def test_two_invalid_answers_give_no_summary() -> None:
    """The model receives two requests and no third one."""
    asked: list[SummaryRequest] = []
    assert request_summary([user("q")], "structured", None, lambda request: asked.append(request) or "x") is None  # type: ignore[func-returns-value]
    assert len(asked) == 2


def test_long_turn_is_summarized_in_parts() -> None:
    """Each request contains one part. The findings of all parts are merged without another request."""
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
def test_summary_requests_are_bounded(messages: list[Message]) -> None:
    """The number and the size of the requests have limits for turns of any size."""
    asked: list[SummaryRequest] = []

    def answer(request: SummaryRequest) -> str:
        asked.append(request)
        return json.dumps({"outcome": "Done."})

    assert request_summary(messages, "structured", None, answer) is not None
    assert len(asked) <= (2 if len(messages) == 2 else MAX_PIECES)
    assert all(len(request.prompt) < CHUNK_CHARS + 200 for request in asked)


def test_endless_answers_are_truncated() -> None:
    """A summary has at most MAX_CHARS characters, however long the answer is."""
    text = request_summary([user("q")], "paragraph", None, lambda _: "word " * 9000)
    assert text is not None
    assert len(text) <= MAX_CHARS


def test_long_results_are_truncated_in_the_request() -> None:
    """The text contains the head and the tail of a long result."""
    turn = [
        Message("assistant", (ToolUse("c", "cat", {}),)),
        Message("user", (ToolResult("c", (Text("A" * 99_999 + "Z"),)),)),
    ]
    [text] = turn_pieces(turn, 100_000)
    assert len(text) < 5_000
    assert text.endswith("Z]")


def test_unknown_blocks_are_named_by_type() -> None:
    """A block without a type is rendered as `[block]`."""
    turn = [Message("assistant", (Opaque("p", {"type": "server_tool_use"}), Opaque("p", 7)))]
    assert turn_pieces(turn, 1000) == ["## assistant\n[server_tool_use]\n[block]"]
