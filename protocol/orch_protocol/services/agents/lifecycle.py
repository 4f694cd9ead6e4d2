"""Services that end agents, cancel turns, and resume agents."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ...policy.budget import BudgetChange
from ..service import USERS_ONLY, AgentFields, Reach, Service, agents_with
from .status import AgentRow

__all__ = ["CANCEL_TURN", "KILL", "RESUME", "CancelTurn", "Kill", "Killed", "Resume"]


class Kill(Struct, frozen=True, forbid_unknown_fields=True):
    """End agents and all their subagents.

    If `all` is True, `refs` must be empty. A user then ends every agent, and an agent ends all agents below it.
    """

    refs: tuple[str, ...] = ()
    all: bool = False
    dry_run: bool = False


class Killed(Struct, frozen=True, omit_defaults=True):
    """Ids of the killed agents, children before parents. If `dry_run` was True, these agents would be killed.

    `holders` are the ids of holders among `refs` and `ids`. Only their processes ended; their archives stay, and they
    answer the next query.
    """

    ids: tuple[str, ...]
    holders: tuple[str, ...] = ()


class CancelTurn(Struct, frozen=True, forbid_unknown_fields=True):
    """Cancel the turn of `ref` at the next safe point. `hard` kills the agent's process.

    The next query starts a new process.
    """

    ref: str
    hard: bool = False


class Resume(Struct, frozen=True, forbid_unknown_fields=True):
    """Let a killed or failed agent answer again. `budget` changes the agent's limits, even if the agent is running.

    If `credentials` is True, the agent uses the caller's API keys and servers from now on. If `all` is also True, the
    same applies to every agent that had the same API keys and servers as this agent.

    If `ends_with_connection` is True and the agent is resumed, the agent ends when the client that sent this request
    disconnects from the control socket.
    """

    ref: str
    budget: BudgetChange = BudgetChange()
    credentials: bool = False
    all: bool = False
    ends_with_connection: bool = False


KILL: Final = Service(
    "kill",
    Kill,
    Killed,
    agents_with("kill_subagent"),
    "End agents and all agents below them.",
    AgentFields(free=("all", "dry_run"), refs={"refs": Reach("kill", "control")}),
)
CANCEL_TURN: Final = Service("cancel", CancelTurn, AgentRow, USERS_ONLY, "Cancel the turn of an agent.")
RESUME: Final = Service("resume", Resume, AgentRow, USERS_ONLY, "Let a killed or failed agent answer again.")
