"""What becomes of each call of a tool, as observers are told of it."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from ..policy.policy import Approval

__all__ = ["CallEvent", "CallOutcome", "CallReport"]

CallOutcome: TypeAlias = Literal["start", "ran", "deny", "declined", "task", "dry_run"]


class CallReport(Struct, frozen=True, omit_defaults=True):
    """What became of a call in the turn that the frame's id names; see CallEvent."""

    outcome: CallOutcome
    tool: str
    input: dict[str, Any]
    call_id: str = ""
    digest: str = ""
    decision: Approval = "allow"
    reason: str = ""
    result: str = ""
    success: bool | None = None
    elapsed_ms: int | None = None
    files_changed: tuple[str, ...] = ()


class CallEvent(CallReport, frozen=True, kw_only=True, omit_defaults=False):
    """Something became of a call of a tool, by the agent `agent_id`, in the turn `query_id`.

    `start`: it is let run. `ran`: it has, with `success` or without; `result` is the head of what it returned, after
    `elapsed_ms`. `task`: it was one about tasks, and is done. `deny`: it may not run, by `reason`: of the policy, or
    because it was not granted, or does not fit its schema. `declined`: whoever was asked said no, or nobody did.
    `dry_run`: it was not run, and `decision` is what the policy said of it. `digest` tells the very call, with its
    arguments and the places they lead to, from every other; it is the one that approval is bound to.
    """

    agent_id: str
    agent: str
    depth: int
    query_id: str
    kind: Literal["call"] = "call"
