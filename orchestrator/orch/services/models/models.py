"""Which models agents may ask besides the one they are, and what it takes to ask one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orch_protocol.agent.config import parse_model
from orch_protocol.agent.models import FindModel, ListModels, ModelRow
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_worker.backends.cost_estimate import check_priced
from orch_worker.backends.registry import is_remote

from ...config.models import permits

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["find_model", "list_models"]

MOST_NAMED = 20


async def list_models(root: Supervisor, caller: str | None, _: ListModels) -> list[ModelRow]:
    """Return the models that the caller may ask."""
    backend = _own(root, caller)
    own = f"{backend.provider}:{backend.model}"
    return await root.catalog_for(caller).reachable(root.config.subagents.chat_models, [own])


async def find_model(root: Supervisor, caller: str | None, params: FindModel) -> BackendSpec:
    """Return the complete spec of a model that the caller may ask. Raises ConfigError that says which there are."""
    backend = _own(root, caller) if params.model is None else parse_model(params.model)
    said = params.model or f"{backend.provider}:{backend.model}"
    try:
        found = await root.catalog_for(caller).complete(backend)
    except ConfigError as error:
        why = str(error)
    else:
        if _is_out_of_bounds(root, caller, found):
            raise ConfigError(f"{said!r} is not on this machine, and this conversation is for local models alone")
        if permits(root.config.subagents.chat_models, f"{found.provider}:{found.model}"):
            if "usd" in root.budgets.kinds_for(caller):
                check_priced(found)
            return found
        why = f"{said!r} is no model that agents may ask"
    names = [row.model for row in await list_models(root, caller, ListModels())]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    raise ConfigError(f"{why}. Models that can be asked: {', '.join(names[:MOST_NAMED]) or 'none'}{more}")


def _is_out_of_bounds(root: Supervisor, caller: str | None, backend: BackendSpec) -> bool:
    return caller is not None and root.tree.agents[caller].spec.local and is_remote(backend)


def _own(root: Supervisor, caller: str | None) -> BackendSpec:
    """Return the model that the caller is, or, when a script speaks for it, the configured one."""
    backend = root.tree.agents[caller].spec.backend if caller is not None else None
    if backend is None or backend.provider == "scripted":
        return parse_model(root.config.model)
    return backend
