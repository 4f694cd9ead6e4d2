"""Receipts: summaries of a turn, computed from its calls and results."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, assistant, user
from orch_worker.conversation.receipt import CommandOutcome, Receipt, merge, receipt_of, render, with_summary


def turn(*calls: tuple[str, dict[str, Any], str], error: bool = False, answer: str = "done") -> list[Message]:
    """Return a turn with `calls`, each with tool, input and result."""
    messages = [user("go")]
    for number, (name, input, text) in enumerate(calls):
        messages.append(Message("assistant", (ToolUse(f"c{number}", name, input),)))
        messages.append(Message("user", (ToolResult(f"c{number}", (Text(text),), error),)))
    return [*messages, assistant(answer)]


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ("ok\nexit code: 0", 0),
        ("Command exited with code 2", 2),
        ("[exit 127]", 127),
        ('{"stdout": "", "exit_code": 1}', 1),
        ("returncode=3", 3),
        ("all good", None),
        ("exit the building", None),
        ("exit code 7 " + "x" * 3000 + " exit code 1", 1),
    ],
)
def test_receipt_lists_commands_with_exit_codes(result: str, code: int | None) -> None:
    """The code is found at the beginning or at the end of the result."""
    receipt = receipt_of(turn(("bash", {"command": "make  test"}, result)))
    assert receipt.commands == (CommandOutcome("make test", code),)


def test_failed_commands_are_marked_in_the_receipt() -> None:
    """The first line of an error result is listed as an error."""
    receipt = receipt_of(turn(("bash", {"command": "make"}, "no rule\nsorry"), error=True))
    assert str(receipt.commands[0]) == "make (failed)"
    assert receipt.errors == ("no rule",)


def test_receipt_lists_files_read_and_changed() -> None:
    """A changed file is not listed as read."""
    receipt = receipt_of(
        turn(
            ("read_file", {"path": "a.py"}, "x"),
            ("read_file", {"path": "b.py"}, "x"),
            ("write_file", {"file_path": "b.py"}, "x"),
            ("multi_edit", {"paths": ["c.py", "d.py"]}, "x"),
        )
    )
    assert receipt.read == ("a.py",)
    assert receipt.changed == ("b.py", "c.py", "d.py")
    assert receipt.tools == {"read_file": 2, "write_file": 1, "multi_edit": 1}


def test_receipt_keeps_error_lines_of_results() -> None:
    """Other lines of the result are not listed."""
    log = "fine\nValueError: bad pump\nsrc/a.c:3: error: no such thing\nok"
    assert receipt_of(turn(("bash", {"command": "make"}, log))).errors == (
        "ValueError: bad pump",
        "src/a.c:3: error: no such thing",
    )


def test_receipt_keeps_figures_from_the_agents_text() -> None:
    """Figures with a unit or three digits are listed. Figures in files that the agent read are not."""
    receipt = receipt_of(
        turn(("read_file", {"path": "a"}, "999999"), answer="It takes 12.7 ms, 4 of 1,024 pumps, 83 %.")
    )
    assert receipt.numbers == ("12.7 ms", "1,024", "83 %")


def test_receipt_lists_lasting_effects() -> None:
    """Effects are background jobs, folder changes, variables, installations and commits. Failed commands have none."""
    receipt = receipt_of(
        turn(
            ("bash", {"command": "npm run dev", "run_in_background": True}, "started"),
            ("bash", {"command": "sleep 100 &"}, ""),
            ("bash", {"command": "cd src\nexport DEBUG=1"}, ""),
            ("bash", {"command": "pip install orch && git commit -m x"}, ""),
        )
    )
    assert receipt.effects == (
        "job left running: npm run dev",
        "job left running: sleep 100 &",
        "moved to src",
        "set DEBUG",
        "pip install orch",
        "git commit -m x",
    )
    failed = receipt_of(turn(("bash", {"command": "git push"}, "denied"), error=True))
    assert failed.effects == ()


def test_receipt_fits_its_token_limit() -> None:
    """Each category keeps some items while there is room."""
    receipt = receipt_of(turn(*[("bash", {"command": f"run {n}", "path": f"f{n}"}, "exit code 0") for n in range(90)]))
    for chars in (0, 1, 40, 200, 1000):
        assert len(render(receipt, chars)) <= chars
    text = render(receipt, 400)
    assert "Commands: " in text
    assert "Read: " in text
    assert "Tools: bash x90" in text
    assert receipt.more > 0


def test_receipt_of_a_turn_without_calls_says_so() -> None:
    """A turn that contains only text has a fixed receipt."""
    assert render(receipt_of([user("hi"), assistant("hello")]), 100) == "No tool was used."


def test_merged_receipts_join_lists_and_sum_tools() -> None:
    """Duplicates are removed, and full lists keep the latest items."""
    first = receipt_of(turn(("read_file", {"path": "a"}, "")), "one")
    second = receipt_of(turn(("write_file", {"path": "a"}, ""), ("read_file", {"path": "b"}, "")), "two")
    both = merge([first, second])
    assert (both.read, both.changed, both.tasks) == (("b",), ("a",), ("one", "two"))
    assert both.tools == {"read_file": 2, "write_file": 1}
    many = merge([Receipt(read=(f"f{n}",)) for n in range(100)])
    assert (many.read[-1], len(many.read), many.more) == ("f99", 40, 60)


def test_summary_is_followed_by_changes_failures_errors_and_effects() -> None:
    """Facts that the summary states are not repeated."""
    receipt = Receipt(
        read=("looked.py",),
        changed=("a.py", "b.py"),
        commands=(CommandOutcome("pytest", 1), CommandOutcome("ls", 0)),
        errors=("ValueError: no port",),
        effects=("job left running: serve &",),
    )
    record = with_summary(receipt, "Outcome: rewrote a.py.")
    assert record == (
        "Changed: b.py\nFailed: pytest (exit 1)\nErrors: ValueError: no port\n"
        "Lasting: job left running: serve &\nOutcome: rewrote a.py."
    )
    assert with_summary(Receipt(read=("looked.py",)), "Fine.") == "Fine."


def test_bounded_record_keeps_some_of_each_kind() -> None:
    """The latest items stay, and the rest is counted."""
    receipt = Receipt(
        read=tuple(f"read{number}.py" for number in range(40)),
        changed=tuple(f"changed{number}.py" for number in range(40)),
        commands=(CommandOutcome("make test", 2), *(CommandOutcome(f"run {number}", 0) for number in range(39))),
        effects=("set OLD", "job left running: serve &"),
    )
    for text in (render(receipt, 300), with_summary(receipt, "Done.", 300)):
        assert len(text) <= 310
        for kept in (" more), ", "changed39.py", "make test (exit 2)", "job left running: serve &"):
            assert kept in text
        assert "changed0.py" not in text


def test_merge_drops_successful_commands_before_failed_ones() -> None:
    """The failed command stays even if it is the oldest."""
    many = merge(
        [
            Receipt(commands=(CommandOutcome("make", 2),)),
            *(Receipt(commands=(CommandOutcome(f"c{n}"),)) for n in range(90)),
        ]
    )
    assert (many.commands[0], many.commands[-1], len(many.commands)) == (
        CommandOutcome("make", 2),
        CommandOutcome("c89"),
        40,
    )


@given(
    st.dictionaries(
        st.sampled_from(["path", "command", "paths", "background", "x"]),
        st.one_of(st.none(), st.integers(), st.text(max_size=9), st.lists(st.integers(), max_size=2)),
    ),
    st.text(max_size=50),
    st.integers(-5, 300),
)
def test_receipts_accept_malformed_arguments_and_results(input: dict[str, Any], result: str, chars: int) -> None:
    """The receipt has at most the requested length for any input."""
    assert len(render(receipt_of(turn(("bash", input, result))), chars)) <= max(chars, 0)
