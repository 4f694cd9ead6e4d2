"""Archived messages as lines of text, and the text that the tools for archives return."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, user
from orch_protocol.services.archives.recall import SearchHit
from orch_worker.conversation.archive_text import entry_lines, heading
from orch_worker.conversation.recalled import hits_in, shown_entries, shown_hits

ID = "b3afd81cfda3"


def call(name: str, **input: Any) -> Message:
    """Return a message with one call."""
    return Message("assistant", (ToolUse("c1", name, input),))


def result(text: str, *, failed: bool = False) -> Message:
    """Return a message with one result."""
    return Message("user", (ToolResult("c1", (Text(text),), failed),))


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        (call("read", path="a.py", offset=3), ["> read path=a.py offset=3"]),
        (call("bash", command="ls -l", timeout=5), ["> bash timeout=5 $ ls -l"]),
        (call("bash", command='echo "a\tb"\ndone'), ['> bash $ echo "a\tb"', "done"]),
        (
            call("Edit", file_path="a.py", old_string="one\ntwo\nthree\n", new_string="one\n2\nthree\n"),
            ["> Edit a.py", " one", "-two", "+2", " three"],
        ),
        (
            call("str_replace_based_edit_tool", command="str_replace", path="a.py", old_str="one", new_str="two"),
            ["> str_replace_based_edit_tool a.py command=str_replace", "-one", "+two"],
        ),
        (
            call("str_replace_based_edit_tool", command="create", path="a.py", file_text="one\n"),
            ["> str_replace_based_edit_tool a.py command=create", "+one"],
        ),
        (call("shell", command=["bash", "-lc", "pytest -q"]), ["> shell $ pytest -q"]),
        (
            call("run", command="sed -i s/a/b/", path="a.py", old_string="a", new_string="b"),
            ["> run a.py $ sed -i s/a/b/", "-a", "+b"],
        ),
        (call("Write", file_path="a.py", content='x = "q"\n\ny\n'), ["> Write a.py", '+x = "q"', "+", "+y"]),
        (
            call("edit", path="a", edits=[{"oldText": "x", "newText": "y"}, {"oldText": "p", "newText": "q"}]),
            ["> edit a", "-x", "+y", "-p", "+q"],
        ),
        (call("todo", items=[{"a": 1}, {"a": "two"}]), ["> todo", "items:", "a=1", "a=two"]),
        (result('{"k": "v\\n"}\nnext'), ['{"k": "v\\n"}', "next"]),
    ],
)
def test_entry_is_text_with_one_line_for_each_line(message: Message, lines: list[str]) -> None:
    """Calls are one line, edits are diffs, and text is verbatim."""
    assert list(entry_lines(message).lines) == lines


def test_edits_and_failures_are_known_by_line() -> None:
    """An edit has the path of its file, and a failed result is marked as failed."""
    lines = entry_lines(Message("assistant", (Text("Now:\nedit"), *call("Edit", path="a", old="x", new="y").content)))
    assert lines.edits == ((2, 5, "a"),)
    assert entry_lines(result("boom", failed=True)).failures == ((0, 1),)
    assert entry_lines(result("1 failed\nexit code: 2")).failures == ((0, 2),)
    assert entry_lines(result("the exit code: 0")).failures == ()
    assert heading(result("boom", failed=True), 3) == "[entry 3] failed result"
    assert heading(user("hi"), 1) == "[entry 1] user"


def test_hits_have_at_most_400_characters_and_4000_in_total() -> None:
    """Each hit states turn, age and line. The title stands at the first hit of a turn."""
    hits = [SearchHit(ID, n, "x\n\ny" * 400, False, "task " * 40, turn=41, age=3, line=n) for n in range(1, 30)]
    text = shown_hits(hits, whole=True)
    parts = text.split(f"\n\n{ID} entry")
    assert len(text) <= 4_000
    assert all(len(part) <= 400 for part in parts[:-1])
    assert text.startswith(f"{ID} entry 1 (turn 41, 3 turns ago; line 1; similar; task task")
    assert text.endswith("more: use a more specific query")
    assert [place for place, _ in hits_in(text)][:2] == [f"{ID} entry 1", f"{ID} entry 2"]
    assert "x\n\ny" in hits_in(text)[0][1]


def test_hits_after_the_third_have_one_line_if_they_match_as_well_as_the_first() -> None:
    """Weaker hits are counted, and the text says how to see them."""
    hits = [
        SearchHit(ID, n, f"before\nthe {n}. match\nafter", False, "t", coverage=1.0 if n < 6 else 0.5, row=1)
        for n in range(1, 11)
    ]
    text = shown_hits(hits)
    assert [place for place, _ in hits_in(text)] == [f"{ID} entry {n}" for n in (1, 2, 3)]
    assert f"{ID} entry 4: the 4. match\nentry 5: the 5. match\n" in text
    assert text.endswith("5 more: limit=10 shows them, or use a more specific query")
    assert len(hits_in(shown_hits(hits, whole=True))) == 10
    partial = shown_hits(hits[4:])  # the order of partial matches tells little, so each is named
    assert shown_hits([replace(hits[0], coverage=0.6), *hits[5:]]).count("match") == 6
    assert partial.endswith("limit=6 shows them, or use a more specific query")


def test_further_similar_hits_are_counted_after_an_exact_one() -> None:
    """An exact hit needs no list of similar ones."""
    hits = [SearchHit(ID, n, f"match {n}", n == 1, "t") for n in range(1, 6)]
    assert shown_hits(hits).endswith("\n\n2 more: limit=5 shows them, or use a more specific query")


def test_line_beside_a_hit_is_part_of_its_400_characters() -> None:
    """A long passage does not hide the outcome."""
    hit = SearchHit(ID, 3, "x " * 400, False, "t", beside="-> entry 4: 12 passed")
    text = shown_hits([hit])
    assert text.endswith("...\n-> entry 4: 12 passed")
    assert len(text) <= 400
    assert hits_in(text)[0][1].endswith("...")


def test_long_result_names_the_call_that_shows_the_rest() -> None:
    """The call shows exactly the lines that were left out."""
    lines = [f"line {number} of it" for number in range(1, 501)]
    text = shown_entries(ID, 7, [result("\n".join(lines)), result("short")], 8)
    assert f'of 500 lines left out: read_archive(id={ID!r}, first=7, lines="' in text
    first, last = text.partition('lines="')[2].partition('")')[0].split("-")
    rest = shown_entries(ID, 7, [result("\n".join(lines))], 7, f"{first}-{last}")
    seen = set(text.split("\n"))
    stopped = "[stopped after" in rest
    assert stopped or all(line in seen or line in rest.split("\n") for line in lines)
    assert shown_entries(ID, 7, [result("\n".join(lines))], 7, "40-42").split("\n")[1:] == lines[39:42]
    assert "only 500 lines" in shown_entries(ID, 7, [result("\n".join(lines))], 7, "501-")
    with pytest.raises(ConfigError, match="such as 40-80"):
        shown_entries(ID, 7, [result("x")], 7, "eighty")


SPECIFICATION = [
    "## Technical Specs",
    *[
        f"- The controller must stop pump {number} at 80 degrees; define `limit_{number}` for it."
        for number in range(60)
    ],
]


@pytest.mark.parametrize(
    ("lines", "whole"),
    [
        (SPECIFICATION, True),
        ([f"{number:6}\tpumps[{number}].stop(limit={number * 10}, reason='too hot')" for number in range(60)], False),
        (
            ["{", *[f'  "pump {number}": {{"limit": {number * 10}, "unit": "degrees"}},' for number in range(90)], "}"],
            False,
        ),
        ([f"src/pump.c:{number}: error: no valve {number} in the pump controller" for number in range(60)], False),
    ],
)
def test_single_entry_of_prose_is_shown_whole_up_to_6000_characters(lines: list[str], whole: bool) -> None:
    """Code and output have up to 3,000 characters. Several entries are shortened in any case."""
    text = shown_entries(ID, 3, [result("\n".join(lines))], 3)
    assert ("left out" not in text) is whole
    assert len(text) < (6_100 if whole else 3_300)
    assert "left out" in shown_entries(ID, 3, [result("\n".join(lines)), result("ok")], 4)


def test_reading_says_where_it_stops() -> None:
    """An archive that ends before the last entry, and a text that is full, are named."""
    entries = [result(f"{number} " * 300) for number in range(40)]
    assert shown_entries(ID, 198, entries[:14], 212).endswith("[entry 211 is the last entry of this archive]") is False
    assert shown_entries(ID, 198, [result("a")] * 14, 212).endswith("[entry 211 is the last entry of this archive]")
    assert shown_entries(ID, 198, [result("a")] * 15, 212).endswith("[entry 212] result\na")
    full = shown_entries(ID, 1, entries, 40)
    assert "[stopped before entry " in full.split("\n")[-1]
    assert "last=40) shows more]" in full


@pytest.mark.parametrize("name", ["Read", "read_file", "view", "mcp__files__read_text_file"])
def test_files_that_were_read_are_short_among_several_entries(name: str) -> None:
    """The output of another tool is not. Two entries, for example a call and its result, are shown as usual."""
    rows = "\n".join(f"{number}\tvalue_{number} = {number}" for number in range(90))
    entries = [
        Message("assistant", (ToolUse("c1", name, {"path": "a.py"}),)),
        Message("user", (ToolResult("c1", (Text(rows),)),)),
        user("go on"),
    ]
    assert len(shown_entries(ID, 1, entries, 3)) < 700
    assert "left out: read_archive" in shown_entries(ID, 1, entries, 3)
    assert len(shown_entries(ID, 1, entries[:2], 2)) > 1_100
    other = [Message("assistant", (ToolUse("c1", "run_command", {"command": "x"}),)), *entries[1:]]
    assert len(shown_entries(ID, 1, other, 3)) > 1_100


def test_result_fails_by_the_exit_code_at_its_ends() -> None:
    """A script that contains `exit 1` in the middle is no failure."""
    script = "\n".join([*["echo step"] * 90, "exit 1", *["echo step"] * 90])
    assert heading(result(script)) == "[result]"
    assert entry_lines(result(script)).failures == ()
    assert heading(result("return_code: 1\nbad")) == "[failed result]"
    assert entry_lines(result("Traceback (most recent call last)\n  x")).failures == ((0, 2),)


def test_repeated_result_is_named() -> None:
    """The same long result is shown once; the same short result is shown again."""
    text = shown_entries(ID, 4, [result("same " * 50), result("ok"), result("same " * 50), result("ok")], 7)
    assert text.count("same " * 50) == 1
    assert "[entry 6] result\n(the same as entry 4)" in text
    assert text.count("result\nok") == 2
