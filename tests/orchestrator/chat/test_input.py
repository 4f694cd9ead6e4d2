"""Input of the chat: pastes, answers to questions, Ctrl-C, completion, diffs and the history file."""

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
from orch.chat.text.diffs import MAX_LINES, diff_lines
from orch_protocol.policy.policy import EXIT_PLAN
from orchestrator.daemon_double import ROW


def test_large_paste_is_folded_and_sent_whole() -> None:
    """Line endings are normalized."""
    pastes = Pastes()
    text = "0123456789abcde\r\n" * (1 << 16)
    mark = pastes.fold(text)
    assert len(mark) < 80
    found, unknown = pastes.unfold(f"look at {mark} and {mark}")
    whole = text.replace("\r\n", "\n")
    assert (found, unknown) == (f"look at {whole} and {whole}", [])


@given(st.text(max_size=300))
def test_short_paste_is_inserted_as_typed(text: str) -> None:
    """Only line endings are changed."""
    pastes = Pastes()
    if text.count("\r") + text.count("\n") < 8:
        assert pastes.fold(text) == text.replace("\r\n", "\n").replace("\r", "\n")


def test_paste_mark_of_an_earlier_session_is_refused() -> None:
    """`unfold` reports the mark of an unknown paste."""
    mark = Pastes().fold("x\n" * 100)
    assert Pastes().unfold(f"see {mark}") == (f"see {mark}", [mark])


def test_sent_prompt_is_shown_folded() -> None:
    """A long prompt is shown as its first lines and its length."""
    assert format_folded("a\nb") == "a\nb"
    assert format_folded("line\n" * 50) == "line\nline\nline … (250 characters in all)"


@pytest.mark.parametrize(
    ("typed", "expected"),
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
def test_only_clear_answers_are_accepted(typed: str, expected: ConsentInput | None) -> None:
    """Text that was typed before the question appeared counts neither as yes nor as no."""
    assert parse_consent(typed, "bash") == expected


def test_plan_approval_offers_no_later_scope() -> None:
    """A plan can be approved only once, not for the session or the project."""
    assert parse_consent("y", EXIT_PLAN) == ConsentInput(True)
    assert parse_consent("s", EXIT_PLAN) is parse_consent("p", EXIT_PLAN) is None


def test_enter_keeps_live_agents_on_leaving() -> None:
    """Keeping is the default, because ending cannot be undone."""
    assert [parse_leave_answer(each) for each in ("", "k", "end", "S", "what?")] == [
        "keep",
        "keep",
        "end",
        "stay",
        None,
    ]


def test_ctrl_c_clears_the_line_then_cancels_then_leaves() -> None:
    """A second press during a turn ends it at once. Two presses leave an idle chat."""
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


def test_completion_offers_commands_agents_and_paths() -> None:
    """Commands follow a slash, arguments follow a command, agents follow an @, and paths are offered everywhere."""
    id = {"name": "id", "kind": "agent", "option": False, "choices": ()}
    force = {"name": "force", "kind": "choice", "option": True, "choices": ()}
    commands = {"help": "what can be typed", "kill": "end an agent"}
    rows = [row(name="kim", task="look\x1b[2J"), row(name="kar", seq=2)]

    def given(before: str) -> list[tuple[str, int]]:
        accepts = {"kill": [id, force]}
        found = suggestions(
            before,
            commands,
            rows,
            lambda name: accepts.get(name, []),
            cwd="/w",
            list_folder=lambda path: files.get(path, []),
        )
        return [(each.text, each.length) for each in found]

    files = {"/w": ["kilo.py", ".hidden", "odd\x1b[2J", "two words"], "/w/src": ["main.py", "map/"], "/etc": ["passwd"]}
    assert suggestions("@kim", commands, rows)[0].description == "1, idle: look\\x1b[2J"
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


def test_edit_is_shown_as_a_diff() -> None:
    """The diff is made from the file, or from the texts of the call if there is no file."""
    edit = {"old_text": "two", "new_text": "TWO"}
    lines = diff("replace_in_file", edit, "one\ntwo\nthree\n")
    assert lines == ["--- /w/f", "+++ /w/f", "@@ -1,3 +1,3 @@", " one", "-two", "+TWO", " three"]
    assert diff("replace_in_file", edit, None) == ["--- /w/f", "+++ /w/f", "@@ -1 +1 @@", "-two", "+TWO"]
    assert diff("write_file", {"content": "a\n"}, None)[-1] == "+a"
    assert diff("write_file", {"content": "b\n", "append": True}, "a\n")[-2:] == [" a", "+b"]
    assert diff("write_file", {"content": "a\r\n"}, "a\n") == ["  (only line ends differ)"]
    assert diff("bash", {"command": "x"}, "a") == []
    assert diff("replace_in_file", {"old_text": 1, "new_text": None}, "a") == []
    assert diff_lines("write_file", {"content": "+x"}, "/w/f", lambda _: "")[-1] == [("add", "++x")]


def test_long_diff_states_the_omitted_lines() -> None:
    """The last line has the number of lines that are not shown."""
    lines = diff("write_file", {"content": "a\n" * (MAX_LINES + 97)}, "")
    assert (len(lines), lines[-1]) == (MAX_LINES + 1, "… 100 more lines of the diff")


def test_full_history_keeps_its_newer_half() -> None:
    """The history is cut at the beginning of an entry."""
    entry = b"\n# 2026-01-01 00:00:00\n+text\n"
    assert history.later_half(entry * 4) == entry * 2
    assert history.later_half(b"x" * 10) == b""
