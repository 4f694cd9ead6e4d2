"""The summary that replaces the beginning of a conversation."""

from __future__ import annotations

import msgspec

from orch_protocol.core.messages import Image, Message, Text, ToolResult, ToolUse, assistant, user
from orch_protocol.session.entries import CompactionEntry, CompactionWriter
from orch_worker.context.compaction_summary import (
    CompactionDigest,
    details_of,
    digest_of,
    extract_summary,
    parts_of,
    recorded_digest,
    summary_prompt,
    summary_text,
    usable_summary,
)
from orch_worker.conversation.stubs import stub_text, summary_message

READ = Message("assistant", (ToolUse("a", "read_file", {"path": "pump.py"}),))
SHOWN = Message("user", (ToolResult("a", (Text("x" * 90_000),)),))
EDIT = Message("assistant", (ToolUse("b", "write_file", {"path": "valve.py"}),))
DONE = Message("user", (ToolResult("b", (Text("written"),)),))
FIRST = user("Task: Mend the pump\n\nQuery: Why is it slow?")
STUB = Text(stub_text("phase", "abcdef012345", "Read: a.txt"))


def entry(details: object, writer: CompactionWriter | None = "model") -> CompactionEntry:
    """Return a recorded compaction."""
    return CompactionEntry(
        id="k",
        parent_id=None,
        timestamp="t",
        summary="They read two files.",
        first_kept_entry_id="e",
        writer=writer,
        details=details,
    )


def test_task_and_open_question_are_kept_verbatim() -> None:
    """Task and question stay after a cut inside a turn and in each later summary until the answer."""
    known = digest_of([FIRST, READ, SHOWN], CompactionDigest(), within=True)
    assert (known.task, known.question) == ("Mend the pump", "Why is it slow?")
    again = digest_of([summary_message("so far"), EDIT, DONE], known, within=True)
    assert (again.task, again.question) == ("Mend the pump", "Why is it slow?")
    assert digest_of([user("And now?")], again, within=False).question == ""
    text = summary_text(again, "body", 4_000)
    assert "Your task: Mend the pump" in text
    assert text.endswith("You were asked:\nWhy is it slow?")


def test_steering_belongs_to_the_open_question() -> None:
    """Steering messages extend the question instead of replacing it."""
    known = digest_of([FIRST, READ, SHOWN, user("[Steering]\nIn German."), EDIT, DONE], CompactionDigest(), within=True)
    assert known.question == "Why is it slow?\n\n[Steering]\nIn German."


def test_archive_records_in_a_prompt_are_not_part_of_the_question() -> None:
    """The record of an archived phase is part of the prompt of its turn."""
    prompt = Message("user", (*FIRST.content, STUB))
    known = digest_of([prompt, EDIT, DONE], CompactionDigest(), within=True)
    assert (known.question, known.archives) == ("Why is it slow?", True)


def test_images_of_the_question_are_named() -> None:
    """The summary contains only text."""
    prompt = user(["Task: Mend the pump\n\nQuery: What is this?", Image("image/png", "", "a.png")])
    known = digest_of([prompt, EDIT, DONE], CompactionDigest(), within=True)
    assert known.question == "What is this?\n[image: a.png]"


def test_facts_of_calls_are_carried_from_summary_to_summary() -> None:
    """Each compaction records its facts for the next one."""
    first = digest_of([FIRST, EDIT, DONE], CompactionDigest(), within=False)
    second = digest_of([user("q"), READ, SHOWN], recorded_digest(entry(details_of(first, "one"))), within=False)
    third = summary_text(recorded_digest(entry(details_of(second, "two"))), "three", 4_000)
    assert "Changed: valve.py" in third
    assert "Read: pump.py" in third


def test_summary_of_another_program_contributes_its_text_only() -> None:
    """Details in an unknown format are ignored."""
    assert recorded_digest(entry({"readFiles": 3}, None)).body == "They read two files."
    assert recorded_digest(entry(None, None)).body == "They read two files."
    assert recorded_digest(None) == CompactionDigest()


def test_deleted_summary_keeps_its_recorded_task() -> None:
    """If the details are missing, the digest is empty, and the next compaction still works."""
    assert recorded_digest(msgspec.structs.replace(entry(None), deleted="2026-11-21")) == CompactionDigest()
    assert recorded_digest(msgspec.structs.replace(entry({"task": "Mend"}), deleted="2026-11-21")) == CompactionDigest(
        task="Mend"
    )


def test_summary_without_a_model_lists_questions_and_answers() -> None:
    """The latest turns have priority, and the previous summary fits into the budget."""
    turns = [message for n in range(30) for message in (user(f"question {n}"), assistant(f"answer {n} " * 30))]
    body = extract_summary(turns, "what was told before " * 100, 3_000)
    assert len(body) <= 3_200
    assert body.startswith("what was told before")
    assert "Asked: question 29\nSaid: answer 29" in body
    assert "question 2\n" not in body
    assert "(What was said before this is not listed.)" in body
    assert extract_summary([], "", 3_000) == ""
    assert extract_summary([FIRST, assistant("Because of the valve.")], "", 3_000) == (
        "Asked: Why is it slow?\nSaid: Because of the valve."
    )


def test_ten_successive_summaries_do_not_grow() -> None:
    """Each summary keeps a bounded part of the previous one."""
    body, known = "", CompactionDigest()
    for n in range(10):
        gone = [
            summary_message(summary_text(known, body, 2_000)),
            user(f"question {n}"),
            assistant(f"answer {n} " * 100),
        ]
        known = digest_of(gone, recorded_digest(entry(details_of(known, body))), within=False)
        body = extract_summary(gone, known.body, 2_000)
        text = summary_text(known, body, 2_000)
        assert len(text) < 2_600
        assert text.count("[Summary") == 0
    assert "question 9" in body


def test_summarizer_sees_the_whole_conversation_in_parts() -> None:
    """Long results are truncated. Each request includes the summary so far."""
    gone = [message for n in range(40) for message in (user(f"question {n} " * 40), assistant(f"answer {n}"))]
    parts = parts_of([summary_message("old"), *gone, READ, SHOWN], 8_000)
    assert len(parts) > 2
    assert all(f"question {n} " in "".join(parts) for n in range(40))
    assert "old" not in "".join(parts)
    assert len("".join(parts)) < 30_000
    asked = summary_prompt(parts[1], "notes", 600, 2, len(parts))
    assert "notes so far:\n\nnotes" in asked
    assert f"(part 2 of {len(parts)})" in asked
    assert "100 words" in asked
    assert "notes so far" not in summary_prompt(parts[0], "", 600, 1, 1)


def test_empty_or_oversized_model_summaries_are_rejected() -> None:
    """A model that repeats the conversation has not summarized it."""
    assert usable_summary(" so \n", 100) == "so"
    assert usable_summary("  ", 100) == usable_summary("x" * 401, 100) == ""
