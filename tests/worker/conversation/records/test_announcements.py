"""Announcements: edits that differ from the prose before them."""

from __future__ import annotations

import pytest

from orch_worker.conversation.records.announcements import deviation


@pytest.mark.parametrize(
    ("prose", "old", "new", "found"),
    [
        ("Let me set the mode to `:auto`.", "mode: :none", "mode: :shared", (":auto", ":shared")),
        ("I'll raise the limit to 30.", "limit = 10", "limit = 60", ("30", "60")),
        ("Next: use `--strict`.", "run()", "run('--lenient')", ("--strict", "--lenient")),
        ("Now set `timeout: 30`.", "timeout: 5", "timeout: 90", ("timeout: 30", "timeout: 90")),
        ("Let me use `MAX_RETRIES`.", "x = 1", "x = MAX_ATTEMPTS", ("MAX_RETRIES", "MAX_ATTEMPTS")),
    ],
)
def test_other_value_than_announced_is_a_deviation(prose: str, old: str, new: str, found: tuple[str, str]) -> None:
    """Symbols, numbers, options, constants and values of a key are compared."""
    assert deviation(prose, old, new) == found


@pytest.mark.parametrize(
    ("prose", "old", "new"),
    [
        ("Let me set the mode to `:auto`.", "mode: :none", "mode: :auto"),
        ("Use `:shared` instead of `:auto`.", "mode: :auto", "mode: :shared"),
        ("Let me remove `:auto`.", "mode: :auto", "mode: :shared"),
        ("Let me add the helper `swap_child`.", "", "def replace_child(): return 3"),
        ("The limit was 10.", "limit = 10", "limit = 60"),
        ("Let me fix the two errors at 12 and 30.", "a = 1", "a = 2"),
        ("", "a", "b"),
        ("Let me set the mode to `:auto`.", "mode: :none", "mode: :auto, other: :shared"),
    ],
)
def test_edit_that_may_follow_the_announcement_is_no_deviation(prose: str, old: str, new: str) -> None:
    """Names that only describe the work, former values and several candidates are not compared."""
    assert deviation(prose, old, new) is None
