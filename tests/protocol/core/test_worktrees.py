"""The report of a worktree as text."""

from __future__ import annotations

import msgspec

from orch_protocol.core.worktrees import WorktreeReport

REPORT = WorktreeReport("/runs/r/worktrees/a", "orch/a", "main", ("x", "y"), 1, ("abc Fix",), " x | 1 +\n y | 2 +\n")


def test_report_counts_and_lists_conflicts() -> None:
    """The report contains counts, statistics and conflicts, and shortens a long list of conflicts."""
    assert REPORT.render().splitlines() == [
        "worktree (branch orch/a): 2 files changed, 1 commit, 1 uncommitted",
        " x | 1 +",
        " y | 2 +",
        "no conflicts with main",
    ]
    many = msgspec.structs.replace(REPORT, conflicts=tuple(f"f{number}" for number in range(25)), into="")
    assert many.render().endswith("f18, f19 and 5 more")
    assert "conflicts with the detached HEAD: f0, f1" in many.render()


def test_report_without_changes_or_with_a_problem() -> None:
    """A worktree without changes and a worktree with a problem each have a report of one line."""
    assert WorktreeReport("/w", "orch/a", "main").render() == "worktree (branch orch/a): no changes"
    problem = msgspec.structs.replace(REPORT, problem="git failed")
    assert problem.render() == "worktree /runs/r/worktrees/a (branch orch/a): git failed"
