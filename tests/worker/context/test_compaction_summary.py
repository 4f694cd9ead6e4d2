"""What stands in place of the beginning of a conversation."""

from __future__ import annotations

import msgspec

from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, assistant, user
from orch_protocol.session.entries import CompactionEntry, CompactionWriter
from orch_worker.context.compaction_summary import (
    CompactionDigest,
    details_of,
    digest_of,
    extract_summary,
    on_record,
    parts_of,
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
    """Return a compaction as it is on record."""
    return CompactionEntry(
        id="k",
        parent_id=None,
        timestamp="t",
        summary="They read two files.",
        first_kept_entry_id="e",
        writer=writer,
        details=details,
    )


def test_the_task_and_the_question_that_is_open_are_kept_word_for_word() -> None:
    """Where the middle of a turn is cut, and in every summary after that until it is answered."""
    known = digest_of([FIRST, READ, SHOWN], CompactionDigest(), within=True)
    assert (known.task, known.question) == ("Mend the pump", "Why is it slow?")
    again = digest_of([summary_message("so far"), EDIT, DONE], known, within=True)
    assert (again.task, again.question) == ("Mend the pump", "Why is it slow?")
    assert digest_of([user("And now?")], again, within=False).question == ""
    text = summary_text(again, "body", 4_000)
    assert "Your task: Mend the pump" in text
    assert text.endswith("You were asked:\nWhy is it slow?")


def test_what_was_said_meanwhile_belongs_to_the_question() -> None:
    """Steering changes what is asked, and does not replace it."""
    known = digest_of([FIRST, READ, SHOWN, user("[Steering]\nIn German."), EDIT, DONE], CompactionDigest(), within=True)
    assert known.question == "Why is it slow?\n\n[Steering]\nIn German."


def test_stubs_in_a_prompt_are_no_part_of_the_question() -> None:
    """A phase that was archived stands in the prompt of its turn."""
    prompt = Message("user", (*FIRST.content, STUB))
    known = digest_of([prompt, EDIT, DONE], CompactionDigest(), within=True)
    assert (known.question, known.archives) == ("Why is it slow?", True)


def test_what_calls_left_behind_is_carried_from_summary_to_summary() -> None:
    """Nobody has to remember it: it is on record with each compaction."""
    first = digest_of([FIRST, EDIT, DONE], CompactionDigest(), within=False)
    second = digest_of([user("q"), READ, SHOWN], on_record(entry(details_of(first, "one"))), within=False)
    third = summary_text(on_record(entry(details_of(second, "two"))), "three", 4_000)
    assert "Changed: valve.py" in third
    assert "Read: pump.py" in third


def test_of_a_summary_by_another_program_its_text_goes_on() -> None:
    """Its details are its own."""
    assert on_record(entry({"readFiles": 3}, None)).body == "They read two files."
    assert on_record(entry(None, None)).body == "They read two files."
    assert on_record(None) == CompactionDigest()


def test_of_a_summary_that_was_deleted_the_task_goes_on() -> None:
    """Where that was kept; and what is compacted next is compacted all the same."""
    assert on_record(msgspec.structs.replace(entry(None), deleted="2026-11-21")) == CompactionDigest()
    assert on_record(msgspec.structs.replace(entry({"task": "Mend"}), deleted="2026-11-21")) == CompactionDigest(
        task="Mend"
    )


def test_without_a_model_it_is_told_what_was_asked_and_answered() -> None:
    """The latest at most length, and of the summary before it as much as has room."""
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


def test_ten_summaries_do_not_grow() -> None:
    """Of the one before each tells a part: they do not nest."""
    body, known = "", CompactionDigest()
    for n in range(10):
        gone = [
            summary_message(summary_text(known, body, 2_000)),
            user(f"question {n}"),
            assistant(f"answer {n} " * 100),
        ]
        known = digest_of(gone, on_record(entry(details_of(known, body))), within=False)
        body = extract_summary(gone, known.body, 2_000)
        text = summary_text(known, body, 2_000)
        assert len(text) < 2_600
        assert text.count("[Summary") == 0
    assert "question 9" in body


def test_a_model_is_shown_all_that_goes_in_parts() -> None:
    """Long results are cut, the rest is there; each part comes with what was written of those before it."""
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


def test_nothing_and_far_too_much_are_no_summary() -> None:
    """A model that repeats the conversation has not summarised it."""
    assert usable_summary(" so \n", 100) == "so"
    assert usable_summary("  ", 100) == usable_summary("x" * 401, 100) == ""
