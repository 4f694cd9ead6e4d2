"""Errors in tool results name tools instead of shell commands."""

from __future__ import annotations

import pytest

from orch_worker.tools.dispatch.error_text import error_for_model


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("depth cap 3 reached", "depth cap 3 reached"),
        ("agent 'x' was killed; `orch resume 3` makes it usable again", "agent 'x' was killed"),
        ("it is running: `orch collect 3` returns the answer", "it is running: collect_subagent returns the answer"),
        ("no agent has number 9 (see `orch list --all`)", "no agent has number 9 (see list_subagents)"),
        ("no archive 'q': `orch archive list` shows all", "no archive 'q': search_archive shows all"),
        ("not started for 3 s. `orch show` says why, and `orch doctor` what is missing", "not started for 3 s"),
    ],
)
def test_commands_are_replaced_by_tools_or_left_out(error: str, shown: str) -> None:
    """A command with an equivalent tool is replaced by the tool's name. A hint about another command is left out."""
    assert error_for_model(error) == shown
