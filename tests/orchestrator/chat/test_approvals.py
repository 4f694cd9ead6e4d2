"""Questions for approval in a chat, and their answers."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from orch_protocol.services.policy.approvals import AnswerQuestion
from orch_protocol.wire.watch_events import QuestionClosed
from orchestrator.chat.chat_double import Talk, event, question
from orchestrator.daemon_double import REPLY


async def test_answer_for_an_expired_question_returns_to_the_line() -> None:
    """An answer for a closed question is not used for the next question."""
    talk = await Talk().begin()
    talk.chat.event(question("q1"))
    question_id = talk.chat.question_id
    talk.chat.event(question("q2"))
    talk.chat.event(msgspec.to_builtins(QuestionClosed("q1")))
    await talk.chat.process_input("y", question_id=question_id)
    assert (talk.wire.of("answer"), talk.chat.draft) == ([], "y")
    await talk.chat.process_input("y", question_id=talk.chat.question_id)
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
    """Lines of a pipe are prompts, so a function asks the user. If it fails, the denial is marked as unasked."""

    def ask(event: dict[str, Any]) -> str | None:
        if isinstance(scope, Exception):
            raise scope
        assert event["tool"] == "bash"
        return None if scope is None else str(scope)

    talk = await Talk(ask_user=ask).begin()
    talk.began(request_id=None)
    talk.chat.event(question("q1"))
    assert talk.chat.input_hint == ""
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
    assert talk.wire.of("answer") == [{"id": "q1"} | sent]


@pytest.mark.parametrize("chose_deny", [False, True])
async def test_denied_calls_fail_the_turn_unless_the_user_chose_deny(chose_deny: bool) -> None:
    """The note is shown only if the turn fails."""
    talk = await Talk(mode="deny", chose_deny=chose_deny).begin()
    talk.began(request_id=None)
    await talk.ended(reply=REPLY | {"steps": 1, "denied": 1})
    assert talk.chat.failed is not chose_deny
    assert any("no user could be asked" in line for line in talk.shown()) is not chose_deny


async def test_question_is_shown_with_its_diff(tmp_path: Any) -> None:
    """Questions are shown one at a time. Input that is no answer steers the turn and allows no call."""
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
    assert talk.chat.input_hint.startswith("Allow it?")
    await talk.chat.process_input("and run the tests")
    assert (talk.wire.of("answer"), talk.chat.draft) == ([], "")
    assert [each["text"] for each in talk.wire.of("steer")] == ["and run the tests"]
    assert talk.shown()[-1] == "  (the question is still open)"
    talk.wire.executes("status", "fine")
    await talk.chat.process_input("/status")
    assert "fine" in talk.shown()
    await talk.chat.process_input("s")
    assert talk.shown()[:2] == ["allowed (session)", "agent: kim (kid, depth 1)"]
    await talk.chat.process_input("n keep it")
    assert talk.chat.input_hint == ""
    listed = [msgspec.convert(each, AnswerQuestion) for each in talk.wire.of("answer")]
    assert listed == [AnswerQuestion("q1", True, "session"), AnswerQuestion("q2", False, reason="keep it")]


async def test_settled_question_is_skipped() -> None:
    """If a question is answered elsewhere, the next open question is shown."""
    talk = await Talk().begin()
    for id in ("q1", "q2", "q3"):
        talk.chat.event(question(id))
    talk.shown()
    talk.chat.event(msgspec.to_builtins(QuestionClosed("q2")))
    assert talk.shown() == []
    talk.chat.event(msgspec.to_builtins(QuestionClosed("q1")))
    assert talk.shown()[0].startswith("that question was answered elsewhere")
    await talk.chat.process_input("y")
    assert talk.wire.of("answer")[0]["id"] == "q3"
    talk.chat.event(msgspec.to_builtins(QuestionClosed("q3")))
    assert talk.chat.input_hint == ""


async def test_mode_auto_reports_allowed_calls() -> None:
    """The call is allowed without a question, and a line reports it."""
    talk = await Talk(mode="auto").begin()
    talk.chat.event(question())
    await asyncio.sleep(0)
    assert talk.wire.of("answer") == [{"id": "q1", "allow": True}]
    assert talk.shown()[0].startswith("allowed: agent: n")


async def test_mode_deny_is_sent_to_the_daemon() -> None:
    """In this mode the daemon denies calls without a question to the chat."""
    assert (await Talk(mode="deny").begin()).wire.watched[0]["approve"] is False


async def test_answer_is_shown_before_its_effects() -> None:
    """The answer is shown before the events that follow it. If it had no effect, a line says so."""
    talk = await Talk().begin()
    talk.began()
    talk.chat.event(question())
    talk.shown()
    talk.wire.slow["answer"] = asyncio.Event()
    talk.wire.answers["answer"] = {"taken": False, "note": "no answer in time"}
    answering = asyncio.ensure_future(talk.chat.process_input("n too large"))
    await asyncio.sleep(0)
    talk.chat.event(event(1, "message", "Done."))
    talk.wire.slow["answer"].set()
    await answering
    assert talk.shown() == ["no: too large", "Done.", "the answer had no effect: no answer in time"]


async def test_question_arriving_during_an_answer_is_shown_once() -> None:
    talk = await Talk().begin()
    talk.chat.event(question("q1"))
    talk.shown()
    talk.wire.slow["answer"] = asyncio.Event()
    answering = asyncio.ensure_future(talk.chat.process_input("y"))
    await asyncio.sleep(0)
    talk.chat.event(question("q2"))
    talk.wire.slow["answer"].set()
    await answering
    shown = talk.shown()
    assert shown[0] == "allowed (once)"
    assert shown.count("tool: bash") == 1
    talk.chat.event(question("q3"))
    await talk.chat.process_input("y")
    assert talk.shown().count("tool: bash") == 1
