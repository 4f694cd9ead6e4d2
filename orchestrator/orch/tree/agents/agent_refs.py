"""From what a person types to the agent that is meant: sequence number, id, unique prefix of an id, name, or latest."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from orch_protocol.core.errors import AgentNotFoundError, AmbiguousRefError

from .state import AgentRecord, TreeState

__all__ = ["LATEST", "resolve"]

LATEST = "latest"
"""What no agent can be called: the one that was active last."""
MAX_SHOWN_CHARS = 80
MAX_COMPARED = 2000


def resolve(nodes: TreeState, ref: str, within: Callable[[str], bool] | None = None) -> AgentRecord:
    """Return the agent that `ref` means. Raises AgentNotFoundError or AmbiguousRefError, naming the candidates.

    All digits are a sequence number. Then, first match wins: exact id, name, prefix of exactly one id; `latest` is the
    agent that was active last. Agents whose id `within` rejects are treated as if they did not exist.
    """
    if within is not None:
        return _resolve_within(nodes, ref.strip(), within)
    ref = ref.strip()
    if not ref:
        raise AgentNotFoundError("an empty reference names no agent; give a number, id or name (see `orch list`)")
    if ref.isdigit() and ref.isascii():
        number = ref.lstrip("0") or "0"
        node = nodes.by_id.at(int(number)) if len(number) < 19 else None
        if node is None:
            raise AgentNotFoundError(
                f"no agent has number {_shown(ref)}; there are {len(nodes)} (see `orch list --all`)"
            )
        return node
    node = nodes.by_id.get(ref) or nodes.called(ref)
    if node is not None:
        return node
    # Of those that rest for long none was active last.
    if ref == LATEST and (agents := [node for node in nodes.by_id.unpacked() if not node.is_holder]):
        return max(agents, key=lambda node: node.last_activity)
    matches = [id for id in nodes.by_id if id.startswith(ref)]
    if len(matches) == 1:
        return nodes[matches[0]]
    if matches:
        found = ", ".join(f"{id} ({nodes[id].spec.name})" for id in matches[:8])
        more = f" and {len(matches) - 8} more" if len(matches) > 8 else ""
        raise AmbiguousRefError(f"{ref!r} is the beginning of {len(matches)} ids: {found}{more}; type more of it")
    # Comparing costs time, which a root that serves others does not have.
    close = get_close_matches(ref, list(nodes.names)[-MAX_COMPARED:], 1) if len(ref) <= MAX_SHOWN_CHARS else []
    hint = f"; did you mean {close[0]!r}?" if close else " (see `orch list --all`)"
    raise AgentNotFoundError(f"no agent goes by {_shown(ref)!r}{hint}")


def _resolve_within(nodes: TreeState, ref: str, within: Callable[[str], bool]) -> AgentRecord:
    if ref == LATEST:
        agents = (node for node in nodes.by_id.unpacked() if not node.is_holder and within(node.spec.id))
        if (latest := max(agents, key=lambda node: node.last_activity, default=None)) is not None:
            return latest
    if not ref.isdigit() and nodes.get(ref) is None and nodes.called(ref) is None:
        matches = [id for id in nodes.by_id if id.startswith(ref) and within(id)] if ref else []
        if len(matches) > 1:
            raise AmbiguousRefError(f"{ref!r} is the beginning of {len(matches)} ids: {', '.join(matches[:8])}")
        ref = matches[0] if matches else ref
    node = resolve(nodes, ref)
    if not within(node.spec.id):
        raise AgentNotFoundError(f"no agent goes by {_shown(ref)!r}")
    return node


def _shown(ref: str) -> str:
    return ref if len(ref) <= MAX_SHOWN_CHARS else f"{ref[:MAX_SHOWN_CHARS]}..."
