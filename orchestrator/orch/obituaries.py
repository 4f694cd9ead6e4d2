"""What is said of a process that ended before its work did."""

from __future__ import annotations

from orch_protocol.errors import AgentDiedError, LaunchError, OrchError

from .nodes import Node

__all__ = ["cause_of", "obituary"]


def obituary(node: Node, code: int | None, detail: str, *, failed: bool = False) -> OrchError:
    """Return the error for whoever waits for `node`; `detail` is the end of its log, if that says anything. One that
    `failed` is not revived by the next query."""
    name, id = node.spec.name, node.spec.id
    if node.status == "starting":
        return LaunchError(f"agent {name!r} ({id}) did not come up: {detail or cause_of(code)}")
    revived = f"`orch resume {node.spec.seq}` lets it answer again" if failed else "the next query revives it"
    return AgentDiedError(
        f"agent {name!r} ({id}) died in the middle of a turn ({cause_of(code)}); its transcript is whole up to "
        f"there, and {revived}" + (f"\n{detail}" if detail else "")
    )


def cause_of(code: int | None) -> str:
    """Return how a process with exit code `code` (minus the signal's number, None: not known) ended."""
    if code is None:
        return "its exit code is not known"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
