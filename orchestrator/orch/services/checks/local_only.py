"""Which conversations are for models of this machine alone, and which of these takes them over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from orch_protocol.agent.models import RestrictToLocal
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError, ErrorInfo, OrchError, error_from
from orch_protocol.services.models import RESTRICT_TO_LOCAL
from orch_worker.backends.local_servers import LOCAL
from orch_worker.backends.registry import is_remote

from ...policy.caller import Caller
from ...tree.agents.state import AgentRecord
from ...tree.journal import events
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["HideErrorDetails", "is_hidden_from", "keep_local", "local_model", "restrict_to_local"]


@handles(RESTRICT_TO_LOCAL)
async def restrict_to_local(root: Supervisor, caller: Caller, params: RestrictToLocal) -> BackendSpec:
    """Return the model of this machine that the calling agent goes on with, for good unless it only looks.

    Raises ConfigError when there is none.
    """
    node = caller.require_agent(root.tree.agents)
    backend = await local_model(root, node.spec.backend, node.spec.id)
    if not params.look and not node.spec.local:
        _keep(root, node, backend)
    return backend


def is_hidden_from(root: Supervisor, caller: Caller, node: AgentRecord) -> bool:
    """Say whether what `node` has to say is for models of this machine alone, and the calling agent need not be one."""
    asker = caller.find_agent(root.tree.agents)
    return asker is not None and node.spec.local and not asker.spec.local


class HideErrorDetails:
    """Let the caller hear which error there is in a block with `node`, and no more of it than it may: errors quote."""

    __slots__ = ("_caller", "_node", "_root")

    def __init__(self, root: Supervisor, caller: Caller, node: AgentRecord) -> None:
        self._root, self._caller, self._node = root, caller, node

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, OrchError) and is_hidden_from(self._root, self._caller, self._node):
            spec = self._node.spec
            told = f"agent {spec.name!r} ({spec.id}): what there is to say of it is for local models alone"
            raise error_from(ErrorInfo(type(error).__name__, told)) from None


async def local_model(root: Supervisor, backend: BackendSpec, id: str | None = None) -> BackendSpec:
    """Return `backend` when it is of this machine, else the one that `local` means for the agent `id`.

    Raises ConfigError.
    """
    if not is_remote(backend):
        return backend
    found = await root.catalog_for(id).complete(BackendSpec(LOCAL))
    if is_remote(found):
        raise ConfigError(f"`local`: {found.provider} is at {found.options.get('base_url')}, which is not this machine")
    return replace(found, thinking=backend.thinking)


async def keep_local(root: Supervisor, caller: Caller, node: AgentRecord) -> None:
    """See to it that what the caller's conversation holds does not leave this machine with what it asks of `node`.

    So does what a holder holds, whoever asks it. Raises ConfigError when there is no local model for that.
    """
    if caller.is_user and not node.is_holder:
        return
    nodes = root.tree.agents
    kin = (caller.agent_id, node.spec.parent_id if node.is_holder else None)
    bound = any(each is not None and each.spec.local for each in map(nodes.get, kin))
    if not bound or node.spec.local or node.pending is not None:
        return
    try:
        backend = await local_model(root, node.spec.backend, node.spec.id)
    except ConfigError as error:
        raise ConfigError(f"cannot send local-only content to agent {node.spec.name!r}: {error}") from error
    _keep(root, node, backend)


def _keep(root: Supervisor, node: AgentRecord, backend: BackendSpec) -> None:
    """Keep what `node` says on this machine, and what the holders of its past do: they may come to hold more of it."""
    for each in (node, *(root.tree.agents[id] for id in node.children)):
        if each is node or (each.is_holder and not each.spec.local):
            own = each.spec.backend
            root.handle(events.LocalOnlyRequested(each.spec.id, backend if each is node or is_remote(own) else own))
