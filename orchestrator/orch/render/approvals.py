"""Text of approval questions, of stored permissions and of denied calls."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


__all__ = ["DETACHED_WAYS", "WAYS", "approval_choices", "denied_note", "permission_lines", "scopes_of"]

SCOPES = {"y": "once", "s": "session", "p": "project"}
"""The scope of the approval for each answer that approves a call."""
PLAN_SCOPES = {"y": "once"}
"""The scope for a plan, because an approval of one plan does not cover later plans."""
ALLOW = "Allow it? [y] once, [s] for this session, [p] for this project"
APPROVE_PLAN = "Approve this plan? [y] yes"


def scopes_of(tool: str) -> dict[str, str]:
    """Return the scopes that the user can choose for a call of `tool`, by answer."""
    return PLAN_SCOPES if _is_plan(tool) else SCOPES


def approval_choices(tool: str, denial: str) -> str:
    """Return the line with the possible answers for a call of `tool`. `denial` describes the answers that deny it."""
    return f"{APPROVE_PLAN if _is_plan(tool) else ALLOW}, {denial}"


def _is_plan(tool: str) -> bool:
    from orch_protocol.policy.policy import EXIT_PLAN

    return tool == EXIT_PLAN


def permission_lines(found: list[dict[str, Any]]) -> str:
    """Return stored permissions, one per line."""
    from .terminal import truncate_line

    lines = []
    for each in found:
        how, until = "" if each["exactly"] else " (pattern)", expiry(each)
        end = f"until {until}" if until else "without a time limit"
        if each["agent_id"]:
            end = f"for agent {each['agent_id']}, {end if until else 'while the daemon runs'}"
        lines.append(f"{each['id']}  {truncate_line(each['tool'])}: {truncate_line(each['subject'])}{how}, {end}")
    return "\n".join(lines)


def expiry(permission: dict[str, Any]) -> str | None:
    return None if permission["expires_at"] is None else _time(permission["expires_at"])


def _time(at: float) -> str:
    import time

    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))


WAYS = "--approve auto or ORCH_APPROVE=auto allows them, [policy.permissions] allows single tools"
DETACHED_WAYS = "`orch query --approve auto` without --no-wait allows them, [policy.permissions] allows single tools"
"""The ways for a query that no command waits for."""


def denied_note(denied: int, obstacle: str = "", ways: str = WAYS) -> str:
    """Return the message about calls that were denied because no approver was available.

    `obstacle` is the reason why the user could not be asked. `ways` describes how the user can allow the calls.
    """
    calls = "1 call that needed approval was" if denied == 1 else f"{denied} calls that needed approval were"
    return f"{calls} denied because {obstacle or 'no user could be asked'}. {ways}"
