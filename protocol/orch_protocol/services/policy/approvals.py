"""Services for approvals: policy callbacks, approval requests and stored permissions."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from ...policy.approval import Permission, Scope
from ...policy.policy import PolicyCall, Verdict
from ..service import EVERY_AGENT, USERS_ONLY, AgentFields, Service

__all__ = [
    "ANSWER_APPROVAL",
    "EVALUATE_POLICY",
    "LIST_PERMISSIONS",
    "REQUEST_APPROVAL",
    "REVOKE_PERMISSIONS",
    "AnswerQuestion",
    "AnswerResult",
    "ApprovalDecision",
    "ApproveCall",
    "ListPermissions",
    "Revoke",
]


class ApproveCall(Struct, frozen=True, forbid_unknown_fields=True):
    """An agent requests approval for `tool` with exactly `input`, which accesses `paths` (resolved).

    `local`: the call reads data for local models only. Stored patterns do not cover a call with such data. `tainted`:
    the call would combine all three taint bits. A stored pattern covers a tainted call only if the pattern was approved
    for a tainted call. `credentials`: the credential paths (resolved) that the call can read if it is approved.
    """

    tool: str
    input: dict[str, Any]
    paths: tuple[str, ...]
    reason: str
    local: bool = False
    seconds: float = 300.0
    tainted: bool = False
    credentials: tuple[str, ...] = ()


class ApprovalDecision(Struct, frozen=True):
    """The decision on a call. `reason` is the reason for a denial. `digest` identifies the call."""

    allowed: bool
    digest: str
    reason: str = ""


class AnswerQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """A client's answer to the question `id`. See Consent.

    `unasked`: deny the call because the client could not ask a person. `Reply.denied` counts such denials.
    """

    id: str
    allow: bool
    scope: Scope = "once"
    pattern: str | None = None
    seconds: float | None = None
    reason: str = ""
    unasked: bool = False


class AnswerResult(Struct, frozen=True):
    """Whether the answer was accepted. An answer after another answer or after the timeout is rejected.

    `note` is the reason.
    """

    taken: bool
    note: str = ""


class ListPermissions(Struct, frozen=True, forbid_unknown_fields=True):
    """List the permissions for `folder`. None means all folders."""

    folder: str | None = None


class Revoke(Struct, frozen=True, forbid_unknown_fields=True):
    """Revoke the permissions `ids`. If `all` is True, revoke all permissions for `folder` (None means every folder)."""

    ids: tuple[str, ...] = ()
    all: bool = False
    folder: str | None = None


EVALUATE_POLICY: Final = Service(
    "evaluate_policy",
    PolicyCall,
    Verdict,
    EVERY_AGENT,
    "Evaluate the program's policy callback for a tool call.",
    AgentFields(
        free=("tool", "input", "paths", "operation", "data"), recorded=("agent_id", "depth", "folder", "marks")
    ),
)
REQUEST_APPROVAL: Final = Service(
    "approve",
    ApproveCall,
    ApprovalDecision,
    EVERY_AGENT,
    "Request the user's approval of a tool call.",
    AgentFields(free=("tool", "input", "paths", "reason", "local", "seconds", "tainted", "credentials")),
)
ANSWER_APPROVAL: Final = Service("answer", AnswerQuestion, AnswerResult, USERS_ONLY, "Answer an approval request.")
LIST_PERMISSIONS: Final = Service(
    "permissions", ListPermissions, list[Permission], USERS_ONLY, "List stored permissions."
)
REVOKE_PERMISSIONS: Final = Service("revoke", Revoke, list[Permission], USERS_ONLY, "Revoke stored permissions.")
