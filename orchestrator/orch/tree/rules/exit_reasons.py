"""What is said of a process that ended before its work did."""

from __future__ import annotations

import contextlib
import signal

from orch_protocol.core.errors import AgentDiedError, LaunchError, OrchError, Outcome

from ..agents.state import AgentRecord
from ..journal.events import ProcessExited

__all__ = ["STUCK", "describe_crash", "describe_exit_code", "exit_error"]

STUCK = "its process was stuck and did not answer"


def exit_error(node: AgentRecord, gone: ProcessExited, detail: str, *, failed: bool = False) -> OrchError:
    """Return the error for whoever waits for `node`; `detail` is the end of its log, if that says anything. One that
    `failed` is not revived by the next query."""
    name, id, code = node.spec.name, node.spec.id, gone.code
    if node.status == "starting":
        late = LaunchError(f"agent {name!r} ({id}) did not come up: {gone.oom or detail or describe_exit_code(code)}")
        return late.as_outcome(_outcome(gone, "failed"))
    revived = f"`orch resume {node.spec.seq}` lets it answer again" if failed else "the next query revives it"
    died = AgentDiedError(
        f"agent {name!r} ({id}) died in the middle of a turn ({gone.oom or describe_exit_code(code)}); "
        f"its transcript is whole up to there, and {revived}" + (f"\n{detail}" if detail else "")
    )
    return died.as_outcome(_outcome(gone, "lost"))


def describe_crash(node: AgentRecord) -> str:
    """Return how the process of `node` ended that ended in a turn, since which it has finished none; "" for none."""
    if not node.crashes:
        return ""
    if node.end.startswith(STUCK):
        return "it let nothing else run, and was ended"
    code = node.exit_code
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"{describe_exit_code(code)}, {signal.Signals(-code).name}"
    return describe_exit_code(code)


def _outcome(gone: ProcessExited, else_: Outcome) -> Outcome:
    last = gone.detail.rstrip().rpartition("\n")[2]
    if gone.oom or (gone.code and last.startswith("MemoryError")):
        return "oom"
    return "timeout" if gone.late else else_


def describe_exit_code(code: int | None) -> str:
    """Return how a process with exit code `code` (minus the signal's number, None: not known) ended."""
    if code is None:
        return "its exit code is not known"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
