"""All services by name."""

from __future__ import annotations

from types import MappingProxyType, ModuleType
from typing import Final

from ..agents import lifecycle, query, run_events, runs, spawn, status, steering, watch, worktrees
from ..archives import archiving, prune, recall
from ..models import model_selection, models
from ..policy import approvals, budgets, rate_limits
from ..resources import hooks, prompts, slash_commands, tools, values, workspace
from ..service import AnyService, Service
from ..sessions import compaction, deletion, fork, import_session, plan_mode, repair, retention, sessions

__all__ = ["MODULES", "SERVICES", "services_in"]

MODULES: Final = (
    spawn,
    query,
    lifecycle,
    status,
    tools,
    worktrees,
    steering,
    watch,
    run_events,
    runs,
    sessions,
    compaction,
    fork,
    import_session,
    plan_mode,
    repair,
    deletion,
    retention,
    archiving,
    recall,
    prune,
    models,
    model_selection,
    approvals,
    budgets,
    rate_limits,
    hooks,
    prompts,
    slash_commands,
    values,
    workspace,
)
"""The modules that define services. The slash commands of services are listed in this order."""


def services_in(module: ModuleType) -> list[AnyService]:
    """Return the services that `module` defines."""
    return [value for value in vars(module).values() if isinstance(value, Service)]


SERVICES: Final = MappingProxyType({service.name: service for module in MODULES for service in services_in(module)})
