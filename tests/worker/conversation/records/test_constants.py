"""Which constants of edits a record names."""

from __future__ import annotations

import pytest

from orch_worker.conversation.receipt import merge, receipt_of
from orch_worker.conversation.receipt_text import render
from orch_worker.conversation.records.constants import constants_in
from worker.conversation.conversations import Talk


@pytest.mark.parametrize(
    ("line", "constant"),
    [
        ("MAX_TEMPERATURE = 80", ("MAX_TEMPERATURE", "80")),
        ("    RETRY_SECONDS: Final = 2.5  # a comment", ("RETRY_SECONDS", "2.5")),
        ("export const PAGE_SIZE = 25;", ("PAGE_SIZE", "25")),
        ("export const pageSize: number = 25;", ("pageSize", "25")),
        ("pub const MAX_VALVES: usize = 1_000;", ("MAX_VALVES", "1_000")),
        ('  private static final String USER_AGENT = "pump/2";', ("USER_AGENT", '"pump/2"')),
        ("const TIMEOUT = 5 * 60;", ("TIMEOUT", "5 * 60")),
        ("  @default_visible_lines 10", ("@default_visible_lines", "10")),
        ("#define PUMP_COUNT 4", ("PUMP_COUNT", "4")),
        ("  --page-width: 40rem;", ("--page-width", "40rem")),
        ("USE_CACHE = True", ("USE_CACHE", "True")),
    ],
)
def test_notations_of_constants(line: str, constant: tuple[str, str]) -> None:
    """Name and literal value, with the unit."""
    assert list(constants_in(f"before\n{line}\nafter")) == [constant]
    assert list(constants_in(line, line)) == []


@pytest.mark.parametrize(
    "line",
    [
        *("x = 3", "total = 10", "LIMIT = compute()", "if MAX_VALUE == 3:", "@doc false", "margin: 4px;"),
        *("VALUES = [1, 2]", "return MAX_VALUE = 3 +"),
    ],
)
def test_other_assignments_are_no_constants(line: str) -> None:
    """Variables, expressions and comparisons."""
    assert list(constants_in(line)) == []


def test_record_has_the_last_value_of_a_constant() -> None:
    """Also after a merge. The constants of a removed file are left out."""
    talk = Talk("Limit it").edit("/srv/a.py", new="MAX_VALVES = 3").write("/srv/b.py", "OLD_LIMIT = 1\n")
    count = len(talk.messages)
    talk.edit("/srv/a.py", old="MAX_VALVES = 3", new="MAX_VALVES = 4").run("rm /srv/b.py")
    parts = [receipt_of(talk.messages[:count]), receipt_of(talk.messages[count:])]
    for receipt in (receipt_of(talk.messages), merge(parts)):
        assert "Constants: MAX_VALVES 4" in render(receipt, 2_000).split("\n")
