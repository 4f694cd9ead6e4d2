"""The services of the root.

The handler of a service is in the module with the same path as its definition: `orch_protocol.services.agents.query`
defines the services that `orch.services.agents.query` handles.

Importing this package binds every handler. Workers, the CLI, slash commands and the Python API call services through
`dispatch.call`.
"""

from __future__ import annotations

from ..policy.caller import USER, AgentCaller, Caller
from .agents import lifecycle, query, run_events, runs, spawn, status, steering, watch, worktrees
from .archives import archiving, prune, recall
from .dispatch.call import call, call_in_run, check_params, check_seconds, serve_worker, service_named
from .dispatch.handlers import HANDLERS
from .models import model_selection, models
from .policy import approvals, budgets, rate_limits
from .resources import hooks, prompts, slash_commands, tools, values, workspace
from .sessions import compaction, deletion, fork, import_session, plan_mode, repair, retention, sessions

__all__ = [
    "HANDLERS",
    "USER",
    "AgentCaller",
    "Caller",
    "approvals",
    "archiving",
    "budgets",
    "call",
    "call_in_run",
    "check_params",
    "check_seconds",
    "compaction",
    "deletion",
    "fork",
    "hooks",
    "import_session",
    "lifecycle",
    "model_selection",
    "models",
    "plan_mode",
    "prompts",
    "prune",
    "query",
    "rate_limits",
    "recall",
    "repair",
    "retention",
    "run_events",
    "runs",
    "serve_worker",
    "service_named",
    "sessions",
    "slash_commands",
    "spawn",
    "status",
    "steering",
    "tools",
    "values",
    "watch",
    "workspace",
    "worktrees",
]
