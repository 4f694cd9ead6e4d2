"""Services for hooks: call hooks of the user's program, and record what hooks did."""

from __future__ import annotations

from typing import Final

from ..hooks.stages import HookReplies, ReportHooks, RunHooks
from .service import EVERY_AGENT, Empty, Service

__all__ = ["RECORD_HOOK_RUNS", "RUN_HOOKS"]

RUN_HOOKS: Final = Service(
    "run_hooks", RunHooks, HookReplies, EVERY_AGENT, "Call hooks of the user's program for the calling agent."
)
RECORD_HOOK_RUNS: Final = Service(
    "record_hook_runs", ReportHooks, Empty, EVERY_AGENT, "Record which hooks ran and what they did."
)
