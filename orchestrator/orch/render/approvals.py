"""Stored permissions, and questions about calls, as text."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


__all__ = ["denied_note", "permission_lines"]


def permission_lines(found: list[dict[str, Any]]) -> str:
    """Return what was approved for later, one a line."""
    from .terminal import truncate_line

    lines = []
    for each in found:
        how, until = "" if each["exactly"] else " (pattern)", expiry(each)
        end = f"until {until}" if until else "for ever"
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


def denied_note(denied: int) -> str:
    """Return the message about calls that were denied because nobody could be asked."""
    calls = "1 call that needed approval was" if denied == 1 else f"{denied} calls that needed approval were"
    return f"{calls} denied because nobody could be asked. {WAYS}"
