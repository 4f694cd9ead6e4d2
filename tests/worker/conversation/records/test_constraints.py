"""Which lines of a specification a record quotes as constraints."""

from __future__ import annotations

import pytest

from orch_worker.conversation.receipt import receipt_of
from orch_worker.conversation.receipt_text import render
from orch_worker.conversation.records.constraints import constraints_in
from worker.conversation.conversations import Talk

ISSUE = """
# Pump controller

## Problem
The pump does not stop and must be restarted by hand every day.

## Requirements
- The pump must stop at 80 degrees.
- Readings are kept for exactly 14 days
- Colors:
  - running: green
  - stopped: gray, never red
- Use `ValveDriver`, which is
  preferred.

## No-gos
- No second timer

## Files
- src/pump.py must exist

```
never = "in code"
```
"""


def test_constraints_are_the_lines_that_demand_or_forbid_something() -> None:
    """The background, lists of files and code are left out. A bullet with a colon includes those below it."""
    assert set(constraints_in(ISSUE)) == {
        "The pump must stop at 80 degrees",
        "Readings are kept for exactly 14 days",
        "Colors: running: green, stopped: gray, never red",
        "Use `ValveDriver`, which is preferred",
        "No second timer",
    }


@pytest.mark.parametrize(
    "text",
    [
        "The setup has three parts. Users should be able to log in. Passwords must never be stored in plain text, ok.",
        "     1\t# Rules\n     2\t- Passwords must never be stored in plain text, ok.\n     3\t- See below",
        "RULES\n1. Passwords must never be\n   stored in plain text, ok.\n2. See below",
        "**Rules:**\n\n* [ ] Passwords must never be stored in plain text, ok.",
    ],
)
def test_forms_of_specifications(text: str) -> None:
    """Sentences, numbered lines of a read file, wrapped lines and task lists."""
    assert constraints_in(text) == ("Passwords must never be stored in plain text, ok",)


def test_number_and_size_are_limited() -> None:
    """A long document gives at most 12 constraints of 150 characters."""
    lines = [f"- Part {number} must have at most {number} {'very ' * 60}long rods" for number in range(99)]
    found = constraints_in("\n".join(lines))
    assert len(found) == 12
    assert max(map(len, found)) <= 150


@pytest.mark.parametrize(
    ("name", "input"),
    [
        ("Bash", {"command": "gh issue view 12"}),
        ("bash", {"command": "curl -s https://example.org/issues/12"}),
        ("WebFetch", {"url": "https://example.org/issues/12", "prompt": "all"}),
        ("Read", {"file_path": "/srv/pump/docs/requirements.md"}),
        ("mcp__tracker__get_issue", {"id": 12}),
    ],
)
def test_record_quotes_the_constraints_of_a_fetched_specification(name: str, input: dict[str, object]) -> None:
    """They follow the number of the entry. In a small record, edited files and outcomes have priority."""
    receipt = receipt_of(Talk("Do it").call(name, input, ISSUE).messages, [1, 2, 3])
    text = render(receipt, 2_000)
    assert "Constraints: (3) " in text
    assert "The pump must stop at 80 degrees" in text
    assert "Constraints" not in render(receipt, 60)
