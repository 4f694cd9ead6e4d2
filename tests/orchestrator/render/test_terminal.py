"""Text for terminals: tables, trees and pages of agents, numbers, and escapes."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from orch.render import terminal
from orch.render.resources import prompts

USAGE = {"input_tokens": 1200, "output_tokens": 300, "cache_read_tokens": 0, "cost_usd": 0.0123, "cost_known": True}
NOON = 1_700_000_000.0


def row(seq: int, **changes: Any) -> dict[str, Any]:
    """Return the row of an agent as the daemon sends it."""
    return {
        "seq": seq,
        "id": f"id{seq}",
        "name": f"agent-{seq}",
        "parent_id": None,
        "status": "idle",
        "task": "look",
        "model": "m",
        "preset": "minimal",
        "pid": 7,
        "created_at": "2023-11-14T22:12:20.000Z",
        "pending": None,
        "context_tokens": 1234,
        "context_limit": 200_000,
        "queries": 2,
        "usage": USAGE,
        "tree_usage": USAGE | {"output_tokens": 1300},
        "cwd": "/p",
        "folder": "/s",
        "tools": ["read_file"],
        "error": None,
    } | changes


def test_agent_table_has_a_line_per_agent() -> None:
    """The last column shows the running query, or else the task."""
    lines = terminal.agent_table([row(1), row(2, status="busy", pending="why\nis it?")], NOON).splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "# ID NAME STATUS AGE MODEL CONTEXT TOKENS COST",
        "1 id1 agent-1 idle 1m m 1.2k/200k 1.5k $0.0123 look",
        "2 id2 agent-2 busy 1m m 1.2k/200k 1.5k $0.0123 busy: why is it?",
    ]


def test_empty_agent_table_gives_a_hint() -> None:
    """Without agents, the table names the command that spawns an agent."""
    assert "orch spawn TASK" in terminal.agent_table([])


def test_control_characters_of_names_are_escaped_in_the_agent_table() -> None:
    """A name is complete, because the user must type it."""
    long, odd = "vendor/" + "x" * 60, "m\x1b[31m"
    head, first, second = terminal.agent_table([row(1, model=long), row(2, model=odd)], NOON).splitlines()
    models = slice(head.index("MODEL"), head.index("CONTEXT"))
    assert first[models].split()[0] == long
    assert second[models].split()[0] == "m\\x1b[31m"


def test_agent_tree_shows_children_below_parents() -> None:
    """The usage is that of the whole branch; an agent whose parent is missing is a root."""
    rows = [row(1), row(2, parent_id="id1"), row(3, parent_id="id2"), row(4, parent_id="id1"), row(5, parent_id="gone")]
    head, *lines = terminal.agent_tree(rows, NOON).splitlines()
    names = slice(head.index("NAME"), head.index("STATUS"))
    assert [line[names].rstrip() for line in lines] == [
        "agent-1",
        "├ agent-2",
        "│ └ agent-3",
        "└ agent-4",
        "agent-5",
    ]
    assert all("2.5k" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain é 漢 🙂", "plain é 漢 🙂"),
        ("two\n\tlines", "two\n\tlines"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("over\rwrite\b", "over\\rwrite\\x08"),
        ("c1 \x9b31m \x85", "c1 \\x9b31m \\x85"),
        ("right\u202eleft\u2066", "right\\u202eleft\\u2066"),
    ],
)
def test_control_characters_are_escaped(text: str, expected: str) -> None:
    """All control characters except line breaks and tabs are escaped."""
    assert terminal.safe(text) == expected


@pytest.mark.parametrize(("encoding", "can"), [("utf-8", True), ("UTF8", True), ("ascii", False), ("iso8859-1", False)])
def test_box_drawing_depends_on_the_encoding(encoding: str, can: bool) -> None:
    """In other encodings, the characters would become question marks."""
    assert terminal.supports_unicode(io.TextIOWrapper(io.BytesIO(), encoding)) is can


def test_output_is_escaped_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file or a pipe gets the unchanged text."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    assert terminal.safe_for_stdout("\x1b[1m") == "\\x1b[1m"
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert terminal.safe_for_stdout("\x1b[1m") == "\x1b[1m"


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        ("2023-11-14T22:13:20Z", "0s"),
        ("2023-11-14T22:13:25Z", "0s"),
        ("2023-11-14T22:12:21.5+00:00", "58s"),
        ("2023-11-14T20:00:00Z", "2h"),
        ("2023-11-01T00:00:00Z", "13d"),
        ("yesterday", "?"),
    ],
)
def test_age_is_shown_in_the_largest_unit(since: str, expected: str) -> None:
    """A time in the future has the age 0, and an invalid time is shown as a question mark."""
    assert terminal.age(since, NOON) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (123_456, "123k"), (5_000_000, "5.0M"), (10**11, "100G")],
)
def test_counts_have_three_digits_and_a_unit(number: int, expected: str) -> None:
    """Numbers from 1,000 on have the unit k, M or G."""
    assert terminal.count(number) == expected


def test_incomplete_cost_is_marked_as_a_lower_bound() -> None:
    """The mark is `>=` if a price is missing, and `~` if the missing part has a known maximum."""
    assert ">=$0.0123" in terminal.agent_table([row(1, usage=USAGE | {"cost_known": False})], NOON)
    guessed = USAGE | {"cost_known": False, "ceiling_usd": 0.01}
    assert "~$0.0123" in terminal.agent_table([row(1, usage=guessed)], NOON)


def test_agent_page_shows_state_error_and_conversation() -> None:
    """Each block of a message has its own lines, and control characters are escaped."""
    blocks = [
        {"type": "text", "text": "hi\x1b[2J\nthere"},
        {"type": "thinking", "thinking": "hm"},
        {"type": "tool_use", "id": "1", "name": "read_file", "input": {"path": "a"}},
        {"type": "tool_result", "is_error": True, "content": [{"type": "text", "text": "no\nfile"}]},
        {"type": "image", "media_type": "image/png", "data": ""},
    ]
    shown = {
        "agent": row(3, status="failed", error="boom\x07", parent_id="id1", pid=None),
        "messages": [{"role": "user", "content": blocks}],
        "tasks": [{"text": "look", "status": "completed"}, {"text": "say\x07", "status": "in_progress"}],
        "marks": [{"bit": "untrusted", "by": by} for by in ("fetch_url https://a\x07", "agent b: web_search c")],
    }
    page = terminal.agent_page(shown, NOON)
    assert page.startswith("3  agent-3  id3\n")
    for line in (
        "  status:        failed: boom\\x07",
        "  tools:         minimal: read_file",
        "\ntasks:\n  [x] 1. look\n  [>] 2. say\\x07\n",
        "  usage:         1.5k tokens, $0.0123",
        "  with children: 2.5k tokens, $0.0123",
        "  untrusted:     fetch_url https://a\\x07; agent b: web_search c",
        (
            'user:\n  hi\\x1b[2J\n  there\n  (thinking) hm\n  -> read_file {"path": "a"}\n  <- error: no file\n'
            "  [image: image/png]"
        ),
    ):
        assert line in page
    assert "process:" not in page
    assert "tasks:" not in terminal.agent_page(shown | {"tasks": []}, NOON)
    assert "plan mode:" not in page
    planning = shown | {"agent": row(3, planning=True)}
    assert "  plan mode:     until its plan is approved" in terminal.agent_page(planning, NOON)


def test_agent_page_shows_context_share_and_compactions() -> None:
    """The share is shown in percent, with a remark from 75 % on."""

    def facts(tokens: int, compactions: int = 0) -> list[str]:
        shown = {"agent": row(1, context_tokens=tokens), "messages": [], "compactions": compactions}
        return [" ".join(line.split()) for line in terminal.agent_page(shown, NOON).splitlines() if "co" in line[:7]]

    assert facts(1_234) == ["context: 1.2k/200k"]
    assert facts(100_000) == ["context: 100k/200k (50 %)"]
    assert facts(150_000) == ["context: 150k/200k (75 %, getting full)"]
    assert facts(180_000, 1) == ["context: 180k/200k (90 %, high)", "compacted: 1 time"]
    assert facts(190_000, 3)[0] == "context: 190k/200k (95 %, nearly full)"


def test_prompt_page_shows_parts_and_texts() -> None:
    """The page has a line for each part, the sum of tokens, notes, and then each text."""
    part = {
        "tier": "stable",
        "name": "identity",
        "tokens": 7,
        "owner": "hook h",
        "source": "x",
        "hash": "ab",
        "text": "Hi",
    }
    other = part | {"tier": "volatile", "name": "time", "tokens": 5, "text": "Today", "change": "new"}
    shown = {"parts": [part | {"change": ""}, other], "asked": True, "gone": ["tasks"], "notes": ["a\nb"]}
    lines = prompts.page(shown).splitlines()
    assert lines[1].split() == ["stable", "identity", "7", "hook", "h", "x", "ab", "the", "same"]
    assert lines[2].split()[-1] == "new"
    assert lines[3].split() == ["12"]
    assert lines[4:] == ["no longer included: tasks", "note: a b", "", "== identity", "Hi", "", "== time", "Today"]
    alone = prompts.page(shown | {"parts": [part | {"change": ""}], "asked": False, "gone": [], "notes": []})
    assert alone.splitlines()[1].endswith("ab")


def test_budget_column_shows_the_most_used_kind() -> None:
    """The table has no such column if no agent has a budget."""
    plain = [row(1), row(2)]
    assert "BUDGET" not in terminal.agent_table(plain, NOON)
    spent = {"usd": 0.25, "tokens": 900.0, "seconds": 5.0}
    paid = row(3, budget={"max_cost_usd": 1.0, "max_tokens": 1000, "max_seconds": 10.0}, spent=spent)
    head, *_, last = terminal.agent_table([*plain, paid], NOON).splitlines()
    assert head.split()[-2:] == ["COST", "BUDGET"]
    assert "90 %" in last
    page = terminal.agent_page({"agent": paid, "messages": []}, NOON)
    assert "budget:        $0.2500 of $1.0000 used, 900 of 1,000 tokens used, 5.0 of 10.0 s used" in page


def test_run_column_is_shown_for_agents_of_programs() -> None:
    """An agent of another run has no number; without such agents, the table has no such column."""
    assert "RUN" not in terminal.agent_table([row(1)], NOON)
    head, ours, theirs = terminal.agent_table([row(1), row(1, id="theirs", run="talks")], NOON).splitlines()
    assert head.split()[:4] == ["#", "ID", "RUN", "NAME"]
    assert theirs.split()[:3] == ["-", "theirs", "talks"]
    assert ours.split()[0] == "1"


def test_run_budget_is_shown_per_kind() -> None:
    """Limits that differ from the configuration are marked as changed."""
    spent = {"usd": 0.5, "tokens": 7.0, "tool_seconds": 1.25, "model_calls": 3.0}
    shown = {"budget": {"max_tokens": 10, "max_model_calls": 4}, "configured": {"max_model_calls": 4}, "spent": spent}
    assert [line.split(None, 1)[1] for line in terminal.budget(shown).splitlines()] == [
        "$0.5000",
        "7 of 10 tokens, changed by the user",
        "1.2 s of tools",
        "3 of 4 model calls",
    ]


def test_abnormal_end_of_the_last_query_is_shown_beside_the_status() -> None:
    """The outcome is omitted if it is equal to the status."""
    found = [
        terminal.status(row(1, status=status, outcome=outcome))
        for status, outcome in (
            ("idle", "done"),
            ("idle", "budget"),
            ("died", "oom"),
            ("killed", "killed"),
            ("busy", ""),
        )
    ]
    assert found == ["idle", "idle, budget", "died, oom", "killed", "busy"]
