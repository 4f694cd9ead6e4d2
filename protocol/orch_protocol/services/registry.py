"""All services by their name on the wire."""

from __future__ import annotations

from types import MappingProxyType, ModuleType
from typing import Final

from . import (
    approvals,
    archiving,
    budgets,
    hooks,
    import_export,
    models,
    recall,
    requests,
    resources,
    run_events,
    sessions,
    steering_queue,
)
from .service import AnyService, Service

__all__ = ["SERVICES"]

MODULES: Final = (
    requests,
    steering_queue,
    sessions,
    import_export,
    run_events,
    archiving,
    recall,
    models,
    approvals,
    budgets,
    hooks,
    resources,
)


def _services_in(module: ModuleType) -> list[AnyService]:
    return [value for value in vars(module).values() if isinstance(value, Service)]


SERVICES: Final = MappingProxyType({service.name: service for module in MODULES for service in _services_in(module)})
