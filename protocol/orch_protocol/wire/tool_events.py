"""Events of tool calls, for observers."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from ..policy.policy import Approval

__all__ = ["CallEvent", "CallOutcome", "CallReport"]

CallOutcome: TypeAlias = Literal["start", "ran", "deny", "declined", "task", "dry_run"]


class CallReport(Struct, frozen=True, omit_defaults=True):
    """The outcome of a tool call in the turn that the frame's id names. See CallEvent."""

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
    """An event of a tool call by the agent `agent_id` in the turn `query_id`. `outcome` is one of:

    - "start": the call starts
    - "ran": the call ended after `elapsed_ms`; `success` says whether it succeeded; `result` is the beginning of its
      result
    - "task": a call of a task tool ended
    - "deny": the call was denied by policy, was not granted, or does not match its schema; see `reason`
    - "declined": the approver denied the call, or no approver answered
    - "dry_run": the call was not run; `decision` is the decision of the policy

    `digest` identifies the call with its arguments and resolved paths. An approval applies to one digest.
    """

    agent_id: str
    agent: str
    depth: int
    query_id: str
    kind: Literal["call"] = "call"
