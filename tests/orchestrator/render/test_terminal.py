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
    """Return an agent as the daemon tells it."""
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


def test_a_table_has_a_line_an_agent() -> None:
    """Number, id, name, status, age, context, tokens, cost, and what it does or is for."""
    lines = terminal.agent_table([row(1), row(2, status="busy", pending="why\nis it?")], NOON).splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "# ID NAME STATUS AGE CONTEXT TOKENS COST",
        "1 id1 agent-1 idle 1m 1.2k/200k 1.5k $0.0123 look",
        "2 id2 agent-2 busy 1m 1.2k/200k 1.5k $0.0123 busy: why is it?",
    ]


def test_an_empty_table_says_what_to_do() -> None:
    """Nothing to list is no blank line."""
    assert "orch spawn TASK" in terminal.agent_table([])


def test_a_tree_shows_children_below_their_parents() -> None:
    """Branches are drawn, usage is the branch's, and a child whose parent is not listed is a root."""
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
def test_control_characters_are_written_out(text: str, expected: str) -> None:
    """Nothing a model says moves the cursor, rings, or turns the reading direction; lines and letters stay."""
    assert terminal.safe(text) == expected


@pytest.mark.parametrize(("encoding", "can"), [("utf-8", True), ("UTF8", True), ("ascii", False), ("iso8859-1", False)])
def test_lines_are_drawn_where_the_encoding_has_them(encoding: str, can: bool) -> None:
    """Elsewhere a table would come out as question marks."""
    assert terminal.supports_unicode(io.TextIOWrapper(io.BytesIO(), encoding)) is can


def test_only_a_terminal_gets_text_made_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file or a pipe gets the bytes as they are."""

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
def test_age_is_the_largest_unit(since: str, expected: str) -> None:
    """A time in the future has no age; what is no time is a question mark."""
    assert terminal.age(since, NOON) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (123_456, "123k"), (5_000_000, "5.0M"), (10**11, "100G")],
)
def test_counts_are_short(number: int, expected: str) -> None:
    """Three digits and a unit are enough for a table."""
    assert terminal.count(number) == expected


def test_a_cost_that_is_a_floor_says_so() -> None:
    """With a price missing, the sum is at least that much."""
    assert ">=$0.0123" in terminal.agent_table([row(1, usage=USAGE | {"cost_known": False})], NOON)
    guessed = USAGE | {"cost_known": False, "ceiling_usd": 0.01}
    assert "~$0.0123" in terminal.agent_table([row(1, usage=guessed)], NOON)


def test_an_agent_is_shown_as_a_page() -> None:
    """What it is, what went wrong, and its conversation block by block, all made safe."""
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
        'user:\n  hi\\x1b[2J\n  there\n  (thinking) hm\n  -> read_file {"path": "a"}\n  <- error: no file\n  (image)',
    ):
        assert line in page
    assert "process:" not in page
    assert "tasks:" not in terminal.agent_page(shown | {"tasks": []}, NOON)
    assert "plan mode:" not in page
    planning = shown | {"agent": row(3, planning=True)}
    assert "  plan mode:     until its plan is approved" in terminal.agent_page(planning, NOON)


def test_a_page_says_how_full_the_context_is_and_how_often_it_was_compacted() -> None:
    """In percent, with a word when it is much."""

    def facts(tokens: int, compactions: int = 0) -> list[str]:
        shown = {"agent": row(1, context_tokens=tokens), "messages": [], "compactions": compactions}
        return [" ".join(line.split()) for line in terminal.agent_page(shown, NOON).splitlines() if "co" in line[:7]]

    assert facts(1_234) == ["context: 1.2k/200k"]
    assert facts(100_000) == ["context: 100k/200k (50 %)"]
    assert facts(150_000) == ["context: 150k/200k (75 %, getting full)"]
    assert facts(180_000, 1) == ["context: 180k/200k (90 %, high)", "compacted: 1 time"]
    assert facts(190_000, 3)[0] == "context: 190k/200k (95 %, nearly full)"


def test_a_prompt_is_a_table_of_its_parts_and_their_texts() -> None:
    """A line a part with what has become of it, the tokens of all, what is to be said, then each text, made safe."""
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
    assert lines[4:] == ["said no more: tasks", "note: a b", "", "== identity", "Hi", "", "== time", "Today"]
    alone = prompts.page(shown | {"parts": [part | {"change": ""}], "asked": False, "gone": [], "notes": []})
    assert alone.splitlines()[1].endswith("ab")


def test_who_has_a_budget_is_listed_with_the_part_that_is_used() -> None:
    """Of the kind of which that is most; without any there is no such column."""
    plain = [row(1), row(2)]
    assert "BUDGET" not in terminal.agent_table(plain, NOON)
    spent = {"usd": 0.25, "tokens": 900.0, "seconds": 5.0}
    paid = row(3, budget={"max_cost_usd": 1.0, "max_tokens": 1000, "max_seconds": 10.0}, spent=spent)
    head, *_, last = terminal.agent_table([*plain, paid], NOON).splitlines()
    assert head.split()[-2:] == ["COST", "BUDGET"]
    assert "90 %" in last
    page = terminal.agent_page({"agent": paid, "messages": []}, NOON)
    assert "budget:        $0.2500 of $1.0000 used, 900 of 1,000 tokens used, 5.0 of 10.0 s used" in page


def test_agents_of_programs_are_listed_with_their_run() -> None:
    """Without any there is no such column; numbers are those of the daemon's agents."""
    assert "RUN" not in terminal.agent_table([row(1)], NOON)
    head, ours, theirs = terminal.agent_table([row(1), row(1, id="theirs", run="talks")], NOON).splitlines()
    assert head.split()[:4] == ["#", "ID", "RUN", "NAME"]
    assert theirs.split()[:3] == ["-", "theirs", "talks"]
    assert ours.split()[0] == "1"


def test_the_budget_of_all_is_shown_kind_by_kind() -> None:
    """What was set anew is told from what is configured."""
    spent = {"usd": 0.5, "tokens": 7.0, "tool_seconds": 1.25, "model_calls": 3.0}
    shown = {"budget": {"max_tokens": 10, "max_model_calls": 4}, "configured": {"max_model_calls": 4}, "spent": spent}
    assert [line.split(None, 1)[1] for line in terminal.budget(shown).splitlines()] == [
        "$0.5000",
        "7 of 10 tokens, set anew while it is as configured",
        "1.2 s of tools",
        "3 of 4 model calls",
    ]


def test_a_query_that_did_not_end_by_itself_is_told_beside_the_status() -> None:
    """Unless the status says the same."""
    said = [
        terminal.status(row(1, status=status, outcome=outcome))
        for status, outcome in (
            ("idle", "done"),
            ("idle", "budget"),
            ("died", "oom"),
            ("killed", "killed"),
            ("busy", ""),
        )
    ]
    assert said == ["idle", "idle, budget", "died, oom", "killed", "busy"]
