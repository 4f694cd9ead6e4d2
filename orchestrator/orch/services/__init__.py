"""The services of the root: a handler for each definition in `orch_protocol.services`.

Importing this package binds every handler. Workers, the CLI, slash commands and the Python API call services through
`dispatch.call`.
"""

from __future__ import annotations

from ..policy.caller import USER, AgentCaller, Caller
from .agents import lifecycle, query, queue, spawn, status, steering, watch
from .archives import archiving, prune, recall
from .checks import local_only
from .dispatch.call import call, check_command, check_grant, check_params, check_seconds, serve_worker, service_named
from .dispatch.handlers import HANDLERS
from .models import approvals, budgets, model_selection, models, rate_limits
from .resources import export_values, hooks, program_tools, prompts, slash_commands, workspace
from .sessions import compaction, fork, import_export, plan_mode, repair, retention, sessions

__all__ = [
    "HANDLERS",
    "USER",
    "AgentCaller",
    "Caller",
    "approvals",
    "archiving",
    "budgets",
    "call",
    "check_command",
    "check_grant",
    "check_params",
    "check_seconds",
    "compaction",
    "export_values",
    "fork",
    "hooks",
    "import_export",
    "lifecycle",
    "local_only",
    "model_selection",
    "models",
    "plan_mode",
    "program_tools",
    "prompts",
    "prune",
    "query",
    "queue",
    "rate_limits",
    "recall",
    "repair",
    "retention",
    "serve_worker",
    "service_named",
    "sessions",
    "slash_commands",
    "spawn",
    "status",
    "steering",
    "watch",
    "workspace",
]
