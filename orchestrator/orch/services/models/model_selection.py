"""Which model answers for an agent, and how much it thinks: as its conversation has it on record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orch_protocol.agent.config import parse_model
from orch_protocol.agent.models import RecordModel
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import AgentBusyError, ConfigError
from orch_protocol.services.models import RESOLVE_MODEL
from orch_protocol.services.service import Empty
from orch_worker.agent.model_selection import model_of
from orch_worker.backends.cost_estimate import check_priced
from orch_worker.backends.registry import PROVIDERS, is_remote
from orch_worker.backends.thinking import check_level, level_of
from orch_worker.session.session_index import read_session_index

from ...policy.caller import Caller
from ...tree.agents.state import AgentRecord
from ...tree.journal import events
from ..checks.idle import AgentBusy, stop_processes
from ..checks.local_only import local_model
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["announced_model", "answers_at", "chosen", "holds", "make_way", "resolve_model", "true_now"]


@handles(RESOLVE_MODEL)
async def resolve_model(root: Supervisor, caller: Caller, _: Empty) -> RecordModel:
    """Return who answers for the calling agent, by its session file, which is so from now on. Raises ConfigError when
    that model cannot be asked, StoreError."""
    node = caller.require_agent(root.tree.agents)
    found = await answers_at(root, node.spec, *await root.disk.do(_recorded, Path(node.spec.folder)))
    true_now(root, node, found)
    return found


async def answers_at(root: Supervisor, spec: AgentSpec, model: str, thinking: str) -> RecordModel:
    """Return who answers for the agent `spec` where its conversation has `model` and `thinking` on record; "": what the
    agent was made with.

    In a conversation that is bound to this machine it is a model here, whatever was chosen before. Raises ConfigError
    for a model that cannot be asked.
    """
    born = spec.born or spec.backend
    backend = next((each for each in (spec.backend, born) if model == model_of(each)), born)
    if model and model != model_of(backend):
        try:
            backend = await _asked(root, spec, model)
        except ConfigError:
            if not spec.local:
                raise
            backend = spec.backend
    if spec.local:
        backend = await local_model(root, spec.backend if is_remote(backend) else backend, spec.id)
    return RecordModel(replace(backend, thinking=thinking or born.thinking), model)


def holds(spec: AgentSpec, model: str, thinking: str) -> bool:
    """Whether what answers for the agent `spec` is what its conversation has on record; see `answers_at`."""
    return (model, thinking or (spec.born or spec.backend).thinking) == (spec.chosen, spec.backend.thinking)


async def chosen(root: Supervisor, spec: AgentSpec, model: str) -> str:
    """Return the model that somebody means by `model`, as `provider:name`. Raises ConfigError: it cannot be asked."""
    if not model.strip():
        raise ConfigError("which model is to answer? Write PROVIDER:MODEL, or local; `orch models` lists them")
    if parse_model(model).provider == "scripted":
        raise ConfigError("cannot switch to a scripted model: pass the script when the agent is spawned")
    backend = await _asked(root, spec, model)
    if spec.local and is_remote(backend):
        raise ConfigError(f"{model!r} is not on this machine, and this conversation is for local models alone")
    return model_of(backend)


async def _asked(root: Supervisor, spec: AgentSpec, model: str) -> BackendSpec:
    backend = await root.catalog_for(spec.id).complete(parse_model(model))
    if spec.limits.max_cost_usd is not None or "usd" in root.budgets.kinds_for(spec.id):
        check_priced(backend)
    return backend


def announced_model(found: RecordModel, *, wanted: bool) -> str | None:
    """Return the level of thinking that the model is told, None when it is told none.

    Raises ConfigError for what is no level, and, where one is `wanted`, for a model that takes none.
    """
    if wanted:
        check_level(found.backend.thinking)
    try:
        return level_of(found.backend) or None
    except ConfigError:
        if wanted:
            raise
        return None


async def make_way(root: Supervisor, node: AgentRecord, found: RecordModel) -> None:
    """Let the agent's process end where it cannot have another model while it lives. Raises AgentBusyError.

    A model moves into a process whose backend asks one: a script, or the extractive one, answers by itself.
    """
    before, after = node.spec.backend, found.backend
    if not node.running or model_of(before) == model_of(after):
        return
    if before.provider in PROVIDERS or after.provider in PROVIDERS:
        try:
            await stop_processes(root, [node], [])
        except AgentBusy as error:
            raise AgentBusyError(str(error)) from error


def true_now(root: Supervisor, node: AgentRecord, found: RecordModel) -> None:
    """Let `found` be who answers for the agent, as is on record in its session."""
    spec = node.spec
    if found != RecordModel(spec.backend, spec.chosen):
        root.handle(events.ChangeModel(spec.id, found))


# In threads.


def _recorded(folder: Path) -> tuple[str, str]:
    outline = read_session_index(folder)
    return outline.answers(outline.leaf)
