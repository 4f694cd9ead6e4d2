"""Local-only conversations. The agent is restricted to local models, and other models get no local-only content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError, ErrorInfo, OrchError, error_from
from orch_worker.backends.local_servers import LOCAL
from orch_worker.backends.registry import is_remote

from ...policy.caller import Caller
from ...policy.permissions import ReadContent, refusal
from ...tree.agents.state import AgentRecord
from ...tree.interface import events

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["HideErrorDetails", "keep_local", "local_model", "restrict"]


class HideErrorDetails:
    """Context manager that hides error messages of the agent `node` from callers that may not see its conversation.

    Error messages can quote the conversation.
    """

    __slots__ = ("_caller", "_node", "_root")

    def __init__(self, root: Supervisor, caller: Caller, node: AgentRecord) -> None:
        self._root, self._caller, self._node = root, caller, node

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if not isinstance(error, OrchError):
            return
        denial = refusal(self._root.tree.agents, self._caller, ReadContent(self._node))
        if denial is not None:
            raise error_from(ErrorInfo(type(error).__name__, str(denial))) from None


async def local_model(root: Supervisor, backend: BackendSpec, id: str | None = None) -> BackendSpec:
    """Return `backend` if it is local. Otherwise return the model that the name `local` selects for the agent `id`.

    Raises ConfigError.
    """
    if not is_remote(backend):
        return backend
    found = await root.catalog_for(id).complete(BackendSpec(LOCAL))
    if is_remote(found):
        raise ConfigError(f"`local`: {found.provider} is at {found.options.get('base_url')}, which is not this machine")
    return replace(found, thinking=backend.thinking)


async def keep_local(root: Supervisor, caller: Caller, node: AgentRecord) -> None:
    """Restrict `node` to local models if the query gives local-only content to `node`.

    The content may come from the caller's conversation, or from the archive if `node` is a holder. Raises ConfigError
    if there is no local model.
    """
    if caller.is_user and not node.is_holder:
        return
    nodes = root.tree.agents
    related_ids = (caller.agent_id, node.spec.parent_id if node.is_holder else None)
    is_local = any(each is not None and each.spec.local for each in map(nodes.get, related_ids))
    if not is_local or node.spec.local or node.pending is not None:
        return
    try:
        backend = await local_model(root, node.spec.backend, node.spec.id)
    except ConfigError as error:
        raise ConfigError(f"cannot send local-only content to agent {node.spec.name!r}: {error}") from error
    restrict(root, node, backend)


def restrict(root: Supervisor, node: AgentRecord, backend: BackendSpec) -> None:
    """Restrict `node` and the holders of its archives to local models."""
    for each in (node, *(root.tree.agents[id] for id in node.children)):
        if each is node or (each.is_holder and not each.spec.local):
            current = each.spec.backend
            root.handle(
                events.LocalOnlyRequested(each.spec.id, backend if each is node or is_remote(current) else current)
            )
