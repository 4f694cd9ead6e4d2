"""The line below the prompt."""

from __future__ import annotations

from typing import Any

from orch.chat.status_bar import descendants, format_status_bar, live_descendants
from orchestrator.daemon_double import ROW

USAGE = ROW["usage"]


def row(id: str, parent: str | None = None, **changes: Any) -> dict[str, Any]:
    """Return an agent's row."""
    fields = {"id": id, "name": id, "parent_id": parent, "last_activity": "2026-01-01T00:00:00+00:00", "pending": None}
    return ROW | fields | changes


def said(rows: list[dict[str, Any]], width: int = 200, **how: Any) -> str:
    """Return the line without its styles."""
    return "".join(text for _, text in format_status_bar(rows, "top", width, now=1767225605.0, **how))


ROWS = [
    row("top", model="m:x\x1b[2J", context_tokens=182_000, context_limit=200_000, activity="tool: bash"),
    row("kid", "top", status="busy", pending="count", activity="model: y"),
    row("grandkid", "kid", status="idle"),
    row("gone", "top", status="killed"),
    row("kept", "top", kind="holder", status="cold"),
    row("other", status="busy", pending="x"),
]


def test_it_tells_model_context_cost_and_children() -> None:
    """Of the agent and of those below it, of nobody else; nothing in it is obeyed."""
    line = said(ROWS, working=12.4)
    assert line == (
        "top m:x\\x1b[2J · works 12s: tool: bash · context 182k/200k 91 % · $0.0000 · "
        "2 subagents, 1 at work · kid: model: y 5s"
    )
    assert ("error", "context 182k/200k 91 %") in format_status_bar(ROWS, "top", 200)


def test_it_fits_the_terminal() -> None:
    """Whatever its width is."""
    for width in (0, 1, 10, 60):
        assert len(said(ROWS, width)) <= width


def test_who_lives_below() -> None:
    """At any depth, but for those that have ended and what is archived."""
    assert [each["id"] for each in descendants(ROWS, "top")] == ["kid", "grandkid", "gone", "kept"]
    assert [each["id"] for each in live_descendants(ROWS, "top")] == ["kid", "grandkid"]


def test_without_a_word_of_the_agent_that_is_said() -> None:
    """As when its daemon is gone."""
    assert "no word" in said([])
