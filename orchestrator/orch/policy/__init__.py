"""Approvals, grants, budgets and rate limits.

The attribute `policy` is the function that applies the rules to a call.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orch_worker.policy.evaluate import policy

__all__ = ["policy"]


def __getattr__(name: str) -> Any:
    if name != "policy":
        raise AttributeError(f"module 'orch.policy' has no attribute {name!r}")
    # imported here, because modules of this package start the command line
    from orch_worker.policy.evaluate import policy

    return policy
