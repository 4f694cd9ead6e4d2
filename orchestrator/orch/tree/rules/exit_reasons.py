"""Descriptions of processes that ended unexpectedly."""

from __future__ import annotations

import contextlib
import signal

from orch_protocol.core.errors import AgentDiedError, LaunchError, OrchError, Outcome

from ..agents.state import AgentRecord
from ..interface.events import ProcessExited

__all__ = ["STUCK", "describe_crash", "describe_exit_code", "exit_error"]

STUCK = "its process was stuck and did not answer"


def exit_error(agent: AgentRecord, exited: ProcessExited, detail: str, *, failed: bool = False) -> OrchError:
    """Return the error for callers that wait for `agent`.

    `detail` is the end of the process log, "" if there is no log. If `failed` is True, the next query does not start a
    new process.
    """
    name, id, code = agent.spec.name, agent.spec.id, exited.code
    if agent.status == "starting":
        launch_error = LaunchError(
            f"agent {name!r} ({id}) did not start: {exited.oom or detail or describe_exit_code(code)}"
        )
        return launch_error.as_outcome(_outcome(exited, "failed"))
    remedy = (
        f"`orch resume {agent.spec.seq}` makes it usable again" if failed else "the next query starts a new process"
    )
    death_error = AgentDiedError(
        f"agent {name!r} ({id}) died during a turn ({exited.oom or describe_exit_code(code)}); "
        f"its transcript is complete up to that point, and {remedy}" + (f"\n{detail}" if detail else "")
    )
    return death_error.as_outcome(_outcome(exited, "lost"))


def describe_crash(agent: AgentRecord) -> str:
    """Return a description of the agent's last crash since the last finished turn, "" if there was no crash."""
    if not agent.crashes:
        return ""
    if agent.end.startswith(STUCK):
        return "its code blocked the process, which was ended"
    code = agent.exit_code
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"{describe_exit_code(code)}, {signal.Signals(-code).name}"
    return describe_exit_code(code)


def _outcome(exited: ProcessExited, default: Outcome) -> Outcome:
    last_line = exited.detail.rstrip().rpartition("\n")[2]
    if exited.oom or (exited.code and last_line.startswith("MemoryError")):
        return "oom"
    return "timeout" if exited.timed_out else default


def describe_exit_code(code: int | None) -> str:
    """Return a description of the exit code `code`.

    A negative code is the number of a signal. None means that the code is unknown.
    """
    if code is None:
        return "its exit code is unknown"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
