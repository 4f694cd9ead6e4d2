"""The caller of a service: the user or an agent. Guards ask the caller what it may do.

The user is a person or the program that owns the run. For requests from the CLI, from slash commands and from the
Python API, the caller is the user. If a worker, or a command that an agent runs, sends the request, the caller is that
agent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final

from orch_protocol.core.errors import ConfigError
from orch_protocol.services.service import Scope

from ..tree.agents.state import AgentRecord, TreeState

__all__ = ["USER", "AgentCaller", "Caller", "Scope", "UserCaller", "is_below"]


class Caller(ABC):
    """The caller of a service."""

    __slots__ = ()

    is_user: ClassVar[bool]
    """Whether the caller is the user."""

    @property
    @abstractmethod
    def agent_id(self) -> str | None:
        """The id of the calling agent, None for the user. The journal identifies callers by this id."""

    @abstractmethod
    def reaches(self, agents: TreeState, id: str, scope: Scope) -> bool:
        """Return whether the caller reaches the agent or archive with the id `id`."""

    @abstractmethod
    def find_agent(self, agents: TreeState) -> AgentRecord | None:
        """Return the calling agent, None for the user."""

    def require_agent(self, agents: TreeState) -> AgentRecord:
        """Return the calling agent. Raises ConfigError for the user."""
        agent = self.find_agent(agents)
        if agent is None:
            raise ConfigError("only an agent can call this service for itself; the caller is the user")
        return agent

    @abstractmethod
    def describe(self, agents: TreeState) -> str:
        """Return a description of the caller for messages. The description is `the user`, or an agent's name and id."""


class UserCaller(Caller):
    """The user. The user reaches every agent."""

    __slots__ = ()

    is_user = True
    agent_id = None

    def reaches(self, agents: TreeState, id: str, scope: Scope) -> bool:  # noqa: ARG002
        """Return True."""
        return True

    def find_agent(self, agents: TreeState) -> None:
        """Return None."""

    def describe(self, agents: TreeState) -> str:  # noqa: ARG002
        """Return `the user`."""
        return "the user"


USER: Final = UserCaller()


class AgentCaller(Caller):
    """An agent. The agent reaches its descendants. It may also ask its peers, and archives given to it by the user.

    `from_command` is True if a command of the agent sent the request. Otherwise the agent's worker sent it.
    """

    __slots__ = ("_id", "from_command")

    is_user = False

    def __init__(self, id: str, *, from_command: bool = False) -> None:
        self._id = id
        self.from_command = from_command

    @property
    def agent_id(self) -> str:
        """The id of the calling agent."""
        return self._id

    def reaches(self, agents: TreeState, id: str, scope: Scope) -> bool:
        """Return whether the agent reaches the agent or archive `id` for `scope`."""
        if is_below(agents, self._id, id):
            return True
        if scope == "control":
            return False
        if id == self._id:
            return True
        spec = agents[self._id].spec
        return scope == "ask" and (id in spec.peers or id in spec.archives)

    def find_agent(self, agents: TreeState) -> AgentRecord:
        """Return the calling agent."""
        return agents[self._id]

    def describe(self, agents: TreeState) -> str:
        """Return the agent's name and id."""
        return f"agent {agents[self._id].spec.name!r} ({self._id})"


def is_below(agents: TreeState, above: str, id: str) -> bool:
    """Return whether the agent or archive `id` is a descendant of the agent `above`."""
    agent = agents.get(id)
    parent = agent.spec.parent_id if agent is not None else agents.holders.get(id)
    return any(each.spec.id == above for each in agents.chain(parent))
