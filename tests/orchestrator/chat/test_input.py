"""What is typed: pastes, answers, Ctrl-C, and what may be completed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.chat import history
from orch.chat.approvals import ConsentInput, parse_consent, parse_leave_answer
from orch.chat.completion import Suggestion, suggestions
from orch.chat.keys import Interrupts
from orch.chat.pastes import Pastes, format_folded
from orch.chat.text.diffs import MOST_LINES, diff_lines
from orchestrator.daemon_double import ROW


def test_a_paste_of_a_megabyte_is_folded_and_said_whole() -> None:
    """It is a mark in the line, and all of it, line ends as they are on this side, in what is said."""
    pastes = Pastes()
    text = "0123456789abcde\r\n" * (1 << 16)
    mark = pastes.fold(text)
    assert len(mark) < 80
    said, unknown = pastes.unfold(f"look at {mark} and {mark}")
    whole = text.replace("\r\n", "\n")
    assert (said, unknown) == (f"look at {whole} and {whole}", [])


@given(st.text(max_size=300))
def test_a_short_paste_is_what_it_is(text: str) -> None:
    """Line ends aside, nothing becomes of it."""
    pastes = Pastes()
    if text.count("\r") + text.count("\n") < 8:
        assert pastes.fold(text) == text.replace("\r\n", "\n").replace("\r", "\n")


def test_a_mark_of_another_day_is_known_as_such() -> None:
    """What stands for a paste that is not there any more is told, not said to a model."""
    mark = Pastes().fold("x\n" * 100)
    assert Pastes().unfold(f"see {mark}") == (f"see {mark}", [mark])


def test_what_was_said_is_shown_folded() -> None:
    """Of a long prompt its first lines, and how long it is."""
    assert format_folded("a\nb") == "a\nb"
    assert format_folded("line\n" * 50) == "line\nline\nline … (250 characters in all)"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("y", ConsentInput(True)),
        (" YES ", ConsentInput(True)),
        ("s", ConsentInput(True, "session")),
        ("p", ConsentInput(True, "project")),
        ("n", ConsentInput(False)),
        ("no, not on a Friday", ConsentInput(False, reason="not on a Friday")),
        ("", None),
        ("yes please run the tests", None),
        ("yesterday", None),
        ("now", None),
    ],
)
def test_only_a_clear_answer_is_one(typed: str, said: ConsentInput | None) -> None:
    """What was being written as the question came allows nothing, and denies nothing."""
    assert parse_consent(typed) == said


def test_a_plan_is_approved_once() -> None:
    """No plan is approved for later."""
    assert parse_consent("y", plan=True) == ConsentInput(True)
    assert parse_consent("s", plan=True) is parse_consent("p", plan=True) is None


def test_those_that_live_on_are_kept_unless_it_is_said() -> None:
    """Enter keeps them, which can be undone; ending cannot."""
    assert [parse_leave_answer(each) for each in ("", "k", "end", "S", "what?")] == [
        "keep",
        "keep",
        "end",
        "stay",
        None,
    ]


def test_ctrl_c_by_what_goes_on() -> None:
    """It clears a line first, then ends the turn, at once when it comes again; idle, it leaves when it comes twice."""
    presses = Interrupts()
    assert presses.meaning(0.0, typed=True, working=True) == "clear"
    assert presses.meaning(0.1, typed=False, working=True) == "cancel"
    assert presses.meaning(0.2, typed=False, working=True) == "kill"
    assert presses.meaning(9.0, typed=False, working=True) == "cancel"
    assert presses.meaning(19.0, typed=False, working=True) == "cancel"
    assert presses.meaning(19.5, typed=False, working=False) == "warn"
    assert presses.meaning(22.0, typed=False, working=False) == "warn"
    assert presses.meaning(22.1, typed=False, working=False) == "leave"


def row(**changes: Any) -> dict[str, Any]:
    """Return an agent's row."""
    return ROW | changes


def test_completion_knows_commands_agents_and_paths() -> None:
    """Commands where a line begins with a slash, behind it what they take, agents behind an @, paths everywhere."""
    id = {"name": "id", "kind": "agent", "option": False, "choices": ()}
    force = {"name": "force", "kind": "choice", "option": True, "choices": ()}
    commands = {"help": "what can be typed", "kill": "end an agent"}
    rows = [row(name="kim", task="look\x1b[2J"), row(name="kar", seq=2)]

    def given(before: str) -> list[tuple[str, int]]:
        takes = {"kill": [id, force]}
        found = suggestions(
            before, commands, rows, lambda name: takes.get(name, []), cwd="/w", listed=lambda path: files.get(path, [])
        )
        return [(each.text, each.length) for each in found]

    files = {"/w": ["kilo.py", ".hidden", "odd\x1b[2J", "two words"], "/w/src": ["main.py", "map/"], "/etc": ["passwd"]}
    assert suggestions("@kim", commands, rows)[0].about == "1, idle: look\\x1b[2J"
    assert given("/k") == [("/kill", 2)]
    assert given("/kill k") == [("kim", 1), ("kar", 1), ("kilo.py", 1)]
    assert given("/kill --f") == [("--force", 3)]
    assert given("/help k") == [("kilo.py", 1)]
    assert given("ask @ki") == [("kim", 3), ("kilo.py", 2)]
    assert given("read ki") == [("kilo.py", 2)]
    assert given("read src/ma") == [("main.py", 2), ("map/", 2)]
    assert given("read /etc/pa") == [("passwd", 2)]
    assert given("read od") == given("read tw") == given("read ") == []
    assert suggestions("/", commands)[0] == Suggestion("/help", 1, "what can be typed")


def diff(tool: str, input: dict[str, Any], before: str | None) -> list[str]:
    """Return the lines of a call's diff."""
    return ["".join(text for _, text in line) for line in diff_lines(tool, input, "/w/f", lambda _: before)]


def test_an_edit_is_a_diff() -> None:
    """In the file as it is now; where that cannot be read, of the texts of the call."""
    edit = {"old_text": "two", "new_text": "TWO"}
    lines = diff("replace_in_file", edit, "one\ntwo\nthree\n")
    assert lines == ["--- /w/f", "+++ /w/f", "@@ -1,3 +1,3 @@", " one", "-two", "+TWO", " three"]
    assert diff("replace_in_file", edit, None) == ["--- /w/f", "+++ /w/f", "@@ -1 +1 @@", "-two", "+TWO"]
    assert diff("write_file", {"content": "a\n"}, None)[-1] == "+a"
    assert diff("write_file", {"content": "b\n", "append": True}, "a\n")[-2:] == [" a", "+b"]
    assert diff("write_file", {"content": "a\r\n"}, "a\n") == ["  (line ends alone)"]
    assert diff("bash", {"command": "x"}, "a") == []
    assert diff("replace_in_file", {"old_text": 1, "new_text": None}, "a") == []
    assert diff_lines("write_file", {"content": "+x"}, "/w/f", lambda _: "")[-1] == [("add", "++x")]


def test_a_diff_that_is_too_long_says_so() -> None:
    """How much of it is not shown is counted."""
    lines = diff("write_file", {"content": "a\n" * (MOST_LINES + 97)}, "")
    assert (len(lines), lines[-1]) == (MOST_LINES + 1, "… 100 more lines of the diff")


def test_the_history_keeps_its_later_half() -> None:
    """Cut where an entry begins."""
    entry = b"\n# 2026-01-01 00:00:00\n+text\n"
    assert history.later_half(entry * 4) == entry * 2
    assert history.later_half(b"x" * 10) == b""
