"""Ends the turns of all agents of a program when they have spent `COST_GUARD_USD` together.

Agents are processes, so they share a file. The name of the file is the name of their run, and each agent adds the cost
of each response. Workers get the variable COST_GUARD_USD only if `environment.pass` in config.toml names it. Budgets
(`max_cost_usd`) do the same without an extension, and also reserve costs in advance. This extension is an example of a
decision in a hook.
"""

import fcntl
import hashlib
import os
import tempfile
from pathlib import Path

from orch import Abort

LIMIT = float(os.environ.get("COST_GUARD_USD", "1.00"))
RUN = hashlib.sha256(os.environ.get("ORCH_RUN", "").encode()).hexdigest()[:16]
LEDGER = Path(tempfile.gettempdir()) / f"cost-guard-{os.getuid()}-{RUN}"


def spend(dollars):
    """Add `dollars` to the sum of all agents, and return the sum."""
    descriptor = os.open(LEDGER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        spent = float(file.read() or 0) + dollars
        file.seek(0)
        file.write(f"{spent:.9f}")
        return spent


def register(extension):
    @extension.hook("after_provider_response", kind="observe")
    def count(event, _ctx):
        spend(event.usage.cost_usd)

    # This hook is a guard. If the hook fails, the turn ends.
    @extension.hook("before_provider_request", does=["abort"])
    def guard(_event, _ctx) -> Abort | None:
        spent = spend(0.0)
        if spent >= LIMIT:
            return Abort(f"${spent:.2f} of ${LIMIT:.2f} is spent: no model is asked any more.")
        return None
