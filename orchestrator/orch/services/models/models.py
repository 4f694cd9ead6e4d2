"""Which models agents may ask besides the one they are, and what it takes to ask one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orch_protocol.agent.config import parse_model
from orch_protocol.agent.models import FindModel, ListModels, ModelRow
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.services.models import FIND_MODEL, LIST_MODELS
from orch_worker.backends.cost_estimate import check_priced
from orch_worker.backends.registry import is_remote

from ...config.models import matches_any
from ...policy.caller import Caller
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["find_model", "list_models"]

MOST_NAMED = 20


@handles(LIST_MODELS)
async def list_models(root: Supervisor, caller: Caller, _: ListModels) -> list[ModelRow]:
    """Return the models that the caller may ask."""
    backend = _own(root, caller)
    own = f"{backend.provider}:{backend.model}"
    return await root.catalog_for(caller.agent_id).reachable(root.config.subagents.chat_models, [own])


@handles(FIND_MODEL)
async def find_model(root: Supervisor, caller: Caller, params: FindModel) -> BackendSpec:
    """Return the complete spec of a model that the caller may ask. Raises ConfigError that says which there are."""
    backend = _own(root, caller) if params.model is None else parse_model(params.model)
    said = params.model or f"{backend.provider}:{backend.model}"
    try:
        found = await root.catalog_for(caller.agent_id).complete(backend)
    except ConfigError as error:
        why = str(error)
    else:
        if _is_out_of_bounds(root, caller, found):
            raise ConfigError(f"{said!r} is not on this machine, and this conversation is for local models alone")
        if matches_any(root.config.subagents.chat_models, f"{found.provider}:{found.model}"):
            if "usd" in root.budgets.kinds_for(caller.agent_id):
                check_priced(found)
            return found
        why = f"{said!r} is no model that agents may ask"
    names = [row.model for row in await list_models(root, caller, ListModels())]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    raise ConfigError(f"{why}. Models that can be asked: {', '.join(names[:MOST_NAMED]) or 'none'}{more}")


def _is_out_of_bounds(root: Supervisor, caller: Caller, backend: BackendSpec) -> bool:
    agent = caller.find_agent(root.tree.agents)
    return agent is not None and agent.spec.local and is_remote(backend)


def _own(root: Supervisor, caller: Caller) -> BackendSpec:
    """Return the model that the caller is, or, when a script speaks for it, the configured one."""
    agent = caller.find_agent(root.tree.agents)
    backend = agent.spec.backend if agent is not None else None
    if backend is None or backend.provider == "scripted":
        return parse_model(root.config.model)
    return backend
