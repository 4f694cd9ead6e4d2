"""Text about the worktree of an agent, after a reply."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["worktree_note"]


def worktree_note(reply: dict[str, Any]) -> str:
    """Return the changes in the agent's worktree and how to merge them. Return "" for an agent without a worktree."""
    if "worktree" not in reply:
        return ""
    # These imports are slow, and few agents have a worktree.
    import msgspec

    from orch_protocol.core.worktrees import WorktreeReport

    report = msgspec.convert(reply["worktree"], WorktreeReport)
    text = report.render()
    return f"{text}\nto merge: orch merge {reply['id']}" if report.files and not report.problem else text
