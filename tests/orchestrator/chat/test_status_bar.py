"""The status bar below the prompt."""

from __future__ import annotations

from typing import Any

from orch.chat.status_bar import descendants, format_status_bar, live_descendants
from orchestrator.daemon_double import ROW

USAGE = ROW["usage"]


def row(id: str, parent: str | None = None, **changes: Any) -> dict[str, Any]:
    """Return an agent's row."""
    fields = {"id": id, "name": id, "parent_id": parent, "last_activity": "2026-01-01T00:00:00+00:00", "pending": None}
    return ROW | fields | changes


def status_line(rows: list[dict[str, Any]], width: int = 200, **how: Any) -> str:
    """Return the text of the status bar without styles."""
    return "".join(text for _, text in format_status_bar(rows, "top", width, now=1767225605.0, **how))


ROWS = [
    row("top", model="m:x\x1b[2J", context_tokens=182_000, context_limit=200_000, activity="tool: bash"),
    row("kid", "top", status="busy", pending="count", activity="model: y"),
    row("grandkid", "kid", status="idle"),
    row("gone", "top", status="killed"),
    row("kept", "top", kind="holder", status="cold"),
    row("other", status="busy", pending="x"),
]


def test_status_bar_shows_model_context_cost_and_subagents() -> None:
    """The bar covers the agent and its subagents; control characters are escaped."""
    line = status_line(ROWS, working=12.4)
    assert line == (
        "top m:x\\x1b[2J · works 12s: tool: bash · context 182k/200k 91 % · $0.0000 · "
        "2 subagents, 1 at work · kid: model: y 5s"
    )
    assert ("error", "context 182k/200k 91 %") in format_status_bar(ROWS, "top", 200)


def test_status_bar_fits_any_width() -> None:
    for width in (0, 1, 10, 60):
        assert max(map(len, status_line(ROWS, width).split("\n"))) <= width


def test_status_bar_is_not_cut_at_80_columns() -> None:
    """Parts that do not fit continue on the next row. After three rows, the rest is counted."""
    assert status_line(ROWS, 80, working=12.4).split("\n") == [
        "top m:x\\x1b[2J · works 12s: tool: bash · context 182k/200k 91 % · $0.0000",
        "2 subagents, 1 at work · kid: model: y 5s",
    ]
    team = [row(f"agent-{number}", "top", pending="count", activity="tool: read_file") for number in range(12)]
    rows = status_line([ROWS[0], *team], 80).split("\n")
    assert rows[1:] == [
        "agent-0: tool: read_file 5s · agent-1: tool: read_file 5s",
        "agent-2: tool: read_file 5s · agent-3: tool: read_file 5s · 8 more",
    ]


def test_live_descendants_are_counted() -> None:
    """Subagents at any depth count. Ended agents and holders do not."""
    assert [each["id"] for each in descendants(ROWS, "top")] == ["kid", "grandkid", "gone", "kept"]
    assert [each["id"] for each in live_descendants(ROWS, "top")] == ["kid", "grandkid"]


def test_status_bar_without_data_says_so() -> None:
    """Without rows, as after the end of the daemon, the bar says that there is no data."""
    assert "no data" in status_line([])
