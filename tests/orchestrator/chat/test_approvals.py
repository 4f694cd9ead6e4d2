"""What needs approval, asked and answered in a chat."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from orch_protocol.policy.approval import AnswerQuestion
from orch_protocol.wire.watch_events import QuestionClosed
from orchestrator.chat.chat_double import Talk, event, question
from orchestrator.daemon_double import REPLY


async def test_what_answers_one_question_answers_no_other() -> None:
    """What was typed for one that is over by then goes back into the line."""
    talk = await Talk().begin()
    talk.chat.event(question("q1"))
    topic = talk.chat.topic
    talk.chat.event(question("q2"))
    talk.chat.event(msgspec.to_builtins(QuestionClosed("q1")))
    await talk.chat.take("y", topic=topic)
    assert (talk.wire.of("answer"), talk.chat.draft) == ([], "y")
    await talk.chat.take("y", topic=talk.chat.topic)
    assert [params["id"] for params in talk.wire.of("answer")] == ["q2"]


@pytest.mark.parametrize(
    ("scope", "sent"),
    [
        ("session", {"allow": True, "scope": "session", "unasked": False}),
        (None, {"allow": False, "scope": "once", "unasked": False}),
        (KeyError(), {"allow": False, "scope": "once", "unasked": True}),
    ],
    ids=["yes", "no", "unreachable"],
)
async def test_piped_chat_asks_on_the_terminal(scope: Any, sent: dict[str, Any]) -> None:
    """The lines of its input are prompts, so a function asks instead; if it cannot, the call counts as denied."""

    def ask(event: dict[str, Any]) -> str | None:
        if isinstance(scope, Exception):
            raise scope
        assert event["tool"] == "bash"
        return None if scope is None else str(scope)

    talk = await Talk(ask_user=ask).begin()
    talk.began(request_id=None)
    talk.chat.event(question("q1"))
    assert talk.chat.asks == ""
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
    assert talk.wire.of("answer") == [{"id": "q1"} | sent]


@pytest.mark.parametrize("chose_deny", [False, True])
async def test_denied_calls_fail_the_turn_unless_the_user_chose_deny(chose_deny: bool) -> None:
    """The note says what to do about it."""
    talk = await Talk(mode="deny", chose_deny=chose_deny).begin()
    talk.began(request_id=None)
    await talk.ended(reply=REPLY | {"steps": 1, "denied": 1})
    assert talk.chat.failed is not chose_deny
    assert any("nobody could be asked" in line for line in talk.shown()) is not chose_deny


async def test_a_question_is_shown_with_its_diff_and_answered(tmp_path: Any) -> None:
    """One after the other; what is no answer is laid aside and allows nothing."""
    (tmp_path / "f").write_text("one\n")
    edit = {"path": "f", "old_text": "one", "new_text": "two"}
    talk = await Talk().begin()
    talk.began(request_id=None)
    talk.shown()
    changed = question(tool="replace_in_file", input=edit, subject=str(tmp_path / "f"))
    for each in (changed, changed, question("q2", agent="kim", agent_id="kid")):
        talk.chat.event(each)
    lines = talk.shown()
    assert lines[0] == "tool: replace_in_file"
    assert lines[-2:] == ["-one", "+two"]
    assert talk.chat.asks.startswith("allow it?")
    await talk.chat.take("and run the tests")
    assert (talk.wire.of("answer"), talk.chat.draft) == ([], "and run the tests")
    talk.shown()
    await talk.chat.take("s")
    assert talk.shown()[:2] == ["allowed (session)", "agent: kim (kid, depth 1)"]
    await talk.chat.take("n keep it")
    assert talk.chat.asks == ""
    said = [msgspec.convert(each, AnswerQuestion) for each in talk.wire.of("answer")]
    assert said == [AnswerQuestion("q1", True, "session"), AnswerQuestion("q2", False, reason="keep it")]


async def test_a_question_that_is_over_is_not_asked_any_more() -> None:
    """Whoever answered it, and whatever became of it; what stands behind it is asked then."""
    talk = await Talk().begin()
    for id in ("q1", "q2", "q3"):
        talk.chat.event(question(id))
    talk.shown()
    talk.chat.event(msgspec.to_builtins(QuestionClosed("q2")))
    assert talk.shown() == []
    talk.chat.event(msgspec.to_builtins(QuestionClosed("q1")))
    assert talk.shown()[0].startswith("that was answered elsewhere")
    await talk.chat.take("y")
    assert talk.wire.of("answer")[0]["id"] == "q3"
    talk.chat.event(msgspec.to_builtins(QuestionClosed("q3")))
    assert talk.chat.asks == ""


async def test_what_is_let_through_is_said() -> None:
    """With `auto` nobody is asked."""
    talk = await Talk(mode="auto").begin()
    talk.chat.event(question())
    await asyncio.sleep(0)
    assert talk.wire.of("answer") == [{"id": "q1", "allow": True}]
    assert talk.shown()[0].startswith("let through: agent: n")


async def test_with_deny_nobody_is_asked() -> None:
    """The daemon is told so, and says no at once."""
    assert (await Talk(mode="deny").begin()).wire.watched[0]["approve"] is False


async def test_an_answer_is_shown_before_what_comes_of_it() -> None:
    """However fast that is; one that came too late is said to be none."""
    talk = await Talk().begin()
    talk.began()
    talk.chat.event(question())
    talk.shown()
    talk.wire.slow["answer"] = asyncio.Event()
    talk.wire.answers["answer"] = {"taken": False, "note": "nobody answered in time"}
    answering = asyncio.ensure_future(talk.chat.take("n too large"))
    await asyncio.sleep(0)
    talk.chat.event(event(1, "message", "Done."))
    talk.wire.slow["answer"].set()
    await answering
    assert talk.shown() == ["no: too large", "Done.", "that did not count: nobody answered in time"]


async def test_a_question_that_comes_while_one_is_answered_is_shown_once() -> None:
    """As one does that was waiting for it."""
    talk = await Talk().begin()
    talk.chat.event(question("q1"))
    talk.shown()
    talk.wire.slow["answer"] = asyncio.Event()
    answering = asyncio.ensure_future(talk.chat.take("y"))
    await asyncio.sleep(0)
    talk.chat.event(question("q2"))
    talk.wire.slow["answer"].set()
    await answering
    shown = talk.shown()
    assert shown[0] == "allowed (once)"
    assert shown.count("tool: bash") == 1
    talk.chat.event(question("q3"))
    await talk.chat.take("y")
    assert talk.shown().count("tool: bash") == 1
