"""Selects the model and reasoning effort of an agent, as recorded in its session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orch_protocol.agent.config import parse_model
from orch_protocol.agent.models import RecordModel
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import AgentBusyError, ConfigError
from orch_protocol.services.models.model_selection import RESOLVE_MODEL, RESTRICT_TO_LOCAL, RestrictToLocal
from orch_protocol.services.service import Empty
from orch_worker.agent.model_selection import model_of
from orch_worker.backends.custom_providers import is_gone
from orch_worker.backends.models import names_address
from orch_worker.backends.prices import check_priced
from orch_worker.backends.registry import PROVIDERS, is_remote
from orch_worker.backends.thinking import check_level, level_of
from orch_worker.session.session_index import read_session_index

from ...policy.caller import Caller
from ...tree.agents.state import AgentRecord
from ...tree.interface import events
from ..checks.idle import AgentBusy, stop_processes
from ..checks.local_only import local_model, restrict
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = [
    "apply_model",
    "effective_thinking",
    "matches_session",
    "qualified_model",
    "resolve_model",
    "resolve_recorded_model",
    "restrict_to_local",
    "stop_for_model_change",
]


@handles(RESOLVE_MODEL)
async def resolve_model(root: Supervisor, caller: Caller, _: Empty) -> RecordModel:
    """Make the model recorded in the calling agent's session its current model, and return this model.

    Raises ConfigError if the model cannot be used. Raises StoreError.
    """
    node = caller.require_agent(root.tree.agents)
    found = await resolve_recorded_model(root, node.spec, *await root.disk.do(_read_recorded, Path(node.spec.folder)))
    apply_model(root, node, found)
    return found


@handles(RESTRICT_TO_LOCAL)
async def restrict_to_local(root: Supervisor, caller: Caller, params: RestrictToLocal) -> BackendSpec:
    """Permanently restrict the calling agent to a local model, and return this model.

    If `params.look` is True, return the model without restricting the agent. Raises ConfigError if there is no local
    model.
    """
    node = caller.require_agent(root.tree.agents)
    backend = await local_model(root, node.spec.backend, node.spec.id)
    if not params.look and not node.spec.local:
        restrict(root, node, backend)
    return backend


async def resolve_recorded_model(
    root: Supervisor, spec: AgentSpec, model: str, thinking: str, *, chosen_by_user: bool = False
) -> RecordModel:
    """Return the model that the agent `spec` uses if its session records `model` and `thinking`.

    An empty `model` or `thinking` selects the initial value of the agent. A local-only conversation always gets a local
    model. `chosen_by_user` means that the user has just named the model. Raises ConfigError for a model that cannot be
    used.
    """
    initial = spec.born or spec.backend
    candidates = (each for each in (spec.backend, initial) if model == model_of(each) and not is_gone(each))
    backend = next(candidates, initial)
    if model and (model != model_of(backend) or is_gone(backend)):
        try:
            # A session file from another machine must not choose which class is imported or which server is asked.
            if not chosen_by_user and names_address(parse_model(model)):
                raise ConfigError(f"the session names the server {model}: select it again with set_model")
            backend = await _complete_model(root, spec, model)
            if not chosen_by_user and not root.catalog_for(spec.id).has_provider(backend.provider):
                raise ConfigError(f"the session names the custom backend {model}: select it again with set_model")
        except ConfigError:
            if not spec.local:
                raise
            backend = spec.backend
    if spec.local:
        backend = await local_model(root, spec.backend if is_remote(backend) else backend, spec.id)
    return RecordModel(replace(backend, thinking=thinking or initial.thinking), model)


def matches_session(spec: AgentSpec, model: str, thinking: str) -> bool:
    """Return whether the current model of `spec` is the model recorded in its session.

    See `resolve_recorded_model`.
    """
    return (model, thinking or (spec.born or spec.backend).thinking) == (spec.chosen, spec.backend.thinking)


async def qualified_model(root: Supervisor, spec: AgentSpec, model: str) -> str:
    """Return `model` as `provider:name`. Raises ConfigError if the model cannot be used."""
    if not model.strip():
        raise ConfigError("no model given: write PROVIDER:MODEL or local; list models with `orch models`")
    if parse_model(model).provider == "scripted":
        raise ConfigError("cannot switch to a scripted model: pass the script when the agent is spawned")
    backend = await _complete_model(root, spec, model)
    if spec.local and is_remote(backend):
        raise ConfigError(f"{model!r} is not on this machine, and only local models may be used in this conversation")
    return model_of(backend)


async def _complete_model(root: Supervisor, spec: AgentSpec, model: str) -> BackendSpec:
    backend = await root.catalog_for(spec.id).complete(parse_model(model))
    if spec.limits.max_cost_usd is not None or "usd" in root.budgets.kinds_for(spec.id):
        check_priced(backend)
    return backend


def effective_thinking(found: RecordModel, *, required: bool) -> str | None:
    """Return the reasoning effort that requests contain. Return None if requests contain no reasoning effort.

    With `required`, raises ConfigError for an unknown level and for a model without reasoning effort.
    """
    if required:
        check_level(found.backend.thinking)
    try:
        return level_of(found.backend) or None
    except ConfigError:
        if required:
            raise
        return None


async def stop_for_model_change(root: Supervisor, node: AgentRecord, found: RecordModel) -> None:
    """Stop the agent's process if the process cannot switch to the new model. Raises AgentBusyError.

    A process can switch between models of providers. The scripted backend and the extractive backend need a separate
    process. A separate process is also necessary if only agents of the new provider get its credentials.
    """
    before, after = node.spec.backend, found.backend
    if not node.running or model_of(before) == model_of(after):
        return
    needs_other_credentials = after.provider != before.provider and root.catalog_for(node.spec.id).is_restricted(
        after.provider
    )
    if needs_other_credentials or before.provider in PROVIDERS or after.provider in PROVIDERS:
        try:
            await stop_processes(root, [node], [])
        except AgentBusy as error:
            raise AgentBusyError(str(error)) from error


def apply_model(root: Supervisor, node: AgentRecord, found: RecordModel) -> None:
    """Make `found`, the model that the agent's session records, the current model of the agent."""
    spec = node.spec
    if found != RecordModel(spec.backend, spec.chosen):
        root.handle(events.ChangeModel(spec.id, found))


# This function runs in a thread.


def _read_recorded(folder: Path) -> tuple[str, str]:
    outline = read_session_index(folder)
    return outline.model_at(outline.leaf)
