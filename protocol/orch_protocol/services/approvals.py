"""Services for approvals: policy callbacks, approval requests and stored permissions."""

from __future__ import annotations

from typing import Final

from ..policy.approval import (
    AnswerQuestion,
    AnswerResult,
    ApprovalDecision,
    ApproveCall,
    ListPermissions,
    Permission,
    Revoke,
)
from ..policy.policy import PolicyCall, Verdict
from .service import EVERY_AGENT, USERS_ONLY, Service

__all__ = ["ANSWER_APPROVAL", "EVALUATE_POLICY", "LIST_PERMISSIONS", "REQUEST_APPROVAL", "REVOKE_PERMISSIONS"]

EVALUATE_POLICY: Final = Service(
    "evaluate_policy", PolicyCall, Verdict, EVERY_AGENT, "Evaluate the program's policy callback for a tool call."
)
REQUEST_APPROVAL: Final = Service(
    "approve", ApproveCall, ApprovalDecision, EVERY_AGENT, "Request the user's approval of a tool call."
)
ANSWER_APPROVAL: Final = Service("answer", AnswerQuestion, AnswerResult, USERS_ONLY, "Answer an approval request.")
LIST_PERMISSIONS: Final = Service(
    "permissions", ListPermissions, list[Permission], USERS_ONLY, "List stored permissions."
)
REVOKE_PERMISSIONS: Final = Service("revoke", Revoke, list[Permission], USERS_ONLY, "Revoke stored permissions.")
