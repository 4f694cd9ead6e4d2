"""Services that list the models available to agents and return their complete specs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orch_protocol.agent.config import parse_model
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.services.models.models import FIND_MODEL, LIST_MODELS, FindModel, ListModels, ModelRow
from orch_worker.agent.model_selection import model_of
from orch_worker.backends.models import names_address
from orch_worker.backends.prices import check_priced

from ...config.models import matches_any
from ...policy.caller import Caller
from ...policy.permissions import ImportBackend, UseModel, check
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["find_model", "list_models"]

MAX_NAMED = 20


@handles(LIST_MODELS)
async def list_models(root: Supervisor, caller: Caller, _: ListModels) -> list[ModelRow]:
    """Return the models that the caller may use."""
    backend = _caller_model(root, caller)
    own_model = f"{backend.provider}:{backend.model}"
    return await root.catalog_for(caller.agent_id).usable_models(root.config.subagents.chat_models, [own_model])


@handles(FIND_MODEL)
async def find_model(root: Supervisor, caller: Caller, params: FindModel) -> BackendSpec:
    """Return the complete spec of a model that the caller may use.

    Raises ConfigError if the caller may not use the model; the message lists the available models.
    """
    caller_model = _caller_model(root, caller)
    backend = caller_model if params.model in (None, model_of(caller_model)) else parse_model(params.model)
    name = params.model or f"{backend.provider}:{backend.model}"
    catalog, patterns = root.catalog_for(caller.agent_id), root.config.subagents.chat_models
    if names_address(backend) and patterns is None:  # An agent must not make the root send a request to any server.
        check(root.tree.agents, caller, ImportBackend(backend))
    try:
        if names_address(backend) and not matches_any(patterns, name):
            raise ConfigError(f"{name!r} is not a model that agents may query")
        found = await catalog.complete(backend)
    except ConfigError as error:
        problem = str(error)
    else:
        check(root.tree.agents, caller, UseModel(name, found))
        if patterns is None and not catalog.has_provider(found.provider):
            check(root.tree.agents, caller, ImportBackend(found))
        foreign = patterns is None and found.provider != caller_model.provider and catalog.is_restricted(found.provider)
        if not foreign and matches_any(patterns, f"{found.provider}:{found.model}"):
            if "usd" in root.budgets.kinds_for(caller.agent_id):
                check_priced(found)
            return found
        problem = f"{name!r} is not a model that agents may query"
    names = [row.model for row in await list_models(root, caller, ListModels())]
    suffix = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    raise ConfigError(f"{problem}. Models that can be asked: {', '.join(names[:MAX_NAMED]) or 'none'}{suffix}")


def _caller_model(root: Supervisor, caller: Caller) -> BackendSpec:
    """Return the caller's model. If the caller's backend is scripted, return the configured model."""
    agent = caller.find_agent(root.tree.agents)
    backend = agent.spec.backend if agent is not None else None
    if backend is None or backend.provider == "scripted":
        return parse_model(root.config.model)
    return backend
