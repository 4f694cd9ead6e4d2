"""Resolution of agent references.

A reference is a sequence number, an id, a unique prefix of an id, a name, or `latest`.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from orch_protocol.core.errors import AgentNotFoundError, AmbiguousRefError

from .state import AgentRecord, TreeState

__all__ = ["LATEST", "resolve"]

LATEST = "latest"
"""The reserved name `latest` refers to the agent that was active last."""
MAX_SHOWN_CHARS = 80
MAX_COMPARED = 2000


def resolve(state: TreeState, ref: str, within: Callable[[str], bool] | None = None) -> AgentRecord:
    """Return the agent that `ref` refers to. Raises AgentNotFoundError, or AmbiguousRefError with the candidates.

    A reference of digits is a sequence number. Other references are compared in this order: exact id, name, unique
    prefix of an id. `latest` is the agent that was active last. Agents are ignored if `within` returns False for their
    id.
    """
    if within is not None:
        return _resolve_within(state, ref.strip(), within)
    ref = ref.strip()
    if not ref:
        raise AgentNotFoundError("an empty reference matches no agent; give a number, id or name (see `orch list`)")
    if ref.isdigit() and ref.isascii():
        number = ref.lstrip("0") or "0"
        agent = state.by_id.find_by_seq(int(number)) if len(number) < 19 else None
        if agent is None:
            raise AgentNotFoundError(
                f"no agent has number {_shorten_ref(ref)}; there are {len(state)} (see `orch list --all`)"
            )
        return agent
    agent = state.by_id.get(ref) or state.find_by_name(ref)
    if agent is not None:
        return agent
    # Packed agents have been resting for a long time, so none of them was active last.
    if ref == LATEST and (agents := [agent for agent in state.by_id.unpacked() if not agent.is_holder]):
        return max(agents, key=lambda agent: agent.last_activity)
    matches = [id for id in state.by_id if id.startswith(ref)]
    if len(matches) == 1:
        return state[matches[0]]
    if matches:
        shown_matches = ", ".join(f"{id} ({state[id].spec.name})" for id in matches[:8])
        rest_hint = f" and {len(matches) - 8} more" if len(matches) > 8 else ""
        raise AmbiguousRefError(
            f"{ref!r} is a prefix of {len(matches)} ids: {shown_matches}{rest_hint}; give more characters"
        )
    # Comparing names is slow and would delay a root that serves other clients.
    similar_names = get_close_matches(ref, list(state.names)[-MAX_COMPARED:], 1) if len(ref) <= MAX_SHOWN_CHARS else []
    hint = f"; did you mean {similar_names[0]!r}?" if similar_names else " (see `orch list --all`)"
    raise AgentNotFoundError(f"no agent has the name or id {_shorten_ref(ref)!r}{hint}")


def _resolve_within(state: TreeState, ref: str, within: Callable[[str], bool]) -> AgentRecord:
    if ref == LATEST:
        agents = (agent for agent in state.by_id.unpacked() if not agent.is_holder and within(agent.spec.id))
        if (latest := max(agents, key=lambda agent: agent.last_activity, default=None)) is not None:
            return latest
    if not ref.isdigit() and state.get(ref) is None and state.find_by_name(ref) is None:
        matches = [id for id in state.by_id if id.startswith(ref) and within(id)] if ref else []
        if len(matches) > 1:
            raise AmbiguousRefError(f"{ref!r} is a prefix of {len(matches)} ids: {', '.join(matches[:8])}")
        ref = matches[0] if matches else ref
    agent = resolve(state, ref)
    if not within(agent.spec.id):
        raise AgentNotFoundError(f"no agent goes by {_shorten_ref(ref)!r}")
    return agent


def _shorten_ref(ref: str) -> str:
    return ref if len(ref) <= MAX_SHOWN_CHARS else f"{ref[:MAX_SHOWN_CHARS]}..."
