"""The service that lists the runs of a home: the daemon's and those of programs."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from ..service import USERS_ONLY, Empty, Service

__all__ = ["LIST_RUNS", "RunRow"]


class RunRow(Struct, frozen=True):
    """A run: the agents of one root. Times are ISO 8601 UTC.

    `folder` contains the journal, and `cwd` is the working folder of the latest top-level agent. `pid` is the process
    of the root of a running run. `agents` counts agents except holders and killed agents, as `DaemonStatus.agents`
    does; `busy` counts those that work. `cost_usd`, `cost_known` and `ceiling_usd` are those of the `Usage` of all
    agents and holders, also killed ones. `error` is the reason why the journal cannot be read, otherwise "".
    """

    name: str
    folder: str
    state: Literal["running", "ended"]
    pid: int | None
    agents: int = 0
    busy: int = 0
    cost_usd: float = 0.0
    last_activity: str = ""
    cwd: str = ""
    error: str = ""
    cost_known: bool = True
    ceiling_usd: float = 0.0


LIST_RUNS: Final = Service("runs", Empty, list[RunRow], USERS_ONLY, "List the runs of the daemon and of programs.")
